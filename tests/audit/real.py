"""The two real models, where `make models` or RANKFALL_MODELS has put them."""

from __future__ import annotations

import pytest

from rankfall.audit.load.names import named_path
from rankfall.errors import RequestError


def needs(name: str) -> pytest.MarkDecorator:
    """Skip, saying so, where the model is not installed."""
    try:
        named_path(name)
    except RequestError as missing:
        return pytest.mark.skipif(True, reason=f"{name} is not installed: {missing.remedy}")
    return pytest.mark.skipif(False, reason="")
