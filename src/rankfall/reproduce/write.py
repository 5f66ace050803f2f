"""Write what a reproduction gave: picture in three formats, tables as CSV, everything else as one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankfall.drawing.canvas import FORMATS, save
from rankfall.provenance import provenance
from rankfall.reproduce.base import Outcome, Reproduction, Scale


def record(figure: Reproduction, outcome: Outcome, scale: Scale, seconds: float) -> dict[str, Any]:
    """The outcome as one record: what `--json` prints and what the folder keeps."""
    return {
        "id": figure.id,
        "title": figure.title,
        "statements": list(figure.statements),
        "scale": scale,
        "agrees": outcome.agrees,
        "points": [dict(point) for point in outcome.points],
        "claims": [asdict(claim) for claim in outcome.claims],
        "notes": list(outcome.notes),
        "seconds": seconds,
        "provenance": provenance(f"rankfall reproduce {figure.id} --scale {scale}"),
    }


def write(folder: Path, outcome: Outcome, written: dict[str, Any]) -> list[Path]:
    """Write the files into `folder`/<id>/ and return their paths, the picture first."""
    import pandas as pd

    target = folder / written["id"]
    target.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    if outcome.draw is not None:
        drawn = outcome.draw()
        paths += [save(drawn, target / f"figure{ending}") for ending in FORMATS]
    tables = {"points": pd.DataFrame(written["points"]), **outcome.tables}
    for name, table in tables.items():
        path = target / f"{name}.csv"
        table.to_csv(path, index=False)
        paths.append(path)
    outcome_path = target / "outcome.json"
    outcome_path.write_text(json.dumps(written, indent=1, default=str) + "\n")
    return [*paths, outcome_path]
