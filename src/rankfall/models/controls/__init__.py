"""Something to compare with: random weights, shuffled tokens, random tokens."""
