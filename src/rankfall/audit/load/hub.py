"""Open a model by its hub id: from the local cache, or downloaded when that is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from rankfall.audit.load.folder import open_folder, refused_in_one_line
from rankfall.audit.load.limits import GIBI, LIMITS
from rankfall.audit.load.loaded import LoadedModel
from rankfall.audit.load.stage import TOKENIZER_FILES, TOKENIZER_TABLES
from rankfall.audit.load.time_limit import time_limit
from rankfall.errors import RequestError, require

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
