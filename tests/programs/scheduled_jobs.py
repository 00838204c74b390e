"""Workflows with schedules, which write each instant into the file of ``LOG``."""

import os

from scheduled import SCHEDULES

from stepwise import step, workflow


@step
def log(name, instant):
    """Write a line, whole even if another process writes."""
    file = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{name} {instant}\n".encode())
    os.close(file)


def scheduled(name):
    """Return a workflow that logs its instant."""
    every, timezone = SCHEDULES[name]

    @workflow(
        name=name, every=every, timezone=timezone, missed="all", durability="os",
        arguments=lambda at: (int(at.timestamp()),),
    )  # fmt: skip
    def body(instant):
        log(name, instant)

    return body


hourly, nightly, early, quarterly = map(scheduled, SCHEDULES)
