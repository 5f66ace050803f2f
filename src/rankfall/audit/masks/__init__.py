"""The pattern that each layer's attention really used, as one of the foundation's masks."""

from rankfall.audit.masks.observe import ObservedMask, observe_masks
from rankfall.audit.masks.rate import uniform_rate
from rankfall.audit.masks.recognise import recognise

__all__ = ["ObservedMask", "observe_masks", "recognise", "uniform_rate"]
