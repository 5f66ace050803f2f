"""Whatever names a model becomes a model: a short name, a folder, a GGUF file or a hub id."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError, require
from rankfall.models.load.folder import (
    TOKENIZER_FILES,
    TOKENIZER_TABLES,
    LoadedModel,
    open_folder,
    quiet,
    refused_in_one_line,
    require_complete,
)
from rankfall.models.load.guards import GIBI, LIMITS, clean_config, require_memory, skeleton, time_limit
from rankfall.models.load.headers import GgufHeader, read_gguf_header
from rankfall.models.load.named import named_path
from rankfall.models.load.spread import require_place
from rankfall.system import cache_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def open_model(
    name: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    allow_download: bool = False,
    load_seconds: float = LIMITS.seconds,
) -> LoadedModel:
    """Open a model safely; every refusal is one line, and nothing that came with the weights is executed.

    `load_seconds` bounds the time it may take, downloading apart (see `time_limit` for what that cannot stop).
    """
    require(
        dtype in DTYPES, required=f"a dtype among {', '.join(DTYPES)}", got=dtype, remedy="float32 suits most models"
    )
    require_place(device)
    kind = DTYPES[dtype]
    text = str(name)
    path = named_path(text) or Path(text).expanduser()
    if path.is_dir():
        with time_limit(load_seconds, path.name):
            return open_folder(path, name=text, source=f"folder {path.name}", dtype=kind, device=device)
    if path.is_file():
        require(
            path.suffix.lower() == ".gguf",
            required="a model folder or a .gguf file",
            got=path.name,
            remedy="name the folder that holds the weights and config.json",
        )
        with time_limit(load_seconds, path.name):
            return open_gguf(path, name=text, source=f"GGUF file {path.name}", dtype=kind, device=device)
    if HUB_ID.fullmatch(text):
        return open_hub(text, allow_download=allow_download, dtype=kind, device=device, load_seconds=load_seconds)
    raise RequestError(
        required=f"a model folder, a GGUF file, a hub id or one of {', '.join(NAMED_MODELS.names)}",
        got=text,
        remedy="check the spelling",
    )


def located(name: str | Path, *, allow_download: bool = False) -> Path:
    """The folder or file behind whatever names a model; it need not exist."""
    path = named_path(str(name)) or Path(name).expanduser()
    if not path.exists() and HUB_ID.fullmatch(str(name)):
        return _snapshot(str(name), allow_download)
    return path


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
WANTED = ["config.json", "*.safetensors", "model.safetensors.index.json", *TOKENIZER_FILES, *TOKENIZER_TABLES]


def open_hub(
    name: str,
    *,
    allow_download: bool,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    load_seconds: float = LIMITS.seconds,
) -> LoadedModel:
    """The model of that id; without `allow_download` nothing leaves this machine."""
    folder = _snapshot(name, allow_download)
    # A snapshot links to blobs beside it: .../models--org--name/snapshots/<commit>.
    root = folder.parents[1]
    with time_limit(load_seconds, name):
        return open_folder(folder, name=name, source=f"hub id {name}", dtype=dtype, device=device, root=root)


def _snapshot(name: str, allow_download: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    if allow_download:
        with refused_in_one_line():
            _require_download_size(huggingface_hub.HfApi().model_info(name, files_metadata=True))
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=WANTED))
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=WANTED, local_files_only=True))
    except LocalEntryNotFoundError:
        raise RequestError(
            required=f"{name} in the local hub cache",
            got="not there",
            remedy="add --allow-download to fetch it, or name a folder",
        ) from None


def _require_download_size(info: Any) -> None:
    weights = [file for file in info.siblings or () if file.rfilename.endswith(".safetensors")]
    size = sum(file.size or 0 for file in weights)
    require(
        bool(weights) and size <= LIMITS.download_bytes,
        required=f"safetensors of at most {LIMITS.download_bytes / GIBI:.0f} GiB",
        got=f"{len(weights)} files, {size / GIBI:.1f} GiB",
        remedy="download it yourself and name the folder",
    )


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
    require_complete(
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
