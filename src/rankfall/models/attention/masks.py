"""The pattern that each layer's attention really used, as a named mask, and its rate under uniform attention."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from rankfall.masks import Causal, Complete, Explicit, Mask, recognise
from rankfall.models.attention.positions import PositionMass, PositionProduct, rotary_of
from rankfall.models.recording.events import Call, Coverage, Ran
from rankfall.models.recording.recorder import recorded
from rankfall.theory.sub_stochastic import causal_sink_rate, sink_rate
from rankfall.theory.uniform_attention import tail_rate

# Beyond this many tokens the eigenvalues of a pattern take longer than the audit itself.
TOKENS_AT_MOST = 2048
# Added to a score, anything below this forbids; position biases are far above it.
FORBIDDEN = -5e3
FEW_ROOTS = 8


def uniform_rate(mask: Mask, n: int, sinks: Sequence[float] | None = None) -> float | None:
    """|second eigenvalue| of U = mask / row sums: mu falls by this factor a layer in the long run.

    Complete: 0, the collapse is faster than exponential. Causal: 1/2. None where only a large problem would tell.
    With learned sinks, one logit for each head, it is relative to the tokens' size: the second eigenvalue over the
    first, of the mean over heads.
    """
    if n < 2 or isinstance(mask, Complete):
        return 0.0
    if sinks is not None:
        if isinstance(mask, Causal):
            return causal_sink_rate(sinks)
        return sink_rate(mask, n, sinks).rate if n <= TOKENS_AT_MOST else None
    if isinstance(mask, Causal):
        return 0.5
    return tail_rate(mask, n) if n <= TOKENS_AT_MOST else None


# How masks of attention to other tokens than the queries' own are described.
CROSS = "cross-attention"


@final
@dataclass(frozen=True)
class ObservedMask:
    """What one attention call of the run allowed, between the real tokens of the first text.

    `name` is the mask as an argument (`causal`, `window:4`, ...); `padding` says that padded keys were masked.
    `reason` says why there is no mask of ours, when there is none: cross-attention has none, and a pattern in which
    some token does not see itself is only described, because the theory asks for more. `sinks` are the logits of
    learned sinks, one for each head; `by_positions` is what mask and positions alone would give the first token.
    """

    layer: int
    module: str
    tokens: int
    mask: Mask | None
    padding: bool
    rate: float | None = None
    reason: str | None = None
    described: str | None = None
    sinks: tuple[float, ...] | None = None
    by_positions: PositionMass | None = None

    @property
    def name(self) -> str | None:
        """The mask as an argument, or a pattern that is none of ours in words."""
        return self.described if self.mask is None else str(self.mask)

    def record(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        record: dict[str, Any] = {
            "layer": self.layer,
            "module": self.module,
            "name": self.name,
            "tokens": self.tokens,
            "padding": self.padding,
            "predicted_rate": self.rate,
            **_sink_words(self.sinks),
            **(self.by_positions or PositionMass()).record(),
            "reason": self.reason,
        }
        if self.mask is not None:
            facts = self.mask.facts(self.tokens)
            record |= {
                "radius": facts.radius,
                "roots": len(facts.roots),
                "first_roots": list(facts.roots[:FEW_ROOTS]),
                "strongly_connected": facts.strongly_connected,
                "quasi_strongly_connected": facts.quasi_strongly_connected,
            }
        return record


def learned_sinks(call: Call) -> tuple[float, ...] | None:
    """The logits of a call's learned sinks, one for each head; None without any."""
    given = call.options.get("s_aux")
    if not isinstance(given, Tensor) or given.numel() == 0:
        return None
    return tuple(given.detach().double().flatten().tolist())


def _sink_words(sinks: tuple[float, ...] | None) -> dict[str, float | None]:
    names = ("sink_logit_least", "sink_logit_median", "sink_logit_most")
    found = (None,) * 3 if not sinks else (min(sinks), statistics.median(sinks), max(sinks))
    return dict(zip(names, found, strict=True))


class SeesAttention(Protocol):
    """Somebody else who is told of attention calls and of linear maps, and never raises."""

    def see(self, call: Call) -> None:
        """Read one call."""

    def see_linear(self, ran: Ran) -> None:
        """Read one linear map."""


def observe_masks(
    model: nn.Module, inputs: Mapping[str, Any], real: Sequence[Tensor | None], also: SeesAttention | None = None
) -> tuple[list[ObservedMask], Coverage]:
    """One run with every attention call recorded: its masks in order of calls, and how much of attention was seen."""
    observer = MaskObserver(real, also)
    with recorded(model, observer.see, on_leaf=observer.see_linear) as recorder, torch.inference_mode():
        model(**inputs)
    return observer.masks(), recorder.coverage()


