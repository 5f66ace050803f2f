"""Which files of a folder hold the weights: safetensors, else pickled tensors; nothing outside the model's folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from rankfall.errors import RequestError, require
from rankfall.models.load.guards import LIMITS, read_json
from rankfall.models.load.headers import TensorEntry, read_safetensors_header
from rankfall.models.load.pickles import PICKLES, as_safetensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"
# What trainers leave beside the weights: pickles that hold no model.
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth")


@final
@dataclass(frozen=True)
class WeightFiles:
    """Names as the library expects them, the real files, every tensor that they hold, and what was done to get them.

    `index` says which tensor is in which file, where there are several.
    """

    files: dict[str, Path]
    tensors: dict[str, TensorEntry]
    index: dict[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def elements(self) -> int:
        """Numbers in all tensors together."""
        return sum(entry.elements for entry in self.tensors.values())

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(path.stat().st_size for path in self.files.values())


def repository_root(folder: Path) -> Path:
    """The folder that a model's files may lie in: itself, or the repository of a snapshot in the hub's cache.

    There the files are links: `models--org--name/snapshots/<commit>/model.safetensors -> ../../blobs/<hash>`.
    """
    folder = Path(os.path.realpath(folder))
    above = folder.parents[1] if len(folder.parents) > 1 else folder
    snapshot = folder.parent.name == "snapshots" and (above / "blobs").is_dir()
    return above if snapshot else folder


def find_weights(folder: Path, root: Path | None = None) -> WeightFiles:
    """The folder's weights; `root` is the folder that no file may lie outside of."""
    root = repository_root(folder) if root is None else root
    if (folder / INDEX).exists():
        table = read_json(inside(folder, INDEX, root), LIMITS.header_bytes)
        return _read(folder, root, _shards(table, INDEX), index=table)
    if (folder / SINGLE).exists():
        return _read(folder, root, {SINGLE: SINGLE})
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return _read(folder, root, {SINGLE: found[0]})
    if not found and (folder / PICKLED_INDEX).exists():
        table = read_json(inside(folder, PICKLED_INDEX, root), LIMITS.header_bytes)
        shards = _shards(table, PICKLED_INDEX)
        return _read_pickles(folder, root, {f"{Path(name).stem}.safetensors": name for name in shards})
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    weights = [PICKLED] if PICKLED in pickled else [name for name in pickled if name not in NOT_WEIGHTS]
    if not found and len(weights) == 1:
        return _read_pickles(folder, root, {SINGLE: weights[0]})
    raise RequestError(
        required=f"weights as {SINGLE} (or with an index) in {folder.name}",
        got=f"{', '.join(weights[:3])}" if weights else f"{len(found)} safetensors files and no {INDEX}",
        remedy=f"name the folder of one model, with {SINGLE}, {PICKLED}, or an index of their parts",
    )


def _read(folder: Path, root: Path, names: dict[str, str], index: dict[str, Any] | None = None) -> WeightFiles:
    files = {expected: inside(folder, name, root) for expected, name in names.items()}
    tensors = {key: entry for path in files.values() for key, entry in read_safetensors_header(path).items()}
    return WeightFiles(files, tensors, index)


def _read_pickles(folder: Path, root: Path, names: dict[str, str]) -> WeightFiles:
    files = {expected: as_safetensors(inside(folder, name, root)) for expected, name in names.items()}
    held = {expected: read_safetensors_header(path) for expected, path in files.items()}
    index = {"metadata": {}, "weight_map": {key: file for file, entries in held.items() for key in entries}}
    tensors = {key: entry for entries in held.values() for key, entry in entries.items()}
    note = f"read tensors from {', '.join(names.values())[:80]}, a pickled file, in a process of its own"
    return WeightFiles(files, tensors, None if SINGLE in files else index, (note,))


def inside(folder: Path, name: str, root: Path) -> Path:
    """The file of that plain name in the folder, its links followed, which must end inside `root`."""
    plain = Path(name).name == name and name not in ("", ".", "..") and "\\" not in name
    require(
        plain,
        required="an index of files inside the model's own folder",
        got=repr(name)[:80],
        remedy="an index that points elsewhere was made by hand; do not trust this model; nothing was read",
    )
    # Unlike `Path.resolve`, this does not fail on a circle of links, which is no file and is refused as such.
    path = Path(os.path.realpath(folder / name))
    require(
        path.is_relative_to(os.path.realpath(root)),
        required="weights inside the model's own folder",
        got=f"{name}, a link that leads outside to {path}",
        remedy="if that is meant, copy the file into the folder, or name the folder that holds it",
    )
    require(path.is_file(), required=f"the file {name}", got="nothing there", remedy="download the model again")
    return path


def _shards(table: dict[str, Any], index: str) -> dict[str, str]:
    mapping = table.get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise RequestError(required=f"a weight_map in {index}", got="none", remedy="download the model again")
    ending = ".safetensors" if index == INDEX else PICKLES
    names = sorted(set(mapping.values()))
    for name in names:
        require(
            name.endswith(ending),
            required=f"{index} to name {'safetensors' if index == INDEX else 'pickled'} files only",
            got=repr(name)[:80],
            remedy="download the model again",
        )
    return {name: name for name in names}
