"""Runs and where they are kept: a configuration is its name, and a run is complete or does not exist."""

from rankfall.runs.atomic import StorageError
from rankfall.runs.checkpoints import Checkpoint, Checkpoints
from rankfall.runs.claims import Claims
from rankfall.runs.identity import canonical, identity, settings
from rankfall.runs.manifest import DamagedRunError
from rankfall.runs.query import rows_of, select, where
from rankfall.runs.results import export_results, import_results
from rankfall.runs.run import Run
from rankfall.runs.store import Store

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Claims",
    "DamagedRunError",
    "Run",
    "StorageError",
    "Store",
    "canonical",
    "export_results",
    "identity",
    "import_results",
    "rows_of",
    "select",
    "settings",
    "where",
]
