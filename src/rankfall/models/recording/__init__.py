"""One run of a model taken down: where its blocks and its attention are, what they computed, again alone."""
