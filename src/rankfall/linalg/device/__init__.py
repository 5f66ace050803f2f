"""Linear algebra on GPUs, many small problems at once."""
