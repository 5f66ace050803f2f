"""Predict: harmonics, kernels, bounds and rates as numbers, in float64, with their hypotheses."""
