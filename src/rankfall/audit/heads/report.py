"""The ranks of all heads of a model, by probing; by weight names where the model bypasses the interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rankfall.audit.heads.probe import probe_site
from rankfall.audit.heads.ranks import head_records
from rankfall.audit.heads.weights import head_ranks_from_tensors
from rankfall.audit.trace import Trace, sample_inputs, traced
from rankfall.errors import RequestError, require, require_count

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
