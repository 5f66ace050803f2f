"""One name for a layer wherever it is spoken of: tokens, heads and masks share number and module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from rankfall.models.attention.heads import HeadAttention
from rankfall.models.depth.rows import DepthRow
from rankfall.models.heads.key_values import KeyValueRecord
from rankfall.models.heads.needed import HeadNeed
from rankfall.models.heads.ranks import HeadRecord
from rankfall.models.heads.spectra import HeadSpectrum
from rankfall.models.masks import ObservedMask

Record = TypeVar("Record", HeadAttention, HeadRecord, HeadNeed, HeadSpectrum, ObservedMask, KeyValueRecord)


def as_in_tokens(records: Iterable[Record], rows: Sequence[DepthRow] = ()) -> tuple[Record, ...]:
    """Heads or masks with the number of the block that they are in: layer l of tokens is what block l gave.

    A block is told by its module's name; where no row has that block (another stack, layers left out, weights that
    were not run) attention layers are counted from 1 in the order in which they run.
    """
    return tuple(replace(one, layer=layer_number(one.module, rows, one.layer)) for one in records)


def layer_number(module: str, rows: Sequence[DepthRow], run: int) -> int:
    """The number of the block that holds the module; the attention layer ran after `run` others."""
    blocks = {row.module: row.layer for row in rows if row.module}
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((blocks[name] for name in names if name in blocks), run + 1)
