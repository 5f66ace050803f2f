"""A-thm2 made computable: a lower bound on the error of any H heads of rank r, and the heads that an error needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rankfall.errors import MOST_HEADS, require, require_count, require_one_of
from rankfall.theory.harmonics import (
    HIGHEST_DEGREE,
    Floats,
    SignSpectrum,
    dimension,
    expected_largest_coordinate,
    invariant_dimension,
    log_invariant_share,
    require_degree,
    require_dim,
    sign_spectrum,
)

Values = Literal["matrix", "scalar"]

DEFAULT_TOP = 2501
"""Highest degree by default: what is left out enters as one safe term."""


def structural_rank(head_size: int, width: int, *, kv_latent: int = 0, q_latent: int = 0, rope_dims: int = 0) -> int:
    """The largest rank that a head's query/key form W_Q W_K^T can have: min(head size, width, query latent, key
    latent + rotary part), where 0 stands for no latent.

    Queries read from a vector of `q_latent` numbers span no more directions than these. Keys read from one of
    `kv_latent` numbers span min(head size - p, kv_latent) beside the p = `rope_dims` that come from the token itself.
    """
    bounds = [head_size, width]
    if q_latent:
        bounds.append(q_latent)
    if kv_latent:
        bounds.append(kv_latent + rope_dims)
    return min(bounds)


@dataclass(frozen=True)
class HeadClass:
    """All bare attention layers that a bound speaks about, whatever their weights: the output is read linearly.

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
        require_count("the rank r", self.rank, most=self.dim, remedy="a head's rank cannot exceed the width d")
        orthonormal = "the bound takes the points orthonormal: lower N or raise the width d"
        require_count("the number of points N", self.points, least=2, most=self.dim, remedy=orthonormal)
        require_one_of("values", self.values, get_args(Values))
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
        return self.hypotheses_at(f"at most {self.rank}")

    def hypotheses_at(self, rank: str) -> list[str]:
        """The same, the rank in words: where a table runs over ranks there is not one of them."""
        points = f"N = {self.points} orthonormal points, uniformly rotated"
        heads = (
            f"H generalised heads: any map of (K_h^T X, y) to the simplex, K_h of rank {rank}"
            if self.generalised
            else f"H heads: softmax or hardmax of X^T K_h Q_h^T y, rank {rank}, any biases and any "
            "positional code on the points"
        )
        values = "V_h = v_h I" if self.generalised and self.values == "scalar" else "any value and output matrices"
        skip = "one linear map of y may be added to the output" if self.skip else "no skip connection from the query"
        return [
            "one bare attention layer; the target is the point nearest to the query y",
            "its output is read linearly: no norm after attention and no feed-forward block",
            "the query is not among the keys: it attends to the points alone",
            f"{points}; y uniform on the sphere of R^{self.dim}, independent of them",
            heads,
            values,
            skip,
            "error is E||output - target||^2, summed over coordinates, in expectation over fresh inputs",
        ]


@dataclass(frozen=True)
class Floor:
    """A lower bound on the error. `vacuous` when it says nothing: the floor is zero."""

    heads_class: HeadClass
    heads: int
    mse: float
    baseline: float
    """The bound at H = 0. It is not an error that a layer without heads has: that is larger."""

    @property
    def vacuous(self) -> bool:
        return self.mse <= 0.0


def mse_floor(heads_class: HeadClass, heads: int, top: int = DEFAULT_TOP) -> Floor:
    """The bound for `heads` heads of the class and the bound at H = 0; degrees above `top` in one safe term."""
    require_count("the number of heads H", heads, most=MOST_HEADS)
    baseline = floor_value(heads_class, 0, top)
    return Floor(heads_class, heads, max(0.0, floor_value(heads_class, heads, top)), baseline)


def floor_value(heads_class: HeadClass, heads: int, top: int = DEFAULT_TOP) -> float:
    """The bound as a bare number, `heads` >= 0; what `heads_needed` inverts."""
    if heads_class.rank == heads_class.dim and heads > 0:
        return 0.0  # a full-rank head represents the target (A-fact): no bound above zero can hold
    if heads_class.points > 2:
        return points_floor(heads_class, heads)
    spectrum = sign_spectrum(heads_class.dim, top)
    shares = _log_shares(heads_class, spectrum)
    floor = counted_floor(spectrum.energies, spectrum.tail, shares, heads, skip=heads_class.skip)
    if heads_class.generalised and heads_class.values == "matrix":
        floor = max(floor, prefix_floor(spectrum, heads_class.rank, heads, skip=heads_class.skip))
    return floor


def counted_floor(energies: Floats, tail: float, log_shares: Floats, heads: int, *, skip: bool = False) -> float:
    """1/2 sum_l energy_l (1 - H share_l)_+ with the last share for the `tail`, the energy of all degrees above it.

    Valid because the shares decrease with the degree; 1 - exp(x) is taken as -expm1(x), exact for tiny shares. With
    `skip` the first degree is left out.
    """
    if heads == 0:
        covered = np.full_like(log_shares, -np.inf)
    else:
        covered = np.minimum(math.log(heads) + log_shares, 0.0)
    missing = -np.expm1(covered)
    first = 1 if skip else 0
    return 0.5 * (math.fsum(energies[first:] * missing[first:]) + tail * float(missing[-1]))


def _log_shares(heads_class: HeadClass, spectrum: SignSpectrum) -> Floats:
    """log of the share of degree l that one head can cover: m(r,l)/N(d,l), or the three-term form of matrix values.

    For generalised heads <w, V_h w> has degrees 0 and 2, which shifts degrees by two: m(r,l-2)+m(r,l)+m(r,l+2).
    """
    rank, degrees = heads_class.rank, spectrum.degrees
    shares = log_invariant_share(heads_class.dim, rank, degrees)
    if not heads_class.generalised or heads_class.values == "scalar":
        return shares
    l = degrees.astype(np.float64)  # noqa: E741
    below = (l - 1) * l / ((rank + l - 2) * (rank + l - 1)) if rank > 1 else np.ones_like(l)
    below = np.where(degrees == 1, 0.0, below)
    above = (rank + l) * (rank + l + 1) / ((l + 1) * (l + 2))
    return shares + np.log1p(below + above)


def points_floor(heads_class: HeadClass, heads: int) -> float:
    """N >= 3 orthonormal points, standard layers:  E_1 (1-Hr/d)_+ + (1-E_0-E_1)(1 - H m(r,2)/N(d,2))_+.

    E_0 = 1/N and E_1 = d M^2/(N-1) are the two lowest energies of the target, M = E max_i y_i. A skip connection from
    y takes the first term away.
    """
    dim, rank, points = heads_class.dim, heads_class.rank, heads_class.points
    first = dim * expected_largest_coordinate(dim, points) ** 2 / (points - 1)
    linear = max(0.0, 1 - heads * rank / dim) if not heads_class.skip else 0.0
    quadratic = max(0.0, 1 - heads * invariant_dimension(rank, 2) / dimension(dim, 2))
    return first * linear + (1 - 1 / points - first) * quadratic


def prefix_floor(spectrum: SignSpectrum, rank: int, heads: int, *, skip: bool = False) -> float:
    """1/2 sum eta_l^2 (1 - t_l/N(d,l)), t greedy from degree 1 under t_l <= N(d,l) and, for every L,

        sum_{l <= L} t_l <= H sum_{j odd <= L+2} m(r,j).

    Greedy is worst for the bound because eta_l^2/N(d,l) = lambda_l^2 falls with l. Exact integers are needed only
    until the budget binds and keeps binding; from there t_l = H m(r,l+2), whose share of N(d,l) falls with l.
    """
    if heads == 0:
        kept = float(spectrum.energies[0]) if skip else 0.0
        return 0.5 * (1.0 - kept)
    dim = spectrum.dim
    covered = np.ones_like(spectrum.energies)
    budget = heads * invariant_dimension(rank, 1)
    used = 0
    steady = len(covered)
    for index, degree in enumerate(spectrum.degrees.tolist()):
        size, reach, next_size, next_reach = _sizes(dim, rank, degree)
        budget += heads * reach
        taken = min(size, budget - used)
        # With a skip connection degree 1 is free; spending nothing on it leaves later degrees the largest budget.
        used += 0 if skip and degree == 1 else taken
        covered[index] = taken / size
        if used == budget and heads * next_reach <= next_size:
            steady = index + 1
            break
    else:
        return _sum(spectrum, covered, 0.0, skip)
    l = spectrum.degrees[steady:].astype(np.float64)  # noqa: E741
    if len(l) == 0:
        return _sum(spectrum, covered, 1.0 - heads * next_reach / next_size, skip)
    # Share of the first steady degree from exact integers, later ones by the ratio of neighbours.
    first = math.log(heads * invariant_dimension(rank, int(l[0]) + 2)) - math.log(dimension(dim, int(l[0])))
    b = l[:-1]
    steps = np.log(rank + b + 2) + np.log(rank + b + 3) + np.log(b + 1) + np.log(b + 2) + np.log(2 * b + dim - 2)
    steps -= np.log(b + 3) + np.log(b + 4) + np.log(2 * b + dim + 2) + np.log(b + dim - 1) + np.log(b + dim - 2)
    logs = first + np.concatenate([[0.0], np.cumsum(steps)])
    covered[steady:] = np.exp(np.minimum(logs, 0.0))
    return _sum(spectrum, covered, float(1.0 - covered[-1]), skip)


