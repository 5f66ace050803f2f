"""Quantised weights that the library itself turns back into plain numbers, without code from elsewhere.

fp8    blocks of eight-bit floats with one scale each (DeepSeek-V3, Qwen3-FP8)
mxfp4  blocks of 32 four-bit floats with a power of two each (gpt-oss)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from rankfall.errors import require
from rankfall.models.load.headers import TensorEntry

METHODS = ("fp8", "mxfp4")
REMEDY = "use the unquantised model, a GGUF file, or a copy saved after dequantising (model.dequantize())"
# Keys that are numbers, names of modules or switches; the rest of a quantization_config is dropped.
HONOURED = {"fp8": ("modules_to_not_convert", "weight_block_size"), "mxfp4": ("modules_to_not_convert",)}


def quantisation(config: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The method of a configuration's weights, None for plain ones, and the configuration; or a refusal.

    In the configuration the library is told to turn them into plain numbers while it loads, and nothing else."""
    kept = {key: value for key, value in config.items() if key != "quantization_config"}
    given = config.get("quantization_config")
    if given is None:
        return None, kept
    method = str(given.get("quant_method")) if isinstance(given, dict) else ""
    require(
        method in METHODS,
        required=f"weights in plain numbers, or quantised as {' or '.join(METHODS)}",
        got=f"a configuration with quantization_config of method {str(method)[:40]!r}",
        remedy=REMEDY,
    )
    require(
        method != "fp8" or importlib.util.find_spec("accelerate") is not None,
        required="the package accelerate for weights in fp8",
        got="not installed",
        remedy="pip install accelerate",
    )
    honoured = {key: given[key] for key in HONOURED[method] if isinstance(given.get(key), list)}
    return method, kept | {"quantization_config": {"quant_method": method, "dequantize": True, **honoured}}


def elements_held(tensors: Mapping[str, TensorEntry], method: str | None) -> int:
    """How many numbers the files stand for: a byte of mxfp4 holds two."""
    return sum(entry.elements * (2 if method == "mxfp4" and entry.dtype == "U8" else 1) for entry in tensors.values())
