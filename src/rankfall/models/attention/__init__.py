"""Attention weights themselves: entropy, where the mass goes, logits, spectra, and which heads do nothing."""
