"""Head ranks of a model on disk whose weights are read but never run, after the checks of loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankfall.audit.heads import head_ranks_from_file
from rankfall.audit.load.config_check import clean_config, read_json
from rankfall.audit.load.names import named_path
from rankfall.audit.load.safetensors_header import read_safetensors_header
from rankfall.audit.load.weight_files import find_weights
from rankfall.errors import require


def heads_of_file(name: str) -> list[dict[str, Any]]:
    """One record per head of a folder or a safetensors file with config.json beside it."""
    path = named_path(name) or Path(name).expanduser()
    folder = path if path.is_dir() else path.parent
    require(
        path.is_dir() or path.suffix == ".safetensors",
        required="a folder or a .safetensors file for --weights-only",
        got=path.name if path.exists() else f"{name}, which is neither here",
        remedy="GGUF files and hub ids are audited without --weights-only",
    )
    require(
        path.exists() and (folder / "config.json").is_file(),
        required="weights with config.json beside them",
        got=str(name),
        remedy="check the path",
    )
    clean_config(read_json(folder / "config.json"))
    if path.is_dir():
        find_weights(path, path)
    else:
        read_safetensors_header(path)
    return head_ranks_from_file(path)
