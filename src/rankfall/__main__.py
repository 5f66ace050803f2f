"""`python -m rankfall` is the same as `rankfall`."""

from __future__ import annotations

from rankfall.cli.main import run

if __name__ == "__main__":
    run()
