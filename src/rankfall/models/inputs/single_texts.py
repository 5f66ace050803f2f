"""The texts of a batch one by one, and those of one length together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def single_texts(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each text of a batch alone, without its padding: what padding does to a replay need not be known then."""
    mask = inputs.get("attention_mask")
    first = inputs.get("input_ids", next((value for value in inputs.values() if isinstance(value, Tensor)), None))
    assert isinstance(first, Tensor)
    batch = first.shape[0]
    for index in range(batch):
        # What has another number of rows, such as the patches of all images in one row, goes with every text.
        text = {
            name: value[index : index + 1] if value.shape[:1] == (batch,) else value
            for name, value in inputs.items()
            if isinstance(value, Tensor)
        }
        if mask is not None:
            kept = mask[index].bool()
            text = {
                name: value[:, kept] if value.ndim == 2 and value.shape[1] == kept.shape[0] else value
                for name, value in text.items()
                if name != "attention_mask"
            }
        yield text


def equal_texts(texts: Sequence[dict[str, Any]], most: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Texts of one length together, at most `most`, with their numbers; what is no row of a text keeps them apart."""
    groups: dict[Any, list[int]] = {}
    for number, text in enumerate(texts):
        alike: Any = tuple((name, value.shape) for name, value in text.items())
        mergeable = all(value.shape[:1] == (1,) for value in text.values())
        groups.setdefault(alike if mergeable else number, []).append(number)
    for numbers in groups.values():
        for first in range(0, len(numbers), most):
            some = numbers[first : first + most]
            yield some, {name: torch.cat([texts[number][name] for number in some]) for name in texts[some[0]]}
