"""The verdict of an audit: questions asked of numbers per passage, their answers, and what stands beside them."""
