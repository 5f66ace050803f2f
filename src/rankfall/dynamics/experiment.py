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
from rankfall.dynamics.split_attention import log_score_gap
from rankfall.dynamics.step import PURE_ATTENTION, Rule, counterexample_tokens, random_tokens
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import DrawnWeights, PreparedHeads, WeightRecipe
from rankfall.errors import RequestError, require_count
from rankfall.masks import MaskSchedule
from rankfall.progress import Progress, silent
from rankfall.theory.collapse import CollapseTheorem, Hypothesis, collapse_theorem
from rankfall.theory.first_token import RotaryDecay, first_token_mass
from rankfall.theory.norm_collapse import norm_collapse_theorem
from rankfall.theory.sub_stochastic import sink_rate
from rankfall.theory.uniform_attention import tail_rate

# Products of attention matrices cost n^3 a layer; a few hundred layers show their rate.
CERTIFIED_TOKENS, CERTIFIED_LAYERS = 256, 200
# Differences of a smaller share of the tokens are rounding in plain float64.
LOG10_ROUNDING = -13.0
# Linear theory speaks of uniform attention; scores that differ by less than this give it to three digits.
FLAT = 1e-3
# Products for the first token's mass, in multiplications: a fraction of a second.
FIRST_TOKEN_OPERATIONS = 20_000_000
# Of tokens that agree so far even sharp scores are flat.
LOG10_FLAT = -10.0
# A part of the differences below this share of the others has lost its digits beside them.
LEAST_KEPT = 1e-13
# A measured rate below this share of theory's is another one.
BELOW_THEORY = 0.999
EQUAL_AT_START = (
    "theory speaks of tokens that all differ at the start; here some start equal and stay so, and mu falls faster"
)


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
    tail, reason = _tail(experiment, mask, one)
    if tail is not None and not theorem.applies:
        reason = _too_far_for_a_tail(experiment, done, samples)
        tail = tail if reason is None else None
    if tail is not None and done.exact:
        _require_kept(done, mask, samples, tail)
    rates = [_rate(done, sample) for sample in samples]
    if tail is not None and rates[0] is not None and rates[0].rate < BELOW_THEORY * tail:
        reason = EQUAL_AT_START if _stay_equal(first[0], done.final.residual[samples[0]].cpu()) else reason
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
        shrink_rate=_shrink_rate(experiment, mask) if tail is not None else None,
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


def _stay_equal(start: Tensor, residual: Tensor) -> bool:
    """Whether two tokens are the same at the start and at the end."""
    return len(torch.cat([start, residual], dim=-1).unique(dim=0)) < len(start)


def _require_kept(done: Trajectory, mask: MaskSchedule, samples: range, tail: float) -> None:
    """Refuse layers in which differences could decide that were rounded away when they were small beside the others.

    Once scores are flat no part of the differences shrinks faster than the tail rate for ever. Where what we follow
    did so by more than float64 has digits, and some tokens agree to the last of them without being the reference,
    sharp attention had made them so, and how far these still differ nobody knows; it is larger in the end.
    """
    if tail <= 0:
        return
    layers = torch.tensor(done.layers, dtype=torch.float64)
    for sample in samples:
        flat = done.columns["log10_relative_mu"][:, sample] < LOG10_FLAT
        excess = (done.log_mu[:, sample] - layers * math.log(tail)).where(flat, -math.inf)
        lost = excess.isfinite() & (excess < excess.cummax(dim=0).values + math.log(LEAST_KEPT))
        if bool(lost.any()) and _some_agree(done.final.residual[sample]):
            last = done.layers[int(lost.long().argmax()) - 1]
            raise RequestError(
                required="tokens whose differences float64 can follow",
                got=f"attention under {mask} so sharp that some tokens came to agree to their last digit; what still"
                f" tells them apart shrinks more slowly than all else and could decide after layer {last}",
                remedy=f"raise the temperature, or stop after {last} layers",
            )


