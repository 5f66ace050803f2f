"""Weights in pickled files (.bin, .pt): read in a process of their own, kept as safetensors, never unpickled here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError
from rankfall.models.load import unpickle
from rankfall.models.load.converted import folder_beside, kept_place
from rankfall.models.load.guards import GIBI, LIMITS, require_size

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Raised when the conversion changes, so that old copies are not used.
CONVERSION = 1


def as_safetensors(path: Path) -> Path:
    """The tensors of a pickled file as safetensors, kept under the hash of its bytes."""
    require_size(path, LIMITS.download_bytes)
    kept = kept_place(path, f"tensors-{CONVERSION}.safetensors")
    if not kept.exists():
        with folder_beside(kept) as made:
            _convert(path, made / kept.name)
            (made / kept.name).replace(kept)
    return kept


def _convert(path: Path, out: Path) -> None:
    size = path.stat().st_size
    asked = {
        "path": str(path.resolve()),
        "out": str(out),
        "memory": 4 * size + GIBI,
        "seconds": int(LIMITS.seconds),
        "modules": [place for place in sys.path if place],
    }
    # -I: nothing of the user's environment, nothing from the folder it runs in.
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(Path(unpickle.__file__)), json.dumps(asked)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=out.parent,
        timeout=LIMITS.seconds,
        check=False,
    )
    why = _answer(done.stdout).get("refused") or ("" if done.returncode == 0 else _death(done.returncode))
    if why or not out.is_file():
        raise RequestError(
            required=f"only tensors in {path.name}",
            got=why or "no answer from the process that read it",
            remedy="save the model with safe_serialization=True, or name a copy of it with safetensors",
        )


def _answer(said: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(said.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _death(status: int) -> str:
    return f"the process that read it ended with status {status}: out of memory or time"
