"""What a model is, whatever it is called and wherever it lies: the contents of the files that an audit reads.

Paths and times do not count, so that a copy is the same model, and two checkpoints of equal size, shape and date are
not. Every byte counts; the store remembers checksums of large files by path, size and times, so that each is read
once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from rankfall.errors import require
from rankfall.models.load.files import INDEX
from rankfall.models.load.pickles import PICKLES
from rankfall.models.load.tokenizer import TOKENIZER_FILES, TOKENIZER_TABLES

NAMED = {"config.json", "adapter_config.json", INDEX, *TOKENIZER_FILES, *TOKENIZER_TABLES}
WEIGHTS = (".safetensors", ".gguf", *PICKLES)
# What trainers leave beside a checkpoint's weights to go on from; an audit never reads it.
TRAINING_STATE = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")


def files_of(path: Path) -> dict[str, Path]:
    """The files that make up a model, by name: a GGUF file alone, or those of a folder that a loader may read."""
    if path.is_file():
        return {"": path}
    found = {one.name: one for one in sorted(path.iterdir()) if one.is_file() and _counts(one.name)}
    require(
        bool(found),
        required=f"a model in {path.name}",
        got="a folder without configuration or weights",
        remedy="name a folder that holds a model",
    )
    return found


def _counts(name: str) -> bool:
    return name in NAMED or (name.endswith((*WEIGHTS, ".index.json")) and not name.startswith(TRAINING_STATE))


def fingerprint(files: Mapping[str, Path], digest: Callable[[Path], str]) -> str:
    """SHA-256 over names and contents; `digest` gives that of one file."""
    lines = "".join(f"{name}\n{digest(path)}\n" for name, path in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
