"""What a lower bound is about: the width, the heads' rank, the kind of layer, and the hypotheses that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rankfall.errors import require, require_count
from rankfall.theory.harmonics import require_dim

Values = Literal["matrix", "scalar"]


@dataclass(frozen=True)
class HeadClass:
    """All attention layers that a bound speaks about, whatever their weights.

    `dim` d, `rank` r of queries and keys, `points` N orthonormal points on S^(d-1); `skip`: the layer also adds a
    linear map of the query y. `generalised`: heads phi_h(K_h^T X, y), any map of all of y and of the r-dimensional
    keys to the simplex (the paper's definition), instead of the standard softmax or hardmax of X^T K_h Q_h^T y.
    `values`: any matrices V_h, or multiples of the identity.
    """

    dim: int
    rank: int
    points: int = 2
    skip: bool = False
    generalised: bool = False
    values: Values = "matrix"

    def __post_init__(self) -> None:
        require_dim(self.dim)
        require_count("the rank r", self.rank)
        require(
            self.rank <= self.dim,
            required=f"a rank r of at most the width d = {self.dim}",
            got=self.rank,
            remedy="queries and keys of a head cannot have more directions than the tokens",
        )
        require_count("the number of points N", self.points, least=2)
        require(
            self.points <= self.dim,
            required=f"at most d = {self.dim} points, which the bound takes orthonormal",
            got=self.points,
            remedy="lower N or raise the width",
        )
        require(
            self.values in get_args(Values),
            required=f"values to be one of {', '.join(get_args(Values))}",
            got=self.values,
            remedy="matrix covers every layer",
        )
        require(
            not (self.generalised and self.points > 2),
            required="N = 2 for generalised heads",
            got=self.points,
            remedy="leave out generalised: the bound for more points covers every standard layer",
        )

    @property
    def statement(self) -> str:
        """The statement of the paper that the number makes concrete."""
        if self.generalised:
            return "A-thm2 (low-rank lower bound, generalised heads), with constants"
        return "A-thm2 (low-rank lower bound), for every standard attention layer, with constants"

    @property
    def method(self) -> str:
        """Which of our bounds gives the number."""
        if self.points > 2:
            return "degrees 0, 1 and 2 and above of the N-point target, query side"
        if self.generalised and self.values == "matrix":
            return "harmonic dimension count, key side, degrees shifted by the values (the larger of two forms)"
        side = "key side" if self.generalised else "query side"
        return f"harmonic dimension count, {side}, every degree"

    @property
    def hypotheses(self) -> list[str]:
        """What must hold for the number to be a bound; each is about the problem, none about trained weights."""
        points = f"N = {self.points} orthonormal points, uniformly rotated"
        heads = (
            f"H generalised heads: any map of (K_h^T X, y) to the simplex, K_h of rank at most {self.rank}"
            if self.generalised
            else f"H heads: softmax or hardmax of X^T K_h Q_h^T y, rank at most {self.rank}, any biases and any "
            "positional code on the points"
        )
        values = "V_h = v_h I" if self.generalised and self.values == "scalar" else "any value and output matrices"
        skip = "one linear map of y may be added to the output" if self.skip else "no skip connection from the query"
        return [
            "one layer; the target is the point nearest to the query y",
            f"{points}; y uniform on the sphere of R^{self.dim}, independent of them",
            heads,
            values,
            skip,
            "error is E||output - target||^2, summed over coordinates, in expectation over fresh inputs",
        ]
