"""Torch's own attention functions, seen or changed while any module runs: fused attention and multi-head attention.

`scaled_dot_product_attention` is seen wherever it is called from, by whatever name it was imported. A multi-head
attention is one function from tokens to tokens, input and output maps inside it: what it attends with is computed
beside it by its definition and believed only where both results agree. Of attention written out by hand, its softmax
is seen.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankfall.models.recording.torch_calls import TorchCalls

SOFTMAXES = frozenset({functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
FUSED = functional.scaled_dot_product_attention
FUSED_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
MULTIHEAD = functional.multi_head_attention_forward
# Of the largest entry; the two ways of computing a multi-head attention add in different orders.
AGREE = {torch.float64: 1e-9, torch.float32: 1e-4}
AGREE_AT_MOST = 5e-2

WatchedSource = Literal["sdpa", "multihead", "softmax"]
Seen = Callable[..., None]
"""Called with what was seen of an attention call, by the names of `Call`'s fields."""


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Inside, modules run the Python that they are written in.

    Torch's shortcuts for whole encoder layers and for nested tensors are off, and so is what was compiled: nothing
    inside either could be seen.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    # Where nothing was compiled, the compiler is not imported either.
    eager: Any = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:
        eager = torch.compiler.set_stance("force_eager")
    try:
        with eager:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def fused_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Torch's fused attention in the form that the library's attention functions have: gives (b, n, h, v)."""
    result = FUSED(
        query,
        key,
        value,
        attn_mask=mask,
        # A mask that was put in the place of the causal one.
        is_causal=bool(options.get("is_causal")) and mask is None,
        scale=options.get("scaling"),
        enable_gqa=bool(options.get("enable_gqa")),
    )
    return result.transpose(1, 2), None


@final
@dataclass(frozen=True, eq=False)
class FusedCall:
    """The arguments of one call of torch's fused attention, queries, keys and values with an axis of heads."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]
    lacks_heads: bool

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FusedCall:
        """From positional and keyword arguments."""
        given = dict(zip(FUSED_ARGUMENTS, args, strict=False)) | dict(kwargs)
        query, key, value = (given.pop(name) for name in ("query", "key", "value"))
        lacking = query.ndim == 3
        if lacking:
            query, key, value = (one.unsqueeze(1) for one in (query, key, value))
        mask = given.pop("attn_mask", None)
        if mask is not None and lacking and mask.ndim == 3:
            mask = mask.unsqueeze(1)
        given["scaling"] = given.pop("scale", None)
        return cls(query, key, value, mask, given, lacking)

    def seen(self, result: Tensor) -> dict[str, Any]:
        """What there is to say about the call, by the names of `Call`'s fields."""
        output = result.unsqueeze(1) if self.lacks_heads else result
        scaling = self.options.get("scaling")
        return {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "mask": self.mask,
            "scaling": float(self.query.shape[-1]) ** -0.5 if scaling is None else scaling,
            "output": output.transpose(1, 2),
            "options": self.options,
        }


@final
@dataclass(frozen=True, eq=False)
class MultiheadCall:
    """One call of torch's multi-head attention: (n, b, d) in and out, weights among its arguments."""

    given: Mapping[str, Any]
    module: nn.MultiheadAttention | None

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any], module: nn.Module | None) -> MultiheadCall:
        """`module` is the one that makes the call; its output map is called as a module, so that it is seen."""
        bound = inspect.signature(MULTIHEAD).bind(*args, **kwargs)
        bound.apply_defaults()
        return cls(bound.arguments, module if isinstance(module, nn.MultiheadAttention) else None)

    @property
    def looks_elsewhere(self) -> bool:
        """Whether the keys come from other tokens than the queries."""
        query, key = self.given["query"], self.given["key"]
        return query is not key and not (query.shape == key.shape and torch.equal(query, key))

    def parts(self) -> FusedCall:
        """Queries, keys and values (b, h, n, r) as the call computes them, and one mask of all that it was given."""
        given = self.given
        if given["static_k"] is not None or given["static_v"] is not None:
            raise NotImplementedError("keys and values that are given ready-made")
        tokens = [_batched(given[name]) for name in ("query", "key", "value")]
        weights = (
            [given[f"{one}_proj_weight"] for one in "qkv"]
            if given["use_separate_proj_weight"]
            else given["in_proj_weight"].chunk(3)
        )
        biases = (None,) * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
        query, key, value = (functional.linear(*one) for one in zip(tokens, weights, biases, strict=True))
        texts, more = query.shape[1], 0
        if given["bias_k"] is not None:
            key, value = (
                torch.cat([one, row.expand(1, texts, -1)])
                for one, row in ((key, given["bias_k"]), (value, given["bias_v"]))
            )
            more += 1
        if given["add_zero_attn"]:
            key, value = (torch.cat([one, torch.zeros_like(one[:1])]) for one in (key, value))
            more += 1
        heads = given["num_heads"]
        mask = self._mask(heads, query.shape[0], more)
        query, key, value = (one.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for one in (query, key, value))
        return FusedCall(query, key, value, mask, {"scaling": None}, False)

    def _mask(self, heads: int, queries: int, more: int) -> Tensor | None:
        """(1 or b, 1 or h, n, m): boolean, true where allowed, unless something was to be added to the scores."""
        found = []
        pattern, padding = self.given["attn_mask"], self.given["key_padding_mask"]
        if pattern is not None:
            found.append(pattern[None, None] if pattern.ndim == 2 else pattern.unflatten(0, (-1, heads)))
        if padding is not None:
            padding = padding[None] if padding.ndim == 1 else padding
            found.append(padding[:, None, None].expand(-1, -1, queries, -1))
        if not found:
            return None
        if all(one.dtype == torch.bool for one in found):
            allowed = ~found[0] if len(found) == 1 else ~(found[0] | found[1])
            return functional.pad(allowed, (0, more), value=True) if more else allowed
        dtype = next(one.dtype for one in found if one.dtype != torch.bool)
        added = [_added(one, dtype) for one in found]
        total = added[0] if len(added) == 1 else added[0] + added[1]
        return functional.pad(total, (0, more)) if more else total

    def output(self, attended: Tensor, *, as_module: bool) -> Tensor:
        """W_O of what attention gave (b, n, h, v), in the layout of the function's result."""
        rows = attended.flatten(2)
        if as_module and self.module is not None:
            # In the module's own layout, as everything else that runs beside it.
            first = self.module.batch_first
            result: Tensor = self.module.out_proj(rows if first else rows.transpose(0, 1))
            result = result.transpose(0, 1) if first else result
        else:
            weight, bias = self.given["out_proj_weight"], self.given["out_proj_bias"]
            result = functional.linear(rows.transpose(0, 1), weight, bias)
        return result if self.given["query"].ndim == 3 else result.squeeze(1)


