"""What protects loading: limits on sizes, configuration read as data, skeletons built without storage.

Nothing heavy is imported before a model is built: help texts state the limits.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rankfall.errors import RequestError, require
from rankfall.system import available_memory

if TYPE_CHECKING:
    from torch import nn

MEBI = 1 << 20
GIBI = 1 << 30


@final
@dataclass(frozen=True)
class Limits:
    """Every limit of size is checked on headers and configurations, before anything of that size is allocated."""

    config_bytes: int = 8 * MEBI
    tokenizer_bytes: int = 256 * MEBI
    header_bytes: int = 100 * MEBI
    tensors: int = 200_000
    # Layers, heads, experts, blocks: anything a configuration makes a loop of.
    repeats: int = 10_000
    whole_number: int = 1 << 31
    # Classes of a classifier, each of which becomes an entry of two tables.
    labels: int = 1_000_000
    # Numbers in a tokenizer's tables: some of them become a list of that many words.
    tokenizer_number: int = 1_000_000
    # A model may have this many times what its files hold, shared tensors counted once; more while it is being
    # built, because what is shared is made for every place first (an encoder-decoder makes its embedding four times).
    slack: int = 2
    building: int = 8
    download_bytes: int = 20 * GIBI
    memory_share: float = 0.8
    # Converting a GGUF file of 135 million parameters takes half a minute on one core; downloading is not counted.
    seconds: float = 600.0


LIMITS = Limits()


def require_size(path: Path, most: int) -> int:
    """The file's size, if it is a plain file no larger than `most` bytes."""
    require(
        path.is_file(),
        required=f"a readable file {path.name}",
        got="a folder" if path.is_dir() else "nothing there",
        remedy="check the path",
    )
    size = path.stat().st_size
    require(
        size <= most,
        required=f"{path.name} of at most {most:,} bytes",
        got=f"{size:,} bytes",
        remedy="no real model needs more; use another copy of it",
    )
    return size


def require_memory(parameters: int, bytes_each: int, buffers: int = 0) -> None:
    """Refuse a model that would not fit into the memory that is free now; `buffers` are bytes that no file holds."""
    free = available_memory()
    needed = parameters * bytes_each + buffers
    require(
        needed <= LIMITS.memory_share * free,
        required=f"a model that fits into {LIMITS.memory_share:.0%} of the free memory",
        got=f"{parameters:,} parameters, {needed / GIBI:.1f} GiB of {free / GIBI:.1f} GiB",
        remedy="use --dtype bfloat16 or a larger machine",
    )


# Names of attention implementations that a saved configuration may mention; they are dropped. Anything else, such as
# the address of a kernel to download, is refused.
KNOWN_IMPLEMENTATIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
IMPLEMENTATION_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
REPEATED = ("layer", "block", "depth", "stage", "head", "expert", "group")
# Tables from words to numbers, whose keys are names of classes.
LABEL_TABLES = ("label2id", "id2label", "task_specific_params")
DEEPEST = 8
HUGE = 10**30


def read_json(path: Path, most: int = LIMITS.config_bytes) -> dict[str, Any]:
    """A JSON table of bounded size."""
    require_size(path, most)
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            required=f"{path.name} to hold a JSON table", got="something else", remedy="download the model again"
        )
    return value


def clean_config(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration without what we do not honour, and a note for each thing dropped; or a refusal."""
    require(
        "auto_map" not in raw,
        required="a model whose code is in the transformers library",
        got="a configuration with auto_map, which asks to run code that came with the weights",
        remedy="remove auto_map from config.json if the library's own class is what you want",
    )
    for key, value in _numbers(raw, ()):
        last = key.rpartition(".")[2]
        repeated = any(word in last for word in REPEATED)
        most = LIMITS.repeats if repeated else LIMITS.labels if "label" in last else LIMITS.whole_number
        require(
            abs(value) <= most,
            required=f"{key[:60]} in config.json to be at most {most:,}",
            got=f"{value:,}" if abs(value) < HUGE else "a number of many digits",
            remedy="no real model has more; do not trust this file",
        )
    notes: list[str] = []
    return _without_implementations(raw, notes), tuple(notes)


def _without_implementations(value: Any, notes: list[str]) -> Any:
    if isinstance(value, list):
        return [_without_implementations(one, notes) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if key not in IMPLEMENTATION_KEYS:
            kept[key] = _without_implementations(item, notes)
        elif item is not None:
            require(
                item in KNOWN_IMPLEMENTATIONS,
                required=f"{key} in config.json to be one of {', '.join(KNOWN_IMPLEMENTATIONS)}",
                got=repr(item)[:80],
                remedy="remove it; the auditor chooses the implementation itself",
            )
            notes.append(f"ignored {key} = {item} in config.json")
    return kept


def _numbers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, int | float]]:
    require(
        len(path) <= DEEPEST,
        required=f"config.json nested at most {DEEPEST} deep",
        got="deeper",
        remedy="no real model's is deeper; do not trust this file",
    )
    if isinstance(value, bool) or (path and path[-1] in LABEL_TABLES):
        return
    if isinstance(value, int) or (isinstance(value, float) and path and any(word in path[-1] for word in REPEATED)):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, (*path, str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, path)


# Modules a model may have for each tensor in its files: activations, dropouts and containers hold no tensors.
MODULES_PER_TENSOR = 20
SOME = 1_000


def skeleton(kind: Any, config: Any, *, elements: int, tensors: int) -> nn.Module:
    """The model on the meta device, or a refusal once it needs more than the files hold."""
    import torch

    with torch.device("meta"), _bounded(elements * LIMITS.building, (tensors + SOME) * MODULES_PER_TENSOR):
        made: nn.Module = kind._from_config(config) if hasattr(kind, "_from_config") else kind.from_config(config)
    unique = sum(parameter.numel() for parameter in made.parameters())
    if unique > elements * LIMITS.slack:
        raise _outgrown(f"a configuration that asks for {unique:,} parameters where the files hold {elements:,}")
    return made


def require_room(made: nn.Module, bytes_each: int) -> None:
    """Refuse a skeleton that would not fit into memory with its buffers, which are made without any file."""
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in made.buffers())
    require_memory(sum(parameter.numel() for parameter in made.parameters()), bytes_each, buffers)


@contextlib.contextmanager
def _bounded(elements: int, modules: int) -> Iterator[None]:
    from torch.nn.modules.module import (
        register_module_module_registration_hook,
        register_module_parameter_registration_hook,
    )

    # Tied tensors are registered at several places: each counts once. Kept, so that no id is used again.
    seen: dict[int, Any] = {}
    made = {"elements": 0, "modules": 0}

    def count_parameter(module: nn.Module, name: str, parameter: Any) -> None:
        if parameter is None or id(parameter) in seen:
            return
        seen[id(parameter)] = parameter
        made["elements"] += parameter.numel()
        if made["elements"] > elements:
            raise _outgrown(f"a configuration that asks for more than {elements:,} parameters")

    def count_module(module: nn.Module, name: str, child: Any) -> None:
        made["modules"] += 1
        if made["modules"] > modules:
            raise _outgrown(f"a configuration that asks for more than {modules:,} modules")

    with contextlib.ExitStack() as hooks:
        hooks.callback(register_module_parameter_registration_hook(count_parameter).remove)
        hooks.callback(register_module_module_registration_hook(count_module).remove)
        yield


def _outgrown(got: str) -> RequestError:
    return RequestError(
        required="a configuration that matches its weights",
        got=got,
        remedy="config.json and the weights do not belong together; download the model again",
    )
