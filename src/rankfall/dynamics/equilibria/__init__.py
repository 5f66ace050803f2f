"""Equilibria measured: the Jacobian on the product of spheres, stability, Newton's method, all ranks of a layer."""

from rankfall.dynamics.equilibria.document import read_document, to_document
from rankfall.dynamics.equilibria.examine import Examined, examine, examine_construction
from rankfall.dynamics.equilibria.jacobian import jacobian, tangent_bases
from rankfall.dynamics.equilibria.ladder import ladder
from rankfall.dynamics.equilibria.newton import Polished, polish
from rankfall.dynamics.equilibria.recovery import Recovery, recovery
from rankfall.dynamics.equilibria.stability import Stability, multipliers, stability

__all__ = [
    "Examined",
    "Polished",
    "Recovery",
    "Stability",
    "examine",
    "examine_construction",
    "jacobian",
    "ladder",
    "multipliers",
    "polish",
    "read_document",
    "recovery",
    "stability",
    "tangent_bases",
    "to_document",
]
