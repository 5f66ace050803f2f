"""What the measures share about a batch of token matrices, each fact computed at most once."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.linalg.spectra import TRUSTED_EIGENVALUE_SHARE, gram_eigenvalues, singular_values, smaller_gram

# The pairwise cosines of this many tokens are held at once.
COSINE_ROWS = 1024
# An eigenvalue from a float64 Gram matrix is off by some 1e-15 of the largest; this leaves a wide margin.
GRAM_ROUNDING = 1e-12
# Above this share of the largest, a sum of a thousand eigenvalues that are each off by 1e-15 is right to 1e-7.
TRUSTED_SUM_SHARE = 1e-5


class Profile:
    """Lazy facts of tokens (b, n, d), all in float64; one decomposition serves all measures that need a spectrum.

    The tokens are held divided by their largest entry (`size`), so that no square over- or underflows. The first
    `structural_zeros` eigenvalues are zero by construction, not by measurement.
    """

    structural_zeros = 0

    def __init__(self, tokens: Float[Tensor, "b n d"]) -> None:
        wide = tokens.double()
        largest = wide.abs().amax(dim=(-2, -1))
        self.size = largest.where(largest > 0, 1.0)
        self.tokens = wide / self.size[:, None, None]
        # Tokens that came as float32 carry float32 rounding: their numerical rank is judged by that.
        self.epsilon = torch.finfo(tokens.dtype).eps

    @property
    def count(self) -> int:
        """Tokens, n."""
        return self.tokens.shape[-2]

    @property
    def width(self) -> int:
        """Coordinates, d."""
        return self.tokens.shape[-1]

    @property
    def longer_side(self) -> int | Tensor:
        """max(n, d)."""
        return max(self.count, self.width)

    @cached_property
    def token_energies(self) -> Float[Tensor, "b n"]:
        """Squared length of each token."""
        return self.tokens.square().sum(dim=-1)

    @cached_property
    def energy(self) -> Float[Tensor, b]:
        """Squared Frobenius norm."""
        return self.token_energies.sum(dim=-1)

    @cached_property
    def spread(self) -> Float[Tensor, b]:
        """Frobenius norm after the mean token is taken off, centred in float64 so that nothing cancels."""
        centred = self.tokens - self.tokens.mean(dim=-2, keepdim=True)
        return torch.linalg.vector_norm(centred, dim=(-2, -1))

    @cached_property
    def gram(self) -> Float[Tensor, "b s s"]:
        """The smaller Gram matrix."""
        return smaller_gram(self.tokens)

    @cached_property
    def eigenvalues(self) -> Float[Tensor, "b s"]:
        """Squared singular values, smallest first, right relative to the largest: enough for sums over them."""
        return gram_eigenvalues(self.gram)

    @cached_property
    def eigenvalue_sum(self) -> Float[Tensor, b]:
        """The energy, as the spectrum has it."""
        return self.eigenvalues.sum(dim=-1)

    @cached_property
    def largest_eigenvalue(self) -> Float[Tensor, b]:
        """s_1^2."""
        return self.eigenvalues[..., -1]

    @cached_property
    def entropy(self) -> Float[Tensor, b]:
        """-sum p log p of the shares p = s^2 / sum s^2; 0 where all are zero."""
        return torch.special.entr(self._shares).sum(dim=-1)

    @cached_property
    def concentration(self) -> Float[Tensor, b]:
        """sum p^2 of the shares; 0 where all are zero."""
        return self._shares.square().sum(dim=-1)

    @cached_property
    def _shares(self) -> Float[Tensor, "b s"]:
        total = self.eigenvalue_sum[..., None]
        return self.eigenvalues / total.where(total > 0, 1.0)

    @cached_property
    def singular_values(self) -> Float[Tensor, "b s"]:
        """Singular values, largest first: by the Gram matrix where that is exact enough, else by the SVD."""
        eigenvalues = self.eigenvalues
        values = eigenvalues.flip(-1).sqrt()
        doubtful = eigenvalues[..., 0] <= TRUSTED_EIGENVALUE_SHARE * eigenvalues[..., -1]
        if bool(doubtful.any()):
            values[doubtful] = singular_values(self.tokens[doubtful])
        return values

    @cached_property
    def smallest_singular_value(self) -> Float[Tensor, b]:
        """The least of the min(n, d) singular values."""
        return self.singular_values[..., -1]

    def count_above(self, share: float | Tensor) -> Float[Tensor, b]:
        """How many singular values exceed this share of the largest; the SVD is asked only where it is close."""
        squares = self.eigenvalues[..., self.structural_zeros :]
        if squares.shape[-1] == 0:
            return squares.sum(dim=-1)
        largest = squares[..., -1:]
        distance = squares - share**2 * largest
        if bool((distance.abs() > GRAM_ROUNDING * largest).all()):
            return (distance > 0).sum(dim=-1).to(squares.dtype)
        values = self.singular_values
        return (values > share * values[..., :1]).sum(dim=-1).to(values.dtype)

    @cached_property
    def energy_but_first(self) -> Float[Tensor, b]:
        """s_2^2 + s_3^2 + ...; needs the SVD when that is next to nothing."""
        rest = self.eigenvalue_sum - self.largest_eigenvalue
        if bool((rest > TRUSTED_SUM_SHARE * self.largest_eigenvalue).all()):
            return rest
        return self.singular_values[..., 1:].square().sum(dim=-1)

    @cached_property
    def absolute_cosine_sum(self) -> Float[Tensor, b]:
        """Sum of |cosine| over ordered pairs of distinct tokens; a zero token has cosine zero with all others."""
        energies = self.token_energies
        lengths = energies.where(energies > 0, 1.0).sqrt()
        if self.count <= self.width:
            # The Gram matrix of the tokens is there already.
            total = torch.einsum("bij,bi,bj->b", self.gram.abs(), 1 / lengths, 1 / lengths)
        else:
            unit = self.tokens / lengths[..., None]
            total = self.tokens.new_zeros(self.tokens.shape[0])
            for start in range(0, self.count, COSINE_ROWS):
                total += (unit[:, start : start + COSINE_ROWS] @ unit.mT).abs().sum(dim=(-2, -1))
        return total - (energies / lengths.square()).sum(dim=-1)
