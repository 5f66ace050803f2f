"""rankfall: see where a transformer loses rank, predict it, and choose an architecture that keeps it.

What `__all__` lists is public and stable; everything else is internal and may move. Importing the package is light:
each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall import masks as masks
    from rankfall import norms as norms
    from rankfall.api.attention import attention as attention
    from rankfall.api.audit import AuditResult as AuditResult
    from rankfall.api.audit import audit as audit
    from rankfall.api.bounds import BoundsResult as BoundsResult
    from rankfall.api.bounds import bounds as bounds
    from rankfall.api.compare import ComparisonResult as ComparisonResult
    from rankfall.api.compare import compare as compare
    from rankfall.api.coverage import CoverageResult as CoverageResult
    from rankfall.api.coverage import coverage as coverage
    from rankfall.api.equilibrium import EquilibriumResult as EquilibriumResult
    from rankfall.api.equilibrium import equilibrium as equilibrium
    from rankfall.api.plan import PlanResult as PlanResult
    from rankfall.api.plan import plan as plan
    from rankfall.api.reproduce import ReproductionResult as ReproductionResult
    from rankfall.api.reproduce import reproduce as reproduce
    from rankfall.api.runs import RunsResult as RunsResult
    from rankfall.api.runs import runs as runs
    from rankfall.api.series import SeriesResult as SeriesResult
    from rankfall.api.series import series as series
    from rankfall.api.simulate import SimulationResult as SimulationResult
    from rankfall.api.simulate import simulate as simulate
    from rankfall.api.survey import SurveyResult as SurveyResult
    from rankfall.api.survey import survey as survey
    from rankfall.api.sweep import SweepResult as SweepResult
    from rankfall.api.sweep import sweep as sweep
    from rankfall.errors import RequestError as RequestError
    from rankfall.measures.base import Measure
    from rankfall.measures.base import measure as measure
    from rankfall.measures.measures import rankme as rankme
    from rankfall.mechanism.heads import Heads as Heads
    from rankfall.models.monitor.alarms import RankWarning as RankWarning
    from rankfall.models.monitor.callbacks import lightning_callback as lightning_callback
    from rankfall.models.monitor.callbacks import trainer_callback as trainer_callback
    from rankfall.models.monitor.monitor import RankMonitor as RankMonitor

    effective_rank: Measure
    energy_rank: Measure
    first_direction_share: Measure
    alpha: Measure
    mu: Measure
    relative_mu: Measure
    rank: Measure
    stable_rank: Measure
    participation_ratio: Measure
    mean_abs_cosine: Measure
    min_singular_value: Measure
    max_singular_value: Measure
    rank_one_residual: Measure
    largest_token_share: Measure

__version__ = "0.1.0"

# Where each public name is defined, by module; those that are modules themselves are named below.
_PLACES = {
    "rankfall.api.audit": ("audit", "AuditResult"),
    "rankfall.api.compare": ("compare", "ComparisonResult"),
    "rankfall.api.series": ("series", "SeriesResult"),
    "rankfall.api.coverage": ("coverage", "CoverageResult"),
    "rankfall.api.simulate": ("simulate", "SimulationResult"),
    "rankfall.api.equilibrium": ("equilibrium", "EquilibriumResult"),
    "rankfall.api.bounds": ("bounds", "BoundsResult"),
    "rankfall.api.plan": ("plan", "PlanResult"),
    "rankfall.api.survey": ("survey", "SurveyResult"),
    "rankfall.api.sweep": ("sweep", "SweepResult"),
    "rankfall.api.runs": ("runs", "RunsResult"),
    "rankfall.api.reproduce": ("reproduce", "ReproductionResult"),
    "rankfall.measures.base": ("measure",),
    "rankfall.measures.measures": ("rankme",),
    "rankfall.api.attention": ("attention",),
    "rankfall.mechanism.heads": ("Heads",),
    "rankfall.models.monitor.monitor": ("RankMonitor",),
    "rankfall.models.monitor.alarms": ("RankWarning",),
    "rankfall.models.monitor.callbacks": ("trainer_callback", "lightning_callback"),
    "rankfall.errors": ("RequestError",),
}
_MODULES = ("masks", "norms")
# Measures are objects of the catalogue: callable on tensors and arrays.
_MEASURES = (
    "effective_rank",
    "energy_rank",
    "first_direction_share",
    "alpha",
    "mu",
    "relative_mu",
    "rank",
    "stable_rank",
    "participation_ratio",
    "mean_abs_cosine",
    "min_singular_value",
    "max_singular_value",
    "rank_one_residual",
    "largest_token_share",
)
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = ["__version__", *_MODULE_OF, *_MEASURES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rankfall.{name}")
    if name in _MEASURES:
        value = importlib.import_module("rankfall.catalogue").MEASURES[name]
    elif name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module 'rankfall' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
