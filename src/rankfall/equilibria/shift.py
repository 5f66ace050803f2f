"""Families past and window: tokens that resonate with a shift, W_V = diag(1 - delta (d - j)) + w * shift."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import ClassVar, NoReturn, final

import torch
from torch import Tensor

from rankfall.equilibria.families import Equilibrium, EquilibriumFamily
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import RequestError
from rankfall.linalg.disc import Row, compression_polynomials, largest_zero
from rankfall.masks import Causal, CausalWindow

# Up to this width the certified radius takes less than a second.
CERTIFIED_WIDTH = 10


def shift_matrix(width: int, weight: Decimal, delta: Decimal) -> list[Row]:
    """W_V as rows."""
    rows = [[Decimal(0)] * width for _ in range(width)]
    for j in range(width):
        rows[j][j] = 1 - delta * (width - 1 - j)
        if j + 1 < width:
            rows[j][j + 1] = weight
    return rows


def digits_needed(width: int) -> int:
    """Decimal digits carried: each coordinate may cost about eight, and the answer keeps thirty."""
    return 40 + 8 * width


def shift_tokens(
    count: int, width: int, rank: int, weight: float, delta: float, *, sees_all: bool
) -> tuple[list[Row], Row]:
    """Tokens, and the growth factor of each: uniform attention on the whole past (`sees_all`) or one token back."""
    with localcontext() as context:
        context.prec = digits_needed(width)
        w, step = Decimal(weight), Decimal(delta)
        diagonal = [1 - step * (width - 1 - j) for j in range(width)]
        tokens: list[Row] = [[Decimal(0)] * (width - 1) + [Decimal(1)]]
        growth = [diagonal[-1]]
        total = list(tokens[0])
        for i in range(1, count):
            before = tokens[-1]
            near = total if sees_all else before
            if i >= rank:
                token, factor = _settled(near, w, diagonal)
            elif step == 0:
                token, factor = _resonant_flat(near, before, w), Decimal(1)
            else:
                token, factor = _resonant(near, before, w, diagonal, width - 1 - i), diagonal[width - 1 - i]
            tokens.append(token)
            growth.append(factor)
            total = [a + b for a, b in zip(total, token, strict=True)]
        return tokens, growth


def shift_radius(tokens: list[Row], growth: Row, weight: float, delta: float) -> float:
    """Spectral radius of the Jacobian: the largest over tokens of compression(W_V) / growth, in decimal digits."""
    width = len(tokens[0])
    with localcontext() as context:
        context.prec = digits_needed(width)
        polynomials = compression_polynomials(shift_matrix(width, Decimal(weight), Decimal(delta)), tokens)
        radii = [largest_zero(p) / factor for p, factor in zip(polynomials, growth, strict=True)]
        return float(max(radii))


def _push(x: Row, w: Decimal, diagonal: Row) -> Row:
    return [diagonal[j] * x[j] + (w * x[j - 1] if j else 0) for j in range(len(x))]


def _resonant_flat(near: Row, before: Row, w: Decimal) -> Row:
    free = [-near[j] - near[j + 1] / w for j in range(len(near) - 1)]
    rest = sum((v * v for v in free), Decimal(0))
    if rest >= 1:
        _refuse(w)
    last = (1 - rest).sqrt()
    return [*free, -last if before[-1] > 0 else last]


def _resonant(near: Row, before: Row, w: Decimal, diagonal: Row, m: int) -> Row:
    width = len(near)
    pushed = _push(near, w, diagonal)
    fixed, slope = [Decimal(0)] * width, [Decimal(0)] * width
    slope[m] = Decimal(1)
    for j in range(m + 1, width):
        gap = diagonal[m] - diagonal[j]
        fixed[j] = (pushed[j] + w * fixed[j - 1]) / gap
        slope[j] = w * slope[j - 1] / gap
    a = sum((q * q for q in slope), Decimal(0))
    b = sum((p * q for p, q in zip(fixed, slope, strict=True)), Decimal(0))
    c = sum((p * p for p in fixed), Decimal(0)) - 1
    inside = b * b - a * c
    if inside < 0:
        _refuse(w)
    # The root whose last coordinate is farther on the other side of the token before.
    away = -1 if before[-1] * slope[-1] > 0 else 1
    root = (-b + away * inside.sqrt()) / a
    token = [p + q * root for p, q in zip(fixed, slope, strict=True)]
    if token[-1] * before[-1] >= 0:
        _refuse(w)
    return token


def _settled(near: Row, w: Decimal, diagonal: Row) -> tuple[Row, Decimal]:
    pushed = _push(near, w, diagonal)

    def answer(gap: Decimal) -> Row:
        x: Row = []
        for j, value in enumerate(pushed):
            x.append((value + (w * x[j - 1] if j else 0)) / (1 + gap - diagonal[j]))
        return x

    gap = _largest_gap(lambda gap: sum((v * v for v in answer(gap)), Decimal(0)))
    return answer(gap), 1 + gap


def _largest_gap(squared_length: Callable[[Decimal], Decimal]) -> Decimal:
    """The largest gap at which the length is one, in the context's digits: bisection, then Newton's secant."""
    high = Decimal(1)
    while squared_length(high) > 1:
        high *= 2
    low = high * Decimal("0.7")
    while squared_length(low) <= 1:
        high, low = low, low * Decimal("0.7")
    for _ in range(40):
        middle = (low + high) / 2
        if squared_length(middle) > 1:
            low = middle
        else:
            high = middle
    f_low, f_high = squared_length(low) - 1, squared_length(high) - 1
    for _ in range(20):
        if f_high == f_low or low == high:
            break
        low, f_low, high = high, f_high, high - f_high * (high - low) / (f_high - f_low)
        f_high = squared_length(high) - 1
    return high


def _refuse(w: Decimal) -> NoReturn:
    raise RequestError(
        required="a coupling w strong enough for a token of length one",
        got=f"w = {w}",
        remedy="choose a larger w",
    )


def shift_equilibrium(
    family: str, allowed: Tensor, width: int, rank: int, design: tuple[int, float, float], *, sees_all: bool
) -> Equilibrium:
    """The equilibrium, rounded to float64, with the radius that decimal arithmetic certifies.

    `design` is (inner, w, delta): the shift acts on the last `inner` coordinates, and those in front, which no token
    uses, shrink at half the rate of the slowest token.
    """
    inner, weight, delta = design
    tokens, growth = shift_tokens(allowed.shape[0], inner, rank, weight, delta, sees_all=sees_all)
    idle = float(min(growth)) / 2
    value = idle * torch.eye(width, dtype=torch.float64)
    value[-inner:, -inner:] = _rounded(shift_matrix(inner, Decimal(weight), Decimal(delta)))
    placed = torch.zeros(allowed.shape[0], width, dtype=torch.float64)
    placed[:, -inner:] = _rounded(tokens)
    radius = None
    if inner <= CERTIFIED_WIDTH:
        # With a single token direction there is nothing inside to leave it; then only idle coordinates move.
        radius = max(shift_radius(tokens, growth, weight, delta), 0.5 if inner < width else 0.0)
    return Equilibrium(
        family,
        rank,
        NormalisedLayer(value, allowed),
        placed,
        {"w": weight, "delta": delta, "inner_width": inner},
        radius=radius,
        digits=None if radius is None else digits_needed(inner),
    )


def _rounded(rows: list[Row]) -> Tensor:
    return torch.tensor([[float(v) for v in row] for row in rows], dtype=torch.float64)


WEIGHT = 2.0
DELTA = 0.01
STABLE_RANK = 3
WIDEST_PAST = 16


@final
class PastFamily(EquilibriumFamily):
    """Uniform causal attention; strictly stable up to rank three."""

    name: ClassVar[str] = "past"
    meaning: ClassVar[str] = "uniform causal attention, value matrix diagonal plus shift"
    mask: ClassVar[str] = "causal"
    stability: ClassVar[str] = "strictly stable up to rank 3, unstable from rank 4 on"

    def limit(self, count: int, width: int) -> int:
        return min(count, width) if width <= WIDEST_PAST else 0

    def strict(self, count: int, width: int, rank: int) -> bool:
        return rank <= STABLE_RANK and width <= WIDEST_PAST

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Equilibrium:
        allowed = Causal().dense(count)
        return shift_equilibrium(self.name, allowed, width, rank, (width, WEIGHT, DELTA), sees_all=True)


# width: (w, delta) for which every rank is strictly stable, certified in decimal arithmetic by the tests.
# At width 10 it takes w = 30 and the smallest singular value is 6e-17: float64 cannot tell rank 10 from 9 there.
DESIGNS: dict[int, tuple[float, float]] = {
    1: (2.0, 0.2),
    2: (2.0, 0.2),
    3: (3.0, 0.2),
    4: (4.0, 0.2),
    5: (6.0, 0.1),
    6: (8.0, 0.1),
    7: (11.0, 0.02),
    8: (12.0, 0.02),
    9: (20.0, 0.02),
}
WIDEST_WINDOW = max(DESIGNS)


@final
class WindowFamily(EquilibriumFamily):
    """Uniform attention on a window of one; every rank up to nine strictly stable."""

    name: ClassVar[str] = "window"
    meaning: ClassVar[str] = "uniform attention on the token before and itself, value matrix diagonal plus shift"
    mask: ClassVar[str] = "causal-window:1"
    stability: ClassVar[str] = (
        f"strictly stable for every rank up to {WIDEST_WINDOW}; under one layer up to width {WIDEST_WINDOW}"
    )

    def limit(self, count: int, width: int) -> int:
        return min(count, width, WIDEST_WINDOW)

    def strict(self, count: int, width: int, rank: int) -> bool:
        return rank <= WIDEST_WINDOW

    def shares(self, count: int, width: int) -> bool:
        return width <= WIDEST_WINDOW

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Equilibrium:
        # A shift no longer than the rank keeps the basin as wide as it can be; one layer for all needs it whole.
        inner = width if shared else rank
        allowed = CausalWindow(1).dense(count)
        return shift_equilibrium(self.name, allowed, width, rank, (inner, *DESIGNS[inner]), sees_all=False)
