"""Explicit weights that realise a theorem of paper A, each naming the statement and the error that it must have."""
