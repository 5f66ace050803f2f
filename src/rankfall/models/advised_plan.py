"""The `rankfall plan` of a model's own shape, which the advice of an audit names."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rankfall.models import configuration as aliases
from rankfall.models.heads.record import HeadRecord

# Matrices of width x units in a feed-forward block, by what `rankfall plan` calls it.
MATRICES = {2: "plain", 3: "gated"}


def plan_command(network: nn.Module, heads: Sequence[HeadRecord], layers: int, tokens: int) -> str | None:
    """The command for models with these heads, the first standing for all; None where none were found.

    The context is what the configuration allows, or the `tokens` that were read where it names no limit. What the
    model does not tell for certain is left to the defaults of the command.
    """
    if not heads:
        return None
    first = heads[0]
    configuration = _text_configuration(network)
    context = aliases.number(configuration, aliases.POSITIONS) or tokens
    words = [f"rankfall plan --width {first.width} --layers {layers} --context {context} --heads {first.heads}"]
    if first.heads * first.head_dim != first.width:
        words.append(f"--head-size {first.head_dim}")
    if first.value_dim != first.head_dim:
        words.append(f"--value-rank {first.value_dim}")
    if first.kv_latent:
        words.append(f"--kv-latent {first.kv_latent} --rope-dims {first.rope_dims}")
    elif (shared := key_value_heads(heads)) < first.heads:
        words.append(f"--kv-heads {shared}")
    if first.q_latent:
        words.append(f"--q-latent {first.q_latent}")
    units = aliases.number(configuration, aliases.FEED_FORWARD)
    kind = None if units is None else _feed_forward(network, heads, units, layers)
    if kind is not None:
        words.append(f"--hidden {units}" if kind == "gated" else f"--feed-forward {kind} --hidden {units}")
    return " ".join([*words, "--no-time"])


def key_value_heads(heads: Sequence[HeadRecord]) -> int:
    """Key/value heads of the first layer."""
    return len({one.kv_head for one in heads if one.module == heads[0].module})


def _text_configuration(network: nn.Module) -> object:
    """The part that reads text; the whole where there is none, or several."""
    configuration = getattr(network, "config", None)
    try:
        return configuration.get_text_config()  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        return configuration


def _feed_forward(network: nn.Module, heads: Sequence[HeadRecord], units: int, layers: int) -> str | None:
    """By the matrices of that many units outside of attention; None where others have their shape, or experts have
    some."""
    width = heads[0].width
    if width in (units, 2 * units):
        return None
    inside = tuple(f"{name}." for name in {one.module for one in heads})
    shapes = [one.shape for name, one in network.named_parameters() if one.ndim == 2 and not name.startswith(inside)]
    found = sum((units in shape) + 2 * (2 * units in shape) for shape in shapes if width in shape)
    return next((kind for number, kind in MATRICES.items() if found == number * layers > 0), None)
