"""`python -m rankfall` is the same as `rankfall`."""

from rankfall.cli.main import run

if __name__ == "__main__":
    run()
