"""Explicit layers and tokens that stay as they are under LayerNorm (B-thm3), and what lies outside B-thm2."""
