"""What the measures share about token matrices, each fact computed at most once, and the four views of them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.linalg.spectra import distinct_rows, gram_eigenvalues, rows_may_repeat, singular_values, smaller_gram

# An eigenvalue of a float64 Gram matrix is off by a few 1e-16 of the largest: above this share of the largest, its
# square root is right to 1e-6 or better; below it, the SVD decides. Tokens that came in half precision are themselves
# off by more than that, and theirs need be right to an eighth of their rounding only.
TRUSTED_SHARE, RIGHT = 1e-9, 1e-6
# Squares of lengths below this come near the least float64 numbers; such tokens are scaled by the power of two first.
SHORT, LENGTHENED = 1e-100, 2.0**700
# From this size on a decomposition takes so much longer than looking for equal tokens that they are looked for first.
WORTH_LOOKING = 256
# So many pairwise cosines are held at once: what a processor's cache holds, or what keeps a GPU busy.
CACHED_NUMBERS, GPU_NUMBERS = 1 << 19, 1 << 26

VIEWS = ("raw", "unit", "centred", "centred_unit")


@final
class Profile:
    """Lazy facts of tokens (..., n, d), all in float64, each a tensor with one entry for each matrix.

    The tokens are held divided by their largest entry, `size`, so that no square over- or underflows: facts are those
    of the tokens so scaled, and `Measure.of` puts the size back. Tokens that come with a `size` are scaled already.
    `epsilon` is the rounding that they came with, that of their dtype unless given. Of tokens that are
    `mean_free` the mean was taken off.
    """

    def __init__(
        self,
        tokens: Float[Tensor, "... n d"],
        *,
        size: Float[Tensor, ...] | None = None,
        epsilon: float | None = None,
        mean_free: bool = False,
    ) -> None:
        wide = tokens.detach().double()
        if size is None:
            largest = torch.maximum(wide.amax(dim=(-2, -1)), -wide.amin(dim=(-2, -1)))
            size = largest.where(largest > 0, 1.0)
            wide = wide / size[..., None, None]
        self.tokens, self.size = wide, size
        # Tokens that came as float32 carry float32 rounding: their numerical rank is judged by that.
        self.epsilon = torch.finfo(tokens.dtype).eps if epsilon is None else epsilon
        self.mean_free = mean_free
        self.structural_zeros = self._zeros(self.count)

    def _zeros(self, count: int) -> int:
        """Singular values that are zero by construction: so many centred tokens, if they are no more than their
        coordinates, have one direction less than tokens."""
        return int(self.mean_free and count <= self.width)

    @property
    def count(self) -> int:
        """Tokens, n."""
        return self.tokens.shape[-2]

    @property
    def width(self) -> int:
        """Coordinates, d."""
        return self.tokens.shape[-1]

    @property
    def most(self) -> int:
        """The most that a rank of these tokens can be: min(n, d), one less for centred tokens with n <= d."""
        return min(self.count, self.width) - self.structural_zeros

    @cached_property
    def lengths(self) -> Float[Tensor, "... n"]:
        """Length of each token."""
        found = torch.linalg.vector_norm(self.tokens, dim=-1)
        short = found < SHORT
        if bool(short.any()):
            found[short] = torch.linalg.vector_norm(self.tokens[short] * LENGTHENED, dim=-1) / LENGTHENED
        return found

    @cached_property
    def token_energies(self) -> Float[Tensor, "... n"]:
        """Squared length of each token."""
        return self.lengths.square()

    @cached_property
    def energy(self) -> Float[Tensor, ...]:
        """Squared Frobenius norm."""
        return self.token_energies.sum(dim=-1)

    @cached_property
    def directions(self) -> Float[Tensor, "... n d"]:
        """Each token divided by its length; a zero token stays zero."""
        return self.tokens / self.lengths.where(self.lengths > 0, torch.inf)[..., None]

    @cached_property
    def centred(self) -> Float[Tensor, "... n d"]:
        """The tokens without their mean, taken off in float64; tokens that are equal leave exactly nothing."""
        low, high = self.tokens.amin(dim=-2, keepdim=True), self.tokens.amax(dim=-2, keepdim=True)
        # Rounding can push a mean out of the numbers that it is of.
        return self.tokens - self.tokens.mean(dim=-2, keepdim=True).clamp(low, high)

    @cached_property
    def spread(self) -> Float[Tensor, ...]:
        """Frobenius norm of the centred tokens."""
        return torch.linalg.vector_norm(self.centred, dim=(-2, -1))

    @cached_property
    def gram(self) -> Float[Tensor, "... s s"]:
        """The smaller Gram matrix: between tokens where n <= d, else between coordinates."""
        return smaller_gram(self.tokens)

    @cached_property
    def eigenvalues(self) -> Float[Tensor, "... s"]:
        """Squared singular values, smallest first, right relative to the largest: enough for sums over them."""
        if not self._with_equals:
            values = gram_eigenvalues(self.gram)
            values[..., : self.structural_zeros] = 0.0
            return values
        flat = self.tokens.reshape(-1, self.count, self.width)
        found = flat.new_empty(len(flat), min(flat.shape[1:]))
        if others := [at for at in range(len(flat)) if at not in self._with_equals]:
            found[others] = gram_eigenvalues(smaller_gram(flat[others]))
            found[others, : self.structural_zeros] = 0.0
        for at, (squares, _) in self._with_equals.items():
            found[at] = squares
        return found.reshape(*self.tokens.shape[:-2], -1)

    @cached_property
    def _with_equals(self) -> dict[int, tuple[Float[Tensor, " s"], int]]:
        """Of large matrices in which tokens are equal, by their number: what `_of_distinct` says of them."""
        if min(self.count, self.width) < WORTH_LOOKING:
            return {}
        flat = self.tokens.reshape(-1, self.count, self.width)
        looked = {at: self._of_distinct(flat[at]) for at in rows_may_repeat(flat).nonzero()[:, 0].tolist()}
        return {at: found for at, found in looked.items() if found is not None}

    @cached_property
    def shares(self) -> Float[Tensor, "... s"]:
        """Squared singular values over their sum, smallest first; all zero where the tokens are."""
        total = self.eigenvalues.sum(dim=-1, keepdim=True)
        return self.eigenvalues / total.where(total > 0, 1.0)

    @cached_property
    def singular_values(self) -> Float[Tensor, "... s"]:
        """Singular values, largest first, each right to 1e-6: by the Gram matrix where it can tell, or by the SVD."""
        squares = self.eigenvalues
        values = squares.flip(-1).sqrt()
        doubtful = self._doubtful(squares, self.structural_zeros)
        for at, (known, zeros) in self._with_equals.items():
            doubtful.view(-1)[at] = self._doubtful(known, zeros)
        if bool(doubtful.any()):
            values[doubtful] = self._exact(self.tokens[doubtful])
        return values

    def _doubtful(self, squares: Float[Tensor, "... s"], zeros: int) -> Bool[Tensor, ...]:
        """Where the Gram matrix cannot tell the smallest value that is not zero by construction, as so many are."""
        trusted = TRUSTED_SHARE * RIGHT / max(RIGHT, self.epsilon / 8)
        return squares[..., min(zeros, squares.shape[-1] - 1)] <= trusted * squares[..., -1]

    def _exact(self, tokens: Float[Tensor, "k n d"]) -> Float[Tensor, "k s"]:
        """Singular values of what the Gram matrix cannot tell: by that of tokens that are equal taken together, which
        most often are why, or by the SVD."""
        found = tokens.new_empty(len(tokens), min(tokens.shape[1:]))
        left = []
        for at, one in enumerate(tokens):
            known = self._of_distinct(one)
            if known is None or bool(self._doubtful(*known)):
                left.append(at)
            else:
                found[at] = known[0].flip(-1).sqrt()
        if left:
            exact = singular_values(tokens[left])
            # The SVD is off by so much: what is smaller may as well be zero.
            rounding = max(self.count, self.width) * torch.finfo(torch.float64).eps
            exact = exact.where(exact > rounding * exact[..., :1], 0.0)
            exact[..., exact.shape[-1] - self.structural_zeros :] = 0.0
            found[left] = exact
        return found

    def _of_distinct(self, tokens: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " s"], int] | None:
        """Squared singular values, smallest first, by the Gram matrix of tokens that are equal taken together, and
        how many are zero by construction; None where no two are equal."""
        rows = distinct_rows(tokens)
        if len(rows) == len(tokens):
            return None
        squares = gram_eigenvalues(smaller_gram(rows))
        zeros = self._zeros(len(rows))
        squares[:zeros] = 0.0
        nothing = min(tokens.shape) - len(squares)
        return torch.cat([squares.new_zeros(nothing), squares]), nothing + zeros

    @cached_property
    def absolute_cosine_sum(self) -> Float[Tensor, ...]:
        """Sum of |cosine| over ordered pairs of distinct tokens; a zero token has cosine zero with all others."""
        if self.count <= self.width and bool((self.lengths > SHORT).all()):
            # The Gram matrix of the tokens is there already, and none of its products underflows.
            inverse = self.lengths.reciprocal()
            total = (inverse[..., None, :] @ self.gram.abs() @ inverse[..., None])[..., 0, 0]
        else:
            total = _absolute_cosines(self.directions)
        return (total - (self.lengths > 0).sum(dim=-1)).clamp_min(0)


def _absolute_cosines(directions: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b"]:
    """Sum of |cosine| over all ordered pairs, in blocks of rows, or of whole small samples."""
    flat, n = directions.reshape(-1, *directions.shape[-2:]), directions.shape[-2]
    numbers = CACHED_NUMBERS if flat.is_cpu else GPU_NUMBERS
    totals = []
    for some in flat.split(max(1, numbers // n**2)):
        blocks = some.split(max(1, numbers // n), dim=-2)
        totals.append(torch.stack([(block @ some.mT).abs_().sum(dim=(-2, -1)) for block in blocks]).sum(dim=0))
    return torch.cat(totals).reshape(directions.shape[:-2])


def views(tokens: Float[Tensor, "... n d"], chosen: Collection[str] = VIEWS) -> dict[str, Profile]:
    """Profiles of the chosen views of the same tokens.

    raw           as they are
    unit          each token divided by its length (a zero token stays zero)
    centred       without their mean token
    centred_unit  each divided by its length, then without the mean of these
    """
    raw = Profile(tokens)
    found = {"raw": raw}
    if "unit" in chosen or "centred_unit" in chosen:
        unit = found["unit"] = Profile(raw.directions, size=torch.ones_like(raw.size), epsilon=raw.epsilon)
        # Tokens of one direction have lengths of one but for rounding, and that distinguishes nothing.
        rounding = 4 * torch.finfo(torch.float64).eps * raw.count**0.5
        unit.centred.mul_((unit.spread > rounding)[..., None, None])
        unit.spread.mul_(unit.spread > rounding)
        if "raw" in chosen:
            raw.absolute_cosine_sum = unit.absolute_cosine_sum
    for name, of in (("centred", "raw"), ("centred_unit", "unit")):
        if name in chosen:
            one = found[of]
            found[name] = Profile(one.centred, size=one.size, epsilon=one.epsilon, mean_free=True)
            found[name].spread = one.spread
    return {name: found[name] for name in VIEWS if name in chosen}


def profile_of_equals(tokens: Float[Tensor, "... n d"]) -> Profile:
    """The profile of tokens that agree with the first of them to the last digit, without a decomposition."""
    profile = Profile(tokens[..., :1, :].expand_as(tokens))
    n, d = profile.count, profile.width
    strongest = profile.energy[..., None]
    profile.eigenvalues = torch.cat([strongest.new_zeros(*strongest.shape[:-1], min(n, d) - 1), strongest], dim=-1)
    profile.singular_values = profile.eigenvalues.flip(-1).sqrt()
    profile.absolute_cosine_sum = (profile.energy > 0).double() * (n * (n - 1))
    return profile
