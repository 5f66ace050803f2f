"""Choose heads and rank for a width: candidates at equal parameters and equal FLOPs, with costs, floors and times."""

from rankfall.training.planning.accuracy import accuracy_column
from rankfall.training.planning.candidates import Candidate, candidates
from rankfall.training.planning.costs import StackShape
from rankfall.training.planning.table import IMPLICATIONS, Column, plan
from rankfall.training.planning.timing import Stopwatch, Timing

__all__ = [
    "IMPLICATIONS",
    "Candidate",
    "Column",
    "StackShape",
    "Stopwatch",
    "Timing",
    "accuracy_column",
    "candidates",
    "plan",
]
