"""Train many models as one program, keep what they gave, and sweep whole grids, here or on Ray."""
