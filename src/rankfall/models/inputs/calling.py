"""How a module of one's own is called: under which names, with the texts in rows or columns, in one call or several.

Nothing is asked of the module but that it runs. Token ids are what has an integer dtype, a lone value is the first
argument, texts of unequal length share a call only where a padding mask was given, and which axis holds the texts is
seen in a run where its attention says that it takes the sequence first.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.recording.blocks import choose_stack, first_tokens
from rankfall.models.recording.torch_attention import as_written

Inputs = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Keyword arguments of a forward pass, or of several."""

# Parameters that take a padding mask, and whether it marks the tokens that are kept (or those that are not).
PADDING_MASKS = {
    "attention_mask": True,
    "src_key_padding_mask": False,
    "key_padding_mask": False,
    "padding_mask": False,
}
# Enough to probe heads with; what a probe costs grows with it.
SAMPLE_TOKENS = 8


def as_calls(inputs: Inputs) -> list[Mapping[str, Any]]:
    """Every call's arguments."""
    return [inputs] if isinstance(inputs, Mapping) else list(inputs)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module itself, out of `torch.compile` and parallel wrappers, whose code cannot be watched."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def takes(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The parameters of the forward pass by name; of a wrapper that hands on whatever it is given, those of the one
    module inside it."""
    own = inspect.signature(model.forward).parameters
    inner = list(model.children())
    handed_on = {one.kind for one in own.values()} == {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    return takes(inner[0]) if handed_on and len(inner) == 1 else own


def first_argument(model: nn.Module) -> str:
    """The name of the first parameter of the forward pass: what a lone value is given as."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in takes(model).items():
        if parameter.kind in named:
            return name
    raise RequestError(
        required="a forward pass whose first parameter has a name",
        got=f"{type(model).__name__}.forward{inspect.signature(model.forward)}",
        remedy="pass inputs={name: value, ...}, or wrap the module in one with named parameters",
    )


def is_ids(value: Any) -> bool:
    """Whether this may be token ids: one or two axes of integers."""
    whole = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
    return isinstance(value, Tensor) and value.dtype in whole and value.ndim in (1, 2)


def ids_argument(model: nn.Module, inputs: Mapping[str, Any]) -> str | None:
    """Which argument holds token ids, by its dtype; of several the first that is no mask of zeros and ones."""
    if is_ids(inputs.get("input_ids")):
        return "input_ids"
    order = {name: place for place, name in enumerate(takes(model))}
    found = sorted(
        (name for name, one in inputs.items() if is_ids(one)), key=lambda name: order.get(name, len(order))
    )
    varied = [name for name in found if name not in PADDING_MASKS and bool((inputs[name] > 1).any())]
    return next(iter((*varied, *(name for name in found if name not in PADDING_MASKS))), None)


@final
@dataclass(frozen=True, eq=False)
class Calling:
    """How this module takes token ids (t, n).

    `argument` takes them, `mask` a padding mask, where one was given; `others` are given along. `in_columns`: the
    module wants (n, t). `uneven`: no call may hold as many texts as tokens, because the module's attention takes the
    sequence first and its shapes are read.
    """

    argument: str
    device: torch.device
    mask: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    in_columns: bool = False
    uneven: bool = False

    def calls(self, ids: Tensor, real: Tensor) -> list[dict[str, Any]]:
        """The calls that read all texts in order, padding cut off where the module would not know of it."""
        made = []
        for texts in self._together(real.sum(dim=-1).tolist(), ids.shape[1]):
            rows, kept = ids[texts], real[texts]
            if self.mask is None:
                rows = torch.stack([row[keep] for row, keep in zip(rows, kept, strict=True)])
            call: dict[str, Any] = {
                self.argument: (rows.mT if self.in_columns else rows).to(self.device),
                **self.others,
            }
            if self.mask is not None and not bool(real.all()):
                # In torch's own modules padding masks are (t, n) in either layout.
                marked = kept.long() if PADDING_MASKS[self.mask] else ~kept
                call[self.mask] = marked.to(self.device)
            made.append(call)
        return made

    def singles(self, ids: Tensor, real: Tensor) -> list[dict[str, Any]]:
        """One call for each text, without padding."""
        return [
            call
            for row, keep in zip(ids, real, strict=True)
            for call in self.calls(row[None, keep], keep[None, keep])
        ]

    def _together(self, lengths: Sequence[int], longest: int) -> Iterator[slice]:
        start = 0
        for length, group in itertools.groupby(lengths if self.mask is None else [longest] * len(lengths)):
            count = len(list(group))
            sizes = [count - 1, 1] if self.uneven and count == length and not self.others else [count]
            for size in sizes:
                yield slice(start, start + size)
                start += size


