"""``stepwise up`` for schedules, with a clock that a test sets: ``scheduled.py CLOCK``."""

import sys
from datetime import timedelta

from stepwise._runtime import clock

SCHEDULES = {
    "hourly": ("0 * * * *", "Europe/Zurich"),
    "nightly": ("30 2 * * *", "America/New_York"),
    "early": ("45 1 * * *", "Australia/Lord_Howe"),
    "quarterly": (timedelta(hours=6), None),
}


def told():
    """The time of day, as the test wrote it into a file."""
    with open(sys.argv[1], encoding="ascii") as file:
        return float(file.read())


if __name__ == "__main__":
    clock.now = told  # before a module takes the function

    from stepwise import cli

    cli.main(["up", "scheduled_jobs"])
