"""Paper A's lower bound, for the width, rank and head count of a real layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from rankfall.linalg.factored import Factored
from rankfall.models.heads.probe import HeadMaps
from rankfall.theory.head_bounds import HeadClass, mse_floor


@cache
def head_bound(width: int, rank: int, heads: int) -> float:
    """The least mean squared error with which `heads` heads of this rank find the nearer of two orthonormal points.

    A real block adds its input to what attention gives, so the bound is the one with a skip connection. It speaks of
    the layer's shape alone: no layer of this shape can do better, whatever its weights.
    """
    return mse_floor(HeadClass(dim=width, rank=min(rank, width), skip=True), heads).mse


# The weights of most models are kept in float32 at best: below this relative size a singular value is rounding.
EPSILON = torch.finfo(torch.float32).eps


def head_records(maps: HeadMaps) -> list[dict[str, Any]]:
    """One record per head of the layer.

    `qk_rank` counts the singular values of W_Q W_K^T above d * 2^-23 of the largest; `qk_effective_rank` is the
    exponential of the entropy of the squared singular values, as for tokens; `ov_...` the same of W_V W_O.
    `mse_lower_bound` is paper A's bound for a layer of this width, rank and head count.
    """
    width, rank = maps.query.shape[1:]
    heads = maps.query.shape[0]
    scores, values = _spectrum_facts(maps.query_key_forms()), _spectrum_facts(maps.value_output_forms())
    bound = head_bound(width, rank, heads)
    return [
        {
            "layer": maps.layer,
            "head": head,
            "kv_head": head // maps.groups,
            "module": maps.name,
            "width": width,
            "heads": heads,
            "head_dim": rank,
            "qk_rank": scores[head]["rank"],
            "qk_effective_rank": scores[head]["effective_rank"],
            "qk_norm": scores[head]["norm"],
            "value_dim": maps.value.shape[-1],
            "ov_rank": values[head]["rank"] if values else None,
            "ov_effective_rank": values[head]["effective_rank"] if values else None,
            "ov_norm": values[head]["norm"] if values else None,
            "offset": maps.offset,
            "rotary": maps.rotary,
            "normed_queries_and_keys": maps.qk_norm,
            "mse_lower_bound": bound,
            "source": maps.source,
            "self_check": dict(maps.checks),
            "notes": list(maps.notes),
        }
        for head in range(heads)
    ]


def _spectrum_facts(form: Factored | None) -> list[dict[str, Any]]:
    if form is None:
        return []
    values: Tensor = form.singular_values()
    height = form.left.shape[-2]
    ranks = (values > height * EPSILON * values[:, :1]).sum(dim=-1)
    energy = values.square()
    total = energy.sum(dim=-1, keepdim=True)
    shares = energy / total.where(total > 0, 1.0)
    effective = torch.special.entr(shares).sum(dim=-1).exp() * (total[:, 0] > 0)
    return [
        {"rank": int(ranks[head]), "effective_rank": float(effective[head]), "norm": float(total[head, 0].sqrt())}
        for head in range(values.shape[0])
    ]
