"""`rankfall audit` of many checkpoints: each audited once, one table, one verdict over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from rankfall.cli.output import Outputs, command, emit, notes, paper, shown, table

# Exit status of --fail-if where a condition could be neither passed nor failed.
UNDECIDED = 3
# Of a condition that holds, as many places of each stack of blocks are named.
PLACES = 4
COLUMNS = (
    "model",
    "loss",
    "effective_rank",
    "energy_rank",
    "last_over_highest",
    "lowest_rank",
    "lowest_layer",
    "relative_mu",
    "mean_abs_cosine",
)
# Numbers and facts of a row; whatever else it has is a status of the verdict.
OTHERS = (*COLUMNS, "step", "stack", "audited", "layers", "parameters", "stored", "seconds", "reason", "id")


def is_series(names: Sequence[str]) -> bool:
    """Several models, or one name that stands for several."""
    if len(names) > 1:
        return True
    if not set(names[0]) & set("*?[{"):
        return False
    from rankfall.models.series.names import is_pattern

    return is_pattern(names[0])


def audit_series(
    names: Sequence[str],
    text: list[Path] | None,
    options: Mapping[str, Any],
    conditions: Sequence[str],
    *,
    store: Path | None,
    engine: str | None,
    address: str | None,
    out: Path | None,
    json: bool,
) -> None:
    """Audit them, print and write the report. Exit status 1: one could not be audited, or a condition holds; 3: a
    condition could not be decided."""
    from rankfall.api.series import STORE, series
    from rankfall.models.condition import Checked

    outputs = Outputs(out=out)
    with shown("series") as progress:
        result = series(
            names,
            text,
            store=store or STORE,
            engine=engine or "local",
            address=address,
            out=out,
            progress=progress,
            note=lambda told: notes.print(told, markup=False, highlight=False, soft_wrap=True),
            **options,
        )
        if not result.complete:
            done = sum(one.record is not None for one in result.models)
            notes.print(
                f"stopped with {done} of {len(result.models)} checkpoints audited and kept in {result.store};"
                f" the same command goes on: {command()}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            raise typer.Exit(130)
    checked = {one.label: Checked.of(conditions, one.record) for one in result.models if one.record is not None}
    record = result.record() | {
        "failed": [{"model": label, **held} for label, one in checked.items() for held in one.failed],
        "unchecked": [
            {"model": label, "condition": condition, "reason": why}
            for label, one in checked.items()
            for condition, why in one.unchecked.items()
        ],
        "open": [
            {"model": label, "condition": condition, "reason": why}
            for label, one in checked.items()
            for condition, why in one.open.items()
        ],
        "report": outputs.page,
    }
    emit(record, as_json=json, show=lambda: _show(record))
    outputs.write(result)
    leave(failed=bool(record["failed"] or result.failed), undecided=bool(record["unchecked"]))


def leave(*, failed: bool, undecided: bool) -> None:
    """End with the status of the checks: 1 where one fails for sure, else 3 where one could not be decided."""
    if failed or undecided:
        raise typer.Exit(1 if failed else UNDECIDED)


def _show(record: Mapping[str, Any]) -> None:
    rows = record["checkpoints"]
    models = {row["model"]: row for row in rows}
    words = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in OTHERS]
    table(
        f"{len(models)} models: tokens of length one at the last layer",
        [_brief(row) for row in rows],
        _columns(rows, words),
    )
    paper.print("last over highest: energy rank at the last layer over the highest of all layers", style="dim")
    verdict = record["verdict"]
    paper.print(verdict["headline"], style="bold", markup=False, highlight=False)
    for reason in verdict["reasons"]:
        if reason["topic"] not in ("last layer", "not audited"):
            paper.print(f"  {reason['topic']}: {reason['text']}", markup=False, highlight=False)
    for name, why in record["not_audited"].items():
        paper.print(f"  NOT AUDITED {name}: {why}", style="bold red", markup=False, highlight=False)
    for one in record["failed"]:
        told = f"  FAILED {one['condition']} at {one['model']}: {places_of_failure(one['layers'])}"
        paper.print(told, style="bold red", markup=False, highlight=False)
    for one in record["unchecked"]:
        told = f"  NOT CHECKED {one['condition']} at {one['model']}: {one['reason']}"
        paper.print(told, style="bold yellow", markup=False, highlight=False)
    for one in record["open"]:
        told = f"  OPEN {one['condition']} at {one['model']}: {one['reason']}"
        paper.print(told, style="yellow", markup=False, highlight=False)
    found = sum(row["stored"] for row in models.values())
    made = sum(row["audited"] for row in models.values()) - found
    paper.print(f"  {made} audited now, {found} found in {record['store']}", markup=False, highlight=False)


def _columns(rows: Sequence[Mapping[str, Any]], words: Sequence[str]) -> list[str]:
    """Those that somebody has a value in; steps instead of names, where these differ in nothing else."""
    columns = (COLUMNS[0], "stack", *COLUMNS[1:], *words)
    known = [name for name in columns if any(row.get(name) is not None for row in rows)]
    numbered = all(row["step"] is not None for row in rows)
    return ["step", *known[1:]] if numbered else known


def _brief(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}


def places_of_failure(found: Sequence[Mapping[str, Any]], first: str | None = None) -> str:
    """Where a check of `--fail-if` failed, and with what: the first places of each stack of blocks, and how many more
    there are. `first` names the stack whose places carry no name, where there are several."""
    stacks: dict[str | None, list[Mapping[str, Any]]] = {}
    for at in found:
        stacks.setdefault(at.get("stack", first), []).append(at)
    return "; ".join(_in_one_stack(name, places) for name, places in stacks.items())


def _in_one_stack(name: str | None, places: Sequence[Mapping[str, Any]]) -> str:
    where = "" if name is None else f" of {name}"
    told = ", ".join(f"{_place(at)}{where} ({_value(at['value'])})" for at in places[:PLACES])
    return told if len(places) <= PLACES else f"{told} and {len(places) - PLACES} more{where}"


def _place(at: Mapping[str, Any]) -> str:
    """A layer; of an answer of the verdict also whether it is about the stream or the output."""
    return f"{at['place']} at layer {at['layer']}" if "place" in at else f"layer {at['layer']}"


def _value(found: str | float) -> str:
    return found if isinstance(found, str) else f"{found:.4g}"
