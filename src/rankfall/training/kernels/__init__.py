"""Fused attention for many small heads over short sequences; nothing here imports Triton before it is needed."""
