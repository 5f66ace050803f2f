"""Tokens through many layers, exactly far below machine epsilon: what is recorded on the way, and what is refused."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from rankfall.catalogue import MEASURES
from rankfall.dynamics import replay
from rankfall.dynamics.decisions import noting
from rankfall.dynamics.fused import FusedLayers, fused_layers
from rankfall.dynamics.mixing import MaskPlan, Masks
from rankfall.dynamics.ordinary import OrdinaryFloor, OrdinaryRoute
from rankfall.dynamics.replay import LayerKind, Passed, Replays, borrowed, given_back
from rankfall.dynamics.self_check import trust
from rankfall.dynamics.split import Split, joined, split
from rankfall.dynamics.split_attention import (
    NEGLIGIBLE_LOG,
    DigitsLostError,
    Layer,
    flat_stretch,
    scores_negligible,
    split_step,
)
from rankfall.dynamics.step import PURE_ATTENTION, Rule
from rankfall.dynamics.weights import Weights, alike_in_all_layers
from rankfall.errors import RequestError, require, require_count
from rankfall.measures.measures import measure
from rankfall.measures.profile import profile_of_equals
from rankfall.mechanism.checks import check_finite
from rankfall.mechanism.heads import Heads
from rankfall.progress import Progress, silent

# Token numbers per thread below which a second thread does not pay.
NUMBERS_PER_THREAD = 65_536


@contextlib.contextmanager
def fitting_threads(numbers: int) -> Iterator[None]:
    """Use as many of the allowed threads as the number of entries pays for; the setting is restored afterwards.

    Handing a few thousand numbers to several threads costs more than computing with them.
    """
    allowed = torch.get_num_threads()
    torch.set_num_threads(max(1, min(allowed, numbers // NUMBERS_PER_THREAD)))
    try:
        yield
    finally:
        torch.set_num_threads(allowed)


DEFAULT_MEASURES = tuple(one.name for one in MEASURES if one.simulated)
# Token matrices held until they are measured together take at most this many numbers.
HELD_NUMBERS = 4_000_000
# For mu alone no more than fits into a processor's cache: fresh memory costs more than the arithmetic.
HELD_FOR_MU = 131_072
# A residual below this share of the common part is lost when both are added as float64 numbers.
FLOAT64_SHARE = math.log(1e-17)


@final
class MeasureTable:
    """Collects log mu, log relative mu and named measures of a batch, one row per recorded layer.

    mu and relative_mu come exactly from the split. All other measures are those of the tokens as float64 numbers:
    once tokens agree to the last digit, their rank is 1. `residual_effective_rank` and `residual_energy_rank` are
    those of what still distinguishes them, however small.
    """

    def __init__(self, names: tuple[str, ...], rows: int, batch: int, keep_tokens: bool) -> None:
        self.rows, self.batch = rows, batch
        self.names = tuple(name for name in names if name not in ("mu", "relative_mu"))
        for name in self.names:
            MEASURES[name]  # refuse an unknown name now, not when layers have run
        self.keep_tokens = keep_tokens
        self.layers: list[int] = []
        self.kept: list[Tensor] = []
        self._held: list[Split] = []
        self._held_numbers, self._most_held = 0, HELD_NUMBERS if self.names else HELD_FOR_MU
        # One table made beforehand: small results kept one by one among large passing tensors would scatter the heap.
        self._columns: dict[str, Tensor] = {}
        self._filled = 0

    def record(self, layers: Sequence[int], states: Split) -> None:
        """Take down these layers, whose states stand one behind the other: (layers * b) samples."""
        self.layers += layers
        if self.keep_tokens:
            self.kept.append(states.tokens().unflatten(0, (len(layers), -1)).cpu())
        self._held.append(states)
        self._held_numbers += states.residual.numel()
        if self._held_numbers >= self._most_held:
            self._measure()

    @property
    def only_spread(self) -> bool:
        """Whether log mu and log relative mu are all that it asks of a layer."""
        return not self.names and not self.keep_tokens

    def record_spreads(self, layers: Sequence[int], spreads: Tensor) -> None:
        """Take down these layers by their log mu and log relative mu, (layers, 2, b)."""
        self._measure()
        self.layers += layers
        self._write(_spread_columns(*spreads.transpose(0, 1).cpu()), len(layers))

    def columns(self) -> dict[str, Tensor]:
        """Every measure as a (layers, b) float64 tensor on the CPU."""
        self._measure()
        return {name: column[: self._filled] for name, column in self._columns.items()}

    def _measure(self) -> None:
        if not self._held:
            return
        states = joined(self._held)
        self._held, self._held_numbers = [], 0
        found = _spread_columns(*states.spreads().cpu())
        if self.names:
            tokens, size = states.scaled_tokens(), states.log_size.exp()
            # Tokens that agree to the last digit need no decomposition: one of them tells everything.
            equal, apart = profile_of_equals(tokens), states.log_ratio >= FLOAT64_SHARE
            measured = {name: MEASURES[name].of(equal) for name in self.names}
            if bool(apart.any()):
                for name, values in measure(tokens[apart], self.names).items():
                    measured[name][apart] = values
            found |= {name: measured[name] * size ** MEASURES[name].degree for name in self.names}
            residual = measure(states.centred(), ["effective_rank", "energy_rank"])
            found |= {f"residual_{name}": values for name, values in residual.items()}
        self._write(found, states.batch // self.batch)

    def _write(self, found: Mapping[str, Tensor], rows: int) -> None:
        end = self._filled + rows
        for name, values in found.items():
            table = self._columns.setdefault(name, torch.empty(self.rows, self.batch, dtype=torch.float64))
            table[self._filled : end] = values.reshape(-1, self.batch)
        self._filled = end


def _spread_columns(log_mu: Tensor, log_relative: Tensor) -> dict[str, Tensor]:
    return {
        "log10_mu": log_mu / math.log(10),
        "mu": log_mu.exp(),
        "log10_relative_mu": log_relative / math.log(10),
        "relative_mu": log_relative.exp(),
    }


# A stretch's states are all held at once: at most so many, and of so many numbers that they stay near the processor.
STRETCH_LAYERS = 64
STRETCH_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 24}


@final
class Stepper:
    """Split tokens through `layers` layers of these weights and masks; recorded are every `thin`-th and the last."""

    def __init__(
        self, weights: Weights, plan: MaskPlan, rule: Rule, layers: int, thin: int = 1, only_spread: bool = False
    ) -> None:
        self.weights, self.plan, self.rule, self.layers = weights, plan, rule, layers
        self.thin, self.only_spread = thin, only_spread
        self.bare = rule.norm.identity and rule.residual == 0
        self._next_try = 0
        self._replays: Replays | None = None
        self._fused: FusedLayers | None = None
        self._fusible = self.bare and plan.period == 1 and alike_in_all_layers(weights)

    def advance(self, layer: int, state: Split, told: bool = False) -> Passed:
        """One layer on, or as many as need no other form than the last.

        If `told`, several only where log mu of each is known then.
        """
        fused = self._fuse(layer, state, told)
        if fused is not None:
            return fused
        if not told:
            replayed = self._replay(layer, state)
            if replayed is not None:
                return replayed
            states = self._stretch(layer, state)
            if states is not None:
                return self._passed(layer, states, state.batch)
        return self._passed(layer, self._step(layer, state), state.batch)

    def close(self) -> None:
        """Leave what was captured to the next run of the same."""
        if self._replays is not None:
            given_back(self._replays)

    def _passed(self, layer: int, states: Split, batch: int) -> Passed:
        """Layers whose states stand one behind the other: (layers * b) samples."""
        passed = range(layer + 1, layer + 1 + states.batch // batch)
        recorded = [reached for reached in passed if reached % self.thin == 0 or reached == self.layers]
        kept = _of_layers(states, [reached - passed[0] for reached in recorded], batch) if recorded else None
        return Passed(passed[-1], states.take(slice(-batch, None)), recorded, kept)

    def _fuse(self, layer: int, state: Split, told: bool) -> Passed | None:
        """Layers by the kernels of whole layers, where they know them."""
        if self._fusible and self._fused is None:
            self._fused = fused_layers(self.weights.at(layer), self.plan.at(layer), state.residual, self.plan.key)
            self._fusible = self._fused is not None
        if self._fused is None:
            return None
        return self._fused.advance(layer, state, self.layers, self.thin, self.only_spread, told)

    def _replay(self, layer: int, state: Split) -> Passed | None:
        """Layers repeated without a look, where the device makes that pay and all layers are alike."""
        if state.residual.device.type not in replay.DEVICES or self.plan.period > 1 or self.rule.norm.by_depth:
            return None
        kind = LayerKind(self.weights.at(layer), self.plan.at(layer), self.rule)
        if self._replays is None:
            self._replays = borrowed(kind, state, self.plan.key)
        elif self._replays.layer.heads is not kind.heads:
            return None  # weights are new in every layer
        if self.bare and kind.groups[0].mixer.complete and len(kind.groups) == 1 and not self._replays.again:
            return None  # a stretch knows the cubic collapse in closed form, and needs no capture
        return self._replays.advance(layer, state, self.layers, self.thin, self.only_spread)

    def _step(self, layer: int, state: Split) -> Split:
        try:
            with noting() as noted:
                made = split_step(state, self.weights.at(layer), self.plan.at(layer), self.rule.at(layer))
            if self._replays is not None:
                self._replays.note(tuple(noted.answers))
            return made
        except DigitsLostError:
            raise RequestError(
                required="tokens whose differences float64 can follow",
                got=f"attention so sharp that in layer {layer + 1} all tokens join others that already agreed to"
                " their last digit",
                remedy=f"raise the temperature, or stop after {layer} layers",
            ) from None

    def _stretch(self, layer: int, state: Split) -> Split | None:
        numbers = STRETCH_NUMBERS.get(state.residual.device.type, STRETCH_NUMBERS["cpu"])
        length = min(STRETCH_LAYERS, self.layers - layer, numbers // state.residual.numel())
        if not self.bare or length < 2 or layer < self._next_try:
            return None
        first = self._at(layer)
        if first is None or first[0].biased or not _averages(state, first):
            return None
        layers = [first]
        for later in range(layer + 1, layer + length):
            one = self._at(later)
            if one is None or one[0].biased:
                break
            layers.append(one)
        states = flat_stretch(state, layers)
        if states is None:
            self._next_try = layer + STRETCH_LAYERS
        return states

    def _at(self, layer: int) -> Layer | None:
        """Weights and mask of a layer in which all samples attend alike."""
        groups = self.plan.at(layer)
        return (groups[0].prepared(self.weights.at(layer)), groups[0].mixer) if len(groups) == 1 else None


def _averages(state: Split, layer: Layer) -> bool:
    """Whether a stretch may begin: the residual is lost in the common part, and no score is seen."""
    if float(state.log_ratio.max()) >= NEGLIGIBLE_LOG:
        return False
    return bool(scores_negligible(state.log_size, state.log_ratio, [layer[0]]).all())


# Tokens may grow to e^300 before the products in their scores would leave float64.
LARGEST_LOG_SIZE = 300.0
# NaN never goes away again, so that an occasional check finds it.
LAYERS_BETWEEN_CHECKS = 16


@final
@dataclass(frozen=True)
class Trajectory:
    """What happened. `columns` hold (recorded layers, b) tensors; `kept` the tokens (recorded layers, b, n, d).

    Not `exact` under a norm that has no exact arithmetic: tokens then agree to rounding once they agree to sixteen
    digits.
    """

    layers: tuple[int, ...]
    columns: dict[str, Tensor]
    final: Split
    floors: list[OrdinaryFloor] | None
    kept: Tensor | None
    exact: bool

    @property
    def log_mu(self) -> Tensor:
        """Natural logarithm of mu, (recorded layers, b)."""
        return self.columns["log10_mu"] * math.log(10)

    def records(self, sample: int = 0) -> list[dict[str, Any]]:
        """One sample's table, one record per recorded layer; layer 0 is the start."""
        values = {name: column[:, sample].tolist() for name, column in self.columns.items()}
        return [
            {"layer": layer, **{name: column[row] for name, column in values.items()}}
            for row, layer in enumerate(self.layers)
        ]


