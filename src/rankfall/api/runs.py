"""The finished runs of a store, all or some of them, or what SQL finds in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.store.run import Run
    from rankfall.store.store import Store


@final
@dataclass(frozen=True, repr=False, eq=False)
class RunsResult(Result):
    """Rows of a store."""

    verb: ClassVar[str] = "runs"
    store: str
    rows: list[dict[str, Any]]
    damaged: list[str]
    """What is wrong with runs that cannot be read."""
    notes: list[str]
    """What was taken in, moved or written besides."""

    def tables(self) -> dict[str, pd.DataFrame]:
        """`runs`: one row each."""
        return {"runs": frame(self.rows)}

    def _record(self) -> dict[str, Any]:
        return {"store": self.store, "rows": self.rows, "damaged": self.damaged}

    def _lines(self) -> list[str]:
        return [
            f"{len(self.rows)} rows of {self.store}",
            f"columns: {', '.join(self.rows[0]) if self.rows else 'none'}",
            *(f"damaged: {error}" for error in self.damaged),
        ]

    def _figure(self) -> Figure:
        from rankfall.drawing.loss_by_rank import loss_by_rank
        from rankfall.training.text.comparison import by_shape

        models = [row for row in self.rows if row.get("task") == "text" and "corpus" in row]
        return loss_by_rank(by_shape(models)) if models else error_by_rank(self.rows)


def runs(
    store: str | Path = "runs",
    *,
    where: Sequence[str] = (),
    sql: str | None = None,
    import_results: str | Path | None = None,
    export_results: str | Path | None = None,
    export_models: str | Path | None = None,
    verify: bool = False,
    set_aside: bool = False,
) -> RunsResult:
    """List the finished runs of a store, all or some, or ask it in SQL.

    `where` keeps rows such as `rank=8` or `mse_best<0.1`; `sql` asks the tables runs and history. `import_results`
    takes in committed results first, `export_results` writes summaries with their provenance into a folder;
    `export_models` writes each language model as a folder that the transformers library and `audit` open. `verify`
    checks every file; `set_aside` moves damaged runs out of the way.
    """
    from rankfall.store import results
    from rankfall.store.query import rows_of, select
    from rankfall.store.query import where as kept_by
    from rankfall.store.store import Store

    require(
        not (sql and where),
        required="either sql or where",
        got="both",
        remedy="write the condition into the SQL",
    )
    kept = Store(Path(store), create=import_results is not None)
    notes: list[str] = []
    if import_results is not None:
        taken = results.import_results(kept, Path(import_results))
        notes.append(f"{len(taken)} runs taken in from {import_results}")
    if set_aside:
        moved = {id: kept.set_aside(id) for id in kept.damaged()}
        notes += [f"{id} moved to {place}" for id, place in moved.items() if place is not None]
    found, damaged = rows_of(kept)
    rows = select(kept, sql) if sql is not None else kept_by(found, list(where))
    if where and not rows:
        require(
            export_results is None and export_models is None,
            required=f"runs to export that match {' and '.join(where)}",
            got=f"none of the {len(found)} in {store}",
            remedy="choose others: without conditions all are listed",
        )
        notes.append(f"no run matches {' and '.join(where)}, of {len(found)} in {store}")
    if verify:
        damaged = list(kept.damaged().values())
    wanted = {row["id"] for row in rows if "id" in row}
    if export_results is not None:
        chosen = (run for run in kept.runs() if run.id in wanted)
        written = results.export_results(chosen, Path(export_results), _audit_columns(kept))
        notes += [f"wrote {path}" for path in written]
    if export_models is not None:
        from rankfall.models.trained.export import export_models as write_models

        chosen = (run for run in kept.runs() if run.id in wanted)
        notes += [f"wrote {path}" for path in write_models(chosen, kept, Path(export_models), notes.append)]
    return RunsResult(str(store), [dict(row) for row in rows], [str(error) for error in damaged], notes)


def _audit_columns(store: Store) -> Callable[[Run], Mapping[str, Any]]:
    """The columns of a language model's audit, where the store has audits: what reads them is loaded only then."""
    if not store.audits_folder.exists():
        return lambda run: {}
    from rankfall.models.trained.stored import exported_columns

    return lambda run: exported_columns(run, store)


def error_by_rank(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Error of trained cells against rank over width: a panel per task and depth, a line per number of weights."""
    from rankfall.drawing.rank_curves import rank_curves

    needed = ("rank", "dim", "task", "layers", "multiplier", "mse_best")
    drawn = [{**row, "ours": row["mse_best"]} for row in rows if all(row.get(name) is not None for name in needed)]
    require(
        len(drawn) > 0,
        required="finished runs with rank, dim, task, layers, multiplier and mse_best for a picture",
        got=f"{len(rows)} rows without",
        remedy="train some first, or select those columns",
    )
    return rank_curves(
        drawn,
        panel=lambda row: f"{row['task']}, {row['layers']} layers",
        line=lambda row: f"{row['multiplier']} times the heads",
        width=lambda row: int(row["dim"]),
    )
