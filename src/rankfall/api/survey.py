"""Width, heads and head size of every architecture that ships with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.models.architectures.survey import HeadShape, Skipped, Survey


@final
@dataclass(frozen=True, repr=False, eq=False)
class SurveyResult(Result):
    """The default configurations of the installed transformers."""

    verb: ClassVar[str] = "survey"
    found: Survey
    caveat: str
    """What the defaults of a configuration say, and what they do not."""

    @property
    def models(self) -> tuple[HeadShape, ...]:
        """One per model type with attention heads."""
        return self.found.models

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Model types without a row, and why."""
        return self.found.skipped

    @property
    def without_heads(self) -> list[str]:
        """A line for every model type without a row: why there is nothing to survey."""
        return [f"{one.model_type}: nothing to survey, {one.reason.partition(';')[0]}" for one in self.skipped]

    @property
    def library(self) -> str:
        """The library and its version."""
        return self.found.library

    @property
    def summary(self) -> dict[str, Any]:
        """How many there are of each kind."""
        return self.found.summary()

    def tables(self) -> dict[str, pd.DataFrame]:
        """`models`: one row each; `skipped`: those without one."""
        made = {"models": frame(one.record() for one in self.models)}
        return made | ({"skipped": frame(vars(one) for one in self.skipped)} if self.skipped else {})

    def _record(self) -> dict[str, Any]:
        return {
            "library": self.library,
            "caveat": self.caveat,
            "summary": self.summary,
            "models": [one.record() for one in self.models],
            "skipped": [vars(one) for one in self.skipped],
        }

    def _lines(self) -> list[str]:
        if not self.models:
            return self.without_heads
        counts = self.summary
        return [
            f"{counts['configurations']} configuration classes of {self.library}, {counts['with_heads']} with heads,"
            f" of {counts['distinct_shapes']} different shapes",
            f"heads times head size equals width in {counts['equal_to_one']} classes"
            f" ({counts['distinct_equal_to_one']} shapes), more in {counts['above_one']}, "
            f"less in {counts['below_one']}; {counts['grouped']} share key/value heads",
        ]

    def _notes(self) -> list[str]:
        return [self.caveat]

    def _figure(self) -> Figure:
        from rankfall.drawing.survey import draw_survey

        require(
            len(self.models) > 0,
            required="at least one model type with attention heads for a picture",
            got="none",
            remedy="name others, or none for all",
        )
        title = f"{self.summary['with_heads']} configuration classes of {self.library} by their defaults"
        return draw_survey(self.models, title)


def survey(model_types: Sequence[str] | None = None, *, progress: Progress = silent) -> SurveyResult:
    """Which architectures follow H = d/r (heads times head size equals width), and which depart from it.

    Reads the default configuration of the given model types, or of every one that the installed transformers has;
    needs no network.
    """
    from rankfall.models.architectures.survey import CAVEAT, survey_configurations

    return SurveyResult(survey_configurations(list(model_types or ()) or None, progress=progress), CAVEAT)
