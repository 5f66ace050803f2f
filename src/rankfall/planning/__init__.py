"""Choose heads and rank for a width: candidates at equal parameters and equal FLOPs, with costs, floors and times."""
