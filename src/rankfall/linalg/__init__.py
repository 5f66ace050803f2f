"""Linear algebra that the rooms below share: factored products and spectra."""
