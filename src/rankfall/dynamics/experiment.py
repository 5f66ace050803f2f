"""A whole experiment from names: masks and seeds through one program, theory and measured rate beside each mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from rankfall.dynamics.measure_table import DEFAULT_MEASURES
from rankfall.dynamics.ordinary import certificate
from rankfall.dynamics.rate import MeasuredRate, measured_rate
from rankfall.dynamics.sink_run import UNIT_COLUMN, norm_hides_the_sink, run_with_sink
from rankfall.dynamics.step import PURE_ATTENTION, Rule, counterexample_tokens, random_tokens
from rankfall.dynamics.tail import require_kept, shrink_rate, tail_of, too_far_for_a_tail, why_below
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.errors import require_count
from rankfall.masks import MaskSchedule
from rankfall.progress import Progress, silent
from rankfall.theory.collapse import CollapseTheorem, Hypothesis, collapse_theorem
from rankfall.theory.first_token import RotaryDecay, first_token_mass
from rankfall.theory.norm_collapse import norm_collapse_theorem

# Products of attention matrices cost n^3 a layer; a few hundred layers show their rate.
CERTIFIED_TOKENS, CERTIFIED_LAYERS = 256, 200
# Differences of a smaller share of the tokens are rounding in plain float64.
LOG10_ROUNDING = -13.0
# Products for the first token's mass, in multiplications: a fraction of a second.
FIRST_TOKEN_OPERATIONS = 20_000_000


@final
@dataclass(frozen=True)
class Experiment:
    """Every mask with every seed; weights and starting tokens of one seed are the same under all masks.

    `sink` is the logit of a key that every token sees and that gives nothing. `checks` runs plain float64 and the
    products of attention matrices beside it, which costs several times the simulation itself and changes none of its
    numbers.
    """

    masks: tuple[MaskSchedule, ...]
    recipe: WeightRecipe
    tokens: int
    layers: int
    rule: Rule = PURE_ATTENTION
    temperature: float = 1.0
    seeds: tuple[int, ...] = (0,)
    thin: int = 1
    keep_tokens: bool = False
    measures: tuple[str, ...] = DEFAULT_MEASURES
    device: str = "cpu"
    checks: bool = True
    sink: float | None = None

    @property
    def sink_shows(self) -> bool:
        """Whether there is a sink that changes the tokens' course."""
        return self.sink is not None and not norm_hides_the_sink(self.rule, self.recipe.width, self.recipe.heads)


@final
@dataclass(frozen=True)
class MaskResult:
    """What one mask did: its simulation's samples (one per seed), the theorem, the tail, the measured rates."""

    mask: MaskSchedule
    seeds: tuple[int, ...]
    records: list[dict[str, Any]]
    theorem: CollapseTheorem
    tail_rate: float | None
    tail_reason: str | None
    """Why linear theory gives no tail rate, or why what was measured falls below it."""
    rates: list[MeasuredRate | None]
    floors: list[dict[str, Any]]
    certificate: dict[str, Any] | None
    bound_log_mu: Tensor | None
    exact: bool
    kept: Tensor | None = field(repr=False, default=None)
    shrink_rate: float | None = None
    """Under a sink the factor a layer by which all tokens shrink in the end, where linear theory gives it."""
    first_token: tuple[dict[str, Any], ...] = ()
    """The first token's share by positions alone, see `first_token_rows`."""

    @property
    def law(self) -> str | None:
        """How mu of the first seed falls; None where too few layers were run to tell."""
        return None if self.rates[0] is None else self.rates[0].law

    @property
    def measured_rate(self) -> float | None:
        """The factor by which mu of the first seed falls in a layer, fitted; None where too few layers were run."""
        return None if self.rates[0] is None else self.rates[0].rate

    @property
    def bound_rate(self) -> float | None:
        """The factor that the theorem promises at most; None where it does not apply."""
        return None if self.theorem.bound is None else self.theorem.bound.rate

    @property
    def followed(self) -> str:
        """The column whose rate was measured: that of mu, or with a sink of tokens scaled to length one."""
        unit = f"log10_{UNIT_COLUMN}"
        return unit if unit in self.records[0] else "log10_mu"


