"""What depth does to tokens, exactly, with the theorem's rate beside the measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from math import log
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require, require_count, require_number, require_seed
from rankfall.progress import Progress, silent
from rankfall.system import require_device, require_room

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.dynamics.experiment import MaskResult
    from rankfall.masks import Mask, MaskSchedule
    from rankfall.norms import Norm
    from rankfall.report.document import Document

DEFAULT_MASKS = ("causal", "window:4", "causal-window:4", "global-window:1:4", "complete")
# Below this many numbers a GPU has nothing to win.
NUMBERS_FOR_A_GPU = 1 << 16
MOST_SEEDS = 1_000_000
MOST_LAYERS = 10**8
MOST_OPERATIONS = 1e17
"""A day on a fast machine, months on a slow one: nobody means to ask for more."""
BYTES_OF_A_RECORD = 2_000
"""One layer of one sample in a result, as Python holds it."""


@final
@dataclass(frozen=True, repr=False, eq=False)
class SimulationResult(Result):
    """One simulation. Its fields speak of the first mask; `others` holds a result for each of the rest."""

    verb: ClassVar[str] = "simulate"
    settings: dict[str, Any]
    """What was simulated: tokens, dim, norm, placement, residual, sink, value, query_key, heads, temperature,
    seeds."""
    reports: tuple[MaskResult, ...]
    """What each mask did, theorem and certificate included."""

    @property
    def mask(self) -> str:
        """The mask, as an argument names it."""
        return str(self.reports[0].mask)

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One record per layer: `layer`, `log10_mu` and the measures."""
        return self.reports[0].records

    @property
    def measured_rate(self) -> float | None:
        """The factor by which mu falls in a layer, fitted; None where too few layers were run."""
        return self.reports[0].measured_rate

    @property
    def tail_rate(self) -> float | None:
        """The factor that linear theory predicts for the tail; None where it predicts none."""
        return self.reports[0].tail_rate

    @property
    def bound_applies(self) -> bool:
        """Whether the hypotheses of the theorem hold."""
        return self.reports[0].theorem.applies

    @property
    def bound_rate(self) -> float | None:
        """The factor that the theorem promises at most; None where it does not apply."""
        return self.reports[0].bound_rate

    @property
    def others(self) -> tuple[SimulationResult, ...]:
        """The same for the second mask and those after it."""
        return tuple(SimulationResult(self.settings, (one,)) for one in self.reports[1:])

    def tables(self) -> dict[str, pd.DataFrame]:
        """`layers`: every layer under every mask; `rates`: a row per mask; `hypotheses` of the theorems;
        `first_token`: the first token's share by depth when attention follows positions alone."""
        return {
            "layers": frame({"mask": str(one.mask), **row} for one in self.reports for row in one.records),
            "rates": frame(_rates(one) for one in self.reports),
            "hypotheses": frame(
                {"mask": str(one.mask), "theorem": one.theorem.statement, **asdict(hypothesis)}
                for one in self.reports
                for hypothesis in one.theorem.hypotheses
            ),
            "first_token": frame({"mask": str(one.mask), **row} for one in self.reports for row in one.first_token),
        }

    @property
    def title(self) -> str:
        """What was simulated, in words."""
        of = self.settings
        return f"{of['tokens']} tokens of width {of['dim']}, norm: {of['norm']}, values: {of['value']}"

    def _record(self) -> dict[str, Any]:
        first, *rest = (_record(one) for one in self.reports)
        return {"settings": self.settings, **first, "others": rest}

    def _lines(self) -> list[str]:
        lines = [f"{self.title}, {self.layers[-1]['layer']} layers"]
        for one in self.reports:
            rate = one.measured_rate
            fell = "too few layers to tell" if rate is None else f"{one.law}, factor {rate:.4g} a layer"
            tail = "" if one.tail_rate is None else f", theory {one.tail_rate:.4g}"
            said = "no bound applies" if one.bound_rate is None else f"bound {one.bound_rate:.6g}"
            lines.append(f"{one.mask}: {fell}{tail}, {said}; log10 mu {one.records[-1]['log10_mu']:.4g} at the end")
        return lines

    def _figure(self) -> Figure:
        from rankfall.drawing.collapse import curve_of, draw_collapse

        return draw_collapse([curve_of(one) for one in self.reports], self.title)

    def _document(self, command: str) -> Document:
        from rankfall.report.simulation import simulation_document

        return simulation_document(self.reports, self.title, command)


