"""Measure: what depth does to tokens. One layer step, the simulator exact far below machine epsilon, rates."""

from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.ordinary import OrdinaryFloor
from rankfall.dynamics.rate import MeasuredRate, measured_rate
from rankfall.dynamics.recorder import DEFAULT_MEASURES
from rankfall.dynamics.rule import PURE_ATTENTION, Rule
from rankfall.dynamics.simulate import Simulation, simulate
from rankfall.dynamics.split import Split, split
from rankfall.dynamics.split_step import split_step
from rankfall.dynamics.start import counterexample_tokens, random_tokens
from rankfall.dynamics.step import step
from rankfall.dynamics.weights import (
    ALL_QUERY_KEYS,
    ALL_VALUES,
    DrawnWeights,
    GivenWeights,
    Recipe,
    SharedWeights,
    Weights,
    generator_for,
)

__all__ = [
    "ALL_QUERY_KEYS",
    "ALL_VALUES",
    "DEFAULT_MEASURES",
    "PURE_ATTENTION",
    "DrawnWeights",
    "GivenWeights",
    "MaskPlan",
    "MeasuredRate",
    "OrdinaryFloor",
    "Recipe",
    "Rule",
    "SharedWeights",
    "Simulation",
    "Split",
    "Weights",
    "counterexample_tokens",
    "generator_for",
    "measured_rate",
    "random_tokens",
    "simulate",
    "split",
    "split_step",
    "step",
]
