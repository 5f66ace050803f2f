"""Inputs that some forward pass of a small random model accepts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TOKENS = 12
DEFAULT_IMAGE = 32


def candidate_inputs(model: Any) -> Iterator[dict[str, Tensor]]:
    """Ways of calling the model, the likeliest first: its main input alone, then with what often goes with it."""
    accepted = set(inspect.signature(model.forward).parameters)
    parts = {name: value for name, value in _parts(model).items() if name in accepted}
    main = getattr(model, "main_input_name", "input_ids")
    order = [main, "input_ids", "pixel_values", "input_features", "input_values"]
    seen: list[set[str]] = []
    for first in order:
        if first not in parts:
            continue
        for more in (
            (),
            ("decoder_input_ids",),
            ("input_ids",),
            ("pixel_values",),
            ("input_ids", "bbox"),
            tuple(parts),
        ):
            names = {first, *more} & set(parts)
            if names not in seen:
                seen.append(names)
                yield {name: parts[name] for name in names}


def _parts(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    config = model.config
    ids = torch.randint(4, 100, (2, TOKENS), generator=generator)
    size, channels = _image(config)
    boxes = torch.zeros(2, TOKENS, 4, dtype=torch.long)
    boxes[..., 2:] = 10
    mels = _first(config, ("num_mel_bins", "input_feat_per_channel", "feature_size", "num_mels"), 80)
    frames = 2 * _first(config, ("max_source_positions",), 100)
    return {
        "input_ids": ids,
        "decoder_input_ids": ids[:, : TOKENS // 2],
        "pixel_values": torch.randn(2, channels, *size, generator=generator),
        "input_features": torch.randn(2, mels, frames, generator=generator),
        "input_values": torch.randn(2, 4000, generator=generator),
        "bbox": boxes,
    }


def _image(config: Any) -> tuple[tuple[int, int], int]:
    size = _first(config, ("image_size",), DEFAULT_IMAGE)
    if isinstance(size, dict):
        size = (size.get("height", DEFAULT_IMAGE), size.get("width", DEFAULT_IMAGE))
    pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    return (int(pair[0]), int(pair[-1])), int(_first(config, ("num_channels", "in_channels", "in_chans"), 3))


def _first(config: Any, names: tuple[str, ...], default: Any) -> Any:
    for owner in (config, *(getattr(config, part, None) for part in getattr(config, "sub_configs", {}))):
        for name in names:
            value = getattr(owner, name, None)
            if value is not None:
                return value
    return default
