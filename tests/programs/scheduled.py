"""``stepwise up`` for schedules, with a clock that a test sets: ``scheduled.py CLOCK LOG``."""

import os
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

    from stepwise import cli, step, workflow

    @step
    def log(name, instant):
        """Write a line, whole even if another process writes."""
        file = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{name} {instant}\n".encode())
        os.close(file)

    def scheduled(name):
        """A workflow that logs its instant."""
        every, timezone = SCHEDULES[name]

        @workflow(
            name=name, every=every, timezone=timezone, missed="all", durability="os",
            arguments=lambda at: (int(at.timestamp()),),
        )  # fmt: skip
        def body(instant):
            log(name, instant)

        return body

    workflows = [scheduled(name) for name in SCHEDULES]
    held = workflows[0]
    sys.modules["scheduled"] = sys.modules["__main__"]
    cli.main(["up", "scheduled"])
