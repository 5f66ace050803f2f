"""What head rank is worth in language models: loss on held-out text, the rank that heads need, the rank tokens keep.

Not a figure of the papers, which argue on a synthetic task. At paper scale it reads the language models that are kept
under `results/`, and those of the grid `text-rank` in the user's store; smaller scales train a few on texts at hand.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rankfall.catalogue import ENGINES
from rankfall.drawing.text_rank import draw_text_rank
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.text_rank_claims import named_curves, text_rank_claims
from rankfall.figures.trained import DEFAULT_STORE, STORE_VARIABLE
from rankfall.models.inputs.texts import shipped_text
from rankfall.models.trained.stored import audit_runs, exported_columns
from rankfall.progress import Progress, part, silent
from rankfall.store.identity import identity
from rankfall.store.store import Store
from rankfall.training.grid import cells_of, read_grid
from rankfall.training.kinds import Surroundings
from rankfall.training.options import Options
from rankfall.training.sweep import sweep
from rankfall.training.text.columns import LAYER_COLUMN, TEXT_COLUMNS, is_audit_column, meaning_of_layer
from rankfall.training.text.comparison import SETTING, SHAPE, by_shape
from rankfall.training.text.results import corpus_names, shared_width_curves, text_results
from rankfall.training.text.sentences import verdicts

Row = Mapping[str, Any]

GRID = "text-rank"
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"width": 16, "layers": 1, "rank": [2, 4, 8, 16], "context": 24, "batch": 4, "steps": 100},
    "quick": {"width": 32, "layers": 2, "rank": [2, 4, 8, 16, 32], "context": 64, "batch": 8, "steps": 500},
}
PARAMETERS: dict[Scale, int] = {"smoke": 12_000, "quick": 40_000}
SEEDS: dict[Scale, list[int]] = {"smoke": [0], "quick": [0, 1]}
TEXTS: dict[Scale, tuple[str, ...]] = {"smoke": ("prose",), "quick": ("prose", "code")}
CODE = ("linalg", "measures", "masks", "norms", "theory")
"""Folders of the package whose sources are the second text of the small scales."""
FEWEST_PAIRS = 3
"""Pairs of models that differ in rank alone, and in heads alone, that are enough to compare both."""
MOST_NEEDED = 0.75
"""Share of the rank that heads of the largest rank are claimed to need at most."""


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    missing: list[str] = []
    if scale == "paper":
        names = corpus_names()
        rows, missing = _kept(names)
    else:
        rows, names = _trained(scale, progress)
    found = shape_records(rows)
    claims = use_claims(rows, names)
    if scale != "smoke":
        claims += need_claims(rows, names) + rank_or_heads_claims(found) + text_rank_claims(rows, names)
    notes = [
        *missing,
        "Loss in nats per byte of held-out text, mean over seeds at the best learning rate tried, with its 95 % "
        "margin by the deviation over seeds that all shapes of a setting share. `mse_lower_bound` and "
        "`synthetic_error` are what theory and paper A's trained cells say of such heads on another task.",
        *verdicts(found),
    ]
    return FigureOutcome(
        points=[{"published": None, "ours": one["nats_per_byte"], "agrees": None, **_point(one)} for one in found],
        claims=claims,
        tables={"text_rank": found} if found else {},
        draw=(lambda: draw_text_rank(found)) if found else None,
        notes=notes,
    )


def shape_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One record per shape in each setting: the loss over seeds, beside it the mean of what the audits found."""
    names = {row["corpus"]: row.get("domain", row["corpus"]) for row in rows}
    records = []
    for record in by_shape(rows):
        key = (*SETTING, *SHAPE, "learning_rate")
        own = [row for row in rows if all(row[name] == record[name] for name in key) and row["status"] == "done"]
        audits = sorted({name for row in own for name in row if is_audit_column(name)}, key=_order)
        means = {name: _mean([row.get(name) for row in own]) for name in audits}
        shares = {
            "times_width": record["heads"] * record["rank"] / record["width"],
            "rank_over_width": record["rank"] / record["width"],
        }
        records.append({"domain": names[record["corpus"]], **record, **shares, **means})
    by = ("domain", "width", "layers", "budget", "times_width", "rank", "value_rank")
    return sorted(records, key=lambda record: tuple(record[name] for name in by))


