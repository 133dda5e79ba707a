"""`python -m edge_fl`: the same as the `edge-fl` command."""

from edge_fl.cli.main import run

if __name__ == "__main__":
    run()
