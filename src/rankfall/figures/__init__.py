"""Compare: one file per figure or table of the papers, published values beside ours, and a verdict."""
