"""What the first tab computes: one simulation by the route of `rankfall simulate`, its theory, and what is drawn."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from rankfall.drawing.plots import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    line,
    lines,
    matrix,
    packed_places,
    packed_shares,
    panel,
)
from rankfall.dynamics.experiment import Experiment, MaskResult, run
from rankfall.dynamics.ordinary import attention_matrices
from rankfall.dynamics.sink_run import UNIT_COLUMN, sink_weights
from rankfall.dynamics.step import Rule
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.errors import RequestError
from rankfall.explorer.state import TokenState
from rankfall.explorer.widgets import as_text, facts, side_by_side, small
from rankfall.masks import MaskFacts, MaskSchedule, parse_mask
from rankfall.norms import parse_norm

# A screen shows no more than this many states of a run, and singular values cost as much as the layers themselves.
SHOWN_STATES = 40
# Factors above this are written by their distance from 1.
NEAR_ONE = 0.99995
MEASURES = ("effective_rank", "energy_rank")
CURVES_HEIGHT, MATRIX_HEIGHT, MOTION_HEIGHT = 400, 400, 470
# With more tokens than this the arrows of a graph hide each other.
GRAPH_TOKENS = 14


@final
@dataclass(frozen=True)
class TokenCurves:
    """By recorded layer: log10 mu, both ranks, the theorem's bound; `tokens` (layers, n, d).

    `followed` names which mu: with a sink, under which tokens become parallel and not equal, that of unit tokens.
    """

    layers: tuple[int, ...]
    log10_mu: tuple[float, ...]
    effective_rank: tuple[float, ...]
    energy_rank: tuple[float, ...]
    bound_log10_mu: tuple[float, ...] | None
    bound_rate: float | None
    bound_log10_gap: float | None
    bound_reason: str | None
    tail_rate: float | None
    tail_reason: str | None
    measured_rate: float | None
    facts: MaskFacts
    tokens: Tensor
    followed: str = "mu"


def thinning(depth: int) -> int:
    """Every how many layers are recorded."""
    return max(1, -(-depth // SHOWN_STATES))


def experiment_of(state: TokenState) -> Experiment:
    """The experiment that the page, the command and the Python shown all run."""
    return Experiment(
        masks=(MaskSchedule((parse_mask(state.mask),)),),
        recipe=WeightRecipe(state.width, state.query_key, state.value, state.heads),
        tokens=state.tokens,
        layers=state.depth,
        rule=Rule(parse_norm(state.norm), state.placement, state.residual),  # type: ignore[arg-type]
        temperature=state.temperature,
        seeds=(state.seed,),
        thin=thinning(state.depth),
        keep_tokens=True,
        measures=MEASURES,
        checks=False,
        sink=sink_of(state),
    )


def sink_of(state: TokenState) -> float | None:
    """The logit of the sink; None without one."""
    return None if state.sink == "none" else float(state.sink)


def followed_column(state: TokenState) -> str:
    """The column of a simulation whose fall is drawn."""
    return f"log10_{UNIT_COLUMN}" if experiment_of(state).sink_shows else "log10_mu"


def token_curves(state: TokenState) -> TokenCurves:
    """Simulate; settings that only change what is shown of a run do not run it again."""
    return _simulated(replace(state, layer=TokenState.layer, view=TokenState.view))


@functools.lru_cache(maxsize=32)
def _simulated(state: TokenState) -> TokenCurves:
    report: MaskResult = run(experiment_of(state))[0]
    rate = report.rates[0]
    bound = report.bound_log_mu
    assert report.kept is not None

    def column(name: str) -> tuple[float, ...]:
        return tuple(row[name] for row in report.records)

    return TokenCurves(
        layers=tuple(row["layer"] for row in report.records),
        log10_mu=column(report.followed),
        effective_rank=column("effective_rank"),
        energy_rank=column("energy_rank"),
        bound_log10_mu=None if bound is None else tuple((bound / math.log(10)).tolist()),
        bound_rate=None if report.theorem.bound is None else report.theorem.bound.rate,
        bound_log10_gap=None if report.theorem.bound is None else report.theorem.bound.log_gap() / math.log(10),
        bound_reason=report.theorem.reason,
        tail_rate=report.tail_rate,
        tail_reason=report.tail_reason,
        measured_rate=None if rate is None else rate.rate,
        facts=report.theorem.facts,
        tokens=report.kept[:, 0],
        followed=report.followed.removeprefix("log10_").replace("_", " "),
    )


def nearest_row(curves: TokenCurves, layer: int) -> int:
    """The place of the recorded layer nearest to the one asked for."""
    return min(range(len(curves.layers)), key=lambda row: abs(curves.layers[row] - layer))


def attention_at(state: TokenState, curves: TokenCurves, row: int) -> Tensor:
    """The attention (n, n), averaged over heads, that the layer after the recorded one applies."""
    experiment = experiment_of(state)
    weights = DrawnWeights(experiment.recipe, experiment.seeds, [experiment.temperature])
    if experiment.sink is not None:
        tokens, rule = curves.tokens[row], experiment.rule.at(0)
        given = tokens if rule.placement == "post" else rule.norm(tokens)
        allowed = parse_mask(state.mask).dense(state.tokens)
        return sink_weights(given[None], weights.at(0), allowed, experiment.sink)[0].mean(dim=0)
    return next(attention_matrices(curves.tokens[row : row + 1], weights, experiment.masks[0], 1, experiment.rule))


def summary(curves: TokenCurves) -> list[tuple[str, str]]:
    """The run in a few words: question and answer."""
    facts = curves.facts
    graph = "none" if facts.radius is None else f"{facts.radius}"
    return [
        (f"{curves.followed} falls by", _per_layer(curves.measured_rate)),
        ("tail, by theory", _per_layer(curves.tail_rate) if curves.tail_rate is not None else "not known"),
        ("theorem's bound", _bound(curves)),
        ("effective rank", _from_to(curves.effective_rank)),
        ("energy rank", _from_to(curves.energy_rank)),
        ("radius of the mask", graph),
        ("roots", f"{len(facts.roots)} of {facts.tokens}"),
    ]


def _from_to(column: Sequence[float]) -> str:
    return f"{column[0]:.3g} to {column[-1]:.3g}"


def _bound(curves: TokenCurves) -> str:
    """The bound's factor; how far below 1 it is where it rounds to 1."""
    if curves.bound_rate is None or curves.bound_log10_gap is None:
        return "does not apply"
    if curves.bound_rate < NEAR_ONE:
        return _per_layer(curves.bound_rate)
    return f"1 - 10^{curves.bound_log10_gap:.1f} a layer"


