"""The singular values of every head's query/key form, as records and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from rankfall.destinations import make_parents, require_writable_file

ENDINGS = (".npz", ".csv", ".json")


@final
@dataclass(frozen=True)
class HeadSpectrum:
    """The singular values of one head's query/key form W_Q W_K^T, largest first."""

    layer: int
    head: int
    module: str
    singular_values: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        """The spectrum as `--json` prints it."""
        return asdict(self)

    def lines(self) -> list[dict[str, Any]]:
        """A line of a table for each singular value."""
        head = {"layer": self.layer, "head": self.head, "module": self.module}
        return [
            {**head, "index": index, "singular_value": value} for index, value in enumerate(self.singular_values, 1)
        ]


def require_spectra_file(path: Path | str) -> Path:
    """A file that spectra can be written to."""
    return require_writable_file(path, "the file of spectra", ENDINGS)


def write_spectra(spectra: Sequence[HeadSpectrum], path: Path | str) -> Path:
    """Write spectra as the file's ending says.

    .npz: arrays `layer`, `head`, `module` and `singular_values`, one row a head, NaN where a head has fewer than
    another; .csv: a line for each singular value; .json: a list of records.
    """
    file = make_parents(require_spectra_file(path))
    if file.suffix.lower() == ".npz":
        import numpy as np

        most = max((len(one.singular_values) for one in spectra), default=0)
        values = np.full((len(spectra), most), np.nan)
        for row, one in enumerate(spectra):
            values[row, : len(one.singular_values)] = one.singular_values
        columns: dict[str, Any] = {
            "layer": np.array([one.layer for one in spectra]),
            "head": np.array([one.head for one in spectra]),
            "module": np.array([one.module for one in spectra], dtype=np.str_),
            "singular_values": values,
        }
        with file.open("wb") as stream:
            np.savez(stream, **columns)
    elif file.suffix.lower() == ".csv":
        import pandas as pd

        pd.DataFrame([line for one in spectra for line in one.lines()]).to_csv(file, index=False)
    else:
        file.write_text(json.dumps([one.record() for one in spectra], indent=1), encoding="utf-8")
    return file
