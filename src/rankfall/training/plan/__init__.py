"""Choose heads and rank for a width: candidates at equal parameters and equal FLOPs, with costs, floors and times."""

from rankfall.training.plan.candidates import Candidate, candidates
from rankfall.training.plan.costs import StackShape
from rankfall.training.plan.table import IMPLICATIONS, Column, plan
from rankfall.training.plan.timing import Stopwatch, Timing

__all__ = ["IMPLICATIONS", "Candidate", "Column", "StackShape", "Stopwatch", "Timing", "candidates", "plan"]
