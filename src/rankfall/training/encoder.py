"""The encoder of paper A's experiments with a leading model axis everywhere, as a pure function of its weights.

Axes: M models, B sequences, n tokens, T = B n, w width of the residual stream, H heads of rank r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfall.norms import Norm, parse_norm
from rankfall.training import layer_seam
from rankfall.training.attention_seam import attend
from rankfall.training.cell import Cell
from rankfall.training.kernels.groups import grouped_heads
from rankfall.training.kernels.launch import shape_misfit
from rankfall.training.kernels.layer import gather, project
from rankfall.training.parameters import after

PROJECTIONS = ("query", "query_bias", "key", "key_bias", "value", "value_bias")
FEED_FORWARD = ("rise", "rise_bias", "fall", "fall_bias")


@dataclass(frozen=True)
class RankGroup:
    """Models next to each other on the model axis whose heads have the same shape."""

    models: int
    heads: int
    rank: int
    value_rank: int


@dataclass(frozen=True)
class Encoder:
    """What the weights do not say: shared by all models of a stack, except for the shape of their heads."""

    layers: int
    dim: int
    multiplier: int
    norm: Norm
    placement: str
    positions: str
    context: int
    groups: tuple[RankGroup, ...]
    fused: bool = True
    """Whether to use fused kernels where there are some for the shape and the machine."""

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor, mask: Tensor | None) -> Tensor:
        """(M, B, n, d) -> (M, B, n, d). `mask` (n, context), True where attention is allowed."""
        x = self._place(weights, inputs)
        shape = x.shape
        x = x.flatten(1, 2)
        for layer in range(self.layers):
            for branch, name in ((self._attention, "attention_norm"), (self._feed_forward, "feed_forward_norm")):
                norm = self.norm.at(layer + 1)
                if self.placement == "post":
                    x = _normed(norm, weights, f"{layer}.{name}", x + branch(weights, layer, x, shape, mask))
                    continue
                added = branch(weights, layer, _normed(norm, weights, f"{layer}.{name}", x), shape, mask)
                if self.placement == "peri":
                    added = _normed(norm, weights, f"{layer}.{after(name)}", added)
                x = x + added
        if self.placement != "post":
            x = _normed(self.norm, weights, "final_norm", x)
        return x.view(shape)[..., : self.dim]

    def _place(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        if self.positions == "none":
            return inputs
        codes = weights["positions"][:, None]
        if self.positions == "additive":
            return inputs + codes
        return torch.cat([inputs, codes.expand(-1, inputs.shape[1], -1, -1)], dim=-1)

    def _attention(
        self, weights: Mapping[str, Tensor], layer: int, x: Tensor, shape: torch.Size, mask: Tensor | None
    ) -> Tensor:
        """The mean over the m copies of a standard attention, all their heads side by side."""
        models, batch, tokens, width = shape
        bias = weights[f"{layer}.output_bias"].mean(dim=1, keepdim=True)
        if self._is_fused(x, weights[f"{layer}.query"].shape[-1], tokens):
            projected = project(x, *(weights[f"{layer}.{name}"] for name in PROJECTIONS))
            groups = [number for group in self.groups for number in (group.models, group.heads, group.rank)]
            mixed = grouped_heads(projected.unflatten(2, (batch, tokens)), mask, groups).flatten(1, 2)
            return gather(mixed, weights[f"{layer}.output"]) / self.multiplier + bias
        seen = x
        if self.context < tokens:
            seen = x.view(shape)[:, :, : self.context].reshape(models, -1, width)
        q = (x @ weights[f"{layer}.query"]).view(models, batch, tokens, -1)
        k = (seen @ weights[f"{layer}.key"]).view(models, batch, self.context, -1)
        v = (seen @ weights[f"{layer}.value"]).view(models, batch, self.context, -1)
        biases = [weights[f"{layer}.{name}_bias"] for name in ("query", "key", "value")]
        mixed = self._heads([q, k, v, *biases], mask).flatten(1, 2)
        return mixed @ weights[f"{layer}.output"] / self.multiplier + bias

    def _is_fused(self, x: Tensor, columns: int, tokens: int) -> bool:
        """Whether queries, keys and values of all ranks are of one width, and kernels exist for all of them."""
        if self.context < tokens or any(group.rank != group.value_rank for group in self.groups):
            return False
        rank = max(group.rank for group in self.groups)
        return self._way(x, columns) == "kernel" and shape_misfit(x.dtype, tokens, rank) is None

    def _way(self, x: Tensor, columns: int) -> str:
        return layer_seam.choose(x, columns) if self.fused else "products"

    def _heads(self, projected: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        """Queries, keys, values and their biases, each with the model axis first, to what the heads mix."""
        # Splitting and joining costs one copy, and the gradient another; stacks of one rank need neither.
        sizes = [group.models for group in self.groups]
        if len(sizes) == 1:
            return _group_heads(self.groups[0], projected, mask)
        parts = zip(self.groups, *(tensor.split(sizes) for tensor in projected), strict=True)
        return torch.cat([_group_heads(group, part, mask) for group, *part in parts])

    def _feed_forward(
        self, weights: Mapping[str, Tensor], layer: int, x: Tensor, shape: torch.Size, mask: Tensor | None
    ) -> Tensor:
        rise, rise_bias, fall, fall_bias = (weights[f"{layer}.{name}"] for name in FEED_FORWARD)
        way = self._way(x, rise.shape[-1])
        return layer_seam.feed_forward(x, rise, rise_bias, fall, fall_bias, way)


def encoder_for(cells: Sequence[Cell]) -> Encoder:
    """The encoder of cells that share a layout, those of equal head shape next to each other."""
    groups: list[RankGroup] = []
    for cell in cells:
        shape = (cell.heads, cell.rank, cell.value_width)
        if groups and (groups[-1].heads, groups[-1].rank, groups[-1].value_rank) == shape:
            groups[-1] = RankGroup(groups[-1].models + 1, *shape)
        else:
            groups.append(RankGroup(1, *shape))
    first = cells[0]
    return Encoder(
        layers=first.layers,
        dim=first.dim,
        multiplier=first.multiplier,
        norm=parse_norm(first.norm),
        placement=first.norm_placement,
        positions=first.positions,
        context=first.task_object.context(first.points),
        groups=tuple(groups),
    )


def _normed(norm: Norm, weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    gain, bias = (weights.get(f"{name}_{part}") for part in ("gain", "bias"))
    return norm(x, None if gain is None else gain[:, None], None if bias is None else bias[:, None])


def _group_heads(group: RankGroup, projected: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    q, k, v, *biases = projected
    q, k = (x.unflatten(-1, (group.heads, group.rank)) for x in (q, k))
    v = v.unflatten(-1, (group.heads, group.value_rank))
    query_bias, key_bias, value_bias = biases
    out = attend(q, k, v, mask, 1.0 / math.sqrt(group.rank), (query_bias, key_bias, value_bias))
    return out.flatten(-2)
