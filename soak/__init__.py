"""Sweeps that are killed, starved of room, moved and damaged until it is clear that nothing is lost or doubled."""
