"""Speed, as ratios measured in one run. `python -m benchmarks` runs all, `python -m benchmarks NAME ...` some."""