def run(experiment: Experiment, progress: Progress = silent) -> list[MaskResult]:
    """Simulate all masks and seeds as one batch, then set the theory beside each mask."""
    require_count("the number of tokens", experiment.tokens)
    start = counterexample_tokens if experiment.recipe.value == "counterexample" else random_tokens
    own = start(experiment.seeds, experiment.tokens, experiment.recipe.width).to(experiment.device)
    if experiment.rule.placement == "post":
        own = experiment.rule.norm(own)  # tokens start as a layer would leave them
    copies, seeds = len(experiment.masks), len(experiment.seeds)
    if experiment.sink is not None:
        return [_run_with_sink(experiment, own, place, progress) for place in range(copies)]
    weights = DrawnWeights(
        experiment.recipe,
        experiment.seeds * copies,
        [experiment.temperature] * (seeds * copies),
        experiment.device,
    )
    masks = [mask for mask in experiment.masks for _ in range(seeds)]
    done = run_layers(
        own.repeat(copies, 1, 1),
        weights,
        masks if copies > 1 else masks[0],
        experiment.layers,
        experiment.rule,
        measures=experiment.measures,
        thin=experiment.thin,
        keep_tokens=experiment.keep_tokens,
        ordinary=experiment.checks,
        progress=progress,
    )
    return [
        _result(experiment, done, own, experiment.masks[place], range(place * seeds, (place + 1) * seeds))
        for place in range(copies)
    ]


def _run_with_sink(experiment: Experiment, own: Tensor, place: int, progress: Progress) -> MaskResult:
    """One mask after the other: under a sink samples of different masks have little in common."""
    assert experiment.sink is not None
    seeds, copies = len(experiment.seeds), len(experiment.masks)
    done = run_with_sink(
        own,
        DrawnWeights(experiment.recipe, experiment.seeds, [experiment.temperature] * seeds, experiment.device),
        experiment.masks[place],
        experiment.layers,
        experiment.sink,
        experiment.rule,
        measures=experiment.measures,
        thin=experiment.thin,
        keep_tokens=experiment.keep_tokens,
        ordinary=experiment.checks,
        progress=lambda what, share: progress(what, (place + share) / copies),
    )
    return _result(experiment, done, own, experiment.masks[place], range(seeds))


def _result(experiment: Experiment, done: Trajectory, own: Tensor, mask: MaskSchedule, samples: range) -> MaskResult:
    one = DrawnWeights(experiment.recipe, experiment.seeds[:1], [experiment.temperature])
    first = own[:1].cpu()
    depth = experiment.layers if experiment.recipe.per_layer else 1
    theorem = _theorem(experiment)(
        [one.at(layer) for layer in range(max(1, depth))],
        mask,
        first[0],
        norm=experiment.rule.norm,
        residual=experiment.rule.residual,
    )
    if experiment.sink_shows:
        theorem = replace(theorem, hypotheses=(*theorem.hypotheses, _no_sink(experiment.sink)), bound=None)
    proved = None
    # Under a norm the product of attention matrices is not what moves the tokens.
    small = experiment.tokens <= CERTIFIED_TOKENS and experiment.layers > 0
    if experiment.checks and small and theorem.applies and experiment.rule.norm.identity:
        proved = certificate(first, one, mask, min(experiment.layers, CERTIFIED_LAYERS), experiment.rule)
    tail, reason = tail_of(experiment, mask, one)
    if tail is not None and not theorem.applies:
        reason = too_far_for_a_tail(experiment, done, samples)
        tail = tail if reason is None else None
    rates = [_rate(done, sample) for sample in samples]
    if tail is not None:
        if done.exact:
            require_kept(done, mask, samples, tail)
        reason = why_below(tail, rates[0], first[0], done.final.residual[samples[0]].cpu())
    return MaskResult(
        mask=mask,
        seeds=experiment.seeds,
        records=_over_seeds(done, list(samples)),
        theorem=theorem,
        tail_rate=tail,
        tail_reason=reason,
        rates=rates,
        floors=[asdict(done.floors[sample]) for sample in samples] if done.floors is not None else [],
        certificate=asdict(proved) if proved is not None else None,
        bound_log_mu=theorem.log_mu(torch.tensor(done.layers)) if theorem.applies else None,
        exact=done.exact,
        kept=done.kept[:, list(samples)] if done.kept is not None else None,
        shrink_rate=shrink_rate(experiment, mask) if tail is not None else None,
        first_token=first_token_rows(experiment, mask) if experiment.checks else (),
    )