def _sum(spectrum: SignSpectrum, covered: np.ndarray, tail_missing: float, skip: bool) -> float:
    missing = (1.0 - covered) * spectrum.energies
    first = 1 if skip else 0
    return 0.5 * (math.fsum(missing[first:]) + spectrum.tail * tail_missing)


@functools.lru_cache(maxsize=100_000)
def _sizes(dim: int, rank: int, degree: int) -> tuple[int, int, int, int]:
    """N(d,l), m(r,l+2) and the same at the next odd degree: needed again at every step of a bisection."""
    following = degree + 2
    return (
        dimension(dim, degree),
        invariant_dimension(rank, following),
        dimension(dim, following),
        invariant_dimension(rank, following + 2),
    )


def smallest_count(floor_at: Callable[[int], float], error: float) -> int:
    """The least H >= 1 with floor_at(H) <= error, for a decreasing floor: first its power of two, then its digits.

    Integers never overflow. Above 2^46 heads the search stops at fourteen digits, which is what the floor itself
    resolves, and returns the lower end: a count that is certainly needed.
    """
    if floor_at(1) <= error:
        return 1
    low, high = 0, 1
    while floor_at(2**high) > error:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if floor_at(2**middle) > error else (low, middle)
    least, most = 2**low, 2**high
    while most - least > max(1, most >> 46):
        middle = (least + most) // 2
        least, most = (middle, most) if floor_at(middle) > error else (least, middle)
    return least + 1


def heads_needed(heads_class: HeadClass, error: float, top: int | None = None) -> int:
    """No layer of the class reaches `error` with fewer heads than this: the least H with LB(d,r,H) <= error.

    Necessary, not sufficient. `error` must lie in (0, baseline], the baseline being the bound at H = 0.
    Degrees above `top` (by default enough of them that the count no longer changes) enter as one term, which can only
    lower the count.
    """
    enough = degree_for(heads_class, error)
    top = enough if top is None else require_degree(top)
    return smallest_count(lambda heads: floor_value(heads_class, heads, top), error)


def degree_for(heads_class: HeadClass, error: float) -> int:
    """A highest degree at which the energy left out is at most half of what the error allows."""
    baseline = floor_value(heads_class, 0)
    require(
        0 < error <= baseline,
        required=f"an error in (0, {baseline:.6g}], the upper end being the bound at H = 0",
        got=error,
        remedy="above it the bound asks for no head, and nothing reaches zero",
    )
    top = DEFAULT_TOP
    while heads_class.points == 2 and plateau(heads_class.dim, top) > error / 4:
        require(
            top < HIGHEST_DEGREE,
            required=f"an error of at least {4 * plateau(heads_class.dim, HIGHEST_DEGREE):.3g} at this width",
            got=error,
            remedy=f"smaller ones need harmonics of degree above {HIGHEST_DEGREE}",
        )
        top = min(4 * top + 1, HIGHEST_DEGREE)
    return top


def plateau(dim: int, degree: int) -> float:
    """1/2 (1 - sum over odd l <= degree of eta_l^2): where the error levels off once degree l is exhausted (A-rf).

    For N=2 orthonormal points, error summed over coordinates. degree 1 is what the best linear votes reach.
    """
    require(
        degree >= 1 and degree % 2 == 1,
        required="the degree of a plateau to be odd and positive",
        got=degree,
        remedy="the target has odd degrees only: give 1, 3, 5, ...",
    )
    return 0.5 * sign_spectrum(dim, degree).tail
