"""What an audit's model reads: its calls, which positions are real tokens, and each text alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.inputs.calling import (
    PADDING_MASKS,
    SAMPLE_TOKENS,
    Calling,
    first_argument,
    ids_argument,
    is_ids,
    one_text,
    rows_of,
    sequence_first,
    takes,
    texts_in_columns,
    watch_run,
)
from rankfall.models.inputs.texts import Batch, from_ids
from rankfall.models.recording.placement import input_device


@final
@dataclass(frozen=True, eq=False)
class Reading:
    """`calls` are the arguments of the passes that read all texts, `singles` those that read one text each, without
    padding, and `sample` those of a short pass to probe heads with; None where the library's models know themselves.

    `real` says for each text which positions are no padding (None: all), `names` names its tokens. `batch` holds the
    token ids, where there are some; `width` is that of the token stream, where it was seen; `text_axis` is the axis
    of the texts, where the inputs are vectors.
    """

    calls: Sequence[Mapping[str, Any]]
    real: Sequence[Tensor | None]
    names: Sequence[list[str]]
    batch: Batch | None = None
    singles: Sequence[Mapping[str, Any]] | None = None
    sample: Mapping[str, Any] | None = None
    width: int | None = None
    text_axis: int = 0

    @property
    def more_text(self) -> str | None:
        """How the texts that were read give more passages; None where inputs were given."""
        return None if self.batch is None else self.batch.remedy


def of_library(model: nn.Module) -> bool:
    """Whether the library made this model: it then says itself what it takes."""
    return hasattr(model, "main_input_name") and hasattr(getattr(model, "config", None), "to_dict")


def read_by_library(model: Any, inputs: Any, tokenizer: Any | None = None) -> Reading:
    """Inputs of one of the library's models. Lone numbers are its main input, or embeddings of its tokens."""
    if isinstance(inputs, Batch):
        return _library_batch(model, inputs, {})
    if isinstance(inputs, Tensor) and not is_ids(inputs):
        embedded = model.main_input_name == "input_ids" and "inputs_embeds" in takes(model)
        inputs = {"inputs_embeds" if embedded else first_argument(model): inputs}
    if isinstance(inputs, Mapping) and is_ids(inputs.get("input_ids")):
        ids, mask = (_two_axes(inputs.get(name)) for name in ("input_ids", "attention_mask"))
        kept = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        rows = [row[keep].tolist() for row, keep in zip(ids, kept, strict=True)]
        others = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
        return _library_batch(model, from_ids(rows, tokenizer), others)
    if isinstance(inputs, Mapping):
        size = next((value.shape[0] for value in inputs.values() if isinstance(value, Tensor)), None)
        require(
            size is not None,
            required="a tensor among the inputs",
            got=", ".join(inputs) or "none",
            remedy="give inputs={name: tensor, ...} as the forward pass takes them",
        )
        given = _all_placed(inputs, model)
        return Reading([given], [None] * int(size or 0), [[] for _ in range(int(size or 0))])
    rows = list(_two_axes(inputs)) if isinstance(inputs, Tensor) else rows_of(model, inputs)
    return _library_batch(model, from_ids([row.tolist() for row in rows], tokenizer), {})


def inputs_remedy(model: Any, given: Mapping[str, Any]) -> str:
    """What to do about inputs on which the model does not run: a decoder may lack its own."""
    halves = of_library(model) and getattr(model.config, "is_encoder_decoder", False)
    if halves and "decoder_input_ids" in takes(model) and not any(name.startswith("decoder_") for name in given):
        both = f'{{"{model.main_input_name}": ..., "decoder_input_ids": ...}}'
        return f"give both halves theirs: inputs={both} from Python"
    return "check that weights, tokenizer and inputs belong together, or pass inputs= from Python"


def _library_batch(model: Any, batch: Batch, others: Mapping[str, Any]) -> Reading:
    return Reading([{**batch.inputs(model), **_all_placed(others, model)}], batch.kept(), batch.names, batch)


def _two_axes(value: Any) -> Any:
    """One row of ids, or of a mask, is one text."""
    return value[None] if isinstance(value, Tensor) and value.ndim == 1 else value


def read_by_module(model: nn.Module, inputs: Any, tokenizer: Any | None = None) -> Reading:
    """Inputs of a module that is none of the library's: a tensor, a batch, a list, or arguments by name."""
    if isinstance(inputs, Batch):
        return _read_ids(model, inputs, first_argument(model), {})
    if isinstance(inputs, Mapping):
        argument = ids_argument(model, inputs)
        return (
            _read_named(model, inputs, tokenizer)
            if argument is None
            else _read_given_ids(model, inputs, argument, tokenizer)
        )
    if isinstance(inputs, Tensor):
        return read_by_module(model, {first_argument(model): inputs}, tokenizer)
    rows = rows_of(model, inputs)
    if all(is_ids(row) and row.ndim == 1 for row in rows):
        return _read_ids(model, from_ids([row.tolist() for row in rows], tokenizer), first_argument(model), {})
    return _read_vectors(model, rows)


