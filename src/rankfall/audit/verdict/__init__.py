"""What the numbers mean, in words, with the thresholds that decided."""

from rankfall.audit.verdict.judge import Verdict, judge
from rankfall.audit.verdict.reason import Reason
from rankfall.audit.verdict.thresholds import THRESHOLDS, Thresholds

__all__ = ["THRESHOLDS", "Reason", "Thresholds", "Verdict", "judge"]
