"""A-thm7 and A-conj8: two layers of rank-1 heads find the nearest neighbour by voting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.base import Construction, Example, Layer, Network, Prediction, embed
from rankfall.errors import require, require_count
from rankfall.mechanism.attend import Kind
from rankfall.mechanism.heads import Heads
from rankfall.theory.targets import uniform_sphere
from rankfall.theory.votes import majority_error, plurality_error_asymptotic, require_odd


def two_layer_network(
    query: Float[Tensor, "h d"],
    key: Float[Tensor, "h d"],
    weight: Float[Tensor, " h"],
    codes: Float[Tensor, "n c"],
    *,
    gain: float = 1.0,
    kind: Kind = "hardmax",
    second_gain: float = 1.0,
    second_kind: Kind = "hardmax",
) -> Network:
    """Heads (query_h, key_h) vote with `weight`; gains scale the scores, which only softmax notices.

    Layer 1 has h heads of rank 1, layer 2 one head whose rank is the width c of a code.
    """
    h, d = query.shape
    c = codes.shape[-1]
    width = d + c + c + d
    content, code, vote, out = 0, d, d + c, d + 2 * c
    eye_c, eye_d = torch.eye(c, dtype=query.dtype), torch.eye(d, dtype=query.dtype)
    first = Heads(
        query=embed(query.unsqueeze(-1), width, content),
        key=embed(key.unsqueeze(-1), width, content),
        value=embed(eye_c, width, code).expand(h, width, c),
        output=weight.reshape(h, 1, 1) * embed(eye_c, width, vote).mT,
        scale=gain,
    )
    second = Heads(
        query=embed(eye_c, width, vote).unsqueeze(0),
        key=embed(eye_c, width, code).unsqueeze(0),
        value=embed(eye_d, width, content).unsqueeze(0),
        output=embed(eye_d, width, out).mT.unsqueeze(0),
        scale=second_gain,
    )
    return Network(
        layers=(Layer(first, kind), Layer(second, second_kind)),
        dim=d,
        width=width,
        codes=codes,
        answer_at=out,
    )


def sign_codes(dtype: torch.dtype = torch.float64) -> Float[Tensor, "2 1"]:
    """+1 and -1: two points need one coordinate."""
    return torch.tensor([[1.0], [-1.0]], dtype=dtype)


def frame_codes(
    points: int, rank: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "n c"]:
    """n codes in `rank` coordinates: one-hot for rank n, a simplex for n - 1, a random tight frame below that.

    Votes for one-hot codes keep every point's score apart. The simplex loses only their sum, which no choice needs.
    Below n - 1 coordinates the scores of different points mix.
    """
    eye = torch.eye(points, dtype=dtype)
    if rank >= points:
        return eye
    # An orthonormal basis of the vectors with sum zero; rotated, so that a cut to `rank` columns favours no point.
    basis = torch.linalg.svd(eye - 1 / points).U[:, : points - 1]
    if rank < points - 1:
        rotation = torch.linalg.qr(torch.randn(points - 1, points - 1, generator=generator, dtype=dtype)).Q
        basis = basis @ rotation[:, :rank]
    return basis


@final
@dataclass(frozen=True)
class MajorityVote(Construction):
    """H rank-1 hardmax heads with q = k uniform on the sphere vote +1 or -1; one more rank-1 head fetches the winner.

    Each head is right with probability 1/2 + asin|<w,y>|/pi, so that the error falls like sqrt(d/H).
    """

    name: ClassVar[str] = "majority-vote"
    statement: ClassVar[str] = "A-thm7"
    says: ClassVar[str] = "polynomially many rank-1 heads in two layers approximate the nearest of two points"

    dim: int
    heads: int
    points: int = 2

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require_odd(self.heads)
        require(
            self.points == 2,
            required="two points for a majority",
            got=self.points,
            remedy="use PluralityVote for more",
        )

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [Example(cls(dim, heads), samples=50, networks=150) for dim, heads in ((3, 1), (8, 11), (32, 51))]

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        direction = uniform_sphere((self.heads, self.dim), generator, dtype)
        weight = torch.full((self.heads,), 1 / self.heads, dtype=dtype)
        return two_layer_network(direction, direction, weight, sign_codes(dtype))

    def predicted_error(self) -> Prediction:
        mse = 2 * majority_error(self.dim, self.heads)
        return Prediction(mse, "exact", "two orthonormal points, averaged over the random heads")


@final
@dataclass(frozen=True)
class PluralityVote(Construction):
    """H rank-1 hardmax heads with q = k uniform vote for one of N points; a head of rank N fetches the winner.

    Two changes against A-thm7: layer 2 is no longer of low rank, and the heads needed grow with N. On independent
    points with N >= 3 the vote never becomes right, however many heads: points close together split it
    (`vote_quality.plurality_floor`). The prediction is for orthonormal points; for others no formula exists.
    """

    name: ClassVar[str] = "plurality-vote"
    statement: ClassVar[str] = "A-conj8"
    says: ClassVar[str] = "the vote of rank-1 heads degrades as the context grows"

    dim: int
    points: int
    heads: int

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require_count("points", self.points, least=2)
        require_count("heads", self.heads)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [
            Example(cls(4, 3, 401), samples=60, networks=100, slack=0.1),
            Example(cls(8, 4, 2001), samples=60, networks=25, slack=0.1),
        ]

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        direction = uniform_sphere((self.heads, self.dim), generator, dtype)
        weight = torch.full((self.heads,), 1 / self.heads, dtype=dtype)
        return two_layer_network(direction, direction, weight, frame_codes(self.points, self.points, dtype=dtype))

    def predicted_error(self) -> Prediction:
        mse = 2 * plurality_error_asymptotic(self.dim, self.points, self.heads)
        return Prediction(mse, "asymptotic", "orthonormal points, many heads")
