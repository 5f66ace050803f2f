"""Token rank by depth: captured block by block, measured while the model runs, averaged over texts."""
