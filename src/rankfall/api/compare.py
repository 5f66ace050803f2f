"""Two models, or two checkpoints of one, side by side: a series of two, with the differences of layers and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result
from rankfall.api.series import STORE, Member, members_of, run_members, tables_of
from rankfall.destinations import require_writable_folder
from rankfall.errors import RequestError, reason_of
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from rankfall.models.load.folder import LoadedModel
    from rankfall.models.series.verdict import SeriesVerdict
    from rankfall.models.series.work import AuditedModel
    from rankfall.report.document import Document


OPENING = ("allow_download", "load_seconds", "revision", "adapter")
"""Options of an audit by which a model is found and opened."""


@final
@dataclass(frozen=True, repr=False, eq=False)
class ComparisonResult(Result):
    """Two audits on the same text; each model has its `label` and the `record` of its audit."""

    verb: ClassVar[str] = "compare"
    first: AuditedModel
    second: AuditedModel

    @property
    def labels(self) -> tuple[str, str]:
        """The models' names, told apart where they are the same."""
        return self.first.label, self.second.label

    @property
    def verdicts(self) -> dict[str, str]:
        """The headline of each model's verdict, of every stack of its blocks, under the model's label."""
        return {
            label: ". ".join(
                one["verdict"]["headline"].replace(record["model"]["name"], label, 1)
                for one in (record, *record.get("other_stacks", ()))
            )
            for label, record in self._records()
        }

    @property
    def kept(self) -> list[str]:
        """Which of the two keeps more distinctions between tokens, for each stack of blocks that both have."""
        from rankfall.models.series.halves import by_stack
        from rankfall.report.series import kept

        return [
            f"{'' if one.label is None else f'{one.label}: '}distinctions between tokens kept: {kept(one.models)}"
            for one in by_stack((self.first, self.second))
            if len(one.models) == len(self.labels)
        ]

    @property
    def verdict(self) -> SeriesVerdict:
        """What changes from the first to the second."""
        from rankfall.models.series.verdict import judge_series

        return judge_series((self.first, self.second))

    @property
    def changes(self) -> list[str]:
        """In words: which layers and heads differ most, the losses, and whether the layers correspond."""
        from rankfall.models.series.verdict import COMPARED

        return [f"{one.topic}: {one.text}" for one in self.verdict.reasons if one.topic in COMPARED]

    def tables(self) -> dict[str, pd.DataFrame]:
        """`depth`: both models layer by layer; `heads`: medians over the heads of each layer of both.

        `differences` and `head_differences`: the second's numbers minus the first's; of layers of models of
        different depth at like relative depth, of heads only where they correspond.
        """
        made = tables_of((self.first, self.second))
        return {name: made[name] for name in ("depth", "differences", "heads", "head_differences") if name in made}

    def save(self, folder: str | Path, *, command: str | None = None) -> Path:
        """Write the report into `folder`, unless that holds the report of something else; returns the page's path."""
        _require_report_folder(folder, self.labels)
        return super().save(folder, command=command)

    def _records(self) -> list[tuple[str, Any]]:
        return [(one.label, one.record) for one in (self.first, self.second)]

    def _record(self) -> dict[str, Any]:
        tables = {name: table.to_dict("records") for name, table in self.tables().items()}
        return {
            "models": [{"label": label, **record["model"]} for label, record in self._records()],
            **{name: tables.get(name, []) for name in ("depth", "differences", "heads", "head_differences")},
            "verdicts": self.verdicts,
            "verdict": self.verdict.record(),
        }

    def _lines(self) -> list[str]:
        return [" beside ".join(self.labels), *self.verdicts.values(), *self.kept, *self.changes]

    def _figure(self) -> Figure:
        from rankfall.drawing.audit import draw_comparison

        return draw_comparison(self.tables()["depth"])

    def _document(self, command: str) -> Document:
        from rankfall.report.series import comparison_document

        return comparison_document((self.first, self.second), self.tables(), self.verdict, command)


def compare(
    first: str | Path | LoadedModel | nn.Module,
    second: str | Path | LoadedModel | nn.Module,
    text: str | Path | Sequence[str | Path] | None = None,
    *,
    tokens: int = 128,
    passages: int | None = None,
    device: str = "cpu",
    stack: str | None = None,
    dtype: str = "float32",
    allow_download: bool = False,
    seed: int = 0,
    store: str | Path = STORE,
    out: str | Path | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> ComparisonResult:
    """Audit two models on the same text, without controls and ablations, and lay one over the other.

    Models, `text` and all other `options` are given as to `audit`; of models with several stacks of blocks each is
    compared with the one of the same name, or `stack` alone; audits are kept in `store`, and not made again.
    `out` is where the report will be saved: a folder that cannot be is refused at once.
    """
    members = members_of([first, second], distinct=False)
    if out is not None:
        _require_report_folder(out, [one.label for one, _ in members])
    asked = {"tokens": tokens, "passages": passages, "device": device, "seed": seed, "stack": stack, "dtype": dtype}
    asked |= {"allow_download": allow_download, "controls": False, "ablate": False, **options}
    if members[0][1] is None and not {"inputs", "tokenizer"} & options.keys():
        require_writable_folder(store, "the store")
    _require_both(members, asked)
    found = run_members(members, text, asked, store, "local", None, progress, note)
    bad = next((one for one in found.models if one.record is None), None)
    if bad is not None:
        raise _cannot(bad.label, bad.reason or "stopped by the user")
    return ComparisonResult(*found.models)


def _require_both(members: Sequence[Member], options: Mapping[str, Any]) -> None:
    """Refuse a model that cannot be opened before the other is audited, which takes far longer."""
    from rankfall.models.load.open import require_openable

    given = {name: options[name] for name in OPENING if options.get(name) is not None}
    for one, module in members:
        if module is None:
            try:
                require_openable(one.name, **given)
            except Exception as error:  # what a damaged file or the hub raises, as in its audit
                raise _cannot(one.label, reason_of(error)) from error


def _cannot(label: str, reason: str) -> RequestError:
    return RequestError(
        required="two models that can be audited",
        got=f"{label}, which could not: {reason}",
        remedy="`rankfall audit` of that model says more",
    )


def _require_report_folder(folder: str | Path, labels: Sequence[str]) -> None:
    from rankfall.report.page import require_own
    from rankfall.report.series import comparison_title

    require_own(require_writable_folder(folder, "the report"), comparison_title(labels))
