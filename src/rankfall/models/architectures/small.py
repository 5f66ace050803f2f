"""A small random model of any architecture, and inputs that its forward pass accepts."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.models.architectures import configuration as aliases
from rankfall.models.load.confinement import offline

LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}

# Two groups of experts, of which a token goes to one; no layer takes its keys from an earlier one.
EXPERT_GROUPS = {"n_group": 2, "topk_group": 1, "num_kv_shared_layers": 0}

# Sizes that some configurations leave unset although their model needs them.
UNSET = (
    *aliases.HEAD_SIZE,
    *aliases.KEY_VALUE_HEADS,
    *aliases.ALSO_KEY_VALUE_HEADS,
    *aliases.VOCABULARY,
    *aliases.EXPERTS,
    *aliases.EXPERTS_PER_TOKEN,
)
DEPTHS = (*aliases.LAYERS, *aliases.ALSO_LAYERS)
# Never more of these than the configuration has.
AT_MOST = (*DEPTHS, *aliases.EXPERTS, *aliases.KEYS_AT_MOST)
# Enough for a layer of every kind: hybrids have several recurrent layers before the first with attention.
DEPTH, MOST_LAYERS = 2, 12
# Below the number of tokens, so that windows, chunks and selections of keys leave something out.
KEYS_SEEN = 4
PATCHES, SMALLEST_IMAGE = 4, 64
FRAMES = 50

VOCABULARY = 120

# Tried in order: tiny; with heads of ordinary width (rotary sections expect it); only depth and vocabulary reduced.
RECIPES: tuple[dict[str, int] | None, ...] = (
    {"width": 32, "heads": 4, "head": 8, "key_heads": 2, "inner": 64},
    {"width": 32, "heads": 4, "head": 8, "key_heads": 4, "inner": 64},
    {"width": 128, "heads": 2, "head": 64, "key_heads": 1, "inner": 128},
    {"width": 256, "heads": 2, "head": 128, "key_heads": 1, "inner": 128},
    None,
)
MAX_PARAMETERS = 150_000_000


def small_models(model_type: str, **settings: Any) -> Iterator[Any]:
    """Random models of this type, smallest first, one per recipe that the architecture accepts.

    `settings` are entries of the configuration that override what a recipe says.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    built, trouble = 0, ""
    for recipe in RECIPES:
        try:
            with offline():
                model = _build(kind(**{**_small_arguments(kind(), recipe), **settings}), check_size=recipe is None)
        except Exception as error:  # whatever an architecture raises on sizes it does not like
            trouble = trouble or f"{type(error).__name__}: {str(error)[:120]}"
            continue
        built += 1
        yield model
    if not built:
        raise RequestError(
            required="a recipe of small sizes that this architecture accepts", got=trouble, remedy="write one for it"
        )


def _small_arguments(config: Any, recipe: Mapping[str, int] | None) -> dict[str, Any]:
    plain = config.to_dict()
    depth = _depth(config, plain)
    wanted: dict[str, int] = dict.fromkeys(DEPTHS, depth) | dict.fromkeys(aliases.VOCABULARY, VOCABULARY)
    wanted |= dict.fromkeys(aliases.EXPERTS, 8) | dict.fromkeys(aliases.EXPERTS_PER_TOKEN, 2)
    wanted |= dict.fromkeys(aliases.KEYS_AT_MOST, KEYS_SEEN) | dict.fromkeys(aliases.AUDIO_POSITIONS, FRAMES)
    wanted |= dict.fromkeys(aliases.IMAGE_SIZE, _image_size(plain)) | EXPERT_GROUPS
    if recipe is not None:
        wanted |= dict.fromkeys((*aliases.WIDTH, *aliases.ALSO_WIDTHS), recipe["width"])
        wanted |= dict.fromkeys((*aliases.HEADS, *aliases.ALSO_HEADS), recipe["heads"])
        wanted |= dict.fromkeys(aliases.HEAD_SIZE, recipe["head"])
        wanted |= dict.fromkeys((*aliases.KEY_VALUE_HEADS, *aliases.ALSO_KEY_VALUE_HEADS), recipe["key_heads"])
        wanted |= dict.fromkeys(aliases.FEED_FORWARD, recipe["inner"]) | LATENT
    arguments: dict[str, Any] = {"use_cache": False} if hasattr(config, "use_cache") else {}
    layers = aliases.number(config, aliases.LAYERS)
    for name, value in plain.items():
        if name in wanted and isinstance(value, int) and not isinstance(value, bool):
            arguments[name] = min(wanted[name], value) if name in AT_MOST else wanted[name]
        elif name in wanted and value is None and name in UNSET:
            arguments[name] = wanted[name]
        elif name in aliases.LAYER_INDICES:
            arguments[name] = [one for one in value or [1] if one < depth] or [depth - 1]
        elif isinstance(value, list) and len(value) == layers and layers > depth and "depths" not in plain:
            arguments[name] = value[:depth]
        elif name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            arguments[name] = 3
        elif name.endswith("_token_id") and isinstance(value, list):
            arguments[name] = [3]
        elif name.endswith("_codes") and isinstance(value, (list, tuple)):
            arguments[name] = [min(one, VOCABULARY - 1) for one in value]
    if plain.get("mask_token_id", 0) is None and plain.get("pad_token_id", 0) is None:
        # Positions are counted from the padding.
        arguments |= {"mask_token_id": 2, "pad_token_id": 1}
    if plain.get("mamba_n_heads") and "mamba_d_ssm" not in plain and recipe is not None:
        inner = recipe["width"] * plain.get("mamba_expand", 2)
        arguments |= {"mamba_n_heads": 4, "mamba_d_head": inner // 4, "mamba_d_state": 16}
    if aliases.is_stages(plain.get("num_heads")) and recipe is not None and isinstance(plain.get("embed_dim"), int):
        # Each stage is twice as wide as the one before.
        stages = len(plain["num_heads"])
        arguments["num_heads"] = [2 * 2**stage for stage in range(stages)]
        if isinstance(plain.get("window_size"), int) and isinstance(plain.get("patch_size"), int):
            arguments |= {"window_size": 2, "image_size": plain["patch_size"] * 2**stages}
    if aliases.is_stages(plain.get("depths")):
        arguments["depths"] = [min(DEPTH, one) for one in plain["depths"]]
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict"):
            inner = _small_arguments(part, recipe)
            arguments[name] = {"model_type": part.model_type, **inner} if part.model_type else inner
            if part.model_type == "timm_backbone":
                arguments[name] = OWN_BACKBONE
    return arguments


# Backbones of another library are replaced by one of the same kind that needs none.
OWN_BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage4"],
}


