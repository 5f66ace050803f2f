"""A-rf: the best combination of many random rank-1 hardmax heads, exactly, in bounded memory."""
