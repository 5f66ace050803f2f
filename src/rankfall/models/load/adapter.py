"""Low-rank adapters merged into the weights that they were trained for: W + scale B A.

An adapter is a folder with `adapter_config.json` and `adapter_model.safetensors`, as the peft library writes it. The
merge is a few products, done here: peft would add a dependency and make objects of whatever the folder names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.load.files import inside, repository_root
from rankfall.models.load.guards import GIBI, read_json, require_size
from rankfall.models.load.headers import read_safetensors_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
REMEDY = "merge it with peft (merge_and_unload), save the model and name that folder"
LARGEST = 8 * GIBI
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


def adapter_base(folder: Path) -> str:
    """The model that the adapter says it belongs to; only a name, which is not trusted to be a path."""
    return str(_checked(folder)[0].get("base_model_name_or_path") or "")


def merge_adapter(network: nn.Module, folder: Path) -> tuple[str, ...]:
    """Add the adapter to the network's weights in place; what was merged, in words. All of it, or a refusal."""
    from safetensors.torch import load_file

    table, path = _checked(folder)
    factors: dict[str, dict[str, Tensor]] = {}
    replaced = 0
    with torch.no_grad():
        for key, tensor in load_file(path).items():
            name = key.removeprefix(PREFIX)
            if found := FACTOR.fullmatch(name):
                factors.setdefault(found["module"], {})[(found["embedding"] or "") + found["side"]] = tensor
            else:
                _replace(network, name, tensor)
                replaced += 1
        for name, pair in factors.items():
            _merge(_module(network, name), name, pair, _scale(table, name, pair))
    note = f"merged the adapter {folder.name}: {len(factors)} modules of rank {table.get('r')}"
    return (note + (f", {replaced} tensors replaced" if replaced else ""),)


def _checked(folder: Path) -> tuple[dict[str, Any], Path]:
    root = repository_root(folder)
    require(
        (folder / CONFIG).is_file(),
        required=f"{CONFIG} in {folder.name}",
        got="none",
        remedy="--adapter takes a folder that peft wrote",
    )
    table = read_json(inside(folder, CONFIG, root))
    kind = str(table.get("peft_type"))
    require(kind == "LORA", required="an adapter of type LORA", got=kind[:40], remedy=REMEDY)
    unusual = [
        key for key in ("use_dora", "megatron_config", "use_qalora", "alora_invocation_tokens") if table.get(key)
    ]
    require(not unusual, required="a plain LORA adapter", got=", ".join(unusual), remedy=REMEDY)
    rank = table.get("r")
    require(
        isinstance(rank, int) and not isinstance(rank, bool) and rank > 0,
        required=f"a rank r in {CONFIG}",
        got=str(rank)[:40],
        remedy="save the adapter again",
    )
    path = inside(folder, WEIGHTS, root)
    require_size(path, LARGEST)
    read_safetensors_header(path)
    return table, path


def _scale(table: Mapping[str, Any], name: str, pair: Mapping[str, Tensor]) -> float:
    """alpha / r, or alpha / sqrt(r); both may be given for some modules by a pattern."""
    rank = _by_pattern(table.get("rank_pattern"), name, table["r"])
    alpha = _by_pattern(table.get("alpha_pattern"), name, table.get("lora_alpha", rank))
    return float(alpha) / (math.sqrt(rank) if table.get("use_rslora") else rank)


def _by_pattern(patterns: Any, name: str, default: Any) -> Any:
    """The value of the pattern that is the module's name or ends it; plain text, as expressions can run for ever."""
    for pattern, value in (patterns or {}).items() if isinstance(patterns, Mapping) else ():
        if isinstance(value, (int, float)) and value > 0 and (name == pattern or name.endswith(f".{pattern}")):
            return value
    return default


def _module(network: nn.Module, name: str) -> nn.Module:
    """The module of that name in the model, or in its body, which adapters of bare models name."""
    for owner in (network, getattr(network, "base_model", network)):
        try:
            return owner.get_submodule(name)
        except AttributeError:
            continue
    raise _foreign(name)


def _merge(module: nn.Module, name: str, pair: Mapping[str, Tensor], scale: float) -> None:
    weight = getattr(module, "weight", None)
    sides = ("embedding_A", "embedding_B") if "embedding_A" in pair else ("A", "B")
    if not isinstance(weight, Tensor) or set(pair) != set(sides):
        raise _foreign(name)
    a, b = (pair[side].to(torch.float64) for side in sides)
    if a.ndim == 4:
        raise RequestError(required="an adapter of linear layers", got=f"{name}, a convolution", remedy=REMEDY)
    if a.ndim != 2 or b.ndim != 2 or b.shape[1] != a.shape[0]:
        raise _foreign(name)
    update = scale * (b @ a)
    # Embeddings hold a row for each token, and GPT-2's linear layers keep their weights transposed.
    turned = update.mT if sides[0] == "embedding_A" or type(module).__name__ == "Conv1D" else update
    if turned.shape != weight.shape:
        raise _foreign(name)
    weight.copy_((weight.to(torch.float64) + turned.to(weight.device)).to(weight.dtype))


def _replace(network: nn.Module, name: str, tensor: Tensor) -> None:
    """Tensors that were trained whole: biases, and modules listed in modules_to_save."""
    module, _, last = name.replace(".modules_to_save.default", "").rpartition(".")
    own = getattr(_module(network, module), last, None) if module else None
    if not isinstance(own, Tensor) or own.shape != tensor.shape:
        raise _foreign(name)
    own.copy_(tensor.to(own.dtype))


def _foreign(name: str) -> RequestError:
    return RequestError(
        required="an adapter of this model",
        got=f"{name[:80]}, which the model does not have, or of another shape",
        remedy=f"name the model that {CONFIG} gives as base_model_name_or_path",
    )
