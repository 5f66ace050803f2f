"""Measures of token rank: what they are, and the one profile that all of them read."""
