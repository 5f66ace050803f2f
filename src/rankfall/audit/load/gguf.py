"""Open a GGUF file by converting it once to safetensors, kept under the hash of its bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from rankfall.audit.load.config_check import clean_config
from rankfall.audit.load.construct import skeleton
from rankfall.audit.load.folder import check_complete, open_folder, quiet, refused_in_one_line
from rankfall.audit.load.gguf_header import GgufHeader, read_gguf_header
from rankfall.audit.load.limits import require_memory
from rankfall.audit.load.loaded import LoadedModel
from rankfall.errors import RequestError

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


def cache_folder() -> Path:
    """Where conversions are kept: RANKFALL_CACHE, or the user's cache folder."""
    if own := os.environ.get("RANKFALL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankfall"


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
