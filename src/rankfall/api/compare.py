"""Two models, or two checkpoints of one, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.audit import AuditResult, audit
from rankfall.api.result import Result
from rankfall.progress import Progress, part, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from rankfall.models.load.folder import LoadedModel
    from rankfall.report.document import Document


@final
@dataclass(frozen=True, repr=False, eq=False)
class ComparisonResult(Result):
    """Two audits on the same text."""

    verb: ClassVar[str] = "compare"
    first: AuditResult
    second: AuditResult

    @property
    def labels(self) -> tuple[str, str]:
        """The models' names, told apart where they are the same."""
        from rankfall.report.audit import labels

        return labels(self.first, self.second)

    @property
    def verdicts(self) -> dict[str, str]:
        """The headline of each model's verdict."""
        return {name: one.verdict.headline for name, one in self._pairs()}

    def tables(self) -> dict[str, pd.DataFrame]:
        """`depth`: both models layer by layer; `heads`: medians over the heads of each layer."""
        from rankfall.report.audit import depth_table, heads_table

        return {"depth": depth_table(self._pairs()), "heads": heads_table(self._pairs())}

    def _pairs(self) -> list[tuple[str, Any]]:
        return list(zip(self.labels, (self.first, self.second), strict=True))

    def _record(self) -> dict[str, Any]:
        return {
            "models": [{"label": name, **one.record()["model"]} for name, one in self._pairs()],
            **{name: table.to_dict("records") for name, table in self.tables().items()},
            "verdicts": self.verdicts,
        }

    def _lines(self) -> list[str]:
        return [" beside ".join(self.labels), *self.verdicts.values()]

    def _figure(self) -> Figure:
        from rankfall.drawing.audit import draw_comparison

        return draw_comparison(self.tables()["depth"])

    def _document(self, command: str) -> Document:
        from rankfall.report.audit import comparison_document

        return comparison_document(self.first, self.second, command)


def compare(
    first: str | Path | LoadedModel | nn.Module,
    second: str | Path | LoadedModel | nn.Module,
    text: str | Path | Sequence[str | Path] | None = None,
    *,
    tokens: int = 128,
    passages: int | None = None,
    tokenizer: Any | None = None,
    inputs: Mapping[str, Any] | Tensor | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = silent,
    command: str | None = None,
) -> ComparisonResult:
    """Audit two models on the same text, without controls and ablations, and lay one over the other.

    Models, `text` and `inputs` are given as to `audit`.
    """
    audits = [
        audit(
            model,
            text,
            tokens=tokens,
            passages=passages,
            tokenizer=tokenizer,
            inputs=inputs,
            controls=False,
            ablate=False,
            device=device,
            seed=seed,
            progress=part(
                progress, place / 2, (place + 1) / 2, str(model) if isinstance(model, (str, Path)) else None
            ),
            command=command,
        )
        for place, model in enumerate((first, second))
    ]
    return ComparisonResult(*audits)
