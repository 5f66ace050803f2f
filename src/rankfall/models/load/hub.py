"""Models by hub id, with or without a revision: from the local cache, and fetched only where that is allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError, require
from rankfall.models.load.adapter import CONFIG as ADAPTER_CONFIG
from rankfall.models.load.files import INDEX, PICKLED_INDEX
from rankfall.models.load.guards import GIBI, LIMITS
from rankfall.models.load.tokenizer import TOKENIZER_FILES, TOKENIZER_TABLES

PART = r"[A-Za-z0-9][\w.-]{0,95}"
HUB_ID = re.compile(rf"(?P<name>(?:{PART}/)?{PART})(?:@(?P<revision>[A-Za-z0-9][\w./-]{{0,95}}))?")
SAFE = ["config.json", "*.safetensors", INDEX, *TOKENIZER_FILES, *TOKENIZER_TABLES, ADAPTER_CONFIG]
PICKLED = ["pytorch_model*.bin", PICKLED_INDEX]


@final
@dataclass(frozen=True)
class HubName:
    """`gpt2`, `org/name` or `org/name@revision`."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def parse_hub_name(text: str, revision: str | None = None) -> HubName | None:
    """The id and the revision in it, or given beside it; None where the text is no id."""
    found = HUB_ID.fullmatch(text)
    if found is None or ".." in text:
        return None
    require(
        revision is None or found["revision"] in (None, revision),
        required="one revision",
        got=f"{found['revision']} and {revision}",
        remedy="give it behind the @ or with --revision",
    )
    return HubName(found["name"], found["revision"] or revision)


def snapshot(hub: HubName, *, allow_download: bool) -> Path:
    """The folder of that model and revision; without `allow_download` nothing leaves this machine."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    if allow_download:
        info = huggingface_hub.HfApi().model_info(hub.name, revision=hub.revision, files_metadata=True)
        wanted = _wanted(info)
        return Path(huggingface_hub.snapshot_download(hub.name, revision=hub.revision, allow_patterns=wanted))
    try:
        return Path(
            huggingface_hub.snapshot_download(
                hub.name, revision=hub.revision, allow_patterns=[*SAFE, *PICKLED], local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        near = NAMED_MODELS.near(hub.name)
        meant = "" if near is None else f"did you mean {near}? Otherwise "
        raise RequestError(
            required=f"{hub} in the local hub cache",
            got=_what_is_there(hub),
            remedy=f"{meant}add --allow-download to fetch it,"
            " or name a folder, a GGUF file or a model that `--help` lists",
        ) from None


def opened_repository(folder: Path) -> Path:
    """Of a repository's folder in the hub's cache the snapshot of `main`, or the only one; other paths stay."""
    snapshots, branch = folder / "snapshots", folder / "refs" / "main"
    if not (snapshots.is_dir() and (folder / "blobs").is_dir()):
        return folder
    found = {one.name: one for one in sorted(snapshots.iterdir()) if one.is_dir()}
    if branch.is_file():
        with branch.open(encoding="utf-8", errors="replace") as file:
            commit = file.read(100).strip()
        if commit in found:
            return found[commit]
    require(
        len(found) == 1,
        required=f"the branch main or one snapshot in {folder.name}",
        got=f"{len(found)} snapshots, none of them of main",
        remedy="name the folder of one of its snapshots",
    )
    return next(iter(found.values()))


def _what_is_there(hub: HubName) -> str:
    """Other revisions of the model that the cache has: a wrong revision is easier to mend than a missing model."""
    from huggingface_hub import constants

    refs = Path(constants.HF_HUB_CACHE) / f"models--{hub.name.replace('/', '--')}" / "refs"
    have = sorted(str(path.relative_to(refs)) for path in refs.rglob("*") if path.is_file()) if refs.is_dir() else []
    return f"the revisions {', '.join(have[:5])}" if have else "not there"


def _wanted(info: Any) -> list[str]:
    """Safetensors where there are some, else pickled weights; refused when there is too much of it."""
    files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    safe = {name: size for name, size in files.items() if name.endswith(".safetensors") and "/" not in name}
    pickled = {name: size for name, size in files.items() if re.fullmatch(r"pytorch_model[\w-]*\.bin", name)}
    weights = safe or pickled
    size = sum(weights.values())
    require(
        bool(weights) and size <= LIMITS.download_bytes,
        required=f"safetensors or pytorch_model.bin of at most {LIMITS.download_bytes / GIBI:.0f} GiB",
        got=f"{len(weights)} files, {size / GIBI:.1f} GiB",
        remedy="download it yourself and name the folder",
    )
    return SAFE if safe else [*SAFE, *PICKLED]