def use_claims(rows: Sequence[Row], names: Mapping[str, str]) -> list[Claim]:
    """In every curve of models whose heads share the width: whether heads use the rank that they have."""
    claims = []
    for where, curve in named_curves(shared_width_curves(rows), names):
        used = _known(curve, "head_rank_used")
        if len(used) > 1:
            claims.append(
                Claim(
                    f"{where}: heads use more rank where they have it: the effective rank of W_Q W_K^T rises with r",
                    list(used.values()) == sorted(used.values()),
                    _listed(used),
                )
            )
    return claims


def need_claims(rows: Sequence[Row], names: Mapping[str, str]) -> list[Claim]:
    """In the same curves: whether heads need it."""
    claims = []
    for where, curve in named_curves(shared_width_curves(rows), names):
        needed = _known(curve, "head_rank_needed")
        if len(needed) > 1:
            low, high = min(needed), max(needed)
            claims.append(
                Claim(
                    f"{where}: the median head of the largest rank needs at most {MOST_NEEDED:.0%} of it to keep its "
                    "attention, and more directions than heads of the least rank have",
                    low < needed[high] <= MOST_NEEDED * high,
                    f"needed: {_listed(needed)}",
                )
            )
    return claims


def rank_or_heads_claims(records: Sequence[Row]) -> list[Claim]:
    """In models of one setting at equal parameters, every head with keys of its own and H u = d, so that the
    feed-forward alone makes up for what differs: whether rank matters more than the number of heads.

    What paper A says of a synthetic task, said of text; stated after the first models, of which it holds.
    """
    claims = []
    known = [
        record
        for record in records
        if record["nats_per_byte"] is not None
        and str(record["budget"]).startswith("parameters=")
        and record["heads"] == record["key_heads"]
        and record["heads"] * record["value_rank"] == record["width"]
    ]
    for setting in dict.fromkeys(tuple(record[name] for name in SETTING) for record in known):
        own = [record for record in known if tuple(record[name] for name in SETTING) == setting]
        losses = {(record["rank"], record["heads"]): record["nats_per_byte"] for record in own}
        more_rank, more_heads = (
            [losses[twice] / loss - 1 for shape, loss in losses.items() if (twice := _twice(shape, place)) in losses]
            for place in (0, 1)
        )
        if min(len(more_rank), len(more_heads)) >= FEWEST_PAIRS:
            by_rank, by_heads = (statistics.fmean(map(abs, changes)) for changes in (more_rank, more_heads))
            claims.append(
                Claim(
                    f"{own[0]['domain']}, d = {own[0]['width']}: twice the rank changes the loss more than twice the "
                    "heads, both at equal parameters, by at least a factor of two in the mean",
                    by_rank >= 2 * by_heads,
                    f"twice the rank of as many heads: {_changes(more_rank)}; twice the heads of one rank: "
                    f"{_changes(more_heads)}",
                )
            )
    return claims


def _twice(shape: tuple[int, int], place: int) -> tuple[int, int]:
    rank, heads = shape
    return (rank, 2 * heads) if place else (2 * rank, heads)


def _changes(changes: Sequence[float]) -> str:
    shown = ", ".join(f"{change:+.1%}" for change in sorted(changes))
    return f"{statistics.fmean(map(abs, changes)):.1%} in the mean of {len(changes)} ({shown})"


def _listed(values: Mapping[int, float]) -> str:
    return ", ".join(f"r = {rank} {value:.1f}" for rank, value in values.items())


