"""The straightforward implementation that benchmarks compare with, and a cell's weights put in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from benchmarks.plain_encoder import PlainEncoder
from torch import Tensor, nn

from rankfall.training.cell import Cell


def plain_model(cell: Cell, weights: Mapping[str, Tensor]) -> nn.Module:
    """The plain model with the cell's weights: copy c has the columns c*d to (c+1)*d of each projection."""
    model: nn.Module = PlainEncoder(cell.dim, cell.rank, cell.multiplier, cell.layers, cell.feed_forward)
    model = model.double()
    with torch.no_grad():
        for number, layer in enumerate(model):
            w = {name.partition(".")[2]: value for name, value in weights.items() if name.startswith(f"{number}.")}
            for c, copy in enumerate(layer.attention.copies):
                here = slice(c * cell.dim, (c + 1) * cell.dim)
                parts = ("query", "key", "value")
                copy.in_proj_weight.copy_(torch.cat([w[part][:, here].T for part in parts]))
                copy.in_proj_bias.copy_(torch.cat([w[f"{part}_bias"][here] for part in parts]))
                copy.out_proj.weight.copy_(w["output"][here].T)
                copy.out_proj.bias.copy_(w["output_bias"][c])
            for name in ("rise", "fall"):
                getattr(layer, name).weight.copy_(w[name].T)
                getattr(layer, name).bias.copy_(w[f"{name}_bias"])
            layer.attention_norm.gain.copy_(w["attention_norm_gain"])
            layer.feed_forward_norm.gain.copy_(w["feed_forward_norm_gain"])
    return model
