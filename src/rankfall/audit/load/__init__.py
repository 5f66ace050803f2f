"""Open a model without trusting it: safetensors or GGUF only, no code, nothing outside its folder."""

from rankfall.audit.load.loaded import LoadedModel
from rankfall.audit.load.names import ALL_NAMES, DEFAULT_NAME
from rankfall.audit.load.open import open_model

__all__ = ["ALL_NAMES", "DEFAULT_NAME", "LoadedModel", "open_model"]
