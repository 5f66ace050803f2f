"""The tables of trained models in the guide and in results/README.md, and their pictures, from committed cells.

    python scripts/trained_tables.py            # writes them again; a test fails when a table is not current

A page marks where they stand with `<!-- trained: NAME -->` and `<!-- end -->`; NAME is a key of `BLOCKS`.
"""

from __future__ import annotations

import csv
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
PAGES = (GUIDE / "training.md", GUIDE / "text.md", ROOT / "results" / "README.md")
PICTURES = ROOT / "docs" / "images"
HISTORIES = ROOT / "results" / "text-rank" / "histories.csv"
BLOCK = re.compile(r"<!-- trained: (.+?) -->\n.*?<!-- end -->", re.DOTALL)
DEPTHS = (1, 3, 5)
TEXT = "rankfall/text-rank"
TOTALS = (0.5, 1, 2)
"""H r / d of the table of totals."""
FIXED_HEADS = 8
"""Heads of the models whose rank alone is free."""

Point = Mapping[str, Any]


def main() -> None:
    """Write every page and picture again."""
    from rankfall.drawing.canvas import save
    from rankfall.drawing.text_rank import draw_costs

    save(outcome("rankfall/depth").draw(), PICTURES / "depth.png")
    save(draw_costs(_text_records()), PICTURES / "text-rank.png")
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
            _origin(of_text=False),
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


def _origin(of_text: bool) -> str:
    from rankfall.store.results import committed_summaries

    cells = committed_summaries().values()
    made = [one["environment"] for one in cells if (one.get("task") == "text") == of_text]
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
    return _claims(outcome("rankfall/depth").claims)


def text_claims() -> str:
    """The same of rankfall/text-rank, contradictions first."""
    return _claims(sorted(outcome(TEXT).claims, key=lambda claim: bool(claim.holds)))


def _claims(found: Sequence[Any]) -> str:
    return "\n".join(
        f"- {'Holds' if claim.holds else '**Fails**'}: {claim.statement} ({claim.evidence})." for claim in found
    )


def text_losses() -> str:
    """Language models whose heads share the width: loss by rank, a row for each text, width, length, kind of
    positions and budget."""
    records = [one for one in _text_records() if _shares_width(one)]
    ranks = sorted({one["rank"] for one in records})
    by_setting: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for one in records:
        key = tuple(one[name] for name in ("domain", "width", "steps", "positions", "budget"))
        by_setting.setdefault(key, {})[one["rank"]] = one
    rows = []
    for (domain, width, steps, positions, budget), own in by_setting.items():
        first = next(iter(own.values()))
        size = [_size(budget, own.values()), f"{steps * first['batch'] * first['context'] / 1e6:.0f} M"]
        least = min(own, key=lambda rank: own[rank]["nats_per_byte"])
        cells = [_loss(own[rank], rank == least) if rank in own else "" for rank in ranks]
        rows.append([domain, f"{width}", *size, positions, *cells, _numbers(one["seeds"] for one in own.values())])
    head = ["text", "$d$", "parameters", "tokens", "positions", *(f"$r = {rank}$" for rank in ranks), "seeds"]
    return _table(head, rows) + "\n\n" + f"{_origin(of_text=True)} {len(_text_rows())} models in all."


def _size(budget: str, records: Iterable[Mapping[str, Any]]) -> str:
    """Parameters of models of one setting, and what is equal where that is the time of a step."""
    counts = sorted(one["parameters"] for one in records)
    ends = dict.fromkeys(f"{count / 1e6:.3g}" for count in (counts[0], counts[-1]))
    if not budget.startswith("step_seconds="):
        return f"{next(iter(ends))} M"
    seconds = float(budget.removeprefix("step_seconds=").partition(" ")[0])
    return f"{' to '.join(ends)} M, {1000 * seconds:.3g} ms a step"


