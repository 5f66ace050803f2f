"""Fused attention for many small heads over short sequences, in Triton; nothing here imports it before it is needed."""
