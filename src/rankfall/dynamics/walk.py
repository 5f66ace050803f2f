"""The way through the layers: one at a time, or a stretch of them where attention has become plain averaging."""

from __future__ import annotations

from typing import final

from rankfall.attention.norms import NoNorm
from rankfall.dynamics.flat import NEGLIGIBLE_LOG, Layer, flat_stretch, scores_negligible
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.rule import Rule
from rankfall.dynamics.split import Split
from rankfall.dynamics.split_step import split_step
from rankfall.dynamics.weights import Weights

# A stretch's states are all held at once: at most so many, and of so many numbers that they stay near the processor.
STRETCH_LAYERS = 64
STRETCH_NUMBERS = 1_048_576


@final
class Walk:
    """Split tokens through `layers` layers of these weights and masks."""

    def __init__(self, weights: Weights, plan: MaskPlan, rule: Rule, layers: int) -> None:
        self.weights, self.plan, self.rule, self.layers = weights, plan, rule, layers
        self.bare = isinstance(rule.norm, NoNorm) and rule.residual == 0
        self._next_try = 0

    def onward(self, layer: int, state: Split, single: bool = False) -> Split:
        """The states after layer + 1, layer + 2, ...: one, or as many as a stretch holds; (layers * b) samples."""
        states = None if single else self._stretch(layer, state)
        return split_step(state, self.weights.at(layer), self.plan.at(layer), self.rule) if states is None else states

    def _stretch(self, layer: int, state: Split) -> Split | None:
        length = min(STRETCH_LAYERS, self.layers - layer, STRETCH_NUMBERS // state.residual.numel())
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
