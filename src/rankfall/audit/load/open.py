"""Whatever names a model becomes a model: a short name, a folder, a GGUF file or a hub id."""

from __future__ import annotations

from pathlib import Path

import torch

from rankfall.audit.load.folder import open_folder
from rankfall.audit.load.gguf import open_gguf
from rankfall.audit.load.hub import HUB_ID, open_hub
from rankfall.audit.load.limits import LIMITS
from rankfall.audit.load.loaded import LoadedModel
from rankfall.audit.load.names import ALL_NAMES, named_path
from rankfall.audit.load.time_limit import time_limit
from rankfall.errors import RequestError, require

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
