"""The two real models, where `make models` or RANKFALL_MODELS has put them."""

from __future__ import annotations

import pytest

from rankfall.errors import RequestError
from rankfall.models.load.named import named_path


def needs(name: str) -> pytest.MarkDecorator:
    """Skip, saying so, where the model is not installed."""
    try:
        named_path(name)
    except RequestError as missing:
        return pytest.mark.skipif(True, reason=f"{name} is not installed: {missing.remedy}")
    return pytest.mark.skipif(False, reason="")
