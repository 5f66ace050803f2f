"""The command line: one file per verb. Each parses, calls and prints; none computes."""
