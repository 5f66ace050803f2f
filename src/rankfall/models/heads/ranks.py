"""The ranks of all heads of a model: by probing, or by weight names where it is not run or bypasses the interface."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from rankfall.errors import RequestError, reason_of, require, require_count
from rankfall.models.architectures import configuration as aliases
from rankfall.models.architectures.small import image_shape
from rankfall.models.controls.twin import RandomBlocks
from rankfall.models.heads.latents import depends_on_tokens
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.probe import fed_as_attended, probe_site
from rankfall.models.heads.record import EPSILON, HeadRecord, head_records
from rankfall.models.heads.seen import Seen, tokens_seen
from rankfall.models.heads.weights import TensorFiles, maps_from_tensors
from rankfall.models.load.files import find_weights
from rankfall.models.load.guards import clean_config, read_json
from rankfall.models.load.headers import read_safetensors_header
from rankfall.models.load.named import named_path
from rankfall.models.recording.placement import input_device
from rankfall.models.recording.replay import Site, Trace, traced

# Where the self-check looks for rotations, unless an offset is asked for: any position but 0 serves.
ELSEWHERE = 7
# Where queries, keys and values are seen.
SEEN_WHOLE = ("interface", "sdpa", "multihead")


@final
@dataclass(frozen=True)
class ProbedHeads:
    """One record per head; by module, why others have none."""

    records: tuple[HeadRecord, ...]
    missing: Mapping[str, str]


def head_ranks(
    model: Any, offset: int = 0, inputs: Mapping[str, Any] | None = None, chance: RandomBlocks | None = None
) -> tuple[HeadRecord, ...]:
    """One record per head and attention layer, in the order in which the layers run; raises where there are none.

    `offset` is how many tokens the query stands after the key: with rotary positions the query/key form depends on
    it (its rank does not). `inputs` make the model run once, for models that take neither input_ids nor
    pixel_values. A module that runs several times is probed once. `chance` stands in place
    of the model's own weights.
    """
    found = probe_heads(model, offset, inputs, chance)
    reasons = list(found.missing.values())
    require(
        bool(found.records) or not reasons,
        required="an attention module that can be probed",
        got=reasons[0] if reasons else "none",
        remedy="read its weights by name",
    )
    return found.records


OnMaps = Callable[[HeadMaps, Seen | None], None]
"""Called with the maps of each layer as they are found, and the tokens that it is given, where these are known."""


def probe_heads(
    model: Any,
    offset: int = 0,
    inputs: Mapping[str, Any] | None = None,
    chance: RandomBlocks | None = None,
    *,
    seen: Mapping[int, Seen] | None = None,
    on_maps: OnMaps | None = None,
) -> ProbedHeads:
    """The same, and what could not be probed or failed its self-check, by module.

    A model of text is given one token; then, where it takes more than text, `inputs`, one text or image of them, for
    the modules that did not run. `seen` are the tokens of attention modules on real inputs: norms on latents and
    gates depend on them. Where they are not given and matter, the model reads `inputs` once more.
    """
    require_count("offset", offset, least=0)
    given = None if inputs is None else dict(inputs)
    traces = [*_text_traces(model, offset, given)]
    if not traces or (given is not None and _more_than_ids(given)):
        require(
            bool(traces) or offset == 0,
            required="a model that takes position_ids, for an offset other than 0",
            got=type(model).__name__,
            remedy="use offset 0",
        )
        # Images, and inputs that the caller made, stand where they stand: there is no other position to trace.
        whole = traced(model, sample_inputs(model) if given is None else given)
        traces.append((whole, whole, None))
    if not any(site.call.source in SEEN_WHOLE for trace, _, _ in traces for site in trace.sites):
        return ProbedHeads(_by_name(model, traces[0][0], seen or {}, on_maps, chance), {})
    if seen is None:
        matter = any(
            depends_on_tokens(site) or not fed_as_attended(site) for trace, _, _ in traces for site in trace.sites
        )
        seen = tokens_seen(model, [given]) if given is not None and matter else {}
    records: list[HeadRecord] = []
    missing: dict[str, str] = {}
    probed: set[int] = set()
    for here, elsewhere, at_query in traces:
        for number, site in enumerate(here.sites):
            module = id(site.call.module)
            if module in probed or site.call.source not in SEEN_WHOLE:
                continue
            at_offset = at_query.sites[number] if at_query else None
            given_here = seen.get(module)
            with contextlib.nullcontext() if chance is None else chance.around(site.name):
                try:
                    real = None if given_here is None else given_here.tokens
                    maps = probe_site(
                        len(probed), site, elsewhere.sites[number], at_offset, offset, real, as_traced=chance is None
                    )
                    require_checked(maps, site)
                    records += head_records(maps)
                    if on_maps is not None:
                        on_maps(maps, given_here)
                except Exception as error:  # whatever an architecture does when its module runs alone
                    missing[site.name] = reason_of(error)
            probed.add(module)
    return ProbedHeads(tuple(records), missing)


Traces = tuple[Trace, Trace, Trace | None]
"""At position 0, at another one, and at the query's, where that is asked for."""


