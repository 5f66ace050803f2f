"""What a family of equilibria is: for a token count, a width and a rank, a layer and tokens that it leaves alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.errors import require, require_count


@final
@dataclass(frozen=True)
class Construction:
    """A layer and its fixed tokens (n, d), as a family built them.

    `radius` is the Jacobian's spectral radius where the family knows it better than float64 can compute it, with
    `digits` decimal digits carried; `parameters` are the numbers that the family chose.
    """

    family: str
    rank: int
    layer: NormalisedLayer
    tokens: Float[Tensor, "n d"]
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    radius: float | None = None
    digits: int | None = None


class Family(ABC):
    """One way to build equilibria of B-thm3. Subclasses are final and stateless."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    mask: ClassVar[str]
    stability: ClassVar[str]
    """What the family's Jacobian is like, in words."""

    @abstractmethod
    def limit(self, count: int, width: int) -> int:
        """The largest rank that this family reaches in float64 for that many tokens of that width."""

    def strict(self, count: int, width: int, rank: int) -> bool:
        """Whether that equilibrium is strictly stable (spectral radius below one)."""
        return False

    @abstractmethod
    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        """The equilibrium; with `shared`, all ranks of one count and width are fixed under one layer."""

    def shares(self, count: int, width: int) -> bool:
        """Whether one layer has equilibria of every rank up to min(count, width) in this family."""
        return self.limit(count, width) == min(count, width)

    def __call__(self, count: int, width: int, rank: int, *, shared: bool = False) -> Construction:
        """Build, after checking the request."""
        check_request(count, width, rank)
        most = self.limit(count, width)
        require(
            rank <= most,
            required=f"a rank of at most {most} for family {self.name} at {count} tokens of width {width}",
            got=rank,
            remedy="ask for a lower rank, or for family star, which has every rank",
        )
        return self.build(count, width, rank, shared=shared)


def check_request(count: int, width: int, rank: int) -> None:
    """Refuse what no family can build."""
    require_count("the number of tokens", count)
    require_count("the width", width)
    require_count("the rank", rank)
    require(
        rank <= min(count, width),
        required=f"a rank of at most {min(count, width)}, the lesser of {count} tokens and width {width}",
        got=rank,
        remedy="ask for a lower rank, more tokens or more width",
    )
