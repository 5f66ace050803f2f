"""Every reproduction there is, in the papers' order. Modules are imported only when asked for."""

from __future__ import annotations

import importlib

from rankfall.errors import RequestError
from rankfall.reproduce.base import Reproduction

# One line per figure: its id, and the module in this folder whose `REPRODUCTION` it is.
ALL_REPRODUCTIONS: dict[str, str] = {
    "amsel/table1": "amsel_table1",
    "amsel/fig1": "amsel_fig1",
    "amsel/fig2": "amsel_fig2",
    "amsel/fig3": "amsel_fig3",
    "amsel/fig4": "amsel_fig4",
    "amsel/fig5": "amsel_fig5",
    "amsel/random-features": "amsel_random_features",
    "amsel/in-context": "amsel_in_context",
    "wu/fig1": "wu_fig1",
    "wu/fig2": "wu_fig2",
    "wu/fig2-pretrained": "wu_fig2_pretrained",
    "wu/fig3": "wu_fig3",
    "wu/fig4": "wu_fig4",
    "rankfall/equilibria": "rankfall_equilibria",
    "rankfall/depth": "trained_depth",
    "rankfall/rate-vs-radius": "rate_vs_radius",
    "rankfall/theory-gap": "theory_gap",
    "rankfall/vote-quality": "vote_quality",
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
