"""The `rankfall plan` of a stack's own shape, which the advice of an audit names, and what that plan lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import nn

from rankfall.errors import RequestError
from rankfall.models.architectures import configuration as aliases
from rankfall.models.heads.record import HeadRecord
from rankfall.models.recording.blocks import BlockStack
from rankfall.planning.candidates import Sharing, candidates, hidden_units, reference_shape

# Matrices between width and units in a feed-forward block, as `rankfall plan` calls it.
KINDS = {"plain": 2, "gated": 3}


@final
@dataclass(frozen=True)
class AdvisedPlan:
    """The command for models with the heads of one stack, and what it lists.

    `label` names the stack where the model has several. `lower`, `wider`: the plan has ranks below or above that of
    these heads; `saves`: those below have a smaller cache, where the stack keeps one.
    """

    command: str
    stack: BlockStack
    label: str = ""
    lower: bool = True
    wider: bool = True
    saves: bool = False

    @property
    def told(self) -> str:
        """The command as it is named in a sentence, with the stack whose shape it has."""
        return f"`{self.command}`" + (f" (the shape of {self.label})" if self.label else "")


def advised_plan(
    network: nn.Module,
    heads: Sequence[HeadRecord],
    stack: BlockStack,
    *,
    layers: int,
    tokens: int,
    label: str = "",
    caches: bool = False,
) -> AdvisedPlan | None:
    """The plan for the self-attention of this stack, its first heads standing for all; None where it has none, or
    where no plan can be made of their shape.

    The context is what the stack's configuration allows, or the `tokens` that were read where it names no limit. What
    the model does not tell for certain is left to the defaults of the command. `caches`: later tokens are hidden, so
    that keys and values are kept.
    """
    inside = [one for one in heads if stack.holds(one.module)]
    own = [one for one in inside if one.kind != "cross"]
    if not own:
        return None
    first, shared = own[0], key_value_heads(own)
    configuration = _configuration(network, stack)
    context = aliases.number(configuration, aliases.POSITIONS) or tokens
    words = [f"rankfall plan --width {first.width} --layers {layers} --context {context} --heads {first.heads}"]
    sharing, others = Sharing(), dict[str, Any]()
    if first.heads * first.head_dim != first.width:
        words.append(f"--head-size {first.head_dim}")
    if first.value_dim != first.head_dim:
        words.append(f"--value-rank {first.value_dim}")
        others["value_rank"] = first.value_dim
    if first.kv_latent:
        words.append(f"--kv-latent {first.kv_latent} --rope-dims {first.rope_dims}")
        others |= {"kv_latent": first.kv_latent, "rope_dims": first.rope_dims}
    elif shared < first.heads:
        words.append(f"--kv-heads {shared}")
        sharing = Sharing(shared)
    if first.q_latent:
        words.append(f"--q-latent {first.q_latent}")
        others["q_latent"] = first.q_latent
    kind, units = _feed_forward(stack, inside)
    if units is not None:
        words.append(f"--hidden {units}" if kind == "gated" else f"--feed-forward {kind} --hidden {units}")
    try:
        hidden = hidden_units(first.width, kind, units)
        others["gated"] = kind == "gated"
        usual = reference_shape(
            first.width, layers, context, first.heads, hidden, sharing, rank=first.head_dim, **others
        )
        listed = [one.shape for one in candidates(usual, sharing, value_rank=others.get("value_rank"))]
    except RequestError:
        # The shape of some heads cannot be planned for: wider than their tokens, or shared unevenly.
        return None
    lower = [one for one in listed if one.rank < usual.rank]
    return AdvisedPlan(
        " ".join([*words, "--no-time"]),
        stack,
        label,
        lower=bool(lower),
        wider=any(one.rank > usual.rank for one in listed),
        saves=caches and bool(lower) and all(one.kv_cache_bytes() < usual.kv_cache_bytes() for one in lower),
    )


def key_value_heads(heads: Sequence[HeadRecord]) -> int:
    """Key/value heads of the first layer."""
    return len({one.kv_head for one in heads if one.module == heads[0].module})


def _configuration(network: nn.Module, stack: BlockStack) -> object:
    """That of the innermost part of the model that holds the stack and has one; of that, what reads text."""
    parts = stack.name.split(".")
    for length in range(len(parts), -1, -1):
        holder = network.get_submodule(".".join(parts[:length]))
        configuration = getattr(holder, "config", None)
        if configuration is not None:
            try:
                return configuration.get_text_config()
            except (AttributeError, ValueError):
                return configuration
    return None


def _feed_forward(stack: BlockStack, heads: Sequence[HeadRecord]) -> tuple[str, int | None]:
    """Its kind and units, by the matrices from or to the width outside of attention, of which all blocks must have as
    many; the command's default, and None, where that leaves a doubt, or experts have some."""
    width, blocks = heads[0].width, len(stack.blocks)
    attention = tuple(f"{name}." for name in {one.module for one in heads})
    sides = Counter(
        weight.shape[1 - tuple(weight.shape).index(width)]
        for name, block in zip(stack.names, stack.blocks, strict=True)
        for inner, weight in block.named_parameters()
        if weight.ndim == 2 and tuple(weight.shape).count(width) == 1 and not f"{name}.{inner}".startswith(attention)
    )
    # A gate may lie in one matrix with the map beside it.
    counts = {units: count + 2 * sides[2 * units] for units, count in sides.items()}
    found = [(kind, units) for units, count in counts.items() for kind in KINDS if count == KINDS[kind] * blocks]
    return found[0] if len(found) == 1 else ("gated", None)