def _per_layer(rate: float | None) -> str:
    if rate is None:
        return "no steady rate"
    return f"{rate:.4g} a layer" if rate < NEAR_ONE else f"1 - {1 - rate:.1e} a layer"


def reasons(curves: TokenCurves) -> list[str]:
    """Why a theorem or the tail is not drawn, where it is not."""
    said = []
    if curves.bound_reason is not None:
        said.append(f"The theorem does not apply: {curves.bound_reason}.")
    if curves.tail_reason is not None:
        said.append(f"Tail rate: {curves.tail_reason}.")
    return said


def shown_coordinates(tokens: Tensor, axes: int) -> tuple[Tensor, float]:
    """Tokens (layers, n, d) scaled to length one, in the fixed 2 or 3 directions that hold most of them.

    Returns (layers, n, axes) and the share of the squared lengths shown. Up to `axes` dimensions nothing is turned
    or lost; the same directions serve all layers, so that what moves on the screen moves in space.
    """
    length = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
    unit = tokens / length.where(length > 0, 1.0)
    d = unit.shape[-1]
    if d <= axes:
        return torch.nn.functional.pad(unit, (0, axes - d)), 1.0
    flat = unit.reshape(-1, d)
    values, directions = torch.linalg.eigh(flat.T @ flat)
    kept = directions[:, -axes:].flip(-1)
    # A direction is known up to its sign: the largest entry is made positive, so that redraws do not flip.
    kept = kept * torch.sign(kept.gather(0, kept.abs().argmax(dim=0, keepdim=True)))
    share: Any = values[-axes:].sum() / values.sum()
    return unit @ kept, float(share)


def draw_depth(curves: TokenCurves, layer: int) -> dict[str, Any]:
    """Above log10 mu, below effective and energy rank; a thin line marks the layer that is shown elsewhere."""
    fall = [line(f"{curves.followed}, measured", curves.layers, curves.log10_mu, BLUE)]
    if curves.bound_log10_mu is not None:
        fall.append(line("theorem's bound", curves.layers, curves.bound_log10_mu, VERMILION, dash="dash"))
    tail = tail_line(curves)
    if tail is not None:
        fall.append(line("tail rate, by theory", *tail, ORANGE, dash="dot", width=3))
    ranks = [
        line("effective rank", curves.layers, curves.effective_rank, GREEN),
        line("energy rank", curves.layers, curves.energy_rank, PURPLE, dash="dash"),
    ]
    panels = [panel(f"log10 {curves.followed}", fall, share=6), panel("rank", ranks, share=4, zero=True)]
    return lines("depth", "Collapse by depth", {"label": "layer"}, panels, mark=layer, height=CURVES_HEIGHT)


