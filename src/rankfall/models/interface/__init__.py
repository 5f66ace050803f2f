"""Every attention call of a model, as it happens, through the library's own attention interface."""
