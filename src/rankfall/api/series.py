"""Many checkpoints, or many models: audited once each, in one table and one picture, with a verdict over training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.audit import audit, layer_numbers, texts_of
from rankfall.api.result import Result, frame
from rankfall.destinations import require_writable_folder
from rankfall.errors import reason_of, require, require_count
from rankfall.progress import Progress, part, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from rankfall.models.load.folder import LoadedModel
    from rankfall.models.series.verdict import SeriesVerdict
    from rankfall.models.series.work import AuditedModel
    from rankfall.report.document import Document

STORE = "audits"
"""Folder that keeps finished audits, unless another is named."""


@final
@dataclass(frozen=True, repr=False, eq=False)
class SeriesResult(Result):
    """Audits of many models on the same text, in the order of the series; all it says comes from their records."""

    verb: ClassVar[str] = "series"
    models: tuple[AuditedModel, ...]
    """Each with its `record`, or the `reason` why it could not be audited."""
    store: str | None
    """Where the audits are kept; None where modules in memory were audited."""
    complete: bool = True
    """False when the series was stopped; the same call goes on from there."""

    @property
    def verdict(self) -> SeriesVerdict:
        """Where and when token rank falls or rises, which layers change most, and what the loss does."""
        from rankfall.models.series.verdict import judge_series

        return judge_series(self.models)

    @property
    def failed(self) -> dict[str, str]:
        """Why those without an audit have none, by label."""
        return {one.label: one.reason for one in self.models if one.reason is not None}

    def tables(self) -> dict[str, pd.DataFrame]:
        """`checkpoints`, `depth` (by model and layer), `heads` (medians), `differences` and `head_differences`.

        The last two are the last one's numbers minus the first one's; tables with nothing in them are left out.
        """
        return tables_of(self.models)

    def failures(self, condition: str) -> dict[str, list[dict[str, Any]]]:
        """The layers and values at which a condition such as `effective_rank < 4 at last` holds, by label.

        One that the audits cannot decide, such as `distinctions reduced` without controls, is refused.
        """
        from rankfall.models.condition import decided

        found = {one.label: decided(condition, one.record) for one in self.models if one.record is not None}
        return {label: held for label, held in found.items() if held}

    def save(self, folder: str | Path, *, command: str | None = None) -> Path:
        """Write the report into `folder`, unless that holds the report of something else; returns the page's path."""
        require_report_folder(folder, self.models)
        return super().save(folder, command=command)

    def _record(self) -> dict[str, Any]:
        tables = {name: table.to_dict("records") for name, table in self.tables().items()}
        return {
            **{name: tables.get(name, []) for name in TABLES},
            "verdict": self.verdict.record(),
            "not_audited": self.failed,
            "store": self.store,
            "complete": self.complete,
        }

    def _lines(self) -> list[str]:
        verdict = self.verdict
        return [
            f"{len(self.models)} models, {len(self.failed)} could not be audited",
            verdict.headline,
            *(f"{one.topic}: {one.text}"[:380] for one in verdict.reasons[1:]),
        ]

    def _figure(self) -> Figure:
        from rankfall.report.series import series_figure

        return series_figure(self.tables())

    def _document(self, command: str) -> Document:
        from rankfall.report.series import series_document

        return series_document(self.models, self.tables(), self.verdict, command)


TABLES = ("checkpoints", "depth", "differences", "heads", "head_differences")


def tables_of(models: Sequence[AuditedModel]) -> dict[str, pd.DataFrame]:
    """All tables of a series, those with nothing in them left out; with a column `stack` where models have several
    stacks of blocks, such as an encoder and a decoder."""
    from rankfall.models.series import records
    from rankfall.models.series.halves import by_stack

    made: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for series in by_stack(models):
        done = records.audited(series.models)
        ends = (done[0], done[-1]) if len(done) > 1 else None
        found = {
            "checkpoints": records.checkpoint_rows(series.models),
            "depth": records.depth_rows(series.models),
            "differences": records.differences(*ends) if ends else [],
            "heads": records.head_rows(series.models),
            "head_differences": records.head_differences(*ends) if ends else [],
        }
        for name, rows in found.items():
            made[name] += rows if series.label is None else [records.in_stack(row, series.label) for row in rows]
    for name in ("heads", "head_differences"):
        if any("kind" in row for row in made[name]):
            made[name] = [row | {"kind": row.get("kind", "self")} for row in made[name]]
    return {name: frame(rows) for name, rows in made.items() if rows}


def require_report_folder(folder: str | Path, models: Sequence[AuditedModel], name: str = "the report") -> None:
    """Said before the work is done: the folder must be one, and must not hold the report of something else."""
    from rankfall.report.page import require_own
    from rankfall.report.series import series_title

    require_own(require_writable_folder(folder, name), series_title([one.label for one in models]))


