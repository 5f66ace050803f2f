"""Real models, where `make models`, `make models-all` or RANKFALL_MODELS has put them."""

from __future__ import annotations

import pytest

from rankfall.catalogue import NAMED_MODELS
from rankfall.models.load.named import installed


def needs(name: str) -> pytest.MarkDecorator:
    """Skip, saying so, where the model is not installed."""
    wanted = "make models" if NAMED_MODELS[name].light else "make models-all"
    return pytest.mark.skipif(not installed(name), reason=f"{name} is not installed: run `{wanted}`")
