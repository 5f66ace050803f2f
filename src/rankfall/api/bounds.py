"""What no heads of a given rank can go below, and how many heads an error needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require, require_count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TARGETS = ("nearest", "biased")
EVERY_RANK = "at most the rank of the row"


@final
@dataclass(frozen=True, repr=False, eq=False)
class BoundsResult(Result):
    """Lower bounds for one class of heads, as numbers, with their hypotheses."""

    verb: ClassVar[str] = "bounds"
    found: dict[str, Any]
    """Everything that is known, by name."""
    request: dict[str, Any]
    """What the picture needs to be drawn: ranks, points, skip, generalised, values."""

    @property
    def mse_lower_bound(self) -> float | None:
        """No bare layer of that many heads has a smaller error; None where no number of heads was given."""
        return self.found.get("mse_lower_bound")

    @property
    def heads_needed(self) -> int | None:
        """At least so many heads reach the error; None where none was given, or the count has too many digits."""
        return self.found.get("heads_needed")

    @property
    def log10_heads_needed(self) -> float | None:
        """The logarithm of that count, which is always there beside an error."""
        return self.found.get("log10_heads_needed")

    @property
    def hypotheses(self) -> list[str]:
        """What the bound holds for."""
        return list(self.found["hypotheses"])

    @property
    def vacuous(self) -> bool:
        """The bound excludes nothing here."""
        return bool(self.found.get("vacuous"))

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Without a rank: the heads that errors of .1, .05 and .01 need, for every rank."""
        return list(self.found.get("ranks", ()))

    def tables(self) -> dict[str, pd.DataFrame]:
        """`bounds`: the numbers in one row; `ranks`: every rank, counts as logarithms; `hypotheses`."""
        single = {name: value for name, value in self.found.items() if not isinstance(value, (list, dict))}
        exact = single.get("heads_needed")
        if isinstance(exact, int) and exact >= 1 << 63:
            single["heads_needed"] = str(exact)
        every = [
            {"rank": row["rank"], **{f"log10_{k}": math.log10(v) for k, v in row.items() if k != "rank"}}
            for row in self.ranks
        ]
        made = {"ranks": frame(every), "bounds": frame([single])} if every else {"bounds": frame([single])}
        return made | {"hypotheses": frame({"hypothesis": line} for line in self.hypotheses)}

    def _record(self) -> dict[str, Any]:
        return self.found

    def _lines(self) -> list[str]:
        of = self.found
        lines = [f"width {of['dim']}, rank {of.get('rank', 'of every size')}, target {of.get('target', 'nearest')}"]
        if self.mse_lower_bound is not None:
            lines.append(f"{of['heads']} heads: mean squared error at least {self.mse_lower_bound:.6g}")
        if self.log10_heads_needed is not None:
            lines.append(f"error {of['error']:g}: at least 10^{self.log10_heads_needed:.4g} heads")
        if self.vacuous:
            lines.append("vacuous here: the bound excludes nothing")
        return lines

    def _figure(self) -> Figure:
        from rankfall.drawing.floors import draw_floors

        target = self.found.get("target", "nearest")
        require(target == "nearest", required="the target nearest for a picture", got=target, remedy="draw that one")
        return draw_floors(self.found["dim"], **self.request)


def bounds(
    width: int,
    rank: int | None = None,
    *,
    heads: int | None = None,
    error: float | None = None,
    points: int = 2,
    skip: bool = False,
    generalised: bool = False,
    values: str = "matrix",
    target: str = "nearest",
    value_norm: float | None = None,
    kv_latent: int = 0,
    q_latent: int = 0,
    rope_dims: int = 0,
) -> BoundsResult:
    """Lower bounds on the error of one bare layer of low-rank heads, as numbers, with their hypotheses.

    `heads` asks for the bound for that many heads, `error` for the heads that it needs. Without a rank, every
    rank is tabulated. `points` orthonormal points to choose from; `skip`: the layer also adds a linear map of the
    query; `generalised`: heads may be any map to weights; `values`: matrix or scalar; `target`: nearest or biased.
    Behind latents (`kv_latent` with `rope_dims` beside it, `q_latent`) `rank` is the size of a head, and the bound is
    that of the rank it can have: min(rank, q_latent, kv_latent + rope_dims).
    """
    from rankfall.theory.head_bounds import HeadClass, structural_rank
    from rankfall.theory.head_report import biased_report, nearest_report, rank_table

    require(
        target in TARGETS,
        required="target to be nearest or biased",
        got=target,
        remedy="nearest is the paper's main target",
    )
    require(
        value_norm is None or target == "biased",
        required="target biased beside value_norm",
        got=target,
        remedy="the bound on the nearest neighbour holds whatever the norm of the values",
    )
    for name, given in (("kv_latent", kv_latent), ("q_latent", q_latent), ("rope_dims", rope_dims)):
        require_count(name, given, least=0)
    latent = bool(kv_latent or q_latent or rope_dims)
    require(
        not latent or (rank is not None and (kv_latent > 0 or not rope_dims)),
        required="the size of a head (rank) beside latents, and kv_latent beside rope_dims",
        got=f"rank {rank}, kv_latent {kv_latent}, q_latent {q_latent}, rope_dims {rope_dims}",
        remedy="give what is missing",
    )
    size = rank
    if rank is not None and latent:
        require_count("rank", rank, most=width, remedy="a head's rank cannot exceed the width d")
        rank = structural_rank(rank, width, kv_latent=kv_latent, q_latent=q_latent, rope_dims=rope_dims)
    found: dict[str, Any]
    if rank is None:
        base = HeadClass(width, 1, points, skip, generalised, values)  # type: ignore[arg-type]
        found = {
            "dim": width,
            "hypotheses": base.hypotheses_at(EVERY_RANK),
            "statement": base.statement,
            "method": base.method,
        }
        if points == 2:
            found["ranks"] = rank_table(width, skip=skip, generalised=generalised, values=base.values)
    elif target == "biased":
        found = biased_report(width, rank, heads, error, value_norm)
    else:
        found = nearest_report(HeadClass(width, rank, points, skip, generalised, values), heads, error)  # type: ignore[arg-type]
    if latent:
        found = {**found, "head_size": size, "kv_latent": kv_latent, "q_latent": q_latent, "rope_dims": rope_dims}
    request = {"points": points, "skip": skip, "generalised": generalised, "values": values}
    return BoundsResult(found, {"ranks": None if rank is None else [rank], **request})
