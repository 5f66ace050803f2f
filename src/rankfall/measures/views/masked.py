"""The three views of many token matrices at once, some of their tokens left out; every step is one for all of them.

Leaving a token out makes it zero and takes it from the mean. That leaves the spectra as they would be without it, but
for zeros that stand for nothing. No step asks what a value is, so that a GPU can run all of it without its host.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.linalg.batched import tridiagonal_eigenvalues, tridiagonalise
from rankfall.measures.views.batch import BatchProfile

Batch = Float[Tensor, "c n d"]
Square = Float[Tensor, "c s s"]
Vectors = Float[Tensor, "c n"]


def masked_views(tokens: Batch, kept: Vectors) -> BatchProfile:
    """Profiles of the raw, unit and centred view of each matrix, one view after the other: a batch of 3 c.

    kept is one where a token counts and zero where it does not. Everything is in float64.
    """
    epsilon = torch.finfo(tokens.dtype).eps
    x = tokens.double().where(kept[..., None] > 0, 0.0)
    largest = x.abs().amax(dim=(-2, -1))
    size = largest.where(largest > 0, 1.0)
    x = x / size[:, None, None]
    counts = kept.sum(dim=-1)
    mean = x.sum(dim=-2) / counts[:, None]
    centred = (x - mean[:, None]) * kept[..., None]
    energies = x.square().sum(dim=-1)
    unit = x * _inverse_root(energies)[..., None]
    n, d = x.shape[1:]
    gram = centred @ centred.mT
    shift = (centred @ mean[..., None])[..., 0]
    mean_energy = mean.square().sum(dim=-1)
    cosines = _cosines(gram, shift, mean_energy, _inverse_root(energies))
    spectra = (
        _token_side(gram, cosines, kept, mean_energy, shift) if n <= d else _feature_side(centred, unit, kept, mean)
    )
    number = counts.to(torch.int64)
    spread = centred.square().sum(dim=(-2, -1)).sqrt()
    unit_mean = unit.sum(dim=-2) / counts[:, None]
    unit_spread = ((unit - unit_mean[:, None]) * kept[..., None]).square().sum(dim=(-2, -1)).sqrt()
    centred_energies = centred.square().sum(dim=-1)
    sums = _off_diagonal(cosines)
    none = torch.zeros_like(number)
    return BatchProfile(
        counts=number.repeat(3),
        width=d,
        eigenvalues=spectra.flatten(0, 1),
        absent=(min(n, d) - number.clamp_max(d)).repeat(3),
        structural_zeros=torch.cat([none, none, (number <= d).to(torch.int64)]),
        cosine_sums=torch.cat([sums, sums, _off_diagonal(_normalised(gram))]).clamp_min(0),
        energies=torch.cat([energies, unit.square().sum(dim=-1), centred_energies]),
        spread=torch.cat([spread, unit_spread, spread]),
        singular=((number <= d) & _any_twice(x, energies, kept)).repeat(3),
        size=torch.cat([size, torch.ones_like(size), size]),
        epsilon=epsilon,
    )


def _token_side(
    gram: Square, cosines: Square, kept: Vectors, mean_energy: Float[Tensor, c], shift: Vectors
) -> Float[Tensor, "3 c n"]:
    """Spectra (3, c, n) by Gram matrices between tokens; see `rankfall.measures.views.token_side`."""
    counts = kept.sum(dim=-1)
    v = _mirror(kept / counts.sqrt()[:, None])
    bordered = _reflected(gram, v)
    border = -counts.sqrt()[:, None] * (shift - 2.0 * (v * shift).sum(dim=-1, keepdim=True) * v)
    border = torch.cat([(counts * mean_energy)[:, None], border[:, 1:]], dim=-1)
    bordered[:, :, 0] = border
    bordered[:, 0, :] = border
    diagonal, off = (part.unflatten(0, (2, -1)) for part in tridiagonalise(torch.cat([bordered, cosines])))
    # Without its first coordinate the raw one is the centred one.
    rest, rest_off = diagonal[0].clone(), off[0].clone()
    rest[:, 0] = rest_off[:, 0] = 0.0
    return _three(diagonal, off, rest, rest_off)


def _feature_side(centred: Batch, unit: Batch, kept: Vectors, mean: Float[Tensor, "c d"]) -> Float[Tensor, "3 c d"]:
    """Spectra (3, c, d) by second moments between coordinates; see `rankfall.measures.views.feature_side`."""
    energy = mean.square().sum(dim=-1)
    v = _mirror(mean * _inverse_root(energy)[:, None])
    reflected = _reflected(centred.mT @ centred, v)
    diagonal, off = (part.unflatten(0, (2, -1)) for part in tridiagonalise(torch.cat([reflected, unit.mT @ unit])))
    rest, rest_off = diagonal[0].clone(), off[0].clone()
    diagonal[0, :, 0] += kept.sum(dim=-1) * energy
    return _three(diagonal, off, rest, rest_off)


def _three(diagonal: Tensor, off: Tensor, rest: Tensor, rest_off: Tensor) -> Tensor:
    entries, beside = torch.cat([diagonal.flatten(0, 1), rest]), torch.cat([off.flatten(0, 1), rest_off])
    return tridiagonal_eigenvalues(entries, beside).unflatten(0, (3, -1))


def _mirror(direction: Float[Tensor, "c s"]) -> Float[Tensor, "c s"]:
    """The unit v for which I - 2 v v^T takes a direction of length one (or zero) to the first coordinate."""
    first = direction[:, :1]
    v = torch.cat([first + torch.copysign(torch.ones_like(first), first), direction[:, 1:]], dim=-1)
    return v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)


def _reflected(symmetric: Square, v: Float[Tensor, "c s"]) -> Square:
    """(I - 2 v v^T) A (I - 2 v v^T)."""
    image = (symmetric @ v[..., None])[..., 0]
    p = 2.0 * (image - (v * image).sum(dim=-1, keepdim=True) * v)
    return symmetric - v[:, :, None] * p[:, None, :] - p[:, :, None] * v[:, None, :]


def _cosines(gram: Square, shift: Vectors, mean_energy: Tensor, inverse: Vectors) -> Square:
    """Of the tokens before centring, from the products after it, which loses nothing when they are nearly equal."""
    products = gram + shift[:, :, None] + (shift + mean_energy[:, None])[:, None, :]
    return products * inverse[:, :, None] * inverse[:, None, :]


def _normalised(gram: Square) -> Square:
    inverse = _inverse_root(gram.diagonal(dim1=-2, dim2=-1))
    return gram * inverse[:, :, None] * inverse[:, None, :]


def _off_diagonal(square: Square) -> Float[Tensor, c]:
    sizes = square.abs()
    return sizes.sum(dim=(-2, -1)) - sizes.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def _any_twice(x: Batch, energies: Vectors, kept: Vectors) -> Bool[Tensor, c]:
    """Whether two tokens that count are the same, bit by bit: those have the same length, so they would be neighbours
    in the order of lengths, but for others that happen to share it."""
    order = energies.where(kept > 0, -1.0).argsort(dim=-1)
    in_order = x.gather(1, order[..., None].expand_as(x))
    same = (in_order[:, 1:] == in_order[:, :-1]).all(dim=-1)
    return (same & (kept.gather(1, order)[:, :-1] > 0)).any(dim=-1)


def _inverse_root(squares: Tensor) -> Tensor:
    return squares.where(squares > 0, torch.inf).rsqrt()
