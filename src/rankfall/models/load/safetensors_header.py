"""The header of a safetensors file, checked against the file's size before anyone else reads it.

Layout: eight bytes, the header's length; the header, JSON; then the tensors, back to back, nothing between or after.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rankfall.errors import RequestError
from rankfall.models.load.guards import LIMITS, Limits

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip

PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@final
@dataclass(frozen=True)
class TensorEntry:
    """What the header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def read_safetensors_header(path: Path, limits: Limits = LIMITS) -> dict[str, TensorEntry]:
    """The tensors of a sound file; a file that contradicts itself is refused, and nothing of it is loaded."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise _unsound(path, f"only {size} bytes")
        (length,) = struct.unpack("<Q", start)
        if not 2 <= length <= min(limits.header_bytes, size - 8):
            kind = (
                "a pickle or archive renamed" if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04") else "not safetensors"
            )
            raise _unsound(path, f"a header of {length:,} bytes in a file of {size:,} ({kind}, or truncated)")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _unsound(path, "a header that is not JSON") from None
    if not isinstance(header, dict):
        raise _unsound(path, "a header that is not a table")
    header.pop("__metadata__", None)
    if len(header) > limits.tensors:
        raise _unsound(path, f"{len(header):,} tensors, more than {limits.tensors:,}")
    entries = {str(name): _entry(path, str(name), facts) for name, facts in header.items()}
    _tile(path, header, size - 8 - length)
    return entries


def _entry(path: Path, name: str, facts: Any) -> TensorEntry:
    if not isinstance(facts, dict) or facts.get("dtype") not in BITS:
        raise _unsound(path, f"tensor {name!r} without a known dtype")
    shape: Any = facts.get("shape")
    offsets: Any = facts.get("data_offsets")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise _unsound(path, f"tensor {name!r} without a shape or place")
    entry = TensorEntry(facts["dtype"], tuple(shape))
    if entry.elements * BITS[entry.dtype] != 8 * (offsets[1] - offsets[0]):
        raise _unsound(path, f"tensor {name!r} of shape {list(shape)} in {offsets[1] - offsets[0]:,} bytes")
    return entry


def _tile(path: Path, header: dict[str, Any], data: int) -> None:
    """Tensors must fill the data exactly, none overlapping."""
    end = 0
    for begin, stop in sorted(tuple(facts["data_offsets"]) for facts in header.values()):
        if begin != end:
            raise _unsound(path, f"tensors that overlap or leave a gap at byte {end:,}")
        end = stop
    if end != data:
        raise _unsound(path, f"{data:,} bytes of tensors where the header says {end:,} (truncated?)")


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
    )


def _unsound(path: Path, got: str) -> RequestError:
    return RequestError(
        required=f"a sound safetensors file {path.name}",
        got=got,
        remedy="download or convert the model again; nothing was loaded",
    )