def _depth(config: Any, plain: Mapping[str, Any]) -> int:
    """So many layers that every kind of layer that the configuration names is among them."""
    named = [
        value
        for value in (*plain.values(), getattr(config, "layers_block_type", None))
        if isinstance(value, (list, tuple)) and len(value) > DEPTH and all(isinstance(one, str) for one in value)
    ]
    layers = aliases.number(config, aliases.LAYERS) or 0
    kinds = [value for value in named if len(value) == layers]
    firsts = [value.index(kind) for value in kinds for kind in set(value)]
    return min(max([DEPTH - 1, *firsts]) + 1, MOST_LAYERS)


def _image_size(plain: Mapping[str, Any]) -> int:
    patch = next((plain[name] for name in aliases.PATCH_SIZE if isinstance(plain.get(name), int)), 16)
    # Patches as small as those are of models that halve their images several times.
    return PATCHES * patch if patch >= 8 else SMALLEST_IMAGE


def _build(config: Any, *, check_size: bool) -> Any:
    if check_size:
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in _model_class(config)(config).parameters())
        if count > MAX_PARAMETERS:
            raise RequestError(
                required=f"at most {MAX_PARAMETERS:,} parameters", got=f"{count:,}", remedy="turn more sizes down"
            )
    torch.manual_seed(0)
    model = _model_class(config)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.isfinite().all()):
                torch.nn.init.normal_(parameter, std=0.02)
    return model


def _model_class(config: Any) -> Any:
    """The bare model of this configuration, else one with a head, else whatever its own file has for it."""
    from transformers import PreTrainedModel
    from transformers.models.auto import modeling_auto

    names = ["AutoModel", *sorted(name for name in dir(modeling_auto) if name.startswith("AutoModelFor"))]
    for name in names:
        with contextlib.suppress(KeyError, AttributeError):
            found = getattr(modeling_auto, name)._model_mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    file = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    for kind in vars(file).values():
        own = isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__ == file.__name__
        if own and kind.config_class is type(config) and not kind.__name__.endswith("PreTrainedModel"):
            return kind
    raise RequestError(
        required="a model class for this configuration in the library",
        got=type(config).__name__,
        remedy="build the model yourself and pass it",
    )


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
    boxes = torch.zeros(2, TOKENS, 4, dtype=torch.long)
    boxes[..., 2:] = 10
    mels = _first(config, aliases.MEL_BINS, 80)
    frames = 2 * _first(config, aliases.AUDIO_POSITIONS, 100)
    return {
        "input_ids": ids,
        "decoder_input_ids": ids[:, : TOKENS // 2],
        "pixel_values": torch.randn(2, *image_shape(config), generator=generator),
        "input_features": torch.randn(2, mels, frames, generator=generator),
        "input_values": torch.randn(2, 4000, generator=generator),
        "bbox": boxes,
    }


def image_shape(config: Any) -> tuple[int, int, int]:
    """Channels, height and width of the images that a model of this configuration takes."""
    size = _first(config, aliases.IMAGE_SIZE, DEFAULT_IMAGE)
    if isinstance(size, dict):
        size = (size.get("height", DEFAULT_IMAGE), size.get("width", DEFAULT_IMAGE))
    pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    return int(_first(config, aliases.CHANNELS, 3)), int(pair[0]), int(pair[-1])


def _first(config: Any, names: tuple[str, ...], default: Any) -> Any:
    for owner in (config, *(getattr(config, part, None) for part in getattr(config, "sub_configs", {}))):
        for name in names:
            value = getattr(owner, name, None)
            if value is not None:
                return value
    return default
