"""Audit the models of a series that the store lacks, here or on a cluster; kill it and run it again to go on."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import rankfall
from rankfall.catalogue import ENGINES, MEASURES
from rankfall.errors import RequestError, reason_of
from rankfall.models.audit import audit
from rankfall.models.inputs.texts import shipped_text
from rankfall.models.load.adapter import is_adapter
from rankfall.models.load.open import base_of, located
from rankfall.models.series.fingerprint import files_of, fingerprint
from rankfall.progress import Progress, part, silent
from rankfall.store.audits import Audits, StoredAudit, audit_id
from rankfall.store.claims import Claims
from rankfall.store.files import StorageError, plain
from rankfall.training.engines.jobs import BUSY, Job, JobWatch
from rankfall.training.options import Options
from rankfall.training.work import stop_on_signals

RECORD = 3
"""Raised when what an audit measures changes its meaning, so that stored audits are not taken for new ones."""

# How an audit is run, not what it measures.
BESIDE = ("model", "progress", "command", "allow_download", "load_seconds")
# Objects in memory, which have no identity that outlives the process.
IN_MEMORY = ("inputs", "tokenizer")


@final
@dataclass(frozen=True)
class AuditedModel:
    """A model of a series: the record of its audit, as `rankfall audit --json` prints it, or why there is none."""

    name: str
    label: str
    step: int | None = None
    record: Mapping[str, Any] | None = None
    reason: str | None = None
    id: str | None = None
    """Name of the audit in the store; None for a module in memory."""
    stored: bool = False
    """Whether the audit was there already."""
    seconds: float | None = None


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an audit as plain values, those that were not given at their defaults; an unknown one raises."""
    bound = inspect.signature(audit).bind_partial(**given)
    bound.apply_defaults()
    kept = {name: value for name, value in bound.arguments.items() if name not in (*BESIDE, *IN_MEMORY)}
    kept["layers"] = None if kept["layers"] is None else sorted(kept["layers"])
    plained: dict[str, Any] = plain(kept)
    return plained


def identity_of(path: Path, settings: Mapping[str, Any], audits: Audits) -> dict[str, Any]:
    """What makes two audits the same: the model's contents, all settings, and what measured it.

    The device counts by its kind, since a GPU rounds in another way.
    """
    read = [shipped_text()] if settings["texts"] is None else settings["texts"]
    texts = [hashlib.sha256(text.encode()).hexdigest() for text in read]
    return {
        "model": [fingerprint(files_of(one), audits.digest) for one in _parts_of(path, settings.get("adapter"))],
        "settings": {**settings, "texts": texts, "device": str(settings["device"]).partition(":")[0]},
        "record": RECORD,
        "measures": list(MEASURES.names),
        "rankfall": rankfall.__version__,
        "transformers": version("transformers"),
    }


def _parts_of(path: Path, adapter: str | None) -> list[Path]:
    """Everything that the weights come from: the model, and an adapter with what it belongs to."""
    if adapter is not None:
        return [path, Path(adapter).expanduser()]
    return [path, base_of(path, allow_download=False)] if path.is_dir() and is_adapter(path) else [path]


def audit_job(order: str, progress: Progress = silent) -> str:
    """What a worker does: audit one model, unless the store has it or another worker is at it; answers in JSON."""
    content = json.loads(order)
    name, options = content["name"], content["options"]
    notes: list[str] = []
    try:
        audits = Audits(content["store"], notes.append)
        answer = _audited(name, options, audits, progress, notes.append)
    except StorageError as error:
        answer = {"ending": "refused", "required": error.required, "got": str(error.got), "remedy": error.remedy}
    except Exception as error:
        answer = {"ending": "failed", "reason": reason_of(error)}
    return json.dumps({**answer, "notes": notes})


def _audited(
    name: str, options: Mapping[str, Any], audits: Audits, progress: Progress, note: Callable[[str], None]
) -> dict[str, Any]:
    progress("looking at the files", 0.0)
    allow = bool(options.get("allow_download", False))
    path = located(name, revision=options.get("revision"), allow_download=allow)
    identity = identity_of(path, settings_of(options), audits)
    id = audit_id(identity)
    with Claims(audits.claims_folder, note=note, thing="audit", way_out="") as claims:
        if not claims.take(id):
            claims.tell_holders([id])
            return {"ending": BUSY}
        if audits.find(id) is not None:
            return {"ending": "finished", "id": id, "stored": True}
        start = time.perf_counter()
        found = audit(name, **options, progress=progress)
        seconds = time.perf_counter() - start
        if identity_of(path, settings_of(options), audits) != identity:
            changed = "the files changed while they were audited; run the same command again"
            return {"ending": "failed", "reason": changed}
        audits.write(identity, found.record(), seconds)
    return {"ending": "finished", "id": id, "stored": False}


def run_series(
    models: Sequence[AuditedModel],
    options: Mapping[str, Any],
    *,
    store: Path | str,
    engine: str = "local",
    address: str | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[list[AuditedModel], bool]:
    """Every model with its audit or the reason why there is none, and whether all were tried.

    `options` are those of an audit. Safe to kill at any moment and to run again, also by several processes on one
    store: a finished audit is never made again. Ctrl-C ends after the audit at hand.
    """
    audits = Audits(Path(os.path.realpath(store)), note)
    settings_of(options)
    order = {"options": plain(options), "store": str(audits.path)}
    jobs = [
        Job(str(place), "rankfall.models.series.work:audit_job", json.dumps({"name": one.name, **order}))
        for place, one in enumerate(models)
    ]
    done = list(models)
    ended = 0

    def follow(job: Job) -> Progress:
        return part(progress, ended / len(jobs), (ended + 1) / len(jobs), done[int(job.name)].label)

    def end(job: Job, answer: Mapping[str, Any]) -> None:
        nonlocal ended
        ended += 1
        for text in answer.get("notes", ()):
            note(text)
        done[int(job.name)] = _with(done[int(job.name)], answer, audits)
        progress(f"{ended} of {len(jobs)} checkpoints", ended / len(jobs))

    waited: set[str] = set()

    def wait(job: Job, answer: Mapping[str, Any]) -> None:
        if job.name not in waited:
            waited.add(job.name)
            for text in answer.get("notes", ()):
                note(f"{done[int(job.name)].label}: {text}")

    chosen = ENGINES[engine](Options(device=_training_device(options), address=address))
    try:
        with stop_on_signals(lambda: note("stopping after this checkpoint; Ctrl-C again to stop at once")) as stop:
            complete = chosen.work_through(jobs, JobWatch(stop, follow, end, wait))
    finally:
        chosen.close()
    return done, complete


def _with(model: AuditedModel, answer: Mapping[str, Any], audits: Audits) -> AuditedModel:
    if answer["ending"] == "refused":
        raise RequestError(required=answer["required"], got=answer["got"], remedy=answer["remedy"])
    if answer["ending"] == "failed":
        return replace(model, reason=answer["reason"])
    found: StoredAudit | None = audits.find(answer["id"])
    if found is None:
        return replace(model, reason="its stored audit was damaged; run the same command again")
    return replace(model, record=found.record, id=found.id, stored=answer["stored"], seconds=found.seconds)


def _training_device(options: Mapping[str, Any]) -> str:
    """The device as engines know it: what an audit spreads over several devices goes to workers with a GPU."""
    device = str(options.get("device", "cpu"))
    return device if device == "cpu" or device.startswith("cuda") else "auto"
