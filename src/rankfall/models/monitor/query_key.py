"""Stable ranks of W_Q W_K^T and of what training changed in it since the last sample, head by head.

Which linear map of an attention module gives its queries and which its keys is told by what ran: a map belongs to
them if, head by head, its outputs are as long as they are, up to one factor. Rotations by position and scales do not
change that; norms on queries and keys are run on the outputs first, and their gains belong to the map. A map of what
another map gave, as in latent attention, is none of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankfall.errors import RequestError
from rankfall.models.heads.latents import linear_part
from rankfall.models.recording.events import Call, Ran

# Of one sequence, so many tokens decide.
TOKENS = 16
ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}
ALIKE_AT_MOST = 5e-2


@final
@dataclass(frozen=True, eq=False)
class QueryKeyMaps:
    """W_Q and W_K of every head, copies."""

    query: Float[Tensor, "h d r"]
    key: Float[Tensor, "h d r"]

    def stable_ranks(self) -> Float[Tensor, " h"]:
        """|W_Q W_K^T|_F^2 over its largest squared singular value."""
        return stable_ranks(self.query.double(), self.key.double())

    def change_since(self, before: QueryKeyMaps) -> Float[Tensor, " h"]:
        """The same of W_Q W_K^T minus what it was: dQ K^T + Q' dK^T, so that nothing is lost by taking two large
        matrices from each other. NaN where nothing changed."""
        query, key, old_query, old_key = (one.double() for one in (self.query, self.key, before.query, before.key))
        left = torch.cat([query - old_query, old_query], dim=-1)
        right = torch.cat([key, key - old_key], dim=-1)
        return stable_ranks(left, right)


def stable_ranks(left: Float[Tensor, "h d s"], right: Float[Tensor, "h d s"]) -> Float[Tensor, " h"]:
    """|A B^T|_F^2 / |A B^T|_2^2 from the two Gram matrices (s, s); NaN of a product that is zero.

    With A^T A = C C^T the squares of its singular values are the eigenvalues of C^T (B^T B) C. Columns of A have
    length one first, so that rounding in C is that of each: the change of a matrix lies beside the matrix here.
    """
    lengths = torch.linalg.vector_norm(left, dim=-2, keepdim=True)
    left, right = left / lengths.where(lengths > 0, 1.0), right * lengths
    gram = left.mT @ left
    rounding = gram.shape[-1] * torch.finfo(gram.dtype).eps
    # A column of zeros meets zeros in B.
    gram.diagonal(dim1=-2, dim2=-1).copy_((lengths[..., 0, :] == 0) + gram.diagonal(dim1=-2, dim2=-1) + rounding)
    root = torch.linalg.cholesky(gram)
    squares = torch.linalg.eigvalsh(root.mT @ (right.mT @ right) @ root).clamp_min(0.0)
    largest = squares[..., -1]
    return squares.sum(dim=-1) / largest.where(largest > 0, torch.nan)


@torch.no_grad()
def query_key_maps(call: Call, ran: Sequence[Ran]) -> QueryKeyMaps:
    """The maps of a module's heads from its attention call and what ran in it before."""
    assert call.query is not None
    assert call.key is not None
    heads, groups = call.query.shape[1], call.key.shape[1]
    if isinstance(call.module, nn.MultiheadAttention):
        query, key = _packed(call.module, heads)
    else:
        linear = [one for one in ran if one.kind == "linear" and not _of_a_map(one, ran)]
        norms = [one.module for one in ran if one.kind == "norm"]
        query, at = _found(linear, norms, call.query, ("query", heads, groups))
        key, _ = _found(linear[at:], norms, call.key, ("key", heads, groups))
    key = key.repeat_interleave(heads // key.shape[0], dim=0)
    return QueryKeyMaps(query.detach().clone(), key.detach().clone())


def _of_a_map(one: Ran, ran: Sequence[Ran]) -> bool:
    """Whether a linear map was given what another gave, a norm between them or not."""
    given = [one.input, *(other.input for other in ran if other.kind == "norm" and other.output is one.input)]
    return any(other.kind == "linear" and other.output is some for other in ran for some in given)


def _packed(module: nn.MultiheadAttention, heads: int) -> tuple[Tensor, Tensor]:
    if module._qkv_same_embed_dim:
        query, key, _ = module.in_proj_weight.chunk(3)
    else:
        query, key = module.q_proj_weight, module.k_proj_weight
    query, key = (one.unflatten(0, (heads, -1)).mT for one in (query, key))
    return query, key


def _found(
    linear: Sequence[Ran], norms: Sequence[nn.Module], wanted: Tensor, asked: tuple[str, int, int]
) -> tuple[Tensor, int]:
    """(heads, d, r) of the first linear map that gives what is wanted (b, heads, n, r), and its number."""
    target = wanted[0, :, :TOKENS].transpose(0, 1)
    for at, one in enumerate(linear):
        outputs = one.output.reshape(-1, one.output.shape[-1])[: target.shape[0]]
        for rows in _splits(one.output.shape[-1], target.shape[-1], asked):
            part = outputs[:, rows.flatten()].unflatten(-1, rows.shape)
            weight = _weight(one)[rows.flatten()].unflatten(0, rows.shape).permute(0, 2, 1)
            if _as_long(part, target):
                return weight, at
            for norm in norms:
                for flat in (False, True):
                    normed = _through(norm, part, flat)
                    if normed is not None and _as_long(normed, target):
                        moved = weight.transpose(0, 1)
                        zero = torch.zeros_like(moved[:1])
                        return (_linear(norm, moved, flat) - _linear(norm, zero, flat)).transpose(0, 1), at
    raise RequestError(
        required=f"one linear map that gives the {asked[0]} of each head",
        got="none that fits",
        remedy="stable ranks of its weights are left out",
    )


def _splits(size: int, rank: int, asked: tuple[str, int, int]) -> Iterator[Tensor]:
    """Which outputs of a map of this size may be what is asked for, (heads, r): all, or a part of a fused map."""
    what, heads, groups = asked
    count = heads if what == "query" else groups
    places = torch.arange(size)
    if size == count * rank:
        yield places.reshape(count, rank)
    if size == (heads + 2 * groups) * rank:
        start = 0 if what == "query" else heads * rank
        yield places[start : start + count * rank].reshape(count, rank)
        grouped = places.reshape(groups, heads // groups + 2, rank)
        own = grouped[:, :-2] if what == "query" else grouped[:, -2:-1]
        yield own.reshape(count, rank)


def _weight(one: Ran) -> Tensor:
    """(outputs, d) of a linear map; some keep it the other way round."""
    weight: Tensor = one.module.weight  # type: ignore[assignment]
    given = (one.output.shape[-1], one.input.shape[-1])
    if tuple(weight.shape) == given and type(one.module).__name__ != "Conv1D":
        return weight
    return weight.T


def _through(norm: nn.Module, part: Tensor, flat: bool) -> Tensor | None:
    try:
        return norm.forward(part.flatten(-2)).unflatten(-1, part.shape[-2:]) if flat else norm.forward(part)
    except RuntimeError:
        # A norm of another size.
        return None


def _linear(norm: nn.Module, rows: Tensor, flat: bool) -> Tensor:
    linear, bias = linear_part(norm, rows.flatten(-2) if flat else rows)
    return (linear + bias).unflatten(-1, rows.shape[-2:]) if flat else linear + bias


def _as_long(ours: Tensor, theirs: Tensor) -> bool:
    """Whether tokens (n, h, r) have the same lengths, head by head, up to one factor."""
    if ours.shape != theirs.shape:
        return False
    one, other = (torch.linalg.vector_norm(some.double(), dim=-1) for some in (ours, theirs))
    factor = (one * other).sum() / one.square().sum().clamp_min(1e-300)
    apart = torch.linalg.vector_norm(factor * one - other) / torch.linalg.vector_norm(other).clamp_min(1e-300)
    return bool(apart < ALIKE.get(theirs.dtype, ALIKE_AT_MOST))
