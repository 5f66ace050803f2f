"""What trained heads became: the bilinear form K Q^T of each, its angle to the identity and its size (A-fig2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rankfall.linalg.factored import Factored
from rankfall.training.cell import Cell

QUARTILES = (0.25, 0.5, 0.75)


def head_forms(cell: Cell, weights: Mapping[str, Tensor]) -> Factored:
    """K Q^T of the first layer's heads, (H, w, w) as factors: y scores x with x^T K Q^T y / sqrt(r), biases aside."""
    key, query = (
        weights[f"0.{name}"].double().unflatten(-1, (cell.heads, cell.rank)).transpose(0, 1)
        for name in ("key", "query")
    )
    return Factored(key, query)


def head_measures(cell: Cell, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Per head of the first layer: `angle` to the identity in degrees, `spectral` and `frobenius` norm of K Q^T."""
    forms = head_forms(cell, weights)
    singular = forms.singular_values()
    frobenius = singular.square().sum(dim=-1).sqrt()
    cosine = forms.trace() / (frobenius * cell.width**0.5).clamp_min(torch.finfo(torch.float64).tiny)
    return {
        "angle": torch.rad2deg(torch.acos(cosine.clamp(-1.0, 1.0))),
        "spectral": singular[..., 0],
        "frobenius": frobenius,
    }


def head_statistics(cell: Cell, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Quartiles over the first layer's heads, and the largest value-output norm of any head (A-rem5)."""
    if not all(bool(weight.isfinite().all()) for weight in weights.values()):
        return {}
    found: dict[str, float] = {}
    for name, values in head_measures(cell, weights).items():
        quartiles = torch.quantile(values, torch.tensor(QUARTILES, dtype=values.dtype)).tolist()
        found |= {f"qk_{name}_{round(100 * q)}": number for q, number in zip(QUARTILES, quartiles, strict=True)}
    shape = (cell.heads, cell.value_width)
    value = weights["0.value"].double().unflatten(-1, shape).transpose(0, 1)
    output = weights["0.output"].double().unflatten(0, shape).transpose(1, 2) / cell.multiplier
    found["value_norm_max"] = float(Factored(output, value).singular_values()[..., 0].max())
    return found
