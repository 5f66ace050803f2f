"""Tasks that models are trained on: what is drawn, what is scored, all from counted random streams."""