@final
@dataclass(frozen=True)
class Run:
    """What one run of a module showed: texts and tokens of its first multi-head attention that takes the sequence
    first, where there is one; the width of the stream."""

    sizes: tuple[int, int] | None
    width: int | None


def watch_run(model: nn.Module, call: Mapping[str, Any]) -> Run:
    """Run the module once, and refuse inputs on which it does not run."""
    sizes: list[tuple[int, int]] = []
    widths: list[int] = []
    looking_up: list[tuple[nn.Embedding, Any]] = []

    def attention(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        query = args[0] if args else kwargs.get("query")
        if isinstance(query, Tensor) and query.ndim == 3:
            sizes.append((query.shape[1], query.shape[0]))

    def table(module: nn.Embedding, args: tuple[Any, ...]) -> None:
        looking_up.append((module, args[0] if args else None))

    def found(*_: Any) -> None:
        looking_up.pop()

    def block(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tokens = first_tokens(args, kwargs)
        widths.extend([] if tokens is None else [tokens.shape[-1]])

    first = choose_stack(model).blocks[0]
    handles: list[Any] = [first.register_forward_pre_hook(block, with_kwargs=True)]
    handles += [one.register_forward_pre_hook(attention, with_kwargs=True) for one in sequence_first(model)]
    for one in model.modules():
        if isinstance(one, nn.Embedding):
            handles += [one.register_forward_pre_hook(table), one.register_forward_hook(found)]
    try:
        with torch.inference_mode(), as_written():
            model(**call)
    except RequestError:
        raise
    except Exception as error:
        if looking_up:
            _refuse_beyond_the_end(model, *looking_up[-1], call)
        shapes = ", ".join(f"{name} {_shape(value)}" for name, value in call.items())
        raise RequestError(
            required=f"inputs on which {type(model).__name__} runs",
            got=f"{shapes}: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            remedy="give inputs={name: value, ...} as its forward pass takes them",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return Run(next(iter(sizes), None), next(iter(widths), None))


def _refuse_beyond_the_end(model: nn.Module, table: nn.Embedding, looked_up: Any, call: Mapping[str, Any]) -> None:
    """Say which table is too short, where that is why the lookup in it failed. What else may have failed is told as
    it is; so is a lookup on a GPU, after whose failure nothing there can be read."""
    if not is_ids(looked_up) or looked_up.device.type != "cpu" or looked_up.numel() == 0:
        return
    low, high, rows = int(looked_up.min()), int(looked_up.max()), table.num_embeddings
    if low >= 0 and high < rows:
        return
    name = next(path for path, one in model.named_modules() if one is table)
    given = any(is_ids(value) and _same_ids(looked_up, value) for value in call.values())
    raise RequestError(
        required=f"indices from 0 to {rows - 1} in {name}, a table of {rows} rows in {type(model).__name__}",
        got=f"index {high if high >= rows else low}",
        remedy="give ids that it has: the tokenizer may belong to another model"
        if given
        else f"if these are positions, give texts of at most {rows - max(low, 0)} tokens",
    )


def sequence_first(model: nn.Module) -> list[nn.MultiheadAttention]:
    """The multi-head attention that takes its tokens as (n, b, d), as it says itself."""
    return [one for one in model.modules() if isinstance(one, nn.MultiheadAttention) and not one.batch_first]


def _same_ids(looked_up: Tensor, ids: Tensor) -> bool:
    ways = (ids, ids.mT) if ids.ndim == 2 else (ids,)
    return any(looked_up.shape == way.shape and bool((looked_up == way).all()) for way in ways)


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def texts_in_columns(model: nn.Module, main: Tensor, argument: str, others: Mapping[str, Any]) -> bool:
    """Whether the second axis of `main` holds the texts: only where attention takes the sequence first, and then as
    the sizes in a run tell. With nothing else given, the run is on a part that cannot be mistaken."""
    if not sequence_first(model) or main.ndim < 2:
        return False
    part = main[:1] if not others and main.shape[1] > 1 else main
    sizes = watch_run(model, {argument: part, **others}).sizes
    if sizes is None:
        return False
    rows, columns = part.shape[:2]
    # As many texts as tokens, and nothing that could be left out: inputs lie as the attention's own do.
    return sizes == (columns, rows)


def one_text(call: Mapping[str, Any], text: int, texts: int, *, in_columns: bool) -> dict[str, Any]:
    """The arguments for one text of a call. What has no axis of texts, such as a mask of all, is given as it is."""
    if texts == 1:
        return dict(call)
    return {name: _part(name, value, text, texts, in_columns) for name, value in call.items()}


def _part(name: str, value: Any, text: int, texts: int, in_columns: bool) -> Any:
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    padding = "padding" in name
    tokens = value.ndim > 2 or is_ids(value)
    if in_columns and tokens and not padding:
        return value[:, text : text + 1] if value.shape[1] == texts else value
    square = value.ndim == 2 and value.shape[0] == value.shape[1] and not tokens and not padding
    return value if value.shape[0] != texts or square else value[text : text + 1]


def _numeric(row: Any) -> bool:
    """Whether a row of a list is numbers, and as many everywhere as in its first vector."""
    try:
        torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def as_tensors(inputs: Any) -> Any:
    """Arrays of NumPy as tensors, alone or by name; the rest as it is. What holds no numbers at all is refused."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "fiub":
        inputs = torch.from_numpy(inputs)
    if isinstance(inputs, Mapping):
        return {name: as_tensors(value) for name, value in inputs.items()}
    require(
        not isinstance(inputs, Tensor) or inputs.numel() > 0,
        required="inputs of at least one token",
        got=f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else "none",
        remedy="leave empty texts out",
    )
    return inputs


def rows_of(model: nn.Module, inputs: Any) -> list[Tensor]:
    """A list of texts, or one: each one axis of ids (n,), or vectors (n, d)."""
    require(
        isinstance(inputs, Sequence) and not isinstance(inputs, str) and len(inputs) > 0,
        required="a tensor, a list of token ids, a list of such lists, or the arguments of the forward pass by name",
        got=type(inputs).__name__ if not isinstance(inputs, Sequence) else "an empty list" if not inputs else "text",
        remedy="pass inputs=torch.tensor(ids); text needs a tokenizer=",
    )
    several = [inputs] if isinstance(inputs[0], int) else inputs
    words = next((row for row in several if not _numeric(row)), None)
    require(
        words is None,
        required="lists of token ids, or of vectors",
        got=f"{words!r:.40}",
        remedy="in Python give text=[...] and a tokenizer= to have words read",
    )
    rows = [torch.as_tensor(row) for row in several]
    bad = next((at for at, row in enumerate(rows) if row.ndim not in (1, 2) or row.shape[0] == 0), None)
    require(
        bad is None,
        required="texts of at least one token, each a list of ids or a tensor (n,) or (n, d)",
        got=f"text {0 if bad is None else bad + 1} of shape {'' if bad is None else tuple(rows[bad].shape)}",
        remedy="leave empty texts out",
    )
    return rows