def series(
    models: str | Path | Iterable[str | Path | LoadedModel | nn.Module],
    text: str | Path | Sequence[str | Path] | None = None,
    *,
    store: str | Path = STORE,
    engine: str = "local",
    address: str | None = None,
    out: str | Path | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> SeriesResult:
    """Audit many checkpoints on the same text, each once: what the store has is not audited again.

    `models` are named as for `audit`; `runs/checkpoint-*` and `org/name@{step1,step1000}` stand for several. Names
    that differ in one number only are put in its order. `engine`: local or ray (`address` of a running cluster; the
    store must be a path that all machines see). `options` are those of `audit`; controls and ablations are off unless
    asked for. A model that cannot be audited is named with its reason, and the others go on. Modules in memory are
    audited here and not kept. `out` is where the report will be saved: a folder that cannot be is refused at once.
    """
    members = members_of([models] if isinstance(models, (str, Path)) else list(models))
    if out is not None:
        require_report_folder(out, [one for one, _ in members])
    asked = {"controls": False, "ablate": False, **options}
    return run_members(members, text, asked, store, engine, address, progress, note)


Member = tuple["AuditedModel", Any]
"""What is known of a model before its audit, and the module, where it is one in memory."""


def members_of(models: Sequence[Any], *, distinct: bool = True) -> list[Member]:
    """Names written out and told apart; `distinct` refuses one that is named twice and puts checkpoints in order."""
    from rankfall.models.series.names import labels, model_names, steps
    from rankfall.models.series.work import AuditedModel

    require(len(models) > 0, required="at least one model", got="none", remedy="name a folder, a file or a hub id")
    named = [str(one) for one in models if isinstance(one, (str, Path))]
    in_memory = [one for one in models if not isinstance(one, (str, Path))]
    require(
        not named or not in_memory,
        required="models by name, or modules in memory",
        got="some of each",
        remedy="save the modules first, or load the others",
    )
    names = (model_names(named) if distinct else named) or [
        str(getattr(one, "name", type(one).__name__)) for one in in_memory
    ]
    numbers: Sequence[int | None] = steps(names) or [None] * len(names)
    rows = zip(names, labels(names), numbers, strict=True)
    members = [AuditedModel(name, label, step) for name, label, step in rows]
    return list(zip(members, in_memory or [None] * len(names), strict=True))


def run_members(
    members: Sequence[Member],
    text: str | Path | Sequence[str | Path] | None,
    options: Mapping[str, Any],
    store: str | Path,
    engine: str,
    address: str | None,
    progress: Progress,
    note: Callable[[str], None] | None,
) -> SeriesResult:
    """Audit every member: those with a name through the store, modules in this process."""
    from rankfall.models.series.work import run_series

    models = [one for one, _ in members]
    given = {name: value for name, value in options.items() if value is not None}
    if "tokens" in given:
        require_count("tokens", given["tokens"], least=2)
    if members[0][1] is not None or {"inputs", "tokenizer"} & given.keys():
        require(
            engine == "local",
            required="models by name for another engine",
            got="modules, inputs or a tokenizer in memory",
            remedy="save the models and give texts, or leave out the engine",
        )
        done = [
            _here(one, module, text, given, place, len(members), progress)
            for place, (one, module) in enumerate(members)
        ]
        return _with_some(SeriesResult(tuple(done), None))
    require_writable_folder(store, "the store")
    if isinstance(given.get("layers"), str):
        given["layers"] = layer_numbers(given["layers"])
    given["ablation"] = given.pop("ablate", True)
    if (texts := texts_of(text)) is not None:
        given["texts"] = texts
    found, complete = run_series(
        models,
        given,
        store=store,
        engine=engine,
        address=address,
        progress=progress,
        note=note or (lambda text: None),
    )
    return _with_some(SeriesResult(tuple(found), str(store), complete))


def _with_some(result: SeriesResult) -> SeriesResult:
    """One bad checkpoint does not end a series; nothing but bad ones do."""
    reasons = list(result.failed.values())
    require(
        not result.complete or len(reasons) < len(result.models),
        required="at least one model that can be audited",
        got=f"{len(reasons)} that cannot: {reasons[0] if reasons else None}",
        remedy="`rankfall audit` of one of them says more",
    )
    return result


def _here(
    one: AuditedModel, module: Any, text: Any, options: Mapping[str, Any], place: int, count: int, progress: Progress
) -> AuditedModel:
    import time

    start = time.perf_counter()
    try:
        found = audit(
            one.name if module is None else module,
            text,
            **options,
            progress=part(progress, place / count, (place + 1) / count, one.label),
        )
    except Exception as error:
        return replace(one, reason=reason_of(error))
    return replace(one, record=found.record(), seconds=time.perf_counter() - start)