def _known(curve: Mapping[int, Sequence[Row]], name: str) -> dict[int, float]:
    means = {rank: _mean([row.get(name) for row in models]) for rank, models in sorted(curve.items())}
    return {rank: value for rank, value in means.items() if value is not None}


def _kept(names: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Models under `results/` and in the user's store, and what to say about those that nobody has trained yet."""
    rows = {row["id"]: row for row in text_results()}
    wanted = {identity(cell): cell for cell in read_grid(GRID)}
    path = Path(os.environ.get(STORE_VARIABLE, DEFAULT_STORE))
    if (path / "store.json").exists():
        store = Store(path, create=False)
        for run in store.runs():
            if run.id in wanted:
                row = {**run.summary(), **exported_columns(run, store)}
                rows[run.id] = {**row, "domain": names.get(row["corpus"], row["corpus"])}
    missing = [id for id in wanted if id not in rows]
    if not missing:
        return list(rows.values()), []
    return list(rows.values()), [
        f"{len(missing)} of {len(wanted)} models of the grid {GRID} are not trained yet. `python scripts/corpora.py "
        f"corpora --store {DEFAULT_STORE}` fetches their texts, and `rankfall sweep {GRID} --store {DEFAULT_STORE}` "
        "trains them and goes on from what is there."
    ]


def _trained(scale: Scale, progress: Progress) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A few models on prose, and on sources, trained and audited here."""
    grid = {"task": "text", "heads_times_rank": SMALL[scale]["width"], "parameters": PARAMETERS[scale]}
    grid |= {**SMALL[scale], "seed": SEEDS[scale]}
    rows: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "runs")
        texts = TEXTS[scale]
        for number, name in enumerate(texts):
            path = Path(folder) / f"{name}.txt"
            path.write_text(shipped_text() if name == "prose" else _sources(), encoding="utf-8")
            start, end = number / len(texts), (number + 1) / len(texts)
            middle = start + 0.8 * (end - start)
            cells = cells_of(grid, "text-rank", Surroundings(text=str(path), store=lambda: store.path))
            engine = ENGINES["local"](Options(device="cpu"))
            outcome = sweep(cells, store, engine=engine, progress=part(progress, start, middle, name))
            if not outcome.complete:
                raise KeyboardInterrupt
            runs = [store.run(cell) for cell in cells]
            audits, _ = audit_runs(runs, store, engine, progress=part(progress, middle, end, name))
            columns = {one.id: one.columns or {} for one in audits}
            rows += [{**row, **columns[row["id"]], "domain": name} for row in outcome.rows]
            names[outcome.rows[0]["corpus"]] = name
    progress("done", 1.0)
    return rows, names


def _sources() -> str:
    """Python files of the package, one after another."""
    package = files("rankfall")
    found = sorted((one for name in CODE for one in (package / name).iterdir()), key=lambda one: one.name)
    return "\n\n".join(one.read_text(encoding="utf-8") for one in found if one.name.endswith(".py"))


def _point(record: Row) -> dict[str, Any]:
    kept = ("domain", "budget", "width", "layers", "rank", "heads", "value_rank", "seeds", "nats_per_byte_low")
    return {name: record[name] for name in (*kept, "nats_per_byte_high")}


def _mean(values: Sequence[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _order(name: str) -> tuple[int, int, str]:
    """Layers by number, then the rest by name."""
    number = name.removeprefix(LAYER_COLUMN)
    return (0, int(number), "") if number.isdecimal() else (1, 0, name)


REPRODUCTION = Reproduction(
    "rankfall/text-rank",
    "What head rank is worth in language models: loss, the rank heads need, the rank tokens keep",
    (),
    run,
    columns=TEXT_COLUMNS
    | meaning_of_layer(64)
    | {
        "batch": "sequences of a step",
        "steps": "training steps",
        "diverged": "seeds whose loss became infinite or undefined",
        "learning_rate": "the best of those tried",
        "parameters": "weights of the model",
    },
)