def simulate(
    mask: str | Mask | MaskSchedule | Sequence[str | Mask | MaskSchedule] | None = None,
    norm: str | Norm = "none",
    *,
    value: str = "orthogonal",
    query_key: str | None = None,
    tokens: int | None = None,
    width: int | None = None,
    layers: int = 400,
    temperature: float = 1.0,
    heads: int = 1,
    residual: float = 0.0,
    placement: str = "post",
    sink: float | None = None,
    per_layer: bool = False,
    seed: int = 0,
    seeds: int = 1,
    thin: int = 1,
    keep_tokens: bool = False,
    device: str | None = None,
    progress: Progress = silent,
) -> SimulationResult:
    """Run tokens through attention layers and follow their collapse, exactly far below machine precision.

    `mask` is a name such as `window:4`, a mask, a schedule, or several of them to compare; without it five masks are
    compared. Tokens are 64 of width 32 unless told, or the two of the counterexample. Several `seeds` give medians.
    `sink` is the logit of a learned sink (0: off-by-one softmax): rows of attention then sum to less than one, tokens
    become parallel rather than equal, and rates are those of mu of the tokens scaled to length one; several heads
    are then followed in float64 only.
    """
    import torch

    from rankfall.dynamics.experiment import Experiment, run
    from rankfall.dynamics.step import Rule
    from rankfall.dynamics.weights import LEAST_TEMPERATURE, WeightRecipe

    small = value == "counterexample"
    count = tokens if tokens is not None else (2 if small else 64)
    wide = width if width is not None else (2 if small else 32)
    masks = _several(mask) or (("causal",) if small else DEFAULT_MASKS)
    require_count("seeds", seeds, most=MOST_SEEDS)
    require_count("layers", layers, least=0, most=MOST_LAYERS)
    require_count("thin", thin)
    require_number("the temperature", temperature, above=0)
    require_number("the temperature", temperature, least=LEAST_TEMPERATURE)
    require_number("the residual", residual)
    if sink is not None:
        require_number("the sink's logit", sink)
    require_seed(seed)
    schedules = tuple(_schedule(one) for one in masks)
    keys = [count if sink is not None else _keys_held(one, count) for one in schedules]
    _require_bearable(count, wide, heads, layers, seeds, thin, keep_tokens, keys)
    large = count * wide >= NUMBERS_FOR_A_GPU
    device = require_device(device or ("cuda" if torch.cuda.is_available() and large else "cpu"))
    experiment = Experiment(
        masks=schedules,
        recipe=WeightRecipe(wide, query_key or ("zero" if small else "random"), value, heads, per_layer=per_layer),
        tokens=count,
        layers=layers,
        rule=Rule(_norm(norm), placement, residual),  # type: ignore[arg-type]
        temperature=temperature,
        seeds=tuple(range(seed, seed + seeds)),
        thin=thin,
        keep_tokens=keep_tokens,
        device=device,
        sink=sink,
    )
    reports = run(experiment, progress)
    settings = {
        "tokens": count,
        "dim": wide,
        "norm": _norm_name(norm),
        "placement": placement,
        "residual": residual,
        "sink": sink,
        "value": value,
        "query_key": experiment.recipe.query_key,
        "heads": heads,
        "temperature": temperature,
        "seeds": list(experiment.seeds),
        "device": device,
    }
    return SimulationResult(settings, tuple(reports))


