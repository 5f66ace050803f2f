"""The interactive page: what it computes and draws are pure functions, `page.py` only lays them out."""
