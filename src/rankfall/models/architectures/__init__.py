"""The architectures of the installed library: their shapes, small random ones, which can be audited."""
