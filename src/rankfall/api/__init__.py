"""The public functions, one file each: what `import rankfall` offers, and what the command line calls."""