def first_token_rows(experiment: Experiment, mask: MaskSchedule) -> tuple[dict[str, Any], ...]:
    """The first token's mass after 1, 2, 4, ... layers, uniform and under rotary decay at its strongest.

    None where products of so many layers of so many tokens would take longer than the simulation.
    """
    recipe, n = experiment.recipe, experiment.tokens
    layers = min(experiment.layers, FIRST_TOKEN_OPERATIONS // n**2)
    if layers < 1 or experiment.rule.residual < 0:
        return ()
    rotary = RotaryDecay(rank=max(2, recipe.head_rank // 2 * 2))
    # A norm that gives every token its length back hides the sink here as well.
    options = {"sinks": experiment.sink if experiment.sink_shows else None, "residual": experiment.rule.residual}
    both = [first_token_mass(mask, n, layers, rotary=decay, **options) for decay in (None, rotary)]  # type: ignore[arg-type]
    return tuple(
        {**asdict(plain), **{f"rotary_{name}": value for name, value in asdict(turned).items() if name != "layer"}}
        for plain, turned in zip(*both, strict=True)
        if plain.layer & (plain.layer - 1) == 0 or plain.layer == layers
    )


def _rate(done: Trajectory, sample: int) -> MeasuredRate | None:
    """Measured over all layers, or, without exact arithmetic, over those before rounding is all that is left.

    Of mu; with a sink, under which tokens become parallel rather than equal, of unit relative mu.
    """
    relative = done.columns.get(f"log10_{UNIT_COLUMN}", done.columns["log10_relative_mu"])[:, sample]
    told = len(relative) if done.exact else int((relative > LOG10_ROUNDING).long().cumprod(dim=0).sum())
    followed = done.columns.get(f"log10_{UNIT_COLUMN}", done.columns["log10_mu"])
    return measured_rate(done.layers[:told], (followed[:told, sample] * math.log(10)).tolist())


def _theorem(experiment: Experiment) -> Callable[..., CollapseTheorem]:
    """B-thm2 where a norm after the layer scales every token to one length, B-thm1 (and its refusal) elsewhere."""
    norm, post = experiment.rule.norm, experiment.rule.placement == "post"
    scaled = norm.length(experiment.recipe.width) is not None and not norm.centres
    return norm_collapse_theorem if scaled and post else collapse_theorem


def _no_sink(sink: float | None) -> Hypothesis:
    return Hypothesis("rows of attention sum to one", False, f"a sink of logit {sink:g} takes its share")


def _over_seeds(done: Trajectory, samples: list[int]) -> list[dict[str, Any]]:
    """One sample's records as they are; over several, medians, with the extremes of log10 mu beside."""
    if len(samples) == 1:
        return done.records(samples[0])
    middle = {name: column[:, samples].median(dim=1).values.tolist() for name, column in done.columns.items()}
    log10_mu = done.columns["log10_mu"][:, samples]
    middle["log10_mu_least"], middle["log10_mu_most"] = log10_mu.amin(dim=1).tolist(), log10_mu.amax(dim=1).tolist()
    return [
        {"layer": layer, **{name: values[row] for name, values in middle.items()}}
        for row, layer in enumerate(done.layers)
    ]
