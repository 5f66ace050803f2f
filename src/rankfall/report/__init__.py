"""Show: figures, tables and one self-contained HTML file, built from one description of what a report says."""
