"""The least input that makes a model run once, for reading its weights: what the input says does not matter."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from rankfall.errors import RequestError

DEFAULT_IMAGE = 32


def sample_inputs(model: Any, position: int = 0) -> dict[str, Any]:
    """One token at the given position for a model of text; one blank image for a model of images."""
    accepted = inspect.signature(model.forward).parameters
    device = next(model.parameters()).device
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        return {"pixel_values": torch.zeros(1, *_image_shape(model.config), device=device)}
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


def _image_shape(config: Any) -> tuple[int, int, int]:
    size = getattr(config, "image_size", DEFAULT_IMAGE)
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return int(getattr(config, "num_channels", 3)), int(height), int(width)
