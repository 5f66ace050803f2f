"""Linear algebra that the rooms below share: factored products and spectra."""

from rankfall.linalg.factored import Factored
from rankfall.linalg.spectra import gram_eigenvalues, singular_values, smaller_gram

__all__ = ["Factored", "gram_eigenvalues", "singular_values", "smaller_gram"]