class MaskObserver:
    """Subscribes to attention calls of a run on texts of which `real` marks the tokens that are not padding.

    Of several passes the first is read. A failure ends neither the run nor other observations; `masks` raises it.
    `also` is told of the same calls.
    """

    def __init__(self, real: Sequence[Tensor | None], also: SeesAttention | None = None) -> None:
        self._real = real
        self._also = also
        self._padded = any(one is not None for one in real)
        self._last: tuple[Tensor, Mask] | None = None
        self._found: list[ObservedMask] = []
        self._failure: Exception | None = None
        self._positions = PositionProduct()

    def masks(self) -> list[ObservedMask]:
        """What was observed, in the order of calls."""
        if self._failure is not None:
            raise self._failure
        return self._found

    def see(self, call: Call) -> None:
        """Read one call."""
        if call.run == 0 and self._failure is None:
            try:
                self._found.append(self._observed(call))
            except Exception as failure:
                self._failure = failure
        if self._also is not None:
            self._also.see(call)

    def see_linear(self, ran: Ran) -> None:
        """Hand a linear map on."""
        if self._also is not None:
            self._also.see_linear(ran)

    def _observed(self, call: Call) -> ObservedMask:
        pattern, reason = allowed_pattern(call)
        described: str | None = None
        sizes = _sizes(call, pattern)
        if sizes is not None and sizes[0] != sizes[1]:
            reason = f"{sizes[0]} queries look at {sizes[1]} keys, which are not their own tokens"
            described = CROSS
            pattern = None
        elif call.elsewhere:
            reason, described = "keys are other tokens than the queries (cross-attention)", CROSS
            pattern = None
        if isinstance(pattern, Tensor):
            pattern = self._real_part(pattern)
        tokens = self._tokens(call, pattern)
        mask = pattern if isinstance(pattern, Mask) else None
        if isinstance(pattern, Tensor):
            if bool(pattern.diagonal().all()):
                mask = self._named(pattern)
            else:
                described = without_diagonal(pattern)
                reason = "some token does not see itself, which the theory of collapse asks for"
        sinks = learned_sinks(call)
        rate = None if mask is None else uniform_rate(mask, tokens, sinks)
        padding = self._masks_padding(call)
        expected = None if mask is None else self._positions.after(call.name, mask, tokens, sinks, rotary_of(call))
        return ObservedMask(
            len(self._found), call.name, tokens, mask, padding, rate, reason, described, sinks, expected
        )

    def _real_part(self, pattern: Tensor) -> Tensor:
        keep = self._real[0]
        if keep is None or keep.shape[0] != pattern.shape[-1]:
            return pattern
        keep = keep.to(pattern.device)
        return pattern[keep][:, keep]

    def _named(self, pattern: Tensor) -> Mask:
        if self._last is None or not torch.equal(self._last[0], pattern):
            self._last = (pattern, recognise(pattern))
        return self._last[1]

    def _tokens(self, call: Call, pattern: Tensor | Mask | None) -> int:
        if isinstance(pattern, Tensor):
            return int(pattern.shape[-1])
        keep = self._real[0] if self._real else None
        count = next((int(part.shape[-2]) for part in (call.query, call.weights) if part is not None), None)
        if keep is not None and count in (None, keep.shape[0]):
            return int(keep.sum())
        return count or 0

    def _masks_padding(self, call: Call) -> bool:
        """Whether, of a batch with padding, the padded keys are hidden from real tokens."""
        if not self._padded or call.mask is None:
            return False
        hidden = []
        texts = self._real if call.query is None else self._real[: call.query.shape[0]]
        for text, keep in enumerate(texts):
            full = _matrix(call.mask, text)
            if keep is None or full is None or full.shape[-1] != keep.shape[0]:
                continue
            keep = keep.to(full.device)
            # Queries of cross-attention are other tokens than the text's.
            rows = full[keep] if full.shape[-2] == keep.shape[0] else full
            hidden.append(not bool(rows[:, ~keep].any()))
        return bool(hidden) and all(hidden)


def without_diagonal(pattern: Tensor) -> str:
    """A pattern in which some token does not see itself, in words: a mask of ours less its diagonal, or so many keys
    that each token selects."""
    diagonal = torch.eye(pattern.shape[-1], dtype=torch.bool, device=pattern.device)
    base = recognise(pattern | diagonal)
    if not isinstance(base, Explicit) and not bool(pattern.diagonal().any()):
        return f"{base} without diagonal"
    causal = "causal, " if not bool(pattern.triu(1).any()) else ""
    return f"selected: {causal}at most {int(pattern.sum(dim=-1).max())} keys each"


def allowed_pattern(call: Call) -> tuple[Tensor | Mask | None, str | None]:
    """What the call allowed in the first text: a matrix, or a mask where no matrix was needed; else why not."""
    if call.mask is not None:
        found = _matrix(call.mask, 0)
        return (found, None) if found is not None else (None, f"a mask of shape {tuple(call.mask.shape)}")
    if call.options.get("is_causal"):
        return Causal(), None
    if call.source == "softmax" and call.weights is not None:
        weights = call.weights
        while weights.ndim > 2:
            # A head that gives a key no weight may do so by choice; what any head of this text sees is allowed.
            weights = weights[0] if weights.ndim > 3 else weights.amax(dim=0)
        return weights > 0, None
    return Complete(), None


def _sizes(call: Call, pattern: Tensor | Mask | None) -> tuple[int, int] | None:
    """Numbers of queries and keys, where they can be told."""
    if isinstance(pattern, Tensor):
        return pattern.shape[-2], pattern.shape[-1]
    if call.query is None or call.key is None or pattern is None:
        return None
    return call.query.shape[-2], call.key.shape[-2]


def _matrix(mask: Tensor, text: int) -> Tensor | None:
    """The text's own (n, m) boolean matrix out of a mask that is boolean or added to the scores."""
    allowed = mask if mask.dtype == torch.bool else mask > FORBIDDEN
    if allowed.ndim < 2 or allowed.shape[-2] == 1 < allowed.shape[-1]:
        return None
    while allowed.ndim > 3:
        allowed = allowed[min(text, allowed.shape[0] - 1)]
    return allowed.any(dim=0) if allowed.ndim == 3 else allowed
