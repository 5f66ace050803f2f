"""Head ranks from stored weights alone: nothing of the model runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rankfall.errors import RequestError, require
from rankfall.models.heads.families import ALL_FAMILIES, GAIN_LESS_ONE, HEAD_WIDTH, HEADS, Family
from rankfall.models.heads.probe import HeadMaps
from rankfall.models.heads.ranks import head_records

NOTE = "read by weight name: rotations by position are left out (offset 0), and nothing was run to check it"


def head_ranks_from_file(path: Path | str) -> list[dict[str, Any]]:
    """One record per head, from a safetensors file, or a folder of them, with config.json beside.

    Tensors are read one layer at a time; index files are not followed.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    require(
        bool(files) and all(file.suffix == ".safetensors" and file.is_file() for file in files),
        required="a .safetensors file, or a folder that holds some",
        got=str(path),
        remedy="weights in other formats can only be audited by running the model",
    )
    config = folder / "config.json"
    require(
        config.is_file(),
        required=f"config.json in {folder}",
        got="none",
        remedy="it holds the number of heads, which weights alone do not tell",
    )
    with _Tensors(files) as tensors:
        return head_ranks_from_tensors(tensors, json.loads(config.read_text()))


def head_ranks_from_tensors(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One record per head, from tensors by name and the model's configuration."""
    config = {**config, **(config.get("text_config") or {})}
    family, stems = _family(list(tensors), str(config.get("model_type", "")))
    records: list[dict[str, Any]] = []
    for layer, stem in enumerate(stems):
        records += head_records(_layer_maps(layer, stem, family, tensors, config))
    return records


def _family(names: list[str], model_type: str) -> tuple[Family, list[str]]:
    for family in ALL_FAMILIES:
        if family.only and model_type not in family.only:
            continue
        needed = [part for part in (family.query, family.key, family.value, family.output) if part]
        present = set(names)
        stems = [name.removesuffix(family.query) for name in names if name.endswith("." + family.query)]
        whole = [stem for stem in stems if all(stem + part in present for part in needed)]
        if whole:
            return family, sorted(whole, key=_natural)
    raise RequestError(
        required="attention weights under names of a known family",
        got=f"{len(names)} tensors of model type {model_type or 'unknown'}",
        remedy=f"known are {', '.join(family.name for family in ALL_FAMILIES)}; or run the model",
    )


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _layer_maps(
    layer: int, stem: str, family: Family, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> HeadMaps:
    def weight(name: str) -> Tensor:
        stored = tensors[stem + name].double()
        return stored.T if family.transposed else stored

    heads = _number(config, HEADS)
    if heads is None:
        raise RequestError(required="the number of heads in the configuration", got="none", remedy="add it")
    if family.layout == "separate":
        rows = weight(family.query), weight(family.key), weight(family.value)
    else:
        rows = _unfused(weight(family.query), family, heads, config)
    query, key, value = rows
    rank = query.shape[0] // heads
    query, key = (
        _gained(part, tensors.get(stem + name) if name else None, config)
        for part, name in ((query, family.query_gain), (key, family.key_gain))
    )
    output = weight(family.output)
    value_rank = output.shape[1] // heads
    return HeadMaps(
        layer=layer,
        name=stem.rstrip("."),
        source=f"names of {family.name}",
        query=_per_head(query, rank),
        key=_per_head(key, rank),
        value=_per_head(value, value_rank),
        output=output.T.reshape(heads, value_rank, -1),
        qk_norm=bool(family.query_gain) and stem + family.query_gain in tensors,
        notes=(NOTE,),
    )


def _unfused(fused: Tensor, family: Family, heads: int, config: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of query, key and value, head after head."""
    total, width = fused.shape
    if family.layout == "per head":
        parts = fused.reshape(heads, 3, -1, width)
        return parts[:, 0].reshape(-1, width), parts[:, 1].reshape(-1, width), parts[:, 2].reshape(-1, width)
    rank = _number(config, HEAD_WIDTH) or width // heads
    groups = (total // rank - heads) // 2
    if family.layout == "concatenated":
        query, key, value = fused.split([heads * rank, groups * rank, groups * rank])
        return query, key, value
    parts = fused.reshape(groups, heads // groups + 2, rank, width)
    return (
        parts[:, :-2].reshape(-1, width),
        parts[:, -2].reshape(-1, width),
        parts[:, -1].reshape(-1, width),
    )


def _gained(rows: Tensor, gain: Tensor | None, config: Mapping[str, Any]) -> Tensor:
    """Rows times the gain of the norm on queries or keys, which is one per coordinate of a head or of all heads."""
    if gain is None:
        return rows
    factor = gain.double().flatten() + (1.0 if config.get("model_type") in GAIN_LESS_ONE else 0.0)
    return rows * factor.repeat(rows.shape[0] // factor.numel())[:, None]


def _per_head(rows: Tensor, rank: int) -> Tensor:
    """(heads * rank, d) to (heads, d, rank)."""
    return rows.reshape(-1, rank, rows.shape[-1]).mT


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), None)


class _Tensors(Mapping[str, Tensor]):
    """The tensors of several safetensors files, each read when asked for."""

    def __init__(self, files: list[Path]) -> None:
        from safetensors import safe_open

        self._files: list[Any] = [safe_open(str(file), framework="pt") for file in files]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def __enter__(self) -> _Tensors:
        for file in self._files:
            file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.__exit__(*error)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._where:
            raise KeyError(name)
        found: Tensor = self._where[name].get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
