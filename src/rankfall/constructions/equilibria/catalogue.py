"""Every family of equilibria, and which one serves a request best."""

from __future__ import annotations

from rankfall.constructions.equilibria.base import Construction, Family, check_request
from rankfall.constructions.equilibria.chain import Chain
from rankfall.constructions.equilibria.diagonal import Diagonal
from rankfall.constructions.equilibria.past import Past
from rankfall.constructions.equilibria.star import Star
from rankfall.constructions.equilibria.window import Window
from rankfall.errors import RequestError

ALL_FAMILIES: tuple[Family, ...] = (Star(), Window(), Past(), Chain(), Diagonal())


def find_family(name: str) -> Family:
    """The family of that name."""
    for family in ALL_FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in ALL_FAMILIES)
    raise RequestError(required=f"a family among {known}", got=name, remedy="leave it out for the best conditioned")


def choose_family(count: int, width: int, rank: int, *, stable: bool = False) -> Family:
    """The first family, best conditioned first, that builds this rank, strictly stable where that is asked."""
    check_request(count, width, rank)
    for family in ALL_FAMILIES:
        if rank <= family.limit(count, width) and (not stable or family.strict(count, width, rank)):
            return family
    most = max(
        (k for k in range(1, rank) if any(f.strict(count, width, k) for f in ALL_FAMILIES)),
        default=1,
    )
    raise RequestError(
        required=f"a rank of at most {most} for a strictly stable equilibrium of {count} tokens of width {width}",
        got=rank,
        remedy="float64 cannot resolve a stable one beyond; without stable, family star has every rank",
    )


def build_equilibrium(
    count: int, width: int, rank: int, *, family: str | None = None, stable: bool = False, shared: bool = False
) -> Construction:
    """Weights and tokens of exactly that rank which the layer leaves alone (B-thm3), under the unit norm.

    `stable` asks for a strictly stable one, `shared` for the layer that all ranks of the family have in common.
    """
    if family is None:
        return choose_family(count, width, rank, stable=stable)(count, width, rank, shared=shared)
    chosen = find_family(family)
    check_request(count, width, rank)
    if stable and not (rank <= chosen.limit(count, width) and chosen.strict(count, width, rank)):
        raise RequestError(
            required=f"a strictly stable member of family {chosen.name} ({chosen.stability})",
            got=f"{count} tokens of width {width}, rank {rank}",
            remedy="leave the family out, so that one is chosen",
        )
    return chosen(count, width, rank, shared=shared)
