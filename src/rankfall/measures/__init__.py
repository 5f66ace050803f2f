"""Measures of token rank: one file each, all from one decomposition per batch."""