def tail_line(curves: TokenCurves) -> tuple[list[float], list[float]] | None:
    """The line of the tail rate through the curve's end, over its last two thirds; None where there is none to draw.

    A cubic fall is faster than any line: nothing is drawn then.
    """
    rate, end = curves.tail_rate, curves.log10_mu[-1]
    if rate is None or not 0 < rate < 1 or not math.isfinite(end) or curves.layers[-1] == 0:
        return None
    last = curves.layers[-1]
    start = last / 3
    return [start, float(last)], [end - (last - start) * math.log10(rate), end]


def draw_attention(attention: Tensor, mask: str, layer: int) -> dict[str, Any]:
    """Row i: how token i spreads its attention. What the mask forbids stays empty."""
    n = attention.shape[-1]
    top = max(float(attention.max()), 1e-12)
    heat = {
        "name": "attention",
        "size": [n, n],
        "packed": packed_shares(attention, parse_mask(mask).dense(n), top),
        "top": top,
        "scale": {"low": 0, "high": top},
        "says": "token {row} attends to {column}",
        "empty": "forbidden by the mask",
    }
    title = f"Attention in layer {layer + 1}"
    return matrix("attention", title, ("attends to", "token"), heat, MATRIX_HEIGHT)


def draw_graph(mask: str, tokens: int) -> dict[str, Any]:
    """Tokens on a circle, an arrow where information flows; roots, which reach everyone, stand out."""
    n = graph_tokens(mask, tokens)
    kind = parse_mask(mask)
    allowed, roots = kind.dense(n), set(kind.facts(n).roots)
    seen = (allowed & ~torch.eye(n, dtype=torch.bool)).nonzero().tolist()
    count = "" if n == tokens else f" at {n} tokens"
    return {
        "kind": "graph",
        "name": "graph",
        "title": f"The mask's graph{count}, roots in orange",
        "height": MATRIX_HEIGHT,
        # Who attends is where information arrives.
        "edges": [[source, target] for target, source in seen],
        "tokens": [
            {
                "says": f"token {k}" + (", a root: reaches everyone" if k in roots else ""),
                "colour": VERMILION if k in roots else BLUE,
            }
            for k in range(n)
        ],
    }


def graph_tokens(mask: str, tokens: int) -> int:
    """How many tokens to draw: few, unless the mask only exists for more."""
    for n in range(min(tokens, GRAPH_TOKENS), tokens):
        try:
            parse_mask(mask).check(n)
        except RequestError:
            continue
        return n
    return tokens


def draw_motion(curves: TokenCurves, view: str, layer: int) -> dict[str, Any]:
    """Each token keeps its colour, from first to last; what is shown starts at the given layer."""
    axes = 3 if view == "3-D" else 2
    points, share = shown_coordinates(curves.tokens, axes)
    title = "Tokens on the sphere" + ("" if share > 0.9995 else f": {axes} directions, {share:.0%} of what there is")
    return {
        "kind": "motion",
        "name": "motion",
        "title": title,
        "height": MOTION_HEIGHT,
        "axes": axes,
        "tokens": points.shape[1],
        "layers": list(curves.layers),
        "row": nearest_row(curves, layer),
        "places": packed_places(points),
    }


def token_view(token: TokenState) -> Any:
    """A run in words, its tokens, its curves, the attention of the layer shown, and the mask's graph."""
    import marimo as mo

    try:
        curves = token_curves(token)
    except RequestError as error:
        return mo.callout(as_text(f"Not possible: {error}"), kind="warn")
    row = nearest_row(curves, token.layer)
    layer = curves.layers[row]
    # In an element of their own, also when empty: with one child more the page would make all plots anew.
    why = f"<div>{''.join(map(small, reasons(curves)))}</div>"
    plots = side_by_side(
        draw_motion(curves, token.view, layer),
        draw_depth(curves, layer),
        draw_attention(attention_at(token, curves, row), token.mask, layer),
        draw_graph(token.mask, token.tokens),
    )
    return mo.Html("".join([facts(summary(curves)), why, plots.text]))
