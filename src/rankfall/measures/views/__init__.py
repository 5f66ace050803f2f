"""Three views of the same tokens, measured together: raw, unit and centred."""
