"""Family chain: strictly stable equilibria of any rank whose tokens are well conditioned, by pole placement.

If the tokens X (k, k) are independent, A X W_V = G X holds for W_V = X^-1 B X, B = A^-1 G, whatever X is: its Gram
matrix K = X X^T is free. Token i's own Jacobian block is the compression of W_V to the complement of x_i, over
lam_i = B_ii, and its multipliers are the zeros of x_i (z - W_V)^-1 x_i^T, that is lam_m / lam_i for m > i and
    eig(B' + k_i b_i^T) / lam_i,    B' = B[:i, :i],  k_i = K[:i, i],  b_i = -B[i, :i]:
a rank-one feedback. So we choose lam_1 > lam_2 > ... and find the inner products k_i of each token with the earlier
ones that move all of lam_1 .. lam_{i-1} below lam_i. For the bidiagonal B = diag(lam) - l * (subdiagonal) they are
divided differences of the wanted polynomial at lam_1, lam_2, ..., computed here in exact rationals.
B is an M-matrix, so A = G B^-1 has positive weights on the whole past: causal attention with scores by position.
Good conditioning has its price: a disturbance grows a lot before it decays (transient growth); the basin is small.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.families import Equilibrium, EquilibriumFamily
from rankfall.equilibria.layer import NormalisedLayer

# rank: (coupling l, ratio of successive lam, how far below lam_i its poles start, and over what share they spread).
# Found by a scan for well separated tokens, a radius well below one and (to rank 5) little transient growth.
# Float64 ends after rank 9: rounding the weights of a tenth token moves its multipliers by more than the margin.
DESIGNS: dict[int, tuple[float, float, float, float]] = {
    1: (1.0, 0.5, 0.5, 0.0),
    2: (1.0, 0.5, 0.5, 0.0),
    3: (0.7, 0.95, 0.2, 0.0),
    4: (0.7, 0.95, 0.1, 0.0),
    5: (0.7, 0.95, 0.05, 0.0),
    6: (2.5, 0.85, 0.2, 0.1),
    7: (2.0, 0.93, 0.07, 0.05),
    8: (2.0, 0.95, 0.1, 0.0),
    9: (2.0, 0.97, 0.1, 0.05),
}
MOST = max(DESIGNS)


def feedback(eigenvalues: list[Fraction], poles: list[Fraction], coupling: Fraction) -> list[Fraction]:
    """Inner products k with eig(B' + k b^T) = poles, for B' bidiagonal with these eigenvalues, b = l e_last.

    det(z - B' - k b^T) = prod (z - lam_m) - l sum_j k_j (-l)^(n-1-j) prod_{m<j} (z - lam_m): Newton's form, so the
    k_j are divided differences of prod (z - pole) at lam_0 .. lam_j.
    """
    n = len(eigenvalues)
    column = [math.prod((value - pole for pole in poles), start=Fraction(1)) for value in eigenvalues]
    differences = [column[0]]
    for order in range(1, n):
        column = [
            (column[j + 1] - column[j]) / (eigenvalues[j + order] - eigenvalues[j]) for j in range(len(column) - 1)
        ]
        differences.append(column[0])
    return [-differences[j] / (coupling * (-coupling) ** (n - 1 - j)) for j in range(n)]


def chain_gram(rank: int, design: tuple[float, float, float, float]) -> Float[Tensor, "k k"]:
    """The Gram matrix K of the tokens."""
    coupling, ratio, below, spread = (Fraction(part).limit_denominator(1000) for part in design)
    eigenvalues = [ratio**i for i in range(rank)]
    gram = torch.eye(rank, dtype=torch.float64)
    for i in range(1, rank):
        poles = [eigenvalues[i] * (1 - below - spread * m / max(1, i - 1)) for m in range(i)]
        for j, inner in enumerate(feedback(eigenvalues[:i], poles, coupling)):
            gram[i, j] = gram[j, i] = float(inner)
    return gram


def chain_matrices(rank: int, design: tuple[float, float, float, float]) -> tuple[Tensor, Tensor]:
    """B = diag(lam) - l * (subdiagonal), and the causal attention A: B^-1 with rows scaled to sum one."""
    coupling, ratio = design[0], design[1]
    eigenvalues = [ratio**i for i in range(rank)]
    bidiagonal = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    weights = torch.zeros(rank, rank, dtype=torch.float64)
    for i in range(rank):
        if i > 0:
            bidiagonal[i, i - 1] = -coupling
        weights[i, i] = 1.0
        # Relative to the weight on itself: (B^-1)_{ij} / (B^-1)_{ii} = prod over j <= m < i of l / lam_m.
        for j in range(i - 1, -1, -1):
            weights[i, j] = weights[i, j + 1] * coupling / eigenvalues[j]
    return bidiagonal, weights / weights.sum(dim=-1, keepdim=True)


@final
class ChainFamily(EquilibriumFamily):
    """Strictly stable and well conditioned, every rank up to nine; tokens beyond the rank repeat the first ones."""

    name: ClassVar[str] = "chain"
    meaning: ClassVar[str] = "causal attention with scores by position, value matrix by pole placement"
    mask: ClassVar[str] = "causal"
    stability: ClassVar[str] = f"strictly stable for every rank up to {MOST}"

    def limit(self, count: int, width: int) -> int:
        return min(count, width, MOST)

    def shares(self, count: int, width: int) -> bool:
        return False

    def strict(self, count: int, width: int, rank: int) -> bool:
        return rank <= MOST

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Equilibrium:
        design = DESIGNS[rank]
        bidiagonal, attention = chain_matrices(rank, design)
        frame = torch.linalg.cholesky(chain_gram(rank, design))
        # What no token spans shrinks faster than the slowest token grows.
        value = torch.eye(width, dtype=torch.float64) * bidiagonal[-1, -1] * design[1]
        value[:rank, :rank] = torch.linalg.solve(frame, bidiagonal @ frame)
        tokens = torch.zeros(count, width, dtype=torch.float64)
        weights = torch.zeros(count, count, dtype=torch.float64)
        for i in range(count):
            # A repeated token sees what its original sees, and itself in its original's place.
            original = i % rank
            tokens[i, :rank] = frame[original]
            weights[i, :original] = attention[original, :original]
            weights[i, i] = attention[original, original]
            if original == 0 and i > 0:
                # A copy of the first token listens to it, so that one root still reaches everyone.
                weights[i, 0] = weights[i, i] = 0.5
        names = ("coupling", "ratio", "below", "spread")
        layer = NormalisedLayer.with_weights(weights, value)
        return Equilibrium(self.name, rank, layer, tokens, dict(zip(names, design, strict=True)))
