"""What a monitor records of attention: of one attention module, run a second time on what it was given.

The second run is without gradients, dropout and caches, past the module's hooks, and draws nothing random: training
goes on as it would have. Of one sequence a few rows are read, as an audit reads them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.attention.seen import attention_rows, sizes
from rankfall.models.attention.statistics import AttentionRows, row_statistics
from rankfall.models.monitor.compiled import left_as_it_was, plain_name
from rankfall.models.monitor.query_key import QueryKeyMaps
from rankfall.models.recording.blocks import is_linear, is_norm
from rankfall.models.recording.events import Call, Ran
from rankfall.models.recording.interface import Eager, at_interface, attention_modules, uses_interface
from rankfall.models.recording.replay import CACHE_NAMES, bound_arguments
from rankfall.models.recording.torch_attention import BypassWatch, as_written

ROWS = 32
"""Rows that are read of one sequence."""

MEANS = ("entropy", "relative_entropy", "first_token_mass", "sink_mass")
WEIGHTS = ("qk_stable_rank", "qk_update_stable_rank")
ATTENTION_MEASURES = (*MEANS, "logit_max", *WEIGHTS)
"""Of each head; of the module, means over its heads and the largest logit."""

HeadRecords = dict[str, dict[str, float]]
"""By name: of the module as a whole, under the empty name, and of each head."""


def attention_paths(model: nn.Module, blocks: Mapping[str, str]) -> dict[str, str]:
    """The attention modules inside the blocks, by name, and where they are; a block without one stands for itself."""
    found: dict[str, str] = {}
    for path in blocks.values():
        inside = attention_modules(model.get_submodule(path)) or {"": nn.Identity()}
        for name in inside:
            place = f"{path}.{name}" if name else path
            found[f"{plain_name(place)}/attention"] = place
    return found


@final
@dataclass(frozen=True, eq=False)
class CalledAgain:
    """The attention call of a second run, and the linear maps and norms that ran before it."""

    call: Call
    before: tuple[Ran, ...]


def attention_records(again: CalledAgain, real: Tensor | None) -> HeadRecords:
    """What the module attends to."""
    rows = sampled_attention(again.call, real)
    values = {name: some.nanmean(dim=-1) for name, some in row_statistics(rows).items() if name in MEANS}
    if rows.logits is not None:
        pairs = rows.allowed & rows.counted[..., None]
        values["logit_max"] = rows.logits.double().where(pairs, -torch.inf).amax(dim=(-2, -1))
    return _by_head(values)


def weight_records(maps: QueryKeyMaps, before: QueryKeyMaps | None) -> HeadRecords:
    """Stable ranks of the heads' query/key forms and of their change since the last sample."""
    with torch.no_grad(), torch.autocast(maps.query.device.type, enabled=False):
        values = {"qk_stable_rank": maps.stable_ranks()}
        if before is not None:
            values["qk_update_stable_rank"] = maps.change_since(before)
    return _by_head(values)


def _by_head(values: Mapping[str, Tensor]) -> HeadRecords:
    """Of each head and, as means and the largest logit, of all together; what is not finite is left out."""
    table = torch.stack([one.double() for one in values.values()]).tolist()
    columns = [dict(zip(values, column, strict=True)) for column in zip(*table, strict=True)]
    heads = [{name: value for name, value in one.items() if math.isfinite(value)} for one in columns]
    whole: dict[str, float] = {}
    for name in values:
        found = [one[name] for one in heads if name in one]
        if found:
            whole[name] = max(found) if name == "logit_max" else sum(found) / len(found)
    return {"": whole, **{f"head.{number}": one for number, one in enumerate(heads)}}


def sampled_attention(call: Call, real: Tensor | None) -> AttentionRows:
    """Some rows of one sequence of an attention call, evenly spaced, the last among them."""
    queries, keys = sizes(call)
    text, places = 0, torch.arange(keys)
    if real is not None and real.shape[-1] == keys:
        text = int(real.sum(dim=-1).argmax())
        places = real[text].nonzero()[:, 0].cpu()
    rows = places if queries == keys else torch.arange(queries)
    require(len(rows) > 1, required="two or more tokens", got=len(rows), remedy="nothing is measured here")
    rows = rows[torch.linspace(1, len(rows) - 1, min(ROWS, len(rows) - 1)).round().long()]
    device = call.query.device if call.query is not None else None
    with torch.no_grad():
        return attention_rows(call, text, rows.to(device), places.to(device), _texts(call, real))


def _texts(call: Call, real: Tensor | None) -> int:
    if call.query is not None:
        return call.query.shape[0]
    assert call.weights is not None
    return call.weights.shape[0] if real is None else real.shape[0]


def called_again(module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> CalledAgain:
    """The first attention call that the module makes when it is run a second time."""
    arguments = {
        name: value
        for name, value in bound_arguments(module, given, named).items()
        if name not in CACHE_NAMES and not hasattr(value, "get_seq_length")
    }
    seen: list[Call] = []
    before: list[Ran] = []

    def ran(inner: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not seen and args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            before.append(Ran("linear" if is_linear(inner) else "norm", "", inner, args[0], output))

    def watched(*, source: Any, **parts: Any) -> None:
        if not seen:
            seen.append(Call(0, "attention", module, source, **parts))

    def route(
        function: Eager, inner: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        fused: list[dict[str, Any]] = []
        with BypassWatch(lambda **parts: fused.append(parts)):
            output, weights = function(inner, query, key, value, mask, **options)
        own = next((one for one in fused if one["source"] == "sdpa"), None)
        if own is not None:
            watched(**{**own, "query": query, "key": key, "value": value, "output": output})
        else:
            scaling = options.pop("scaling", None)
            parts = {"query": query, "key": key, "value": value, "mask": mask, "output": output}
            scaling = float(query.shape[-1]) ** -0.5 if scaling is None else scaling
            watched(source="interface", **parts, scaling=scaling, eager=function, options=options, weights=weights)
        return output, weights

    with contextlib.ExitStack() as hooks:
        for inner in module.modules():
            if inner is not module and (is_linear(inner) or is_norm(inner)):
                hooks.callback(inner.register_forward_hook(ran).remove)
        with _evaluated(module), left_as_it_was(module), _watching(module, route, watched):
            module.forward(**arguments)
    if not seen:
        raise RequestError(
            required="attention through torch's functions or the library's interface",
            got=f"none from {type(module).__name__}",
            remedy="its attention is left out",
        )
    return CalledAgain(seen[0], tuple(before))


@contextlib.contextmanager
def _watching(module: nn.Module, route: Any, seen: Callable[..., None]) -> Iterator[None]:
    if any(uses_interface(one) for one in module.modules()):
        with at_interface(module, route, own=True):
            yield
    else:
        # In a block without a module for attention a softmax may be anything.
        named = bool(attention_modules(module))
        with as_written(), BypassWatch(seen, lambda source: named or source != "softmax", lambda: module):
            yield


@contextlib.contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    before = [(one, one.training) for one in module.modules()]
    for one, _ in before:
        one.training = False
    try:
        yield
    finally:
        for one, training in before:
            one.training = training