def run_layers(
    tokens: Tensor,
    weights: Weights,
    masks: Masks,
    layers: int,
    rule: Rule = PURE_ATTENTION,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    thin: int = 1,
    keep_tokens: bool = False,
    ordinary: bool = True,
    progress: Progress = silent,
) -> Trajectory:
    """Run (b, n, d) tokens through `layers` layers, exactly far below machine epsilon.

    Each sample may have its own weights (a batch axis in front) and its own mask or schedule. Recorded are layer 0,
    every `thin`-th layer and the last. With `ordinary`, plain float64 runs beside until it goes wrong. Everything
    runs on the device that the tokens are on.
    """
    require_count("the number of layers", layers, least=0)
    require_count("thin", thin)
    _check_start(tokens, weights.at(0), rule)
    trust(str(tokens.device))
    plan = MaskPlan(masks, tokens.shape[0], tokens.shape[1], tokens.device)
    batch = tokens.shape[0]
    recorder = MeasureTable(tuple(measures), 1 + -(-layers // thin), batch, keep_tokens)
    beside = OrdinaryRoute(tokens) if ordinary else None
    state = split(tokens, plan.reference(), checked=True)
    stepper = Stepper(weights, plan, rule, layers, thin, recorder.only_spread)
    layer = 0
    if layers == 0:
        _check_state(state, 0, tokens, weights.at(0))
    with fitting_threads(tokens.numel()):
        recorder.record([0], state)
        if beside is not None:
            beside.follow(0, state.log_mu())
        while layer < layers:
            beside_active = beside is not None and beside.active
            passed = stepper.advance(layer, state, told=beside_active)
            before, state, layer = layer, passed.state, passed.reached
            several = layer > before + 1
            if not passed.sound and (several or layer % LAYERS_BETWEEN_CHECKS == 0 or layer == layers):
                _check_state(state, layer, tokens, weights.at(layer - 1))
            if beside is not None and beside_active:
                log_mu = state.log_mu()[None] if passed.log_mu is None else passed.log_mu.to(tokens.device)
                for place, known in zip(range(before, layer), log_mu, strict=True):
                    beside.advance(weights.at(place), plan.at(place), rule.at(place))
                    beside.follow(place + 1, known)
            progress("layers", layer / layers)
            if passed.spreads is not None:
                recorder.record_spreads(passed.layers, passed.spreads)
            elif passed.states is not None:
                recorder.record(passed.layers, passed.states)
        columns = recorder.columns()
    stepper.close()
    return Trajectory(
        layers=tuple(recorder.layers),
        columns=columns,
        final=state,
        floors=beside.floors() if beside is not None else None,
        kept=torch.cat(recorder.kept) if keep_tokens else None,
        exact=rule.norm.exact(tokens.shape[-1]),
    )


def _of_layers(states: Split, places: list[int], batch: int) -> Split:
    """Some layers' states out of those that stand one behind the other."""
    if len(places) * batch == states.batch:
        return states
    index = torch.tensor(places, device=states.residual.device)[:, None] * batch
    return states.take((index + torch.arange(batch, device=index.device)).flatten())


def _check_start(tokens: Tensor, heads: Heads, rule: Rule) -> None:
    require(
        tokens.ndim == 3,
        required="a batch of token matrices (b, n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="add a batch axis in front",
    )
    if not tokens.is_cuda:
        _require_finite(tokens, heads)  # on a GPU a look costs more than a layer, and the state will tell
    require(
        heads.width == tokens.shape[-1] == heads.out_width,
        required=f"weights that map tokens of width {tokens.shape[-1]} to the same (a square value map)",
        got=f"weights from width {heads.width} to {heads.out_width}",
        remedy="give a square value matrix, or an output map back to the tokens' width",
    )
    if rule.norm.scaling(tokens.shape[-1]) is not None:
        length = torch.linalg.vector_norm(tokens, dim=-1)
        if bool((length == 0).any()):
            sample, token = (int(place) for place in (length == 0).nonzero()[0])
            raise RequestError(
                required=f"no zero token under the {rule.norm.name} norm",
                got=f"a zero token (sample {sample}, token {token})",
                remedy="start elsewhere or use --norm none",
            )


def _require_finite(tokens: Tensor, heads: Heads) -> None:
    check_finite(tokens)
    for name in ("query", "key", "value"):
        check_finite(getattr(heads, name), f"{name} weights")


def _check_state(state: Split, layer: int, tokens: Tensor, heads: Heads) -> None:
    largest = float(state.log_size.max() + 0.0 * state.log_ratio.exp().sum() + 0.0 * state.residual[:, 0, 0].sum())
    if math.isnan(largest) or largest > LARGEST_LOG_SIZE:
        _require_finite(tokens, heads)
        size = "beyond float64" if math.isnan(largest) else f"10^{largest / math.log(10):.0f}"
        raise RequestError(
            required="tokens that stay representable",
            got=f"tokens of size {size} by layer {layer}",
            remedy="use a norm, a smaller value matrix, or fewer layers",
        )
