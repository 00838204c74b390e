"""``python -m stepwise``: the command line, where its script is not on the path."""

from stepwise.cli import run

if __name__ == "__main__":
    run()