def text_heads() -> str:
    """At one width: loss by rank with the number of heads, a column for each H r / d at equal parameters, at equal
    operations and at equal time, and one for a fixed number of heads."""
    main = {row["id"] for curve in _main_curves() for models in curve.models.values() for row in models}
    like = next(row for row in _text_rows() if row["id"] in main and _is_prose(row))
    records = [
        one
        for one in _text_records()
        if _is_prose(one) and (one["steps"], one["positions"]) == (like["steps"], like["positions"])
    ]
    columns: dict[str, dict[int, Mapping[str, Any]]] = {}
    for kind, words in (("parameters", ""), ("flops", ", equal operations"), ("step_seconds", ", equal time")):
        solved = [one for one in records if str(one["budget"]).startswith(kind)]
        for share in TOTALS:
            own = {one["rank"]: one for one in solved if one["times_width"] == share}
            columns[f"$H r = {'' if share == 1 else f'{share:g} '}d${words}"] = own
        columns[f"{FIXED_HEADS} heads{words}"] = {one["rank"]: one for one in solved if one["heads"] == FIXED_HEADS}
    kept = {name: own for name, own in columns.items() if len(own) > 3}
    ranks = sorted({rank for own in kept.values() for rank in own})
    return _table(
        ["$r$", *kept], [[f"{rank}", *(_with_heads(own.get(rank)) for own in kept.values())] for rank in ranks]
    )


def text_times() -> str:
    """Time of a step, and tokens and seconds to the loss that every rank reaches, where heads share the width."""
    from rankfall.training.text.comparison import to_level

    with HISTORIES.open(encoding="utf-8") as file:
        histories: dict[str, list[dict[str, Any]]] = {}
        for line in csv.DictReader(file):
            fresh = float(line["fresh"]) if line["fresh"] else None
            histories.setdefault(line["id"], []).append({"step": int(line["step"]), "fresh": fresh})
    rows = []
    for curve in sorted(_main_curves(), key=lambda one: (one.models[max(one.models)][0]["domain"], one.width)):
        own = {row["id"]: row for models in curve.models.values() for row in models}
        reached = to_level([(row, histories[identity]) for identity, row in own.items()])
        domain = next(iter(own.values()))["domain"]
        for rank in curve.models:
            same = [one for one in reached if one["rank"] == rank]
            step = statistics.median(own[one["id"]]["seconds"] / own[one["id"]]["steps_done"] for one in same)
            tokens, seconds = (statistics.fmean(one[name] for one in same) for name in ("tokens", "seconds"))
            level = f"{same[0]['level']:.3f}"
            amounts = [f"{1000 * step:.1f}", level, f"{tokens / 1e6:.1f}", f"{seconds:.1f}"]
            rows.append([domain, f"{curve.width}", f"{rank}", *amounts])
    return _table(["text", "$d$", "$r$", "ms a step", "to a loss of", "million tokens", "seconds"], rows)


def _main_curves() -> list[Any]:
    from rankfall.training.text.results import shared_width_curves

    return [curve for curve in shared_width_curves(_text_rows()) if curve.main]


def _is_prose(one: Mapping[str, Any]) -> bool:
    return (one["domain"], one["width"]) == ("prose", 256)


@cache
def _text_records() -> list[dict[str, Any]]:
    from rankfall.figures.text_rank import shape_records

    return shape_records(_text_rows())


def _text_rows() -> list[dict[str, Any]]:
    from rankfall.training.text.results import text_results

    return sorted(text_results(), key=lambda row: (row["domain"], row["width"], row["rank"], row["seed"]))


def _shares_width(one: Mapping[str, Any]) -> bool:
    return bool(one["heads"] * one["rank"] == one["width"] == one["heads"] * one["value_rank"])


def _loss(record: Mapping[str, Any], least: bool) -> str:
    margin = None if record["nats_per_byte_high"] is None else record["nats_per_byte_high"] - record["nats_per_byte"]
    value = f"{record['nats_per_byte']:.3f}"
    return (f"**{value}**" if least else value) + ("" if margin is None else f" ± {margin:.3f}")


def _with_heads(record: Mapping[str, Any] | None) -> str:
    return (
        ""
        if record is None
        else f"{record['nats_per_byte']:.3f} ({record['heads']} head{'s' * (record['heads'] > 1)})"
    )


def _numbers(values: Iterable[int]) -> str:
    known = sorted({*values})
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"


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
    "text losses": text_losses,
    "text heads": text_heads,
    "text times": text_times,
    "text claims": text_claims,
}

if __name__ == "__main__":
    main()
