"""The attention of some rows of one recorded call, as the model computes it.

The function that computed the call is run again on these rows alone, so that soft caps, position biases and learned
sinks stay as the model has them and memory does not grow with the square of the length; torch's fused attention,
which shows no weights, is written out by its definition. What comes out is believed only where it agrees with what
the model's attention gave for the same rows. Logits are what the softmax was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.attention.masks import FORBIDDEN
from rankfall.models.attention.statistics import AttentionRows
from rankfall.models.recording.blocks import first_tokens
from rankfall.models.recording.events import Call
from rankfall.models.recording.torch_attention import AGREE, AGREE_AT_MOST, SOFTMAXES
from rankfall.models.recording.torch_calls import TorchCalls

# Said anew when rows are computed alone.
OPTIONS_OF_A_RUN = ("is_causal", "dropout", "dropout_p", "scaling")
LARGEST = frozenset({torch.max, torch.amax, Tensor.max, Tensor.amax})


def attention_rows(
    call: Call, text: int, rows: Int[Tensor, " r"], keys: Int[Tensor, " m"], texts: int = 1
) -> AttentionRows:
    """The given rows of one of the `texts` of the call, and of the keys those given: all that are no padding.

    Raises RequestError where the call shows too little, or what was computed anew is not what the model computed.
    """
    if call.source == "softmax":
        weights, logits = _written_out(call, text, rows, texts)
    else:
        weights, logits = _computed_anew(call, text, rows)
    allowed = weights > 0 if logits is None else logits > FORBIDDEN
    sums = weights.sum(dim=-1, dtype=torch.float64)
    own = None
    if looks_at_itself(call):
        own = torch.searchsorted(keys, rows)
    if len(keys) < weights.shape[-1]:
        weights, allowed = weights[..., keys], allowed[..., keys]
        logits = None if logits is None else logits[..., keys]
    return AttentionRows(weights, allowed, sums, logits, own)


def sizes(call: Call) -> tuple[int, int]:
    """Numbers of queries and keys of a call."""
    if call.query is not None and call.key is not None:
        return call.query.shape[-2], call.key.shape[-2]
    require(
        call.weights is not None,
        required="attention weights, or queries and keys",
        got=f"neither from {call.name}",
        remedy="call torch's scaled_dot_product_attention",
    )
    assert call.weights is not None
    return call.weights.shape[-2], call.weights.shape[-1]


def looks_at_itself(call: Call) -> bool:
    """Whether queries and keys are the same tokens."""
    queries, keys = sizes(call)
    return not call.elsewhere and queries == keys


def _written_out(call: Call, text: int, rows: Tensor, texts: int) -> tuple[Tensor, Tensor | None]:
    """From the softmax that a module wrote out itself: (b, h, n, m), or (b h, n, m)."""
    tokens = first_tokens(*call.given)
    queries, _ = sizes(call)
    require(
        tokens is None or queries in tokens.shape[:2],
        required="a row of weights for each token",
        got=f"{queries} for tokens of shape {tuple(tokens.shape)}" if tokens is not None else "others",
        remedy="its attention is left out",
    )
    found: list[Tensor | None] = []
    for whole in (call.weights, call.logits):
        if whole is not None:
            require(
                whole.ndim in (3, 4) and whole.shape[0] % texts == 0,
                required=f"weights of shape (b, h, n, m) of {texts} texts",
                got=tuple(whole.shape),
                remedy="its attention is left out",
            )
            whole = whole[text] if whole.ndim == 4 else whole.unflatten(0, (texts, -1))[text]
        found.append(None if whole is None else whole[:, rows])
    weights, logits = found
    assert weights is not None
    return weights, logits


def _computed_anew(call: Call, text: int, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    query, key, value = call.query, call.key, call.value
    if query is None or key is None or value is None or call.output is None or query.ndim != 4:
        raise RequestError(
            required="queries, keys and values",
            got=f"less from {call.name}",
            remedy="its attention is left out",
        )
    require(
        text < query.shape[0],
        required="a row of the batch for each text",
        got=f"{query.shape[0]} for text {text}",
        remedy="its attention is left out",
    )
    queries, keys = sizes(call)

    def one(part: Any) -> Any:
        """Of an argument with an axis of texts this text, and of one with an axis of queries these rows."""
        if not isinstance(part, Tensor):
            return part
        if part.ndim == 4 and part.shape[-2] == queries and part.shape[-1] >= keys:
            part = part[..., rows, :]
        return part[text : text + 1] if part.ndim > 1 and part.shape[0] == query.shape[0] else part

    given = {name: one(option) for name, option in call.options.items() if name not in OPTIONS_OF_A_RUN}
    added = _causal(rows, keys) if call.mask is None and call.options.get("is_causal") else call.mask
    added = None if added is None else one(added[(None,) * (4 - added.ndim)])
    here = slice(text, text + 1)
    eager = call.eager or written_out
    with _SoftmaxWatch() as watch:
        output, returned = eager(
            call.module,
            query[here, :, rows],
            key[here],
            value[here],
            _as_added(added, query.dtype),
            scaling=call.scaling,
            dropout=0.0,
            **given,
        )
    theirs = call.output[text].index_select(0, rows.to(call.output.device))
    require(
        _agree(output[0], theirs),
        required="what attention gave when these rows are computed anew",
        got=f"something else from {call.name} ({type(call.module).__name__})",
        remedy="its attention is left out",
    )
    weights, logits = watch.of(keys, returned)
    return weights[0], None if logits is None else logits[0]


def _causal(rows: Tensor, keys: int) -> Tensor:
    """(1, 1, r, m): which keys these rows see where none sees a later one."""
    return (torch.arange(keys, device=rows.device) <= rows[:, None])[None, None]


def _as_added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as eager functions take it: added to the scores. A boolean one is true where a key is seen."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return hidden.masked_fill(~mask, torch.finfo(dtype).min)


def written_out(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """What torch's fused attention computes, by its definition, in the form of the library's eager functions."""
    groups = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = torch.softmax(logits if mask is None else logits + mask, dim=-1)
    return (weights @ value).transpose(1, 2), weights


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape:
        return False
    apart = float((ours.double() - theirs.double()).abs().max())
    return apart <= AGREE.get(theirs.dtype, AGREE_AT_MOST) * float(theirs.abs().max()) + 1e-30


@final
class _SoftmaxWatch(TorchCalls):
    """Keeps what the last softmax was given and gave, and the largest entries that were taken off before it."""

    def __init__(self) -> None:
        super().__init__()
        self._largest: Tensor | None = None
        self._softmax: tuple[Tensor, Tensor, Tensor | None] | None = None

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = func(*args, **options)
        if func in LARGEST:
            self._largest = result if isinstance(result, Tensor) else result.values
        elif func in SOFTMAXES:
            self._softmax = (args[0] if args else options["input"], result, self._largest)
        return result

    def of(self, keys: int, returned: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weights and logits of the first `keys` columns; a column more is a sink's."""
        if self._softmax is None or self._softmax[1].shape[-1] < keys:
            if returned is None:
                raise RequestError(
                    required="attention that goes through a softmax or returns its weights",
                    got="neither",
                    remedy="its attention is left out",
                )
            return returned, None
        logits, weights, largest = self._softmax
        if returned is not None and not _agree(weights[..., :keys], returned):
            # What was done to them after the softmax counts.
            weights = returned
        if (
            largest is not None
            and largest.shape == (*logits.shape[:-1], 1)
            and bool((logits.amax(dim=-1) == 0).all())
        ):
            logits = logits + largest
        return weights[..., :keys], logits[..., :keys]
