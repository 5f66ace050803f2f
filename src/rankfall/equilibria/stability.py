"""Is a fixed point stable? The derivative on the product of spheres and its multipliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Complex, Float
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor

from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import require, require_count
from rankfall.norms import parse_norm


def tangent_bases(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> Float[Tensor, "n f d"]:
    """For each token an orthonormal basis of its sphere's tangent space; f = d - 1, or d - 2 under LayerNorm. Tokens
    that live on no sphere may move in all d coordinates."""
    if not layer.on_spheres:
        return torch.eye(layer.width, dtype=tokens.dtype).expand(layer.count, -1, -1)
    normals = tokens[:, None, :]
    if layer.centres:
        normals = torch.cat([normals, torch.ones_like(normals)], dim=1)
    _, _, right = torch.linalg.svd(normals, full_matrices=True)
    return right[:, layer.width - layer.freedom :, :] if layer.freedom else right[:, :0, :]


def jacobian(
    layer: NormalisedLayer,
    tokens: Float[Tensor, "n d"],
    among: Tensor | None = None,
    onto: Float[Tensor, "n f d"] | None = None,
) -> Float[Tensor, "m m"]:
    """The Jacobian in tangent coordinates, rows the outputs; `among` picks some tokens (indices).

    Inputs and outputs are in the bases `onto`, by default those of `tangent_bases`: at a fixed point the output
    lies where the input does. Elsewhere the derivative is still exact, read along the input's tangent space.
    """
    layer.check(tokens)
    chosen = torch.arange(layer.count) if among is None else among
    weights = layer.attention(tokens)
    mixed = weights @ tokens @ layer.value
    ins = (tangent_bases(layer, tokens) if onto is None else onto)[chosen]
    outs, factors = _through_norm(layer, mixed, ins, chosen)
    # blocks[i, j] maps tangent coordinates of token j to those of token i.
    moved = torch.einsum("jfd,de,ige->ijgf", ins, layer.value, outs)
    blocks = weights[chosen][:, chosen, None, None] * moved
    if layer.form is not None:
        blocks = blocks + _content(layer, tokens, weights, ins, outs, chosen)
    blocks = blocks * factors[:, None, None, None]
    size = len(chosen) * layer.freedom
    return blocks.permute(0, 2, 1, 3).reshape(size, size)


def _through_norm(layer: NormalisedLayer, mixed: Tensor, ins: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The directions in which the norm's output is read, taken back through its derivative; factors of tokens."""
    if not layer.on_spheres:
        slopes = parse_norm(layer.norm).secants(mixed[chosen], torch.zeros_like(mixed[chosen]))
        assert slopes is not None
        return ins * slopes[:, None, :], mixed.new_ones(len(chosen))
    centred = mixed - mixed.mean(dim=-1, keepdim=True) if layer.centres else mixed
    lengths = torch.linalg.vector_norm(centred, dim=-1)
    require(
        bool((lengths > 0).all()),
        required="tokens that the layer does not send to zero",
        got=f"a zero vector at token {int(lengths.argmin())}",
        remedy="the norm has no derivative there; move the tokens",
    )
    # The derivative of the norm takes off what lies along the output (and the mean), then we read along `ins`.
    ends = centred[chosen] / lengths[chosen][:, None]
    return ins - torch.einsum("ifd,id,ie->ife", ins, ends, ends), layer.length / lengths[chosen]


def _content(
    layer: NormalisedLayer, tokens: Tensor, weights: Tensor, ins: Tensor, outs: Tensor, chosen: Tensor
) -> Tensor:
    assert layer.form is not None
    means = weights @ tokens
    spread = tokens[None, :, :] - means[chosen][:, None, :]
    landed = torch.einsum("ijd,de,ige->ijg", spread, layer.value, outs)
    answers = torch.einsum("id,de,jfe->ijf", tokens[chosen], layer.form, ins)
    blocks = weights[chosen][:, chosen, None, None] * landed[:, chosen, :, None] * answers[:, :, None, :]
    # The query x_i moves: dx_i M sum_j a_ij x_j^T (x_j - m_i) W.
    queries = torch.einsum("ifd,de,je->ijf", ins, layer.form, tokens)
    own = torch.einsum("ij,ijg,ijf->igf", weights[chosen], landed, queries)
    diagonal = torch.arange(len(chosen))
    blocks[diagonal, diagonal] = blocks[diagonal, diagonal] + own
    return blocks


Verdict = Literal["stable", "marginal", "unstable"]

# Blocks up to this size are solved densely; larger ones give only their largest multipliers, by Arnoldi's method.
DENSE = 1500
# Beyond this size even one dense Jacobian block does not fit.
LARGEST = 12000
PROBES = 4
SAFETY = 4.0
ROUNDING = 1e-12
# Neutral multipliers are counted only where rounding moves them by less than this.
COUNTABLE = 1e-3
# Transient growth is followed for Jacobians up to this size, over at most so many layers.
POWERED = 200
MOST_POWERS = 500