def _batched(tokens: Tensor) -> Tensor:
    return tokens if tokens.ndim == 3 else tokens.unsqueeze(1)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


class BypassWatch(TorchCalls):
    """Runs every torch function as it is and reports the attention among them while `watching(source)` says so.

    `running` gives the module that is running now.
    """

    def __init__(
        self,
        seen: Seen,
        watching: Callable[[WatchedSource], bool] = lambda source: True,
        running: Callable[[], nn.Module | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._seen = seen
        self._watching = watching
        self._running = running

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = func(*args, **options)
        if func is FUSED and self._watching("sdpa"):
            self._seen(source="sdpa", **FusedCall.of(args, options).seen(result))
        elif func is MULTIHEAD and self._watching("multihead"):
            self._multihead(MultiheadCall.of(args, options, self._running()), result)
        elif func in SOFTMAXES and self._watching("softmax") and _over_keys(result, args, options):
            self._seen(source="softmax", logits=args[0] if args else options["input"], weights=result)
        return result

    def _multihead(self, call: MultiheadCall, result: tuple[Tensor, Tensor | None]) -> None:
        try:
            parts = call.parts()
            attended, _ = fused_attention(nn.Identity(), parts.query, parts.key, parts.value, parts.mask)
            agrees = _agree(call.output(attended, as_module=False), result[0])
        except (NotImplementedError, RuntimeError):
            return
        if agrees:
            facts = parts.seen(attended.transpose(1, 2))
            self._seen(source="multihead", elsewhere=call.looks_elsewhere, **facts)
            call.output(attended, as_module=True)


class Reroute(TorchCalls):
    """Hands every call of torch's attention functions to `route`, as calls of the library's interface are handed."""

    def __init__(self, route: Callable[..., tuple[Tensor, Tensor | None]], module: nn.Module) -> None:
        super().__init__()
        self._route = route
        self._module = module

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if func is FUSED:
            call = FusedCall.of(args, options)
            output = self._through(call).transpose(1, 2)
            return output.squeeze(1) if call.lacks_heads else output
        if func is MULTIHEAD:
            whole = MultiheadCall.of(args, options, self._module_of(args, options))
            # Weights are returned to nobody here: what is replayed is what the tokens become.
            return whole.output(self._through(whole.parts()), as_module=True), None
        return func(*args, **options)

    def _through(self, call: FusedCall) -> Tensor:
        output, _ = self._route(
            fused_attention, self._module, call.query, call.key, call.value, call.mask, **call.options
        )
        return output

    def _module_of(self, args: Sequence[Any], options: Mapping[str, Any]) -> nn.Module | None:
        """The multi-head module whose output map was handed over."""
        weight = inspect.signature(MULTIHEAD).bind(*args, **options).arguments["out_proj_weight"]
        multihead = (one for one in self._module.modules() if isinstance(one, nn.MultiheadAttention))
        return next((one for one in multihead if one.out_proj.weight is weight), None)


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape:
        return False
    ours, theirs = ours.nan_to_num(), theirs.nan_to_num()
    limit = AGREE.get(theirs.dtype, AGREE_AT_MOST)
    return float((ours - theirs).abs().max()) <= limit * float(theirs.abs().max()) + torch.finfo(theirs.dtype).tiny


def _over_keys(weights: Tensor, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Attention normalises the last of at least three axes; a softmax over anything else is not attention."""
    axis = options.get("dim", args[1] if len(args) > 1 else None)
    return weights.ndim >= 3 and axis in (-1, weights.ndim - 1)
