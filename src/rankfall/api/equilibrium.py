"""Tokens of a wanted rank that a normalised attention layer leaves as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require, require_count, require_seed
from rankfall.progress import Progress, part, silent
from rankfall.system import require_room

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor

    from rankfall.equilibria.layer import NormalisedLayer

STATEMENT = "B-thm3"
EXTENDED = f"extends {STATEMENT}"
"""Of norms that bound coordinates instead of lengths, of which the paper does not speak."""
MOST_LAYERS = 10**8
DRAWS = 20
# Disturbances that grow less before they die out are nothing to speak of.
GROWTH_TO_TELL = 10.0
"""In all draws together: hours for the smallest tokens."""


@final
@dataclass(frozen=True, repr=False, eq=False)
class EquilibriumResult(Result):
    """One equilibrium, or one of each rank under one layer (`ranks`)."""

    verb: ClassVar[str] = "equilibrium"
    found: dict[str, Any]
    """Everything that is known, by name."""
    layer: NormalisedLayer
    """The layer: `layer.step(tokens)` gives the tokens back."""
    tokens: Tensor
    """The tokens (n, d); with one of each rank, those of the highest."""
    as_asked: bool
    """The rank and the stability that were asked for were reached; Newton's method converged."""

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """One record per equilibrium: residual, rank, spectral radius, stability."""
        return list(self.found.get("ranks", [self.found]))

    @property
    def rank(self) -> int:
        """The rank of the tokens; with one of each rank, the highest."""
        return int(self.ranks[-1]["rank"])

    @property
    def residual(self) -> float:
        """How far one layer moves the tokens: the largest over all ranks."""
        return max(float(row["residual"]) for row in self.ranks)

    @property
    def spectral_radius(self) -> float:
        """The largest multiplier of a small disturbance: the largest over all ranks."""
        return max(float(row["spectral_radius"]) for row in self.ranks)

    @property
    def stable(self) -> bool:
        """Nearby tokens return, at every rank."""
        return all(bool(row["stable"]) for row in self.ranks)

    @property
    def family(self) -> str | None:
        """The family that it belongs to; None for one that was found nearby."""
        return self.found["family"]

    def tables(self) -> dict[str, pd.DataFrame]:
        """`ranks`: a row per equilibrium; the matrices `tokens`, `value` and `attention`."""
        drop = ("tokens", "value", "attention", "parameters", "recovery")
        rows = [{name: value for name, value in row.items() if name not in drop} for row in self.ranks]
        matrices = {"tokens": self.tokens, "value": self.layer.value, "attention": self.layer.attention(self.tokens)}
        made = {"ranks": frame(rows)}
        for name, matrix in matrices.items():
            made[name] = frame({str(j + 1): value for j, value in enumerate(row)} for row in matrix.tolist())
        return made | ({"recovery": frame([self.found["recovery"]])} if "recovery" in self.found else {})

    def _record(self) -> dict[str, Any]:
        return self.found

    def _lines(self) -> list[str]:
        count, width = self.tokens.shape
        lines = [f"{count} tokens of width {width}, family {self.family}, norm {self.layer.norm}"]
        lines += [
            f"rank {row['rank']}: {row['stability']}, spectral radius {row['spectral_radius']:.6g}, "
            f"residual {row['residual']:.2g}"
            for row in self.ranks
        ]
        if "recovery" in self.found:
            lines.append(disturbance_sentence(self.found["recovery"]))
        return lines

    def _figure(self) -> Figure:
        from rankfall.drawing.equilibrium import draw_by_rank, draw_equilibrium

        if "ranks" in self.found:
            return draw_by_rank({str(self.family): self.ranks})
        from rankfall.equilibria.stability import multipliers

        title = f"{'polished' if self.family is None else f'family {self.family}'}, rank {self.rank}"
        return draw_equilibrium(self.tokens, [one[0] for one in multipliers(self.layer, self.tokens)], title)


def basin_sentence(growth: float | None) -> str | None:
    """How near a stable equilibrium tokens must be to return, where disturbances grow before they die out."""
    if growth is None or growth < GROWTH_TO_TELL:
        return None
    grows = f"stable, but a small disturbance first grows {growth:.1e}-fold"
    if growth * float_info.epsilon >= 1:
        return f"{grows}: tokens return only from nearer than float64 can tell apart"
    return f"{grows}: tokens return only from within about {1 / growth:.0e} of their length"


def disturbance_sentence(record: Mapping[str, Any]) -> str:
    """What disturbed tokens did, with the size of the disturbance and the number of layers."""
    how = "before every layer" if record["every_layer"] else "once"
    return (
        f"tokens moved by {record['size']:g} of their length {how}: after {record['layers']} layers"
        f" {record['kept_draws']} of {record['draws']} draws keep the rank and {record['returned_draws']} return;"
        f" the lowest rank is {record['lowest_rank']}"
    )


