"""rankfall: see where a transformer loses rank, predict it, and choose an architecture that keeps it."""

from __future__ import annotations

__version__ = "0.1.0"
