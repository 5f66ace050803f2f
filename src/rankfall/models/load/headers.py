"""Headers of safetensors and GGUF files, checked against the file's size and against themselves before use.

safetensors  eight bytes, the header's length; the header, JSON; then the tensors, back to back, nothing between or
             after
GGUF         magic, version, tensor count, count of facts; the facts (key, type, value); the tensors' names, shapes,
             types and places; padding; the tensors. A doctored count is refused here in milliseconds; a converter
             that believes it would fill hundreds of layers with random numbers first.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from rankfall.errors import RequestError
from rankfall.models.load.guards import LIMITS

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16,
    "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
PICKLE_STARTS = (b"PK", b"\x80\x02", b"\x80\x04")


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


def read_safetensors_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a sound file; a file that contradicts itself is refused, and nothing of it is loaded."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise _unsound(path, f"only {size} bytes")
        (length,) = struct.unpack("<Q", start)
        if not 2 <= length <= min(LIMITS.header_bytes, size - 8):
            kind = "a pickle or archive renamed" if start[:2] in PICKLE_STARTS else "not safetensors"
            raise _unsound(path, f"a header of {length:,} bytes in a file of {size:,} ({kind}, or truncated)")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _unsound(path, "a header that is not JSON") from None
    if not isinstance(header, dict):
        raise _unsound(path, "a header that is not a table")
    header.pop("__metadata__", None)
    if len(header) > LIMITS.tensors:
        raise _unsound(path, f"{len(header):,} tensors, more than {LIMITS.tensors:,}")
    entries = {str(name): _entry(path, str(name), facts) for name, facts in header.items()}
    _require_tiling(path, header, size - 8 - length)
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


def _require_tiling(path: Path, header: dict[str, Any], data: int) -> None:
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


def _unsound(path: Path, got: str, kind: str = "safetensors") -> RequestError:
    return RequestError(
        required=f"a sound {kind} file {path.name}",
        got=got,
        remedy="download or convert the model again; nothing was loaded",
    )


SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
UINT32, STRING, ARRAY = 4, 8, 9
LONGEST_STRING = 1 << 24
# Of a vocabulary: the library cuts each word at every place, so long words cost the square of their length.
LONGEST_WORD = 1 << 10
VOCABULARY_BYTES = 1 << 24
VOCABULARY = "tokenizer.ggml.tokens"
FACTS_AT_MOST = 10_000
DIMENSIONS_AT_MOST = 4
DEFAULT_ALIGNMENT = 32
BLOCK_NAME = re.compile(r"(?:^|\.)blk\.(\d+)\.")


@final
@dataclass(frozen=True)
class GgufHeader:
    """The facts that are single values, each tensor's element count by name, and where in the file everything lies.

    `spans` holds the first byte of each fact and the one behind it, `table` those of the list of tensors, `data` the
    place of the first tensor; `vocabulary` is the number of tokens.
    """

    facts: dict[str, Any]
    elements: dict[str, int]
    spans: dict[str, tuple[int, int]]
    table: tuple[int, int]
    data: int
    alignment: int
    vocabulary: int

    @property
    def architecture(self) -> str:
        """Which family of models the file says it holds."""
        return str(self.facts.get("general.architecture", ""))


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of a sound file; one that contradicts itself or its size is refused."""
    with path.open("rb") as file:
        reader = _Reader(path, file, path.stat().st_size)
        if reader.take(4) != b"GGUF":
            raise reader.unsound("another kind of file")
        if (version := reader.number("<I")) not in (2, 3):
            raise reader.unsound(f"version {version}")
        tensors, count = reader.number("<Q"), reader.number("<Q")
        if tensors > LIMITS.tensors or count > FACTS_AT_MOST:
            raise reader.unsound(f"{tensors:,} tensors and {count:,} facts")
        facts: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(count):
            begin = file.tell()
            key, value = reader.fact()
            if key in facts:
                raise reader.unsound(f"the fact {key!r} twice")
            facts[key], spans[key] = value, (begin, file.tell())
        listed = file.tell()
        places = [reader.tensor() for _ in range(tensors)]
        table = (listed, file.tell())
        alignment = facts.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise reader.unsound(f"an alignment of {alignment}")
        start = -(-file.tell() // alignment) * alignment
        for name, _, size, offset in places:
            if start + offset + size > reader.size:
                raise reader.unsound(f"tensor {name!r} ending beyond the file (truncated?)")
        elements = {name: elements for name, elements, _, _ in places}
        header = GgufHeader(facts, elements, spans, table, start, alignment, reader.lengths.get(VOCABULARY, 0))
        _check_counts(reader, header)
        return header


def _check_counts(reader: _Reader, header: GgufHeader) -> None:
    """The layers that the facts announce must be the layers whose tensors are there."""
    claimed = header.facts.get(f"{header.architecture}.block_count")
    present = {int(found[1]) for name in header.elements if (found := BLOCK_NAME.search(name))}
    if claimed != len(present) or present != set(range(len(present))):
        raise reader.unsound(f"{claimed} layers announced, tensors of {len(present)} there")
    for key, value in header.facts.items():
        if key.startswith(f"{header.architecture}.") and isinstance(value, int):
            counted = any(word in key for word in ("count", "expert"))
            if abs(value) > (LIMITS.repeats if counted else LIMITS.whole_number):
                raise reader.unsound(f"{key} = {value:,}")


class _Reader:
    """Reads forward and never past the end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.lengths: dict[str, int] = {}

    def unsound(self, got: str) -> RequestError:
        return _unsound(self.path, got, "GGUF")

    def take(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) != count:
            raise self.unsound(f"an end after {self.size:,} bytes, inside the header")
        return data

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        length = self.number("<Q")
        if length > min(LONGEST_STRING, self.size):
            raise self.unsound(f"a string of {length:,} bytes")
        return self.take(length).decode("utf-8", errors="replace")

    def fact(self) -> tuple[str, Any]:
        key = self.string()
        return key, self.value(self.number("<I"), key)

    def value(self, kind: int, key: str, *, nested: bool = False) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind == ARRAY and not nested:
            return self.skip_array(key)
        raise self.unsound(f"a value of unknown type {kind}")

    def skip_array(self, key: str) -> None:
        """Arrays hold vocabularies; only their soundness and length matter here."""
        kind, count = self.number("<I"), self.number("<Q")
        self.lengths[key] = count
        least = struct.calcsize(SCALARS[kind]) if kind in SCALARS else 8
        if count * least > self.size - self.file.tell():
            raise self.unsound(f"an array of {count:,} values")
        if kind in SCALARS:
            self.file.seek(count * least, 1)
            return
        if kind != STRING:
            raise self.unsound(f"an array of values of unknown type {kind}")
        begin = self.file.tell()
        for _ in range(count):
            length = self.number("<Q")
            if length > LONGEST_WORD and key == VOCABULARY:
                raise self.unsound(f"a token of {length:,} bytes")
            if length > self.size - self.file.tell():
                raise self.unsound(f"a string of {length:,} bytes")
            self.file.seek(length, 1)
        if key == VOCABULARY and self.file.tell() - begin - 8 * count > VOCABULARY_BYTES:
            raise self.unsound(f"a vocabulary of more than {VOCABULARY_BYTES:,} bytes")

    def tensor(self) -> tuple[str, int, int, int]:
        """Name, elements, bytes and offset."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, dimensions = self.string(), self.number("<I")
        if dimensions > DIMENSIONS_AT_MOST:
            raise self.unsound(f"tensor {name!r} of {dimensions} dimensions")
        elements = math.prod(self.number("<Q") for _ in range(dimensions))
        kind, offset = self.number("<I"), self.number("<Q")
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise self.unsound(f"tensor {name!r} of unknown type {kind}") from None
        return name, elements, elements // block * size, offset