def equilibrium(
    tokens: int = 8,
    width: int = 4,
    rank: int | None = None,
    *,
    stable: bool = False,
    family: str | None = None,
    norm: str = "unit",
    all_ranks: bool = False,
    disturb: float | None = None,
    every_layer: bool = False,
    draws: int = DRAWS,
    layers: int = 2000,
    seed: int = 0,
    polish: str | Path | Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> EquilibriumResult:
    """Build weights and tokens of exactly that rank which LayerNorm and attention leave as they are.

    `rank` is full unless told. `stable`: nearby tokens return. `family`: the best fit unless told. `norm`: unit,
    layer, rms, or dyt, which has a family of its own. `all_ranks`: one equilibrium of each rank, under one layer.
    `disturb`: also move the tokens by this much (with `every_layer` before each layer), run `layers` layers, and
    count the `draws` that keep the rank. `polish`: a JSON file, or a mapping, with tokens, value and attention; finds
    the equilibrium nearby.
    """
    if all_ranks:
        require(
            rank is None and polish is None and disturb is None,
            required="all ranks alone",
            got="rank, polish or disturb beside it",
            remedy="leave those out",
        )
        return _all_ranks(tokens, width, family, norm, stable, progress)
    if polish is not None:
        require(
            rank is None and family is None and not stable and disturb is None,
            required="polish alone: what it polishes says what the layer is",
            got="rank, family, stable or disturb beside it",
            remedy="leave those out",
        )
        return _polished(polish, progress)
    import torch

    require_seed(seed)
    require(
        disturb is not None or (not every_layer and draws == DRAWS),
        required="disturb beside every_layer or draws, which say how to disturb",
        got="no disturb",
        remedy="for example disturb 1e-3",
    )
    _require_bearable(tokens, width, layers * draws if disturb is not None else 0)
    from rankfall.equilibria.documents import to_document
    from rankfall.equilibria.examine import examine_equilibrium
    from rankfall.equilibria.families import equilibrium_under, inner_width
    from rankfall.equilibria.recovery import recoveries

    wanted = min(tokens, inner_width(norm, width)) if rank is None else rank
    progress("building and examining", 0.0)
    built = equilibrium_under(norm, tokens, width, wanted, family=family, stable=stable)
    seen = examine_equilibrium(built)
    found: dict[str, Any] = {
        "statement": _statement(built.layer),
        "family": built.family,
        "parameters": dict(built.parameters),
        "requested_rank": wanted,
        **seen.record(),
        **to_document(built.layer, built.tokens),
    }
    if disturb is not None:
        generator = torch.Generator().manual_seed(seed)
        back = recoveries(
            built.layer,
            built.tokens,
            disturb,
            layers=layers,
            draws=draws,
            every_layer=every_layer,
            generator=generator,
            progress=part(progress, 0.5, 1.0),
        )
        first, ranks = back[0], [one.rank for one in back]
        found["recovery"] = {
            **vars(first),
            "returned": first.returned,
            "size": disturb,
            "draws": draws,
            "returned_draws": sum(one.returned for one in back),
            "kept_draws": sum(rank >= seen.rank for rank in ranks),
            "lowest_rank": min(ranks),
        }
    reached = seen.rank == wanted and (not stable or seen.verdict == "stable")
    return EquilibriumResult(found, built.layer, built.tokens, reached)


def _require_bearable(tokens: int, width: int, layers: int) -> None:
    """Refuse sizes that no memory holds and nobody waits for, before anything is built."""
    require_count("the number of tokens", tokens)
    require_count("the width", width)
    needed = 8.0 * (6 * tokens**2 + 6 * tokens * width + 6 * width**2)
    require_room(needed, "for matrices of this size", "fewer tokens, or a smaller width")
    require_count("layers times draws", layers, least=0, most=MOST_LAYERS, remedy="fewer layers or draws")


def _statement(layer: NormalisedLayer) -> str:
    return STATEMENT if layer.on_spheres else EXTENDED


def _polished(start: str | Path | Mapping[str, Any], progress: Progress) -> EquilibriumResult:
    from rankfall.equilibria.documents import from_document, read_document, to_document
    from rankfall.equilibria.examine import examine
    from rankfall.equilibria.newton import polish

    layer, near = from_document(start) if isinstance(start, Mapping) else read_document(Path(start))
    progress("Newton's method", 0.0)
    polished = polish(layer, near)
    found: dict[str, Any] = {
        "statement": _statement(layer),
        "family": None,
        "converged": polished.converged,
        "steps": polished.steps,
        "moved": polished.moved,
        **examine(layer, polished.tokens).record(),
        **to_document(layer, polished.tokens),
    }
    return EquilibriumResult(found, layer, polished.tokens, polished.converged)


def _all_ranks(
    count: int, width: int, family: str | None, norm: str, stable: bool, progress: Progress
) -> EquilibriumResult:
    from rankfall.equilibria.examine import every_rank
    from rankfall.equilibria.families import check_request

    check_request(count, width, 1)
    _require_bearable(count, width, 0)
    each = every_rank(count, width, family=family, norm=norm, stable=stable, progress=progress)
    first, last = each[0][0], each[-1][0]
    rows = [{"requested_rank": built.rank, **seen.record()} for built, seen in each]
    found: dict[str, Any] = {
        "statement": _statement(first.layer),
        "family": first.family,
        "parameters": dict(first.parameters),
        "norm": norm,
        "value": first.layer.value,
        "attention": first.layer.attention(first.tokens),
        "ranks": rows,
    }
    reached = all(row["rank"] == row["requested_rank"] for row in rows)
    return EquilibriumResult(found, last.layer, last.tokens, reached)