def _read_given_ids(model: nn.Module, inputs: Mapping[str, Any], argument: str, tokenizer: Any) -> Reading:
    ids = inputs[argument]
    others = {name: value for name, value in inputs.items() if name != argument}
    if ids.ndim == 1:
        return _read_ids(model, from_ids([ids.tolist()], tokenizer), argument, others)
    in_columns = texts_in_columns(model, _placed(ids, model), argument, _all_placed(others, model))
    rows = ids.mT if in_columns else ids
    batch = from_ids(rows.tolist(), tokenizer)
    mask = next((name for name in PADDING_MASKS if isinstance(others.get(name), Tensor)), None)
    if mask is not None and others[mask].shape == rows.shape:
        marked = others.pop(mask).cpu() > 0
        batch = replace(batch, real=marked if PADDING_MASKS[mask] else ~marked)
    return _read_ids(model, batch, argument, others, mask, in_columns)


def _read_ids(
    model: nn.Module,
    batch: Batch,
    argument: str,
    others: Mapping[str, Any],
    mask: str | None = None,
    in_columns: bool | None = None,
) -> Reading:
    device = input_device(model)
    calling = Calling(argument, device, mask, _all_placed(others, model), uneven=bool(sequence_first(model)))
    # The longest text is tried: if any has more tokens than the module has positions, it has.
    longest = int(batch.real.sum(dim=-1).argmax())
    alone = batch.ids[longest : longest + 1, batch.real[longest]].to(device)
    if in_columns is None:
        in_columns = texts_in_columns(model, alone, argument, calling.others)
    calling = replace(calling, in_columns=in_columns)
    singles = _singles(calling, batch)
    run = watch_run(model, singles[longest])
    batch = replace(batch, calling=calling)
    return Reading(
        calls=batch.calls(model),
        real=batch.kept(),
        names=batch.names,
        batch=batch,
        singles=singles,
        sample=_sample(model, calling, batch, singles[0]),
        width=run.width,
    )


def _singles(calling: Calling, batch: Batch) -> list[dict[str, Any]]:
    """What is given along may belong to a text each."""
    found = calling.singles(batch.ids, batch.real)
    if calling.others:
        parts = [
            one_text(calling.others, at, batch.texts, in_columns=calling.in_columns) for at in range(batch.texts)
        ]
        found = [{**one, **part} for one, part in zip(found, parts, strict=True)]
    return found


def _sample(model: nn.Module, calling: Calling, batch: Batch, whole: dict[str, Any]) -> dict[str, Any]:
    """The first few tokens of the first text, if the module runs on so few."""
    row = batch.ids[:1, batch.real[0]][:, :SAMPLE_TOKENS]
    if calling.others:
        return whole
    (short,) = calling.calls(row, torch.ones_like(row, dtype=torch.bool))
    try:
        watch_run(model, short)
    except RequestError:
        return whole
    return short


def _read_named(model: nn.Module, inputs: Mapping[str, Any], tokenizer: Any) -> Reading:
    """Arguments without token ids: the first tensor of numbers is what the texts are told by."""
    given = _all_placed(inputs, model)
    order = {name: place for place, name in enumerate(takes(model))}
    numbers = [
        name for name, one in given.items() if isinstance(one, Tensor) and one.is_floating_point() and one.ndim > 1
    ]
    require(
        bool(numbers),
        required="a tensor of token ids or of vectors among the inputs",
        got=", ".join(given) or "none",
        remedy="give inputs={name: tensor, ...} as the forward pass takes them",
    )
    main = min(numbers, key=lambda name: order.get(name, len(order)))
    if given[main].ndim == 2:
        return _read_vectors(model, [given[main]], main, {name: one for name, one in given.items() if name != main})
    others = {name: one for name, one in given.items() if name != main}
    in_columns = texts_in_columns(model, given[main], main, others)
    run = watch_run(model, given)
    texts = given[main].shape[1 if in_columns else 0]
    singles = [one_text(given, at, texts, in_columns=in_columns) for at in range(texts)]
    real: list[Tensor | None] = [None] * texts
    mask = next((name for name in PADDING_MASKS if isinstance(given.get(name), Tensor)), None)
    if mask is not None and given[mask].ndim == 2 and given[mask].shape[0] == texts:
        kept = (given[mask] > 0) == PADDING_MASKS[mask]
        real = [None if bool(row.all()) else row.cpu() for row in kept]
    names: list[list[str]] = [[] for _ in range(texts)]
    return Reading([given], real, names, None, singles, singles[0], run.width, int(in_columns))


def _read_vectors(
    model: nn.Module, rows: Sequence[Tensor], argument: str | None = None, others: Mapping[str, Any] | None = None
) -> Reading:
    """Texts of vectors (n, d), each in a call of its own."""
    argument = argument or first_argument(model)
    placed = [_placed(row, model) for row in rows]
    in_columns = texts_in_columns(model, placed[0][None], argument, dict(others or {}))
    calls = [{argument: row[:, None] if in_columns else row[None], **(others or {})} for row in placed]
    run = watch_run(model, calls[0])
    return Reading(calls, [None] * len(rows), [[] for _ in rows], None, calls, calls[0], run.width, int(in_columns))


def _placed(value: Any, model: nn.Module) -> Any:
    return value.to(input_device(model)) if isinstance(value, Tensor) else value


def _all_placed(values: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    return {name: _placed(value, model) for name, value in values.items()}
