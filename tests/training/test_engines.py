"""The engines are listed, and nothing of a sweep needs a library that its work does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rankfall.catalogue import ENGINES
from rankfall.training import engines


def test_every_engine_file_is_listed() -> None:
    files = {path.stem for path in Path(engines.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert files == set(ENGINES)


def test_training_and_store_import_without_optional_libraries() -> None:
    absent = ("duckdb", "beartype", "ray", "gguf", "tensorboard", "matplotlib", "transformers")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}));"
        "import rankfall.store, rankfall.training.sweep, rankfall.training.grid, rankfall.training.engines.ray;"
        "import rankfall.cli.sweep, rankfall.cli.runs; print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr
