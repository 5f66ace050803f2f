"""rankfall: see where a transformer loses rank, predict it, and choose an architecture that keeps it."""

__version__ = "0.1.0"
