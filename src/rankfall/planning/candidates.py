"""Which (heads, rank) pairs to compare: those that cost what the usual choice costs, in weights or in FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankfall.errors import require, require_count, require_one_of
from rankfall.planning.costs import MOST_UNITS, MOST_WIDTH, StackShape

SMALLEST_RANK = 8
USUAL_RANKS = (64, 128)
TOLERANCE = 0.1
FEED_FORWARD = ("gated", "plain", "none")


@dataclass(frozen=True)
class Candidate:
    """A shape, and what it shares with the reference: `parameters`, `flops`, both, or being the reference itself."""

    shape: StackShape
    equal: tuple[str, ...]


@dataclass(frozen=True)
class Sharing:
    """How query heads share key/value heads: a fixed number of key/value heads, or groups of a fixed size."""

    kv_heads: int | None = None
    group: int = 1

    def __post_init__(self) -> None:
        require_count("group", self.group)
        if self.kv_heads is not None:
            require_count("kv_heads", self.kv_heads)
        require(
            self.kv_heads is None or self.group == 1,
            required="either key/value heads or a group size",
            got=f"{self.kv_heads} key/value heads and groups of {self.group}",
            remedy="leave one of them out",
        )

    @property
    def step(self) -> int:
        """Head counts come in multiples of this."""
        return self.group if self.kv_heads is None else self.kv_heads

    def groups_of(self, heads: int) -> int:
        """Key/value heads for that many query heads."""
        return heads // self.group if self.kv_heads is None else self.kv_heads


def default_ranks(dim: int, usual: int) -> tuple[int, ...]:
    """d, d/2, d/4, ... down to 8, the usual head sizes, and half and twice the usual rank: whole numbers only."""
    halves = []
    rank = dim
    while rank >= min(SMALLEST_RANK, dim):
        halves.append(rank)
        if rank % 2:
            break
        rank //= 2
    near = {usual * 2, usual // 2} if usual % 2 == 0 else {usual * 2}
    near |= {rank for rank in USUAL_RANKS if dim % rank == 0}
    return tuple(sorted({*halves, usual, *(rank for rank in near if rank <= dim)}))


def reference_shape(
    dim: int,
    layers: int,
    context: int,
    heads: int,
    hidden: int,
    sharing: Sharing,
    *,
    rank: int | None = None,
    **others: Any,
) -> StackShape:
    """The usual choice, r = d/H unless a rank is given, from which the budgets come; `others` are further fields."""
    require_count("heads", heads, most=MOST_UNITS)
    require(
        rank is not None or dim % heads == 0,
        required="reference heads that divide the width, as H = d/r asks",
        got=f"{heads} heads for a width of {dim}",
        remedy="choose a divisor of the width, or give the head size",
    )
    require(
        heads % sharing.step == 0,
        required=f"reference heads in multiples of {sharing.step}, so that key/value heads are shared evenly",
        got=heads,
        remedy="change the number of heads or the sharing",
    )
    size = dim // heads if rank is None else rank
    base = StackShape(dim, layers, context, heads, size, sharing.groups_of(heads), size, hidden)
    return replace(base, **others)


def hidden_units(width: int, feed_forward: str, hidden: int | None) -> int:
    """Units of the feed-forward block: as given, or 3.5 d where it is gated and 4 d where it is plain."""
    require_one_of("feed_forward", feed_forward, FEED_FORWARD)
    require(
        feed_forward != "none" or not hidden,
        required="no hidden units without a feed-forward block",
        got=hidden,
        remedy="choose gated or plain",
    )
    usual = {"gated": 7 * width // 2, "plain": 4 * width, "none": 0}[feed_forward]
    return usual if hidden is None else hidden


def usual_heads(dim: int, sharing: Sharing) -> int:
    """Heads of the usual choice: the head size nearest 64 for which everything divides."""
    require_count("width", dim, least=2, most=MOST_WIDTH)
    fitting = [heads for heads in divisors(dim) if heads % sharing.step == 0]
    require(
        len(fitting) > 0,
        required=f"a width that has a divisor which is a multiple of {sharing.step} heads",
        got=dim,
        remedy="share key/value heads differently",
    )
    return min(fitting, key=lambda heads: (abs(dim // heads - 64), heads))


def divisors(number: int) -> list[int]:
    """All divisors, in order."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def candidates(
    reference: StackShape, sharing: Sharing, ranks: Sequence[int] | None = None, value_rank: int | None = None
) -> tuple[Candidate, ...]:
    """The reference, then for every rank the head counts nearest to its attention parameters and to its FLOPs.

    Ranks up to the part of the key that all heads share are left out; so is, from a family, a rank of which no whole
    number of heads comes within TOLERANCE of its budget.
    `value_rank` None lets the value rank follow the rank, as models do; a number holds it fixed.
    """
    budgets: dict[str, Callable[[StackShape], int]] = {
        "parameters": lambda shape: shape.attention_parameters,
        "flops": lambda shape: shape.training_flops,
    }
    found: dict[StackShape, tuple[str, ...]] = {reference: ("reference", *budgets)}
    wanted = ranks or default_ranks(reference.dim, reference.rank)
    for rank in (one for one in wanted if one > reference.rope_dims):
        base = replace(reference, rank=rank, value_rank=value_rank or rank)
        for name, cost in budgets.items():
            shape = _nearest(base, sharing, cost, cost(reference))
            if shape is not None and name not in found.get(shape, ()):
                found[shape] = (*found.get(shape, ()), name)
    ordered = sorted(found, key=lambda shape: (shape != reference, shape.rank, shape.heads))
    return tuple(Candidate(shape, found[shape]) for shape in ordered)


def _nearest(base: StackShape, sharing: Sharing, cost: Callable[[StackShape], int], budget: int) -> StackShape | None:
    """The head count whose cost is nearest to the budget; None when that is not near enough to be called equal."""

    def with_heads(multiple: int) -> StackShape:
        heads = multiple * sharing.step
        return replace(base, heads=heads, kv_heads=sharing.groups_of(heads))

    # The cost is an increasing, affine function of the number of heads.
    first, slope = cost(with_heads(1)), cost(with_heads(2)) - cost(with_heads(1))
    shape = with_heads(max(1, 1 + round((budget - first) / slope)))
    return shape if abs(cost(shape) / budget - 1) <= TOLERANCE else None
