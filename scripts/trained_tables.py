"""The tables of trained models in the guide and in results/README.md, and the picture of depth, from committed cells.

    python scripts/trained_tables.py            # writes them again; a test fails when a table is not current

A page marks where they stand with `<!-- trained: NAME -->` and `<!-- end -->`; NAME is a key of `BLOCKS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "guide" / "training.md", ROOT / "results" / "README.md")
PICTURE = ROOT / "docs" / "images" / "depth.png"
BLOCK = re.compile(r"<!-- trained: (.+?) -->\n.*?<!-- end -->", re.DOTALL)
DEPTHS = (1, 3, 5)

Point = Mapping[str, Any]


def main() -> None:
    """Write every page and the picture again."""
    from rankfall.drawing.canvas import save

    save(outcome("rankfall/depth").draw(), PICTURE)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """The page with every block as the committed cells have it."""
    return BLOCK.sub(lambda found: f"<!-- trained: {found[1]} -->\n\n{BLOCKS[found[1]]()}\n\n<!-- end -->", text)


@cache
def outcome(identity: str) -> Any:
    """A figure at paper scale from the cells under `results/` and from nothing else."""
    from rankfall.catalogue import FIGURES
    from rankfall.figures.trained import STORE_VARIABLE

    before = os.environ.get(STORE_VARIABLE)
    os.environ[STORE_VARIABLE] = os.devnull
    try:
        return FIGURES[identity].run("paper")
    finally:
        os.environ.pop(STORE_VARIABLE) if before is None else os.environ.update({STORE_VARIABLE: before})


def counts() -> str:
    """How many points of figure 1 are trained, how many of them agree, with how many seeds, by depth."""
    points = outcome("amsel/fig1").points
    done = [point for point in points if point["ours"] is not None]
    by_depth = "; ".join(_count(points, layers) for layers in DEPTHS)
    agreeing = sum(point["agrees"] for point in done)
    return "\n".join(
        [
            f"{len(done)} of {len(points)} points of figure 1 are trained by the published protocol, {_seeds(done)}.",
            f"{agreeing} of them agree with the published ones, the best of five seeds, within 3 % or our spread:",
            f"{by_depth}.",
            _origin(),
        ]
    )


def _count(points: Sequence[Point], layers: int) -> str:
    own = [point for point in points if point["layers"] == layers]
    done = [point for point in own if point["ours"] is not None]
    agreeing = sum(point["agrees"] for point in done)
    return f"{_depth(layers)}, {len(done)} of {len(own)} trained, {agreeing} agree"


def _seeds(done: Sequence[Point]) -> str:
    several = sum(point["runs"] > 1 for point in done)
    return f"{several} with several seeds, the others with one" if several else "each with one seed"


def _origin() -> str:
    from rankfall.store.results import committed_summaries

    made = [one["environment"] for one in committed_summaries().values()]
    machines = _each(one["hardware"].rsplit(", ", 1)[-1] for one in made)
    commits, dates = _each(one["commit"][:7] for one in made), _each(one["date"] for one in made)
    return f"{machines}; commits {commits}; {dates}."


def _each(words: Iterable[str]) -> str:
    return ", ".join(sorted({*words}))


def one_layer() -> str:
    """Published, ours and the same weights on fresh data, one layer."""
    rows = [
        [f"{p['multiplier']}", f"{p['rank']}", *_compared(p), _number(p["same_weights_fresh"], 3), f"{p['runs']}"]
        for p in _trained("amsel/fig1")
        if p["layers"] == 1
    ]
    head = ["$m$", "$r$", "published", "ours: training loss", "agrees", "the same weights on fresh data", "seeds"]
    return _table(head, rows)


def at_depth() -> str:
    """The same for several layers, with what one layer of the same rank and budget has on fresh data."""
    single = {(p["multiplier"], p["rank"]): p for p in _trained("amsel/fig1") if p["layers"] == 1}
    rows = []
    for p in _trained("amsel/fig1"):
        if p["layers"] > 1:
            one = single.get((p["multiplier"], p["rank"]), {}).get("same_weights_fresh")
            key = [f"{p['layers']}", f"{p['multiplier']}", f"{p['rank']}"]
            fresh = [_number(p["same_weights_fresh"], 3), _number(one, 3)]
            rows.append([*key, *_compared(p), *fresh, f"{p['runs']}"])
    head = ["layers", "$m$", "$r$", "published", "ours: training loss", "agrees"]
    return _table([*head, "the same weights on fresh data", "one layer's on fresh data", "seeds"], rows)


def on_fresh_data() -> str:
    """Trained on fresh data by the recipe `stable`: a row for each budget and rank, a column for each depth."""
    points = [p for p in outcome("rankfall/depth").points if p["trained_fresh"] is not None]
    if not points:
        return "None of these cells is committed yet: `rankfall sweep depth` trains them."
    found = {(p["multiplier"], p["rank"], p["layers"]): p for p in points}
    rows = [
        [f"{m}", f"{rank}", *(_number(found.get((m, rank, layers), {}).get("trained_fresh"), 3) for layers in DEPTHS)]
        for m, rank in sorted({key[:2] for key in found})
    ]
    seeds = {p["runs_fresh"] for p in points}
    told = "one seed" if seeds == {1} else f"{min(seeds)} to {max(seeds)} seeds"
    return f"Error on fresh data, {told}:\n\n" + _table(["$m$", "$r$", *(_depth(layers) for layers in DEPTHS)], rows)


def claims() -> str:
    """What the figure rankfall/depth claims, and whether it holds."""
    return "\n".join(
        f"- {'Holds' if claim.holds else '**Fails**'}: {claim.statement} ({claim.evidence})."
        for claim in outcome("rankfall/depth").claims
    )


def _trained(identity: str) -> list[Point]:
    points = [point for point in outcome(identity).points if point["ours"] is not None]
    return sorted(points, key=lambda p: (p["layers"], p["multiplier"], p["rank"]))


def _compared(point: Point) -> list[str]:
    return [f"{point['published']:g}", f"{point['ours']:.4g}", "yes" if point["agrees"] else "**no**"]


def _depth(layers: int) -> str:
    return f"{layers} layer{'s' if layers > 1 else ''}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


BLOCKS: dict[str, Callable[[], str]] = {
    "counts": counts,
    "one layer": one_layer,
    "depth": at_depth,
    "fresh data": on_fresh_data,
    "claims": claims,
}

if __name__ == "__main__":
    main()
