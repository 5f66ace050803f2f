"""One complete run, read from the store. Every file is checked against the manifest before it is believed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.errors import require
from rankfall.runs.manifest import DamagedRunError, Manifest, damage, verify
from rankfall.runs.tables import read_records, read_table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

CONFIG = "config.json"
SUMMARY = "summary.parquet"
HISTORY = "history.parquet"
WEIGHTS = "weights.safetensors"
ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class Run:
    """A complete run. An imported one has a summary but neither history nor weights."""

    folder: Path
    manifest: Manifest

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def config(self) -> dict[str, Any]:
        return self._json(CONFIG)

    @property
    def environment(self) -> dict[str, Any]:
        return self._json(ENVIRONMENT)

    def summary(self) -> dict[str, Any]:
        """The one record that a table of runs shows: id, status, configuration, results."""
        path = self._checked(SUMMARY)
        try:
            (record,) = read_records(path)
        except (OSError, ValueError) as error:
            raise damage(path, f"no readable Parquet ({_first_line(error)})") from None
        return record

    def history(self) -> pa.Table:
        """One row per chunk of training."""
        path = self._checked(HISTORY)
        try:
            return read_table(path)
        except (OSError, ValueError) as error:
            raise damage(path, f"no readable Parquet ({_first_line(error)})") from None

    def weights(self) -> dict[str, Tensor]:
        """The trained weights, as safetensors: nothing in the file can run."""
        from safetensors.torch import load_file

        return load_file(self._checked(WEIGHTS))

    def check(self, *, weights: bool = False) -> None:
        """Refuse the run if a file is not what the manifest says. Weights, the bulk, by their size unless asked."""
        for entry in self.manifest.entries:
            verify(self.folder, entry, contents=weights or entry.name != WEIGHTS)

    def _json(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self._checked(name).read_bytes())
        return record

    def _checked(self, name: str) -> Path:
        entry = next((entry for entry in self.manifest.entries if entry.name == name), None)
        require(
            entry is not None,
            required=f"run {self.id} to hold {name}",
            got=f"a run that was {self.manifest.source}, with {', '.join(self.manifest.names)}",
            remedy="train the cell on this store to have its history and weights",
        )
        assert entry is not None
        verify(self.folder, entry)
        return self.folder / name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


__all__ = ["CONFIG", "ENVIRONMENT", "HISTORY", "SUMMARY", "WEIGHTS", "DamagedRunError", "Run"]
