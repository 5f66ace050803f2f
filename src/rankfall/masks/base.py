"""What a mask is: a directed graph over the tokens, given by one predicate on positions.

Convention: entry (i, j) is true when token i attends to token j. As a graph that is an edge j -> i, the way
information flows. Every token attends to itself (a self-loop), as the collapse theorems require.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from itertools import product
from typing import ClassVar, final

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from torch import Tensor

from rankfall.errors import RequestError, require, require_count


@dataclass(frozen=True)
class MaskFacts:
    """What the theorems require of a mask's graph.

    A root is a token from which every token is reached. The radius is the least eccentricity of a root (None
    without a root); the diameter is the longest distance between any two tokens (None unless strongly connected).
    """

    tokens: int
    roots: tuple[int, ...]
    radius: int | None
    diameter: int | None

    @property
    def strongly_connected(self) -> bool:
        """Every token reaches every token."""
        return len(self.roots) == self.tokens

    @property
    def quasi_strongly_connected(self) -> bool:
        """Some token reaches every token."""
        return bool(self.roots)


@dataclass(frozen=True)
class Band:
    """Token i sees no further than i + step * k for k from -lower to upper: attention can follow the band."""

    lower: int
    upper: int
    step: int = 1

    @property
    def width(self) -> int:
        """Keys per query, at most."""
        return self.lower + self.upper + 1


@dataclass(frozen=True)
class Mask(ABC):
    """A pattern for any number of tokens. Subclasses are final frozen dataclasses holding their parameters.

    What is declared here is all that tests, command line, page, reports and recognition know about a mask.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]

    def __post_init__(self) -> None:
        """Whole-number parameters count something, from one on; a mask with others checks them itself."""
        for one in fields(self):
            if one.type in ("int", int):
                require_count(f"the {self.name} mask's {one.name}", getattr(self, one.name))

    @classmethod
    def examples(cls) -> tuple[Mask, ...]:
        """What every test of masks runs on, the one that the page starts with first.

        By default every parameter is 4, 1 and 2; a mask whose parameters are not whole numbers gives its own.
        """
        require(
            _whole_parameters(cls),
            required="examples of a mask whose parameters are not all whole numbers",
            got=f"{cls.__name__} without any",
            remedy="define the class method `examples`",
        )
        return tuple(cls(*values) for values in product((4, 1, 2), repeat=len(fields(cls))))

    @classmethod
    def from_matrix(cls, allowed: Tensor) -> Mask | None:
        """The mask of this kind whose matrix this is; None when there is none, or the matrix does not tell.

        By default whole-number parameters are tried among the numbers that can be read off three rows.
        """
        if not _whole_parameters(cls):
            return None
        n = allowed.shape[-1]
        rows = torch.tensor(sorted({0, n // 2, n - 1}), device=allowed.device)[:, None]
        columns = torch.arange(n, device=allowed.device)
        for values in product(_row_numbers(allowed) if fields(cls) else (), repeat=len(fields(cls))):
            try:
                mask = cls(*values)
                mask.check(n)
            except RequestError:
                continue
            probe = mask.allows(rows, columns, n).expand(len(rows), n)
            if torch.equal(probe, allowed[rows[:, 0]]) and torch.equal(mask.dense(n, allowed.device), allowed):
                return mask
        return None

    @abstractmethod
    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        """Whether token i attends to token j, elementwise on positions that broadcast; n is the token count."""

    def band(self, n: int) -> Band | None:
        """The band that holds every allowed pair, when it is narrower than the whole matrix."""
        return None

    def closed_form(self, n: int) -> MaskFacts | None:
        """Facts by formula; None when only a graph search can tell."""
        return None

    def dense(self, n: int, device: torch.device | str | None = None) -> Tensor:
        """The mask as an (n, n) boolean matrix."""
        self.check(n)
        positions = torch.arange(n, device=device)
        return self.allows(positions[:, None], positions[None, :], n).expand(n, n)

    def pairs(self, n: int) -> tuple[Tensor, Tensor]:
        """Rows and columns of all allowed pairs, row by row, looking no further than the band."""
        band = self.band(n)
        if band is None:
            rows, columns = self.dense(n).nonzero(as_tuple=True)
            return rows, columns
        self.check(n)
        i = torch.arange(n)[:, None]
        j = i + band.step * torch.arange(-band.lower, band.upper + 1)
        allowed = (j >= 0) & (j < n) & self.allows(i, j.clamp(0, n - 1), n)
        return i.expand_as(j)[allowed], j[allowed]

    def facts(self, n: int) -> MaskFacts:
        """Roots, radius, diameter and connectivity at n tokens."""
        self.check(n)
        return self.closed_form(n) or graph_facts(self.dense(n))

    def check(self, n: int) -> None:
        """Refuse a token count that this mask cannot serve."""
        require_count("the number of tokens", n)

    def __str__(self) -> str:
        """The argument that `parse_mask` reads back."""
        return ":".join([self.name, *(str(getattr(self, field.name)) for field in fields(self))])


def _whole_parameters(kind: type[Mask]) -> bool:
    return all(one.type in ("int", int) for one in fields(kind))


def _row_numbers(allowed: Tensor) -> list[int]:
    """Numbers that the first, middle and last row show: how many keys, runs of them, the nearest other one."""
    n, found = allowed.shape[-1], set[int]()
    for place in (0, n // 2, n - 1):
        row = allowed[place].int()
        count, leading = int(row.sum()), int(row.cumprod(0).sum())
        found |= {count, count - 1, leading}
        for side in (row[place:], row[: place + 1].flip(0)):
            run = int(side.cumprod(0).sum())
            others = side[1:].nonzero()
            found |= {run, run - 1, int(others[0]) + 1 if len(others) else run}
    return sorted(found - {0})


def everyone(n: int, radius: int, diameter: int) -> MaskFacts:
    """Facts of a strongly connected mask, whose every token is a root."""
    return MaskFacts(n, tuple(range(n)), radius, diameter)


def nobody(n: int) -> MaskFacts:
    """Facts of a mask from no token of which all others are reached."""
    return MaskFacts(n, (), None, None)


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


@final
@dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """Any boolean (n, n) tensor with a true diagonal."""

    name: ClassVar[str] = "explicit"
    meaning: ClassVar[str] = "the given matrix"
    allowed: Tensor

    def __post_init__(self) -> None:
        check_allowed(self.allowed)
        require(
            self.allowed.ndim == 2,
            required="one square matrix",
            got=f"shape {tuple(self.allowed.shape)}",
            remedy="give one mask at a time; a batch of masks goes to attention as a tensor",
        )

    @classmethod
    def from_matrix(cls, allowed: Tensor) -> Explicit:
        return cls(allowed.cpu())

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return self.allowed.to(i.device)[i, j]

    def check(self, n: int) -> None:
        size = self.allowed.shape[-1]
        require(
            n == size,
            required=f"{size} tokens, the size of the given mask",
            got=n,
            remedy="give a mask of the tokens' size",
        )

    def __str__(self) -> str:
        return f"explicit({self.allowed.shape[-1]})"


def check_allowed(allowed: Tensor) -> None:
    """Refuse what is not a stack of square boolean matrices with true diagonals."""
    require(
        allowed.dtype == torch.bool,
        required="a boolean mask",
        got=f"dtype {allowed.dtype}",
        remedy="compare first, for example `mask > 0`",
    )
    require(
        allowed.ndim >= 2 and allowed.shape[-1] == allowed.shape[-2] and allowed.shape[-1] > 0,
        required="a square mask with at least one token",
        got=f"shape {tuple(allowed.shape)}",
        remedy="give an (n, n) matrix with n >= 1",
    )
    looped = torch.diagonal(allowed, dim1=-2, dim2=-1)
    if not bool(looped.all()):
        raise RequestError(
            required="every token to attend to itself",
            got=f"no self-loop at token {int((~looped).nonzero()[0, -1])}",
            remedy="add the diagonal: `mask | torch.eye(n, dtype=torch.bool)`",
        )


# Distances from this many tokens are held at once, so that memory stays a small multiple of one row block.
ROWS_AT_ONCE = 512


def graph_facts(allowed: Tensor) -> MaskFacts:
    """Roots, radius and diameter of an (n, n) boolean mask, by components and breadth-first search.

    The roots are the strongly connected component that no edge enters, if there is just one such component.
    """
    check_allowed(allowed)
    n = allowed.shape[-1]
    # allowed[i, j] is the edge j -> i, so the adjacency matrix "from row to column" is the transpose.
    graph = csr_array(allowed.cpu().numpy().T.astype(np.int8))
    count, component = connected_components(graph, directed=True, connection="strong")
    sources, targets = graph.nonzero()
    crossing = component[sources] != component[targets]
    entered = np.zeros(count, dtype=bool)
    entered[component[targets[crossing]]] = True
    if (~entered).sum() != 1:
        return nobody(n)
    roots = np.flatnonzero(~entered[component])
    eccentricities = np.concatenate(
        [
            shortest_path(graph, unweighted=True, indices=roots[start : start + ROWS_AT_ONCE]).max(axis=1)
            for start in range(0, len(roots), ROWS_AT_ONCE)
        ]
    )
    diameter = int(eccentricities.max()) if len(roots) == n else None
    return MaskFacts(n, tuple(int(root) for root in roots), int(eccentricities.min()), diameter)
