"""What a model reads: texts as ids, how a module is called, which positions are tokens."""
