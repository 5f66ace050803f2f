"""Whatever names a model becomes a model: a short name, a folder, a GGUF file, a pickled file or a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError, require
from rankfall.models.load.adapter import adapter_base, is_adapter
from rankfall.models.load.confinement import time_limit
from rankfall.models.load.folder import (
    LoadedModel,
    checked_folder,
    open_folder,
    refused_in_one_line,
    require_known_type,
)
from rankfall.models.load.gguf_file import open_gguf
from rankfall.models.load.guards import LIMITS
from rankfall.models.load.headers import read_gguf_header
from rankfall.models.load.hub import HubName, opened_repository, parse_hub_name, snapshot
from rankfall.models.load.named import named_path
from rankfall.models.load.pickles import PICKLES
from rankfall.models.load.spread import require_place
from rankfall.models.load.whisper import open_whisper

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def open_model(
    name: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    allow_download: bool = False,
    load_seconds: float = LIMITS.seconds,
    revision: str | None = None,
    adapter: str | Path | None = None,
) -> LoadedModel:
    """Open a model safely; every refusal is one line, and nothing that came with the weights is executed.

    `load_seconds` bounds the time it may take, downloading apart (see `time_limit` for what that cannot stop).
    `revision` is a branch, tag or commit of a hub id, `adapter` a folder of low-rank updates to merge first.
    """
    require(
        dtype in DTYPES, required=f"a dtype among {', '.join(DTYPES)}", got=dtype, remedy="float32 suits most models"
    )
    require_place(device)
    merged = _adapter_folder(adapter)
    where, hub = _found(str(name), revision, allow_download)
    called, source = (str(name), "") if hub is None else (str(hub), f"hub id {hub}")
    with time_limit(load_seconds, _short(where, hub)):
        if where.is_dir() and is_adapter(where) and merged is None:
            where, merged, source = base_of(where, allow_download), where, f"adapter {where.name}"
        options: dict[str, Any] = {"name": called, "dtype": DTYPES[dtype], "device": device, "adapter": merged}
        if where.is_dir():
            source = source or f"folder {where.name}"
            return open_folder(where, source=source, online=allow_download, **options)
        if where.suffix.lower() == ".gguf" and where.is_file():
            return open_gguf(where, source=f"GGUF file {where.name}", **options)
        if where.suffix.lower() in PICKLES and where.is_file():
            return open_whisper(where, source=f"file {where.name}", **options)
    raise _no_model(where, str(name))


def require_openable(
    name: str | Path,
    *,
    allow_download: bool = False,
    load_seconds: float = LIMITS.seconds,
    revision: str | None = None,
    adapter: str | Path | None = None,
) -> None:
    """Refuse a model that `open_model` would, as far as names, tables and the headers of files tell.

    No weights are read, so that this takes a moment; what passes may still be refused when it is loaded.
    """
    merged = _adapter_folder(adapter)
    where, hub = _found(str(name), revision, allow_download)
    with time_limit(load_seconds, _short(where, hub)):
        if where.is_dir() and is_adapter(where) and merged is None:
            where = base_of(where, allow_download)
        if where.is_dir():
            require_known_type(checked_folder(where).config)
        elif where.suffix.lower() == ".gguf" and where.is_file():
            read_gguf_header(where)
        elif not (where.suffix.lower() in PICKLES and where.is_file()):
            raise _no_model(where, str(name))


def _adapter_folder(adapter: str | Path | None) -> Path | None:
    folder = None if adapter is None else Path(adapter).expanduser()
    require(
        folder is None or folder.is_dir(),
        required="a folder for the adapter",
        got=str(adapter),
        remedy="name the folder that holds adapter_config.json",
    )
    return folder


def _found(text: str, revision: str | None, allow_download: bool) -> tuple[Path, HubName | None]:
    """The folder or file behind whatever names a model, which need not exist, and the hub id where it is one."""
    path = named_path(text) or opened_repository(Path(text).expanduser())
    hub = None if path.exists() else parse_hub_name(text, revision)
    require(
        revision is None or hub is not None,
        required="a hub id for the revision",
        got=text,
        remedy="folders and files have no revisions; leave --revision out",
    )
    if hub is None:
        return path, None
    with refused_in_one_line():
        return snapshot(hub, allow_download=allow_download), hub


def _short(where: Path, hub: HubName | None) -> str:
    return where.name if hub is None else str(hub)


def _no_model(where: Path, text: str) -> RequestError:
    here = where.exists()
    return RequestError(
        required=f"a model folder, a .gguf file, a hub id or one of {', '.join(NAMED_MODELS.names)}",
        got=where.name if here else text,
        remedy="name the folder that holds the weights and config.json" if here else "check the spelling",
    )


def located(name: str | Path, *, revision: str | None = None, allow_download: bool = False) -> Path:
    """The folder or file behind whatever names a model; it need not exist."""
    path = named_path(str(name)) or opened_repository(Path(name).expanduser())
    hub = None if path.exists() else parse_hub_name(str(name), revision)
    return path if hub is None else snapshot(hub, allow_download=allow_download)


def base_of(folder: Path, allow_download: bool) -> Path:
    """The model that an adapter belongs to, if the hub's cache has it; a path in its table is not followed."""
    base = adapter_base(folder)
    hub = parse_hub_name(base)
    if hub is None or base.count("/") > 1:
        raise RequestError(
            required="the model that this adapter belongs to",
            got=f"base_model_name_or_path = {base[:80]!r}, which is no hub id",
            remedy=f"name both: rankfall audit MODEL --adapter {folder.name}",
        )
    try:
        with refused_in_one_line():
            return snapshot(HubName(hub.name, hub.revision), allow_download=allow_download)
    except RequestError as error:
        raise RequestError(
            required=error.required,
            got=error.got,
            remedy=f"name it: rankfall audit MODEL --adapter {folder.name}, or add --allow-download",
        ) from None
