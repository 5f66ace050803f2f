"""The audits of a store's language models: each made once, from its final weights, and kept beside the runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

from rankfall.errors import reason_of
from rankfall.models.trained.audited import audit_settings, audit_text
from rankfall.progress import Progress, part, silent
from rankfall.store.audits import Audits, audit_id
from rankfall.store.claims import Claims
from rankfall.store.run import WEIGHTS, Run
from rankfall.store.store import Store
from rankfall.training.engines.base import Engine
from rankfall.training.engines.jobs import BUSY, Job, JobWatch
from rankfall.training.kinds import cell_from
from rankfall.training.text.cell import TextCell
from rankfall.training.text.columns import is_audit_column
from rankfall.training.text.corpus import open_corpus

RECORD = 1
"""Raised when what an audit measures changes its meaning, so that stored audits are not taken for new ones."""
WITHOUT_WEIGHTS = "the run was taken in from results, without its weights; train it with --weights to audit it"


@final
@dataclass(frozen=True)
class AuditedRun:
    """A run with its audit, or the reason why there is none."""

    id: str
    columns: Mapping[str, Any] | None = None
    layers: Sequence[Mapping[str, Any]] = ()
    """Empty where the audit came with results, which hold its columns only."""
    reason: str | None = None
    missing: Mapping[str, str] | None = None
    """What of the audit could not be had, by part."""


def is_text_run(run: Run) -> bool:
    """Whether a run is that of a language model."""
    return run.config.get("task") == TextCell.kind


def stored_audit(run: Run, store: Store) -> AuditedRun | None:
    """The audit of a run that was made before, or came with its results; None where there is none."""
    name = audit_id(_identity(run)) if WEIGHTS in run.manifest.names else None
    if name is not None and (store.audits_folder / f"{name}.json").exists():
        found = Audits(store.audits_folder).find(name)
        if found is not None:
            record = found.record
            return AuditedRun(run.id, record["columns"], record["layers"], missing=record["missing"])
    columns = {name: value for name, value in run.summary().items() if is_audit_column(name) and value is not None}
    return AuditedRun(run.id, columns) if columns else None


def exported_columns(run: Run, store: Store) -> Mapping[str, Any]:
    """What a line of exported results has of a run's audit: nothing where there is none."""
    found = stored_audit(run, store) if is_text_run(run) else None
    return {} if found is None or found.columns is None else found.columns


def audit_runs(
    runs: Sequence[Run],
    store: Store,
    engine: Engine,
    *,
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[list[AuditedRun], bool]:
    """Every run with its audit or the reason why there is none, and whether all were tried.

    What the store lacks is audited where the engine works; safe to kill and to run again, as training is.
    """
    found = {run.id: stored_audit(run, store) for run in runs}
    wanted = [run for run in runs if found[run.id] is None]
    for run in wanted:
        if WEIGHTS not in run.manifest.names:
            found[run.id] = AuditedRun(run.id, reason=WITHOUT_WEIGHTS)
    wanted = [run for run in wanted if found[run.id] is None]
    place = os.path.realpath(store.path)
    jobs = [
        Job(run.id, f"{__name__}:audit_job", json.dumps({"store": place, "id": run.id, "device": engine.device()}))
        for run in wanted
    ]
    labels = {run.id: cell_from(run.config).label for run in wanted}
    ended = 0
    told: set[str] = set()

    def follow(job: Job) -> Progress:
        return part(progress, ended / len(jobs), (ended + 1) / len(jobs), f"auditing {labels[job.name]}")

    def end(job: Job, answer: Mapping[str, Any]) -> None:
        nonlocal ended
        ended += 1
        for text in answer["notes"]:
            note(text)
        if answer["ending"] == "failed":
            reason = answer["reason"]
            found[job.name] = AuditedRun(job.name, reason=reason)
            if reason not in told:
                note(f"no audit of {labels[job.name]}: {reason}")
            told.add(reason)
        progress(f"{ended} of {len(jobs)} audits", ended / len(jobs))

    complete = engine.work_through(jobs, JobWatch(stop, follow, end)) if jobs else True
    for run in wanted:
        if found[run.id] is None:
            found[run.id] = stored_audit(run, store) or AuditedRun(run.id, reason="stopped before it was audited")
    return [one for run in runs if (one := found[run.id]) is not None], complete


def audit_job(order: str, progress: Progress = silent) -> str:
    """What a worker does: audit one run, unless the store has it or another worker is at it; answers in JSON."""
    content = json.loads(order)
    notes: list[str] = []
    try:
        answer = _audited(Store(content["store"], create=False), content["id"], content["device"], progress, notes)
    except Exception as error:
        answer = {"ending": "failed", "reason": reason_of(error)}
    return json.dumps({**answer, "notes": notes})


def _audited(store: Store, id: str, device: str, progress: Progress, notes: list[str]) -> dict[str, str]:
    run = store.find(id)
    if run is None:
        return {"ending": "failed", "reason": "the run is no longer in the store"}
    audits, identity = Audits(store.audits_folder, notes.append), _identity(run)
    name = audit_id(identity)
    with Claims(audits.claims_folder, note=notes.append, thing="audit", way_out="") as claims:
        if not claims.take(name):
            return {"ending": BUSY}
        if audits.find(name) is None:
            cell = cast(TextCell, cell_from(run.config))
            start = time.perf_counter()
            corpus = open_corpus(cell.corpus, store.path)
            record = audit_text(cell, run.weights(), corpus, device, progress).record()
            audits.write(identity, record, time.perf_counter() - start)
    return {"ending": "finished"}


def _identity(run: Run) -> dict[str, Any]:
    """What makes two audits the same: the run, its weights, and how it is read. Not the device: rounding apart, the
    numbers are the same."""
    weights = next(entry.sha256 for entry in run.manifest.entries if entry.name == WEIGHTS)
    return {"run": run.id, "weights": weights, "settings": audit_settings(), "record": RECORD}
