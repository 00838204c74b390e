"""A program of steps in steps that fail and are retried, and a model of what answers in them.

A program is a list of parts: ``["plain", n]`` asks a model, which answers another number each time;
``["effect", n]`` does something outside with the last answer; ``["fail", n, "0110"]`` raises the
second and third time; ``["kill", n, "01"]`` kills the process the second time;
``["step", n, retries, parts]`` is a step.
What happened outside lies in a folder, one byte for each time.
"""

import json
import os
import pathlib
import signal
import sys

import stepwise
from stepwise import step, tool, workflow


class World:
    """What happens outside of the program, and stays when it dies."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def times(self, name):
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def happens(self, name):
        with (self.folder / name).open("ab") as file:
            file.write(b"x")
        return self.times(name)


class Failed(Exception):
    """A part failed."""


world: World


@step
def plain(name):
    return world.happens(f"plain{name}")


@tool(side_effect=True)
def effect(name, value):
    world.happens(f"effect{name}")
    return value


def body(name, parts):
    return execute(parts)


STEPS = [step(name=f"retried{n}", retries=n, backoff=0, retry_on=Failed)(body) for n in range(3)]


def execute(parts):
    value, done = 0, []
    for kind, name, *more in parts:
        if kind == "plain":
            value = plain(name)
        elif kind == "effect":
            done.append(effect(name, value))
        elif kind == "step":
            done.append(STEPS[more[0]](name, more[1]))
        elif is_due(more[0], world.happens(f"{kind}{name}")):
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise Failed(name)
    return [*done, value]


def is_due(pattern, count):
    """Whether a part of this pattern does something the ``count``-th time."""
    return count <= len(pattern) and pattern[count - 1] == "1"


@workflow
def program(parts):
    return execute(parts)


# -- the model -------------------------------------------------------------------------------------


class Killed(Exception):
    """The modelled process died."""


class Model:
    """What the same program does outside, if the rule holds; values are counts of calls."""

    def __init__(self):
        self.counts = {}
        self.records = []  # kind, name and value, in the order of the journal
        self.met = set()  # the calls that the process has made or had answered

    def happens(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.counts[name]

    def answer(self, kind, name):
        return next((each for each in self.records if each[:2] == (kind, name)), None)

    def execute(self, parts):
        value, done = 0, []
        for kind, name, *more in parts:
            known = self.answer(kind, name)
            if known is not None:
                result = known[2]
            elif kind == "step":
                result = self.attempts(*more)
            else:
                count = self.happens(f"{kind}{name}")
                if kind in ("fail", "kill"):
                    if is_due(more[0], count):
                        raise Killed if kind == "kill" else Failed(name)
                    continue
                result = count if kind == "plain" else value
            self.met.update(names_in([[kind, name, *more]]))
            if known is None:
                self.records.append((kind, name, result))
            if kind == "plain":
                value = result
            else:
                done.append(result)
        return [*done, value]

    def attempts(self, retries, parts):
        for attempt in range(retries + 1):
            try:
                return self.execute(parts)
            except Failed:
                self.fail(set(names_in(parts)))
                if attempt == retries:
                    raise
        raise AssertionError

    def fail(self, inside):
        """Supersede what was recorded inside a failed step after its last side effect."""
        made = [n for n, each in enumerate(self.records) if each[:2] in inside]
        last = max((n for n in made if self.records[n][0] == "effect"), default=-1)
        gone = {n for n in made if n > last and self.records[n][:2] in self.met}
        self.records = [each for n, each in enumerate(self.records) if n not in gone]

    def to_end(self, parts):
        """Start it until it completes; return its result, and how often it was started."""
        starts = 0
        while True:
            starts += 1
            self.met = set()
            try:
                return self.execute(parts), starts
            except (Failed, Killed):
                pass


def names_in(parts):
    """The kind and name of each call in parts, to any depth."""
    for kind, name, *more in parts:
        yield kind, name
        if kind == "step":
            yield from names_in(more[1])


def named(shape, numbers):
    """Give each part of a drawn program a name of its own."""
    parts = []
    for kind, *more in shape:
        name = str(next(numbers))
        if kind == "step":
            more[1] = named(more[1], numbers)
        parts.append([kind, name, *more])
    return parts


if __name__ == "__main__":
    folder, parts = sys.argv[1], json.loads(sys.argv[2])
    stepwise.configure(store=f"disk:{folder}/store")
    world = World(folder)
    try:
        print(json.dumps(program.options(run_id="r")(parts)))
    except Failed:
        sys.exit(3)
