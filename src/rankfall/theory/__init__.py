"""Predict: harmonics, kernels, bounds and rates as numbers, in float64, with their hypotheses."""

from rankfall.theory.biased import biased_floor, biased_heads_needed, biased_spectrum, norm_statement
from rankfall.theory.hardmax import agreement, best_weights, error_of, target_overlap
from rankfall.theory.harmonics import dimension, gegenbauer, sign_spectrum
from rankfall.theory.head_class import HeadClass
from rankfall.theory.head_floor import Floor, mse_floor
from rankfall.theory.heads_needed import heads_needed
from rankfall.theory.one_head import full_rank_error, scale_for_error
from rankfall.theory.plateaus import plateau
from rankfall.theory.representing import weight_function
from rankfall.theory.votes import majority_error

__all__ = [
    "Floor",
    "HeadClass",
    "agreement",
    "best_weights",
    "biased_floor",
    "biased_heads_needed",
    "biased_spectrum",
    "dimension",
    "error_of",
    "full_rank_error",
    "gegenbauer",
    "heads_needed",
    "majority_error",
    "mse_floor",
    "norm_statement",
    "plateau",
    "scale_for_error",
    "sign_spectrum",
    "target_overlap",
    "weight_function",
]
