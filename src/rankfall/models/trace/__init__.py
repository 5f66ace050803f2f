"""One forward pass taken apart: what each attention module was given and what ran around it; replays in float64."""