@final
@dataclass(frozen=True)
class Stability:
    """The largest modulus of a multiplier, how far rounding may have moved it, and what follows.

    `neutral` counts the multipliers of modulus one (within the uncertainty); None where rounding
    moves them too much to tell, or where only the largest were found. `growth` is the transient growth, the most by
    which a small disturbance is enlarged on its way (max over t of |J^t|): the basin is about its inverse in size.
    None where it is unstable or too large to compute.
    """

    spectral_radius: float
    uncertainty: float
    verdict: Verdict
    neutral: int | None
    growth: float | None
    dimension: int
    method: str

    @property
    def stable(self) -> bool:
        """Strictly: nearby tokens return, exponentially."""
        return self.verdict == "stable"


def components(layer: NormalisedLayer) -> list[Tensor]:
    """Token indices of the mask's strongly connected components."""
    _, labels = connected_components(csr_array(layer.allowed.numpy().astype(np.int8)), connection="strong")
    return [torch.from_numpy(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def multipliers(
    layer: NormalisedLayer, tokens: Float[Tensor, "n d"]
) -> list[tuple[Complex[np.ndarray, " m"], float, bool]]:
    """For each component: its multipliers, how far rounding may move the largest, and whether these are all."""
    parts = components(layer)
    largest = max(len(part) for part in parts) * layer.freedom
    remedy = "use a causal mask, fewer tokens or a smaller width"
    require_count("strongly connected tokens times sphere dimension", largest, least=0, most=LARGEST, remedy=remedy)
    return [_spectrum(jacobian(layer, tokens, part).numpy()) for part in parts] if layer.freedom else []


def stability(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> Stability:
    """Stability of tokens that the layer leaves alone."""
    found = multipliers(layer, tokens)
    if not found:
        return Stability(0.0, 0.0, "stable", 0, 1.0, 0, "no freedom: a token is one of two points")
    moduli = [np.abs(values) for values, _, _ in found]
    slacks = [slack + ROUNDING for _, slack, _ in found]
    radius = max(float(block.max()) for block in moduli)
    upper = max(float(block.max()) + slack for block, slack in zip(moduli, slacks, strict=True))
    lower = max(float(block.max()) - slack for block, slack in zip(moduli, slacks, strict=True))
    verdict: Verdict = "stable" if upper < 1 else "unstable" if lower > 1 else "marginal"
    countable = all(whole and slack < COUNTABLE for _, slack, whole in found)
    neutral = sum(int((np.abs(b - 1) <= s).sum()) for b, s in zip(moduli, slacks, strict=True)) if countable else None
    method = "one block per token" if len(found) == layer.count else f"{len(found)} blocks"
    uncertainty = max(upper - radius, radius - lower)
    growth = None if verdict == "unstable" else transient_growth(layer, tokens)
    return Stability(radius, uncertainty, verdict, neutral, growth, layer.count * layer.freedom, method)


def transient_growth(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> float | None:
    """max over t of |J^t|, at most `MOST_POWERS` layers; once |J^t| < 1 no later power can exceed those before."""
    if layer.count * layer.freedom > POWERED:
        return None
    whole = jacobian(layer, tokens)
    power, most = whole, 1.0
    for layers in range(1, MOST_POWERS + 1):
        # Growth is smooth in the number of layers: after the first ones every eighth power tells enough.
        if layers <= 16 or layers % 8 == 0:
            norm = float(torch.linalg.matrix_norm(power, 2))
            most = max(most, norm)
            if norm < 1:
                break
        power = power @ whole
    return most


def _spectrum(block: np.ndarray) -> tuple[np.ndarray, float, bool]:
    if len(block) > DENSE:
        return _largest(block), ROUNDING, False
    plain = np.linalg.eigvals(block)
    generator = np.random.default_rng(0)
    size = np.finfo(float).eps * np.linalg.norm(block, 2)
    radius = np.abs(plain).max()
    shifts = [
        abs(np.abs(np.linalg.eigvals(block + size * generator.standard_normal(block.shape))).max() - radius)
        for _ in range(PROBES if len(block) <= 200 else 1)
    ]
    return plain, SAFETY * float(max(shifts)), True


def _largest(block: np.ndarray) -> np.ndarray:
    operator = LinearOperator(block.shape, matvec=lambda v: block @ v, dtype=block.dtype)
    start = np.random.default_rng(0).standard_normal(len(block))
    return np.asarray(eigs(operator, k=6, which="LM", return_eigenvectors=False, v0=start, tol=1e-10))