def _text_traces(model: Any, offset: int, given: Mapping[str, Any] | None) -> Iterator[Traces]:
    """One token, where the model takes token ids and these suffice for it to run."""
    if given is not None and "input_ids" not in given:
        return
    try:
        sample = sample_inputs(model)
        here = traced(model, sample)
    except Exception:
        if given is None:
            raise
        return
    movable = "position_ids" in sample
    require(
        movable or offset == 0,
        required="a model that takes position_ids, for an offset other than 0",
        got=type(model).__name__,
        remedy="use offset 0",
    )
    most = aliases.number(getattr(model, "config", None), aliases.POSITIONS) or math.inf
    require(
        offset < most,
        required=f"an offset within the model's {most} positions",
        got=offset,
        remedy="choose a smaller --offset",
    )
    elsewhere = traced(model, sample_inputs(model, ELSEWHERE)) if movable else here
    yield here, elsewhere, traced(model, sample_inputs(model, offset)) if offset else None


def sample_inputs(model: Any, position: int = 0) -> dict[str, Any]:
    """One token at the given position for a model of text; one blank image for a model of images."""
    accepted = inspect.signature(model.forward).parameters
    device = input_device(model)
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        return {"pixel_values": torch.zeros(1, *image_shape(model.config), device=device)}
    if "input_ids" not in accepted:
        raise RequestError(
            required="a model that takes input_ids or pixel_values",
            got=f"{type(model).__name__}, which takes {main}",
            remedy="pass `inputs` that make it run once",
        )
    ids = torch.ones(1, 1, dtype=torch.long, device=device)
    inputs: dict[str, Any] = {"input_ids": ids}
    if "position_ids" in accepted:
        inputs["position_ids"] = torch.full((1, 1), position, dtype=torch.long, device=device)
    if "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = ids
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return inputs


def _more_than_ids(given: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1 for value in given.values())


# Relative errors of maps in float64, and how many roundings of the model's own arithmetic may add to them: the replay
# is held against a pass in it, and rotations come as it rounded them, so that cos^2 + sin^2 is not quite one.
CHECKED = 1e-4
ROUNDINGS = {"linearity": 0, "same_position_scores": 1, "replay": 64}


def require_checked(maps: HeadMaps, site: Site) -> None:
    """Refuse maps whose self-check failed: their ranks would not be those of the heads."""
    rounding = torch.finfo(site.tokens.dtype).eps if site.tokens.is_floating_point() else EPSILON
    bounds = {name: max(CHECKED, times * rounding) for name, times in ROUNDINGS.items()}
    for name, most in bounds.items():
        require(
            maps.checks.get(name, 0.0) <= most,
            required=f"queries and keys of {maps.name} that are linear maps of its tokens",
            got=f"a self-check ({name.replace('_', ' ')}) that fails by {maps.checks.get(name, 0.0):.2g}",
            remedy="its heads are left out",
        )


def _by_name(
    model: Any, trace: Trace, seen: Mapping[int, Seen], on_maps: OnMaps | None, chance: RandomBlocks | None
) -> tuple[HeadRecord, ...]:
    def told(maps: HeadMaps) -> None:
        if on_maps is not None:
            on_maps(maps, next((one for one in seen.values() if one.name.startswith(f"{maps.name}.")), None))

    config: Any = getattr(model, "config", None)
    known = config.to_dict() if hasattr(config, "to_dict") else {}
    try:
        return _records_of(model.state_dict() if chance is None else chance, known, told)
    except RequestError as error:
        raise RequestError(
            required="attention through torch's functions or the library's interface, or weights under known names",
            got=f"{trace.coverage.reason}; {error.got}",
            remedy="call torch's scaled_dot_product_attention, or add the layout of its weights to the catalogue",
        ) from None


def head_ranks_from_file(name: Path | str, on_maps: OnMaps | None = None) -> tuple[HeadRecord, ...]:
    """One record per head of a named model, a folder, or a safetensors file with config.json beside it.

    Headers and configuration are checked first; tensors are read one layer at a time. `on_maps` gets their maps.
    """
    path = named_path(str(name)) or Path(name).expanduser()
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
        remedy="check the path; config.json holds the number of heads, which weights alone do not tell",
    )
    config, _ = clean_config(read_json(folder / "config.json"))
    if path.is_dir():
        files = list(find_weights(path).files.values())
    else:
        read_safetensors_header(path)
        files = [path]
    with TensorFiles(files) as tensors:
        return _records_of(tensors, config, lambda maps: None if on_maps is None else on_maps(maps, None))


def _records_of(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], told: Callable[[HeadMaps], None] = lambda maps: None
) -> tuple[HeadRecord, ...]:
    records: list[HeadRecord] = []
    for maps in maps_from_tensors(tensors, config):
        records += head_records(maps)
        told(maps)
    return tuple(records)
