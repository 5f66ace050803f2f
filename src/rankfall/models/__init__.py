"""Observe: real models as they are. Load safely, capture by streaming, probe heads, ablate, monitor."""
