"""Every reproduction there is, in the papers' order. Modules are imported only when asked for."""

from __future__ import annotations

import importlib

from rankfall.errors import RequestError
from rankfall.reproduce.base import Reproduction

# One line per figure: its id, and the module in this folder whose `REPRODUCTION` it is.
ALL_REPRODUCTIONS: dict[str, str] = {
    "amsel/fig5": "amsel_fig5",
    "amsel/random-features": "amsel_random_features",
    "wu/fig2-pretrained": "wu_fig2_pretrained",
    "wu/fig4": "wu_fig4",
    "rankfall/theory-gap": "theory_gap",
}


def find(identity: str) -> Reproduction:
    """The reproduction of that id, or an error that lists them."""
    if identity not in ALL_REPRODUCTIONS:
        raise RequestError(
            required=f"a figure among {', '.join(ALL_REPRODUCTIONS)}",
            got=identity,
            remedy="name one of these, or none for all",
        )
    module = importlib.import_module(f"rankfall.reproduce.{ALL_REPRODUCTIONS[identity]}")
    found: Reproduction = module.REPRODUCTION
    return found
