"""The rank of every head of a real model, by probing its attention modules or by reading its weights."""
