"""Language models of a store: audited, and exported as folders that other tools open."""