def _require_bearable(
    tokens: int, width: int, heads: int, layers: int, seeds: int, thin: int, keep_tokens: bool, keys: Sequence[int]
) -> None:
    """Refuse sizes that no memory holds and nobody waits for, before anything is drawn.

    `keys` are those held for each token, mask by mask.
    """
    for name, size in (("tokens", tokens), ("heads", heads)):
        require_count(f"the number of {name}", size)
    require_count("the width", width)
    kept, samples = layers // thin + 2, seeds * len(keys)
    numbers = seeds * heads * 6 * tokens * sum(keys) + samples * heads * 3 * width**2
    numbers += samples * tokens * width * (12 + kept * keep_tokens)
    needed = 8 * numbers + BYTES_OF_A_RECORD * samples * kept
    require_room(needed, "for a simulation of this size", "fewer tokens, layers or seeds, or a larger `thin`")
    operations = 20.0 * heads * layers * tokens * width * (seeds * sum(keys) + samples * width)
    operations += 2.0 * samples * kept * tokens**2 * width  # cosines of all pairs
    require(
        operations <= MOST_OPERATIONS,
        required=f"a simulation of at most {MOST_OPERATIONS:.0e} operations",
        got=f"about {operations:.0e}",
        remedy="fewer tokens, layers or seeds, or a smaller width",
    )


def _keys_held(masks: MaskSchedule, tokens: int) -> int:
    """How many keys beside each token attention holds: those of the band it follows, or all."""
    from rankfall.mechanism.attend import keys_of_a_block, pays

    band = masks.at(0).band(tokens) if masks.period == 1 and tokens > 0 else None
    return keys_of_a_block(band) if band is not None and pays(band, tokens) else tokens


def _several(mask: Any) -> tuple[Any, ...]:
    return () if mask is None else tuple(mask) if isinstance(mask, (list, tuple)) else (mask,)


def _schedule(mask: str | Mask | MaskSchedule) -> MaskSchedule:
    from rankfall.masks import Mask, MaskSchedule, parse_schedule

    if isinstance(mask, Mask):
        return MaskSchedule((mask,))
    return parse_schedule(mask) if isinstance(mask, str) else mask


def _norm(norm: str | Norm) -> Norm:
    from rankfall.norms import parse_norm

    return parse_norm(norm) if isinstance(norm, str) else norm


def _norm_name(norm: str | Norm) -> str:
    return norm if isinstance(norm, str) else ":".join([norm.name, *map(str, astuple(norm))])


def _record(report: MaskResult) -> dict[str, Any]:
    facts, theorem = report.theorem.facts, report.theorem
    record: dict[str, Any] = {
        "mask": {
            "name": str(report.mask),
            "radius": facts.radius,
            "diameter": facts.diameter,
            "roots": list(facts.roots),
            "strongly_connected": facts.strongly_connected,
            "quasi_strongly_connected": facts.quasi_strongly_connected,
        },
        "exact": report.exact,
        "measured_rate": report.measured_rate,
        "measured": [asdict(rate) if rate is not None else None for rate in report.rates],
        "theorem": theorem.statement,
        "bound_applies": theorem.applies,
        "bound_rate": report.bound_rate,
        "bound_log_rate": theorem.bound.log_rate if theorem.bound is not None else None,
        "bound_least_weight": theorem.bound.least_weight if theorem.bound is not None else None,
        "bound_reason": theorem.reason,
        "hypotheses": [asdict(one) for one in theorem.hypotheses],
        "tail_rate": report.tail_rate,
        "tail_reason": report.tail_reason,
        "shrink_rate": report.shrink_rate,
        "certificate": report.certificate,
        "ordinary_route_floor": report.floors[0],
        "ordinary_route_floors": report.floors,
        "bound_log10_mu": None if report.bound_log_mu is None else report.bound_log_mu / log(10),
        "first_token": list(report.first_token),
        "layers": report.records,
    }
    if report.kept is not None:
        record["tokens"] = report.kept
    return record


def _rates(report: MaskResult) -> dict[str, Any]:
    return {
        "mask": str(report.mask),
        "radius": report.theorem.facts.radius,
        "law": report.law,
        "measured_rate": report.measured_rate,
        "tail_rate": report.tail_rate,
        "shrink_rate": report.shrink_rate,
        "bound_rate": report.bound_rate,
        "log10_mu": report.records[-1]["log10_mu"],
        "ordinary_route_log10_mu": report.floors[0]["log10_mu"],
    }
