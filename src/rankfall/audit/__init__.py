"""Observe: real models as they are. Load safely, capture by streaming, probe heads, ablate, monitor."""

from rankfall.audit.audit import audit
from rankfall.audit.load import LoadedModel, open_model
from rankfall.audit.result import AuditResult

__all__ = ["AuditResult", "LoadedModel", "audit", "open_model"]
