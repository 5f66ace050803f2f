"""Equilibria measured: the Jacobian on the product of spheres, stability, Newton's method."""

from rankfall.dynamics.equilibria.examine import Examined, examine, examine_construction
from rankfall.dynamics.equilibria.jacobian import jacobian, tangent_bases
from rankfall.dynamics.equilibria.newton import Polished, polish
from rankfall.dynamics.equilibria.stability import Stability, stability

__all__ = [
    "Examined",
    "Polished",
    "Stability",
    "examine",
    "examine_construction",
    "jacobian",
    "polish",
    "stability",
    "tangent_bases",
]
