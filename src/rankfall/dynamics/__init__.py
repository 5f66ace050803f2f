"""Measure: what depth does to tokens. One layer step, the simulator exact far below machine epsilon, rates."""
