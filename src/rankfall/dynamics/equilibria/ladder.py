"""Every rank of one layer: the equilibria of ranks 1, 2, ... that share a value matrix and a mask (B-thm3)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rankfall.constructions.equilibria import ALL_FAMILIES, Construction, Family, equilibrium_under, find_family
from rankfall.dynamics.equilibria.examine import Examined, examine_construction
from rankfall.errors import RequestError, require


def ladder(
    count: int,
    width: int,
    *,
    family: str | None = None,
    norm: str = "unit",
    stable: bool = False,
    step: Callable[[int], None] = lambda done: None,
) -> list[tuple[Construction, Examined]]:
    """One equilibrium of each rank from 1 to the most, all of them fixed under the very same layer.

    That it is the same layer is checked, not assumed. `step` is called with 1 after each rank.
    """
    inner = width - 1 if norm == "layer" else width
    most = min(count, inner)
    chosen = find_family(family) if family is not None else _choose(count, inner, most, stable)
    require(
        chosen.shares(count, inner) and (not stable or _strict(chosen, count, inner, most)),
        required="a family with one layer for all ranks" + (", all strictly stable" if stable else ""),
        got=f"{chosen.name} ({chosen.stability})",
        remedy="star has all ranks, window (up to width 9) has them all strictly stable",
    )
    rungs: list[tuple[Construction, Examined]] = []
    for rank in range(1, most + 1):
        built = equilibrium_under(norm, count, width, rank, family=chosen.name, shared=True)
        if rungs:
            first = rungs[0][0].layer
            assert torch.equal(first.value, built.layer.value)
            assert torch.equal(first.allowed, built.layer.allowed)
        rungs.append((built, examine_construction(built)))
        step(1)
    return rungs


def _strict(family: Family, count: int, width: int, most: int) -> bool:
    reach = family.limit(count, width)
    return most <= reach and all(family.strict(count, width, rank) for rank in range(1, most + 1))


def _choose(count: int, width: int, most: int, stable: bool) -> Family:
    for family in ALL_FAMILIES:
        if family.shares(count, width) and (not stable or _strict(family, count, width, most)):
            return family
    raise RequestError(
        required="a width of at most 9 for strictly stable equilibria of every rank under one layer",
        got=f"{count} tokens of width {width}",
        remedy="lower the width, or leave out stable",
    )
