"""Sweeps that are killed, starved of room, moved and damaged until they have proved that nothing is lost or doubled."""
