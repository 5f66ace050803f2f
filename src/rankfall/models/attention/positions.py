"""What mask and positions alone would give the first token, layer by layer: to lie beside what attention gives it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from rankfall.masks import Explicit, Mask
from rankfall.models.recording.events import Call
from rankfall.theory.first_token import (
    FirstTokenMass,
    RotaryDecay,
    masses,
    position_attention,
    start_masses,
    step_masses,
)

# Beyond this many tokens a product over all layers takes longer than the audit of them.
TOKENS_AT_MOST = 2048


@final
@dataclass(frozen=True)
class PositionMass:
    """Mean weight on the first token by this layer, and its mean share in all tokens by all layers so far, of
    attention without any residual connection: uniform on the mask, and where the model has rotary positions with
    their strongest decay (`RotaryDecay` with correlation 1). None where it was not computed."""

    first_token_uniform: float | None = None
    first_token_rotary: float | None = None
    first_token_carried: float | None = None
    first_token_carried_rotary: float | None = None

    def record(self) -> dict[str, float | None]:
        """The four numbers by the names that tables use."""
        return {f"predicted_{name}": value for name, value in asdict(self).items()}


class PositionProduct:
    """Products of attention by positions over the layers of one run, of each stack of blocks by itself; a layer of
    unlike size begins anew."""

    def __init__(self) -> None:
        self._carried: dict[tuple[str, bool], np.ndarray] = {}
        self._last: dict[bool, tuple[object, np.ndarray]] = {}

    def after(
        self, module: str, mask: Mask, tokens: int, sinks: Sequence[float] | None, rotary: RotaryDecay | None
    ) -> PositionMass | None:
        """One layer further under this mask, in the stack of the attention module of this name."""
        if not 2 <= tokens <= TOKENS_AT_MOST:
            return None
        allowed = mask.dense(tokens).cpu().numpy()
        stack = "".join(itertools.takewhile(lambda one: not one.isdigit(), module.split(".")))
        plain = self._further(stack, mask, tokens, sinks, None, allowed)
        decayed = None if rotary is None else self._further(stack, mask, tokens, sinks, rotary, allowed)
        return PositionMass(
            plain.direct,
            None if decayed is None else decayed.direct,
            plain.carried,
            None if decayed is None else decayed.carried,
        )

    def _further(
        self,
        stack: str,
        mask: Mask,
        tokens: int,
        sinks: Sequence[float] | None,
        decay: RotaryDecay | None,
        allowed: np.ndarray,
    ) -> FirstTokenMass:
        attention = self._attention(mask, tokens, sinks, decay)
        before = self._carried.get((stack, decay is not None))
        if before is None or len(before) != tokens:
            before = start_masses(tokens)
        self._carried[stack, decay is not None] = carried = step_masses(before, attention)
        return masses(0, carried, attention, allowed)

    def _attention(
        self, mask: Mask, tokens: int, sinks: Sequence[float] | None, decay: RotaryDecay | None
    ) -> np.ndarray:
        """That of the layer before, where nothing changed: most models have one mask in all layers."""
        key = (id(mask) if isinstance(mask, Explicit) else mask, tokens, sinks, decay)
        last = self._last.get(decay is not None)
        if last is None or last[0] != key:
            last = (key, position_attention(mask, tokens, sinks, decay))
            self._last[decay is not None] = last
        return last[1]


def rotary_of(call: Call) -> RotaryDecay | None:
    """The rotary positions of a call by its module's configuration; None where it names none for this layer."""
    config = getattr(call.module, "config", None)
    given: Any = getattr(config, "rope_parameters", None) or {"rope_theta": getattr(config, "rope_theta", None)}
    if isinstance(given, Mapping) and not isinstance(given.get("rope_theta"), (int, float)):
        given = given.get(getattr(call.module, "layer_type", None)) or {}
    base = given.get("rope_theta") if isinstance(given, Mapping) else None
    if not isinstance(base, (int, float)) or base <= 1 or call.query is None:
        return None
    share = given.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    rank = int(call.query.shape[-1] * share) // 2 * 2
    return RotaryDecay(float(base), rank) if rank >= 2 else None
