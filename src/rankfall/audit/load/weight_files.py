"""Which files of a folder hold the weights, each checked to be inside the folder and sound."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from rankfall.audit.load.config_check import read_json
from rankfall.audit.load.limits import LIMITS, Limits
from rankfall.audit.load.safetensors_header import TensorEntry, read_safetensors_header
from rankfall.errors import RequestError, require

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


@final
@dataclass(frozen=True)
class WeightFiles:
    """Names as the library expects them, the real files, and every tensor that they hold."""

    files: dict[str, Path]
    tensors: dict[str, TensorEntry]

    @property
    def elements(self) -> int:
        """Numbers in all tensors together."""
        return sum(entry.elements for entry in self.tensors.values())


def find_weights(folder: Path, root: Path, limits: Limits = LIMITS) -> WeightFiles:
    """The folder's safetensors files; `root` is the folder that no file may lie outside of."""
    names = _shards(folder) if (folder / INDEX).exists() else [_only_file(folder)]
    files: dict[str, Path] = {}
    tensors: dict[str, TensorEntry] = {}
    for name in names:
        path = inside(folder, name, root)
        files[name if (folder / INDEX).exists() else SINGLE] = path
        tensors.update(read_safetensors_header(path, limits))
    return WeightFiles(files, tensors)


def inside(folder: Path, name: str, root: Path) -> Path:
    """The file of that plain name in the folder, its links followed, which must end inside `root`."""
    plain = Path(name).name == name and name not in ("", ".", "..") and "\\" not in name
    path = (folder / name).resolve() if plain else folder
    require(
        plain and path.is_relative_to(root.resolve()),
        required="weights inside the model's own folder",
        got=repr(name)[:80],
        remedy="do not trust this model; nothing was read",
    )
    require(path.is_file(), required=f"the file {name}", got="nothing there", remedy="download the model again")
    return path


def _shards(folder: Path) -> list[str]:
    mapping = read_json(folder / INDEX, LIMITS.header_bytes).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise RequestError(required=f"a weight_map in {INDEX}", got="none", remedy="download the model again")
    names = sorted(set(mapping.values()))
    for name in names:
        require(
            name.endswith(".safetensors"),
            required="an index that names safetensors files only",
            got=repr(name)[:80],
            remedy="pickled weights are never read; convert the model to safetensors",
        )
    return names


def _only_file(folder: Path) -> str:
    if (folder / SINGLE).exists():
        return SINGLE
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    raise RequestError(
        required=f"weights as {SINGLE} (or with an index) in {folder.name}",
        got=f"only {', '.join(pickled[:3])}" if pickled else f"{len(found)} safetensors files",
        remedy="pickled weights are never read; convert the model to safetensors",
    )
