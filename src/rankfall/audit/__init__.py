"""Observe: real models as they are."""
