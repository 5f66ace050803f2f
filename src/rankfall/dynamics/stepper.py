"""Which way the next layers go: fused kernels, a replay, a stretch of averages, or one exact step."""

from __future__ import annotations

from typing import final

import torch

from rankfall.dynamics import replay
from rankfall.dynamics.decisions import noting
from rankfall.dynamics.fused import FusedLayers, fused_layers
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.replay import LayerKind, PassedLayers, Replays, borrowed, given_back, recorded_layers
from rankfall.dynamics.split import Split
from rankfall.dynamics.split_attention import NEGLIGIBLE_LOG, DigitsLostError, scores_negligible, split_step
from rankfall.dynamics.step import Rule
from rankfall.dynamics.stretch import Layer, flat_stretch
from rankfall.dynamics.weights import Weights, alike_in_all_layers
from rankfall.errors import RequestError

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

    def advance(self, layer: int, state: Split, told: bool = False) -> PassedLayers:
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

    def _passed(self, layer: int, states: Split, batch: int) -> PassedLayers:
        """Layers whose states stand one behind the other: (layers * b) samples."""
        passed = range(layer + 1, layer + 1 + states.batch // batch)
        recorded = recorded_layers(passed, self.thin, self.layers)
        kept = _of_layers(states, [reached - passed[0] for reached in recorded], batch) if recorded else None
        return PassedLayers(passed[-1], states.take(slice(-batch, None)), recorded, kept)

    def _fuse(self, layer: int, state: Split, told: bool) -> PassedLayers | None:
        """Layers by the kernels of whole layers, where they know them."""
        if self._fusible and self._fused is None:
            self._fused = fused_layers(self.weights.at(layer), self.plan.at(layer), state.residual, self.plan.key)
            self._fusible = self._fused is not None
        if self._fused is None:
            return None
        return self._fused.advance(layer, state, self.layers, self.thin, self.only_spread, told)

    def _replay(self, layer: int, state: Split) -> PassedLayers | None:
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
        except DigitsLostError as lost:
            raise RequestError(
                required="tokens whose differences float64 can follow",
                got=f"attention under {self.plan.names(lost.samples.tolist())} so sharp that in layer {layer + 1} all"
                " tokens join others that already agreed to their last digit",
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


def _of_layers(states: Split, places: list[int], batch: int) -> Split:
    """Some layers' states out of those that stand one behind the other."""
    if len(places) * batch == states.batch:
        return states
    index = torch.tensor(places, device=states.residual.device)[:, None] * batch
    return states.take((index + torch.arange(batch, device=index.device)).flatten())
