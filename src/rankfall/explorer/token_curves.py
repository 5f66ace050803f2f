"""What the first tab computes: one simulation by the route of `rankfall simulate`, and its theory, in words."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from rankfall.dynamics.experiment import Experiment, MaskResult, run
from rankfall.dynamics.ordinary import attention_matrices
from rankfall.dynamics.sink_run import UNIT_COLUMN, sink_weights
from rankfall.dynamics.step import Rule
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.explorer.state import TokenState
from rankfall.masks import MaskFacts, MaskSchedule, parse_mask
from rankfall.norms import parse_norm

# A screen shows no more than this many states of a run, and singular values cost as much as the layers themselves.
SHOWN_STATES = 40
# Factors above this are written by their distance from 1.
NEAR_ONE = 0.99995
MEASURES = ("effective_rank", "energy_rank")


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
    """Why a theorem or the tail is not drawn, where it is not, or the tail is not what was measured."""
    said = []
    if curves.bound_reason is not None:
        said.append(f"The theorem does not apply: {curves.bound_reason}.")
    if curves.tail_reason is not None:
        said.append(f"Tail rate: {curves.tail_reason}.")
    return said
