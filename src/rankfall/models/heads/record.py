"""What the maps of one head say about it: ranks, norms and paper A's bound for its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from rankfall.linalg.factored import Factored
from rankfall.measures.measures import entropy_rank
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.recording.events import AttentionKind
from rankfall.theory.head_bounds import HeadClass, mse_floor, structural_rank

# The weights of most models are kept in float32 at best: below this relative size a singular value is rounding.
EPSILON = torch.finfo(torch.float32).eps


@final
@dataclass(frozen=True)
class HeadRecord:
    """One head of one attention layer.

    `qk_rank` counts the singular values of W_Q W_K^T above d * 2^-23 of the largest; `qk_effective_rank` and
    `qk_energy_rank` are the exponentials of the entropy of the singular values and of their squares, as for tokens;
    `ov_...` the same of W_V W_O, None where W_O was not found. `mse_lower_bound` is paper A's bound for a
    layer of this width, structural rank and head count. `structural_rank` is the largest that any weights of
    this shape can have: min(head size, `q_latent`, `kv_latent` + `rope_dims`), where 0 stands for no latent and
    `rope_dims` counts what of a key does not come from its latent. `output_gate` is the median of what multiplies
    attention's output before W_O, None where nothing does. `self_check` holds relative errors by name;
    `notes` say what the numbers leave out. `kind`: self- or cross-attention, None where only weights were read.
    """

    layer: int
    head: int
    kv_head: int
    module: str
    width: int
    heads: int
    head_dim: int
    structural_rank: int
    qk_rank: int
    qk_effective_rank: float
    qk_energy_rank: float
    qk_norm: float
    value_dim: int
    ov_rank: int | None
    ov_effective_rank: float | None
    ov_energy_rank: float | None
    ov_norm: float | None
    offset: int
    rotary: bool | None
    normed_queries_and_keys: bool
    mse_lower_bound: float
    q_latent: int
    kv_latent: int
    rope_dims: int
    output_gate: float | None
    source: str
    self_check: Mapping[str, float]
    notes: tuple[str, ...]
    kind: AttentionKind | None = None

    def record(self) -> dict[str, Any]:
        """The head as `--json` prints it."""
        table = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**table, "self_check": dict(self.self_check), "notes": list(self.notes)}

    def line(self) -> dict[str, Any]:
        """The head as a line of a table: of the self-checks the largest error, notes as one text."""
        worst = max(self.self_check.values(), default=None)
        return {**self.record(), "self_check": worst, "notes": "; ".join(self.notes)}


def head_records(maps: HeadMaps) -> list[HeadRecord]:
    """One record per head of the layer."""
    heads, width, rank = maps.query.shape
    latents = maps.latents
    most = structural_rank(rank, width, kv_latent=latents.keys, q_latent=latents.queries, rope_dims=latents.beside)
    gates = [None] * heads if maps.gate is None else maps.gate.median(dim=-1).values.tolist()
    scores, values = _spectrum_facts(maps.query_key_forms()), _spectrum_facts(maps.value_output_forms())
    return [
        HeadRecord(
            layer=maps.layer,
            head=head,
            kv_head=head // maps.groups,
            module=maps.name,
            width=width,
            heads=heads,
            head_dim=rank,
            structural_rank=most,
            qk_rank=scores[head]["rank"],
            qk_effective_rank=scores[head]["effective_rank"],
            qk_energy_rank=scores[head]["energy_rank"],
            qk_norm=scores[head]["norm"],
            value_dim=maps.value.shape[-1],
            ov_rank=values[head]["rank"] if values else None,
            ov_effective_rank=values[head]["effective_rank"] if values else None,
            ov_energy_rank=values[head]["energy_rank"] if values else None,
            ov_norm=values[head]["norm"] if values else None,
            offset=maps.offset,
            rotary=maps.rotary,
            normed_queries_and_keys=maps.qk_norm,
            mse_lower_bound=_layer_bound(width, most, heads),
            q_latent=latents.queries,
            kv_latent=latents.keys,
            rope_dims=latents.beside,
            output_gate=gates[head],
            source=maps.source,
            self_check=dict(maps.checks),
            notes=tuple(maps.notes),
            kind=maps.kind,
        )
        for head in range(heads)
    ]


@cache
def _layer_bound(width: int, rank: int, heads: int) -> float:
    """The least mean squared error with which `heads` heads of this rank find the nearer of two orthonormal points.

    A real block adds its input to what attention gives, so the bound is the one with a skip connection. It speaks of
    the layer's shape alone: no layer of this shape can do better, whatever its weights.
    """
    return mse_floor(HeadClass(dim=width, rank=rank, skip=True), heads).mse


def _spectrum_facts(form: Factored | None) -> list[dict[str, Any]]:
    if form is None:
        return []
    values: Tensor = form.singular_values()
    height = form.left.shape[-2]
    columns = {
        "rank": (values > height * EPSILON * values[:, :1]).sum(dim=-1),
        "effective_rank": entropy_rank(values),
        "energy_rank": entropy_rank(values.square()),
        "norm": torch.linalg.vector_norm(values, dim=-1),
    }
    # Whole columns: asking a GPU for one number takes as long as for all.
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]
