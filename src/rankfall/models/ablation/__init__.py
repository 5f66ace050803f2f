"""Which part of a block holds the token rank up."""
