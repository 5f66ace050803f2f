"""The ranks of all heads of a model, by probing; by weight names where the model bypasses the interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError, require, require_count
from rankfall.models.heads.probe import probe_site, sample_inputs
from rankfall.models.heads.ranks import head_records
from rankfall.models.heads.weights import head_ranks_from_file, head_ranks_from_tensors
from rankfall.models.load.folder import find_weights
from rankfall.models.load.guards import clean_config, read_json
from rankfall.models.load.open import named_path
from rankfall.models.load.safetensors_header import read_safetensors_header
from rankfall.models.replay import Trace, traced

# Where the self-check looks for rotations, unless an offset is asked for: any position but 0 serves.
ELSEWHERE = 7


def head_ranks(model: Any, offset: int = 0, inputs: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One record per head and attention layer, in the order in which the layers run.

    `offset` is how many tokens the asking token stands after the one asked: with rotary positions the query/key form
    depends on it (its rank does not). `inputs` make the model run once, for models that take neither input_ids nor
    pixel_values. A module that runs several times is probed once.
    """
    require_count("offset", offset, least=0)
    here = traced(model, sample_inputs(model) if inputs is None else inputs)
    if here.coverage.calls.get("interface", 0) == 0:
        return _by_name(model, here)
    # Images, and inputs that the caller made, stand where they stand: there is no other position to trace.
    movable = inputs is None and "position_ids" in sample_inputs(model)
    require(
        movable or offset == 0,
        required="a model that takes position_ids, for an offset other than 0",
        got=type(model).__name__,
        remedy="use offset 0",
    )
    most = getattr(model.config, "max_position_embeddings", None) or math.inf
    require(
        offset < most,
        required=f"an offset within the model's {most} positions",
        got=offset,
        remedy="choose a smaller --offset",
    )
    elsewhere = traced(model, sample_inputs(model, ELSEWHERE)) if movable else here
    asking = traced(model, sample_inputs(model, offset)) if offset else None
    records: list[dict[str, Any]] = []
    seen: set[int] = set()
    for number, site in enumerate(here.sites):
        if id(site.call.module) in seen or site.call.source != "interface":
            continue
        at_offset = asking.sites[number] if asking else None
        records += head_records(probe_site(len(seen), site, elsewhere.sites[number], at_offset, offset))
        seen.add(id(site.call.module))
    return records


def _by_name(model: Any, trace: Trace) -> list[dict[str, Any]]:
    try:
        return head_ranks_from_tensors(model.state_dict(), model.config.to_dict())
    except RequestError as error:
        raise RequestError(
            required="attention that goes through the library's interface, or weights under names that we know",
            got=f"{trace.coverage.reason}; {error.got}",
            remedy="add the family to the table of weight names",
        ) from None


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
