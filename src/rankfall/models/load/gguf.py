"""The header of a GGUF file, checked against the file's size and against itself before it is converted.

Layout: magic, version, tensor count, count of facts; the facts (key, type, value); the tensors' names, shapes, types
and places; padding; the tensors. A doctored count is refused here in milliseconds; a converter that believes it would
fill hundreds of layers with random numbers first.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

import torch

from rankfall.errors import RequestError
from rankfall.models.load.folder import LoadedModel, check_complete, open_folder, quiet, refused_in_one_line
from rankfall.models.load.guards import LIMITS, Limits, clean_config, require_memory, skeleton
from rankfall.system import cache_folder

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
LONGEST_STRING = 1 << 24
FACTS_AT_MOST = 10_000
DIMENSIONS_AT_MOST = 4
DEFAULT_ALIGNMENT = 32
BLOCK_NAME = re.compile(r"(?:^|\.)blk\.(\d+)\.")


@final
@dataclass(frozen=True)
class GgufHeader:
    """The facts that are single values, and each tensor's element count by name."""

    facts: dict[str, Any]
    elements: dict[str, int]

    @property
    def architecture(self) -> str:
        """Which family of models the file says it holds."""
        return str(self.facts.get("general.architecture", ""))


def read_gguf_header(path: Path, limits: Limits = LIMITS) -> GgufHeader:
    """The header of a sound file; one that contradicts itself or its size is refused."""
    with path.open("rb") as file:
        reader = _Reader(path, file, path.stat().st_size)
        if reader.take(4) != b"GGUF":
            raise reader.unsound("another kind of file")
        if (version := reader.number("<I")) not in (2, 3):
            raise reader.unsound(f"version {version}")
        tensors, count = reader.number("<Q"), reader.number("<Q")
        if tensors > limits.tensors or count > FACTS_AT_MOST:
            raise reader.unsound(f"{tensors:,} tensors and {count:,} facts")
        facts = dict(reader.fact() for _ in range(count))
        places = [reader.tensor() for _ in range(tensors)]
        alignment = facts.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise reader.unsound(f"an alignment of {alignment}")
        start = -(-file.tell() // alignment) * alignment
        for name, _, size, offset in places:
            if start + offset + size > reader.size:
                raise reader.unsound(f"tensor {name!r} ending beyond the file (truncated?)")
        header = GgufHeader(facts, {name: elements for name, elements, _, _ in places})
        _check_counts(reader, header, limits)
        return header


def _check_counts(reader: _Reader, header: GgufHeader, limits: Limits) -> None:
    """The layers that the facts announce must be the layers whose tensors are there."""
    claimed = header.facts.get(f"{header.architecture}.block_count")
    present = {int(found[1]) for name in header.elements if (found := BLOCK_NAME.search(name))}
    if claimed != len(present) or present != set(range(len(present))):
        raise reader.unsound(f"{claimed} layers announced, tensors of {len(present)} there")
    for key, value in header.facts.items():
        if key.startswith(f"{header.architecture}.") and isinstance(value, int):
            counted = any(word in key for word in ("count", "expert"))
            if abs(value) > (limits.repeats if counted else limits.whole_number):
                raise reader.unsound(f"{key} = {value:,}")


class _Reader:
    """Reads forward and never past the end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size

    def unsound(self, got: str) -> RequestError:
        return RequestError(
            required=f"a sound GGUF file {self.path.name}",
            got=got,
            remedy="download the model again; nothing was loaded",
        )

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
        return key, self.value(self.number("<I"))

    def value(self, kind: int, *, nested: bool = False) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind == ARRAY and not nested:
            return self.skip_array()
        raise self.unsound(f"a value of unknown type {kind}")

    def skip_array(self) -> None:
        """Arrays hold vocabularies; only their soundness matters here."""
        kind, count = self.number("<I"), self.number("<Q")
        least = struct.calcsize(SCALARS[kind]) if kind in SCALARS else 8
        if count * least > self.size - self.file.tell():
            raise self.unsound(f"an array of {count:,} values")
        if kind in SCALARS:
            self.file.seek(count * least, 1)
            return
        for _ in range(count):
            self.value(kind, nested=True)

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


# Raised when the conversion changes, so that old copies are not used.
CONVERSION = 1


def open_gguf(
    path: Path, *, name: str, source: str, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> LoadedModel:
    """The model in a GGUF file; the first time takes half a minute, after that it opens like a folder."""
    header = read_gguf_header(path)
    folder = cache_folder() / "converted" / f"{digest(path)}-{CONVERSION}"
    if not (folder / "config.json").exists():
        convert(path, header, folder)
    return open_folder(folder, name=name, source=source, dtype=dtype, device=device)


def digest(path: Path) -> str:
    """SHA-256 of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(path: Path, header: GgufHeader, folder: Path) -> None:
    """Write configuration, weights and tokenizer beside the cache, then move them in at once; or leave nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    try:
        with quiet(), refused_in_one_line():
            _convert_into(made, path, header)
        try:
            made.rename(folder)
        except OSError:
            # Someone else finished the same conversion first; theirs is as good.
            if not (folder / "config.json").exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _convert_into(made: Path, path: Path, header: GgufHeader) -> None:
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    parsed = load_gguf_checkpoint(str(path))["config"]
    table, _ = clean_config(parsed)
    if not isinstance(model_type := table.pop("model_type", None), str):
        raise RequestError(
            required="a GGUF architecture that transformers knows", got=header.architecture, remedy="use safetensors"
        )
    config = AutoConfig.for_model(model_type, **table)
    elements = sum(header.elements.values())
    kind = _class_for(AutoModelForCausalLM, config)
    empty = skeleton(kind, config, elements=elements, tensors=len(header.elements))
    require_memory(2 * elements, 4)
    tensors: dict[str, torch.Tensor] = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)[
        "tensors"
    ]
    wanted = empty.state_dict()
    tied = set(getattr(empty, "all_tied_weights_keys", None) or ())
    check_complete(
        {
            "missing_keys": [key for key in wanted if key not in tensors and key not in tied],
            "mismatched_keys": [key for key in tensors if key in wanted and tensors[key].shape != wanted[key].shape],
        }
    )
    config.architectures = [type(empty).__name__]
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, made / "model.safetensors", {"format": "pt"}
    )
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True).save_pretrained(made)
    config.save_pretrained(made)


def _class_for(auto: Any, config: Any) -> Any:
    mapping = auto._model_mapping
    if type(config) not in mapping:
        raise RequestError(
            required="a language model", got=f"model_type {config.model_type}", remedy="use safetensors instead"
        )
    return mapping[type(config)]