def _some_agree(residual: Tensor) -> bool:
    """Whether two tokens are away from the reference by the same, to the last digits: sorted, they are neighbours."""
    size = residual.abs().amax(dim=-1)
    rows = residual[size > 0]
    rows = rows[rows[:, 0].argsort()]
    apart = (rows[1:] - rows[:-1]).abs().amax(dim=-1)
    return bool((apart < LEAST_KEPT * rows[1:].abs().amax(dim=-1)).any())


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


def _too_far_for_a_tail(experiment: Experiment, done: Trajectory, samples: range) -> str | None:
    """Why linear theory says nothing yet about tokens that no theorem brings together; None where it does."""
    gap = _last_gap(experiment, done, samples)
    if gap > FLAT:
        return f"scores have not flattened: at the last layer they may still differ by {gap:.2g}"
    # A norm of tokens that point apart is not linear, however flat attention is: they may stay as they are for good.
    apart = float(done.columns["log10_relative_mu"][-1, samples.start : samples.stop].max())
    if not experiment.rule.norm.identity and apart > math.log10(FLAT):
        return f"the tokens have not merged: relative mu is still {10**apart:.2g} at the last layer"
    return None


def _last_gap(experiment: Experiment, done: Trajectory, samples: range) -> float:
    """The most by which a score of these samples may differ from its row's constant after the last layer."""
    state = done.final.take(slice(samples.start, samples.stop))
    drawn = DrawnWeights(experiment.recipe, experiment.seeds, [experiment.temperature] * len(experiment.seeds))
    last = PreparedHeads(drawn.at(max(0, experiment.layers - 1)))
    return float(log_score_gap(state.log_size, state.log_ratio, [last]).max().clamp_max(300.0).exp())


def _tail(experiment: Experiment, mask: MaskSchedule, weights: DrawnWeights) -> tuple[float | None, str | None]:
    """The tail rate where linear theory gives it, or why not."""
    recipe, rule = experiment.recipe, experiment.rule
    if experiment.sink_shows:
        return _tail_with_sink(experiment, mask)
    orthogonal = recipe.value in ("identity", "orthogonal") and recipe.heads == 1
    identity = recipe.value == "identity"
    if (orthogonal or identity) and rule.residual == 0:
        only_scales = rule.norm.scaling(recipe.width) is not None and not rule.norm.centres
        if rule.norm.identity or (only_scales and rule.placement != "pre"):
            return tail_rate(mask, experiment.tokens), None
        return None, "only known for no norm, unit norm and RMS norm after the layer"
    if not rule.norm.identity:
        return None, "only known with orthogonal values and no residual once there is a norm"
    if recipe.per_layer or mask.period > 1:
        return None, "only known for the same weights and mask in every layer unless values are orthogonal"
    # Scores vanish as tokens merge: all heads then average alike, and their value maps add up.
    value = weights.at(0).value[0].sum(dim=0)
    return tail_rate(mask, experiment.tokens, torch.linalg.eigvals(value).numpy(), rule.residual), None


def _tail_with_sink(experiment: Experiment, mask: MaskSchedule) -> tuple[float | None, str | None]:
    """The rate of alignment where tokens vanish and scores with them, or why it is not known."""
    assert experiment.sink is not None
    if not experiment.rule.norm.identity or experiment.rule.residual != 0:
        return None, "with a sink only known for no residual connection, and no norm or one of fixed length after it"
    if experiment.recipe.value not in ("identity", "orthogonal"):
        return None, "with a sink only known for orthogonal values"
    if experiment.recipe.heads > 1 and experiment.recipe.value != "identity":
        return None, "with a sink only known for one head, or identity values"
    found = sink_rate(mask, experiment.tokens, experiment.sink)
    if not found.everywhere:
        return None, "the tokens that decide do not reach all others, which keep directions of their own"
    return found.rate, None


def _shrink_rate(experiment: Experiment, mask: MaskSchedule) -> float | None:
    if experiment.sink is None or not experiment.sink_shows:
        return None
    return sink_rate(mask, experiment.tokens, experiment.sink).leading


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
