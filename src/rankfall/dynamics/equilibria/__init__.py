"""Equilibria measured: the Jacobian on the product of spheres, stability, Newton's method, all ranks of a layer."""
