"""How large the largest zero of a polynomial is, decided without finding zeros, in as many digits as are carried.

Eigenvalues of a far from normal matrix are lost in float64: an m-fold one moves by eps^(1/m). The test of Schur and
Cohn needs only the coefficients and their signs, so with enough decimal digits its answer is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

Row = list[Decimal]
RELATIVE = Decimal("1e-16")


def zeros_inside(coefficients: Sequence[Decimal], radius: Decimal) -> bool:
    """Whether all zeros of sum_j c_j z^j lie in |z| < radius (Schur-Cohn: degree by degree)."""
    scaled = [c * radius**j for j, c in enumerate(coefficients)]
    while len(scaled) > 1:
        lead, last = scaled[-1], scaled[0]
        if abs(last) >= abs(lead):
            return False
        scaled = [lead * scaled[j] - last * scaled[len(scaled) - 1 - j] for j in range(1, len(scaled))]
        largest = max(abs(c) for c in scaled)
        scaled = [c / largest for c in scaled]
    return True


def largest_zero(coefficients: Sequence[Decimal]) -> Decimal:
    """Modulus of the largest zero, rounded up at its sixteenth digit, by bisection; 0 for a constant."""
    if len(coefficients) <= 1:
        return Decimal(0)
    # Cauchy's bound: all zeros are below 1 + max |c_j / c_n|.
    high = 1 + max(abs(c / coefficients[-1]) for c in coefficients[:-1])
    low = Decimal(0)
    while high - low > RELATIVE * high and high > RELATIVE:
        middle = (low + high) / 2
        if zeros_inside(coefficients, middle):
            high = middle
        else:
            low = middle
    return high


def compression_polynomials(matrix: list[Row], tokens: Sequence[Row]) -> list[Row]:
    """For each unit row x: the characteristic polynomial of x -> x W compressed to the complement of x.

    det(z - P W P) = x adj(z - W) x^T, a polynomial of degree d - 1; adj by Faddeev and LeVerrier's recursion.
    Coefficients in rising order.
    """
    d = len(matrix)
    power: list[Row] = [[Decimal(int(i == j)) for j in range(d)] for i in range(d)]
    falling: list[list[Decimal]] = []
    for degree in range(1, d + 1):
        falling.append([_quadratic(power, x) for x in tokens])
        moved = _multiply(matrix, power)
        shift = -sum((moved[i][i] for i in range(d)), Decimal(0)) / degree
        power = [[moved[i][j] + (shift if i == j else 0) for j in range(d)] for i in range(d)]
    return [[falling[d - 1 - j][t] for j in range(d)] for t in range(len(tokens))]


def _multiply(a: list[Row], b: list[Row]) -> list[Row]:
    columns = list(zip(*b, strict=True))
    return [
        [sum((p * q for p, q in zip(row, column, strict=True) if p and q), Decimal(0)) for column in columns]
        for row in a
    ]


def _quadratic(a: list[Row], x: Row) -> Decimal:
    d = len(x)
    return sum((x[i] * a[i][j] * x[j] for i in range(d) for j in range(d)), Decimal(0))
