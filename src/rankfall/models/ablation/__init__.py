"""Which part of a block holds the token rank up: attention alone, with the norm, with the residual, with both."""
