"""A configuration file, read as data: what it may not ask for, and what is left of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankfall.audit.load.limits import LIMITS, Limits, require_size
from rankfall.errors import RequestError, require

# Names of attention implementations that a saved configuration may mention; they are dropped. Anything else, such as
# the address of a kernel to download, is refused.
KNOWN_IMPLEMENTATIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
IMPLEMENTATION_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
REPEATED = ("layer", "block", "depth", "stage", "head", "expert", "group")
DEEPEST = 8


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


def clean_config(raw: dict[str, Any], limits: Limits = LIMITS) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration without what we do not honour, and a note for each thing dropped; or a refusal."""
    require(
        "auto_map" not in raw,
        required="a model whose code is in the transformers library",
        got="a configuration with auto_map, which asks to run code that came with the weights",
        remedy="remove auto_map from config.json if the library's own class is what you want",
    )
    require(
        "quantization_config" not in raw,
        required="weights in plain numbers",
        got="a configuration with quantization_config",
        remedy="use the unquantised model or a GGUF file",
    )
    for key, value in _numbers(raw, ()):
        most = limits.repeats if any(word in key.rpartition(".")[2] for word in REPEATED) else limits.whole_number
        require(
            abs(value) <= most,
            required=f"{key} in config.json to be at most {most:,}",
            got=f"{value:,}",
            remedy="no real model needs more; do not trust this file",
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
        remedy="do not trust this file",
    )
    if isinstance(value, bool):
        return
    if isinstance(value, int) or (isinstance(value, float) and path and any(word in path[-1] for word in REPEATED)):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, (*path, str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, path)
