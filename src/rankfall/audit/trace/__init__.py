"""One forward pass taken apart: what each attention module was given and what ran around it; replays in float64."""

from rankfall.audit.trace.modules import is_linear, is_norm
from rankfall.audit.trace.precision import KeepFloat64
from rankfall.audit.trace.record import Trace, traced
from rankfall.audit.trace.replay import Passed, Replay
from rankfall.audit.trace.sample import sample_inputs
from rankfall.audit.trace.site import Ran, Site

__all__ = [
    "KeepFloat64",
    "Passed",
    "Ran",
    "Replay",
    "Site",
    "Trace",
    "is_linear",
    "is_norm",
    "sample_inputs",
    "traced",
]
