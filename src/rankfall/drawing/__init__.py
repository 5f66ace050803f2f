"""Drawing: one style for every picture, vector files for papers. Matplotlib is imported when something is drawn."""
