"""Measure: what depth does to tokens. One layer step, the simulator, rates."""

from rankfall.dynamics.rule import Rule
from rankfall.dynamics.step import step

__all__ = ["Rule", "step"]
