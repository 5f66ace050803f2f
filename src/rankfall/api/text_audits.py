"""The audits of a sweep's language models, as rows of its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from rankfall.progress import Progress

if TYPE_CHECKING:
    from rankfall.store.store import Store
    from rankfall.training.engines.base import Engine


@final
@dataclass(frozen=True)
class Audited:
    """A row per model, a row per model and layer, and whether all were tried."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = True
    out_of_time: bool = False


def audited_rows(
    rows: Sequence[Mapping[str, Any]],
    store: Store,
    engine: Engine,
    *,
    make: bool,
    left: float | None,
    progress: Progress,
    note: Callable[[str], None],
) -> Audited:
    """Audit the finished language models among the rows that have no audit yet, within `left` seconds.

    Where `make` is off, after a sweep that was stopped, only audits that are there are shown.
    """
    from rankfall.models.trained.stored import audit_runs, stored_audit
    from rankfall.training.text.comparison import RUN
    from rankfall.training.work import stop_on_signals

    by_id = {row["id"]: row for row in rows if row.get("task") == "text" and row["status"] == "done"}
    runs = [run for id in by_id if (run := store.find(id)) is not None]
    complete, out_of_time = True, False
    if make:
        end = math.inf if left is None else time.monotonic() + left
        with stop_on_signals(lambda: note("stopping after this audit; Ctrl-C again to stop at once")) as stop:
            found, complete = audit_runs(
                runs,
                store,
                engine,
                stop=lambda: stop() or time.monotonic() >= end,
                progress=progress,
                note=note,
            )
            out_of_time = not complete and not stop()
    else:
        found = [one for run in runs if (one := stored_audit(run, store)) is not None]
    names = ("id", *RUN, "parameters", "nats_per_byte")
    of = {one.id: {name: by_id[one.id].get(name) for name in names} for one in found}
    layers = [{**{name: of[one.id][name] for name in ("id", *RUN)}, **layer} for one in found for layer in one.layers]
    audits = [
        {**of[one.id], **(one.columns or {}), "missing": _missing(one.reason, one.missing or {})} for one in found
    ]
    return Audited(audits, layers, complete, out_of_time)


def _missing(reason: str | None, parts: Mapping[str, str]) -> str | None:
    """Why there is no audit, or what of it could not be had, in words."""
    return reason or "; ".join(f"{part}: {why}" for part, why in parts.items()) or None
