"""Tasks that models are trained on: what is drawn, what is asked, all from counted random streams."""
