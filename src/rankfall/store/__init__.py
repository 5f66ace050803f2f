"""Runs and where they are kept: a configuration is its name, and a run is complete or does not exist."""
