"""What the numbers mean, in words, with the thresholds that decided."""
