"""Every attention call of a model, as it happens, through the library's own attention interface."""

from rankfall.audit.interface.call import Call, Source
from rankfall.audit.interface.coverage import Coverage, Missed
from rankfall.audit.interface.modules import attention_modules, expected_attention_layers, speaks_interface
from rankfall.audit.interface.recording import Recording, recorded
from rankfall.audit.interface.route import Route, routed

__all__ = [
    "Call",
    "Coverage",
    "Missed",
    "Recording",
    "Route",
    "Source",
    "attention_modules",
    "expected_attention_layers",
    "recorded",
    "routed",
    "speaks_interface",
]
