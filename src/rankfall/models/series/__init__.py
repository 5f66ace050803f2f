"""Many checkpoints: which ones are meant, audits that are made once and kept, and what they say over training."""
