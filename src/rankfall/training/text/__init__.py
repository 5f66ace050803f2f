"""Language models on text: corpora, decoders of independent heads, ranks and value widths, and their training."""
