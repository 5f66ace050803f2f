"""A-rf: the best combination of many random rank-1 hardmax heads, exactly, in bounded memory."""

from rankfall.theory.random_features.designs import ALL_DESIGNS, draw_heads
from rankfall.theory.random_features.fit import Fit, error_curve, fit
from rankfall.theory.random_features.learning_curve import predicted_error

__all__ = ["ALL_DESIGNS", "Fit", "draw_heads", "error_curve", "fit", "predicted_error"]
