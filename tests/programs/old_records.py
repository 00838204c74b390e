"""A program whose unfinished runs version a6cd4d2 has left in ``tests/data``.

``archive()`` made them, with that version: each run is killed where ``CRASH`` is asked for.  In
most of them all that was recorded lies in a block that replays, so the records themselves have to
answer; ``outer`` resumes inside, and its variables are of kinds that need a function of stepwise.
"""

import os
import re
import sys
import tarfile
import threading

from stepwise import step, tool, workflow


def did(*what):
    """Say what a body does."""
    print("did", *what, flush=True)


def crash():
    if os.environ.get("CRASH"):
        os._exit(9)


class Agent:
    def __init__(self, name):
        self.name = name
        self.seen = []

    @step
    def think(self, question):
        did("think", self.name, question)
        return f"{self.name} thinks {question}"

    @tool(side_effect=True)
    def say(self, text):
        did("say", self.name, text)
        return f"{self.name} said {text}"


@step
def fetch(number, unit="m"):
    did("fetch", number)
    return f"{number} {unit}"


def make(unit):
    @step
    def convert(number):
        did("convert", number)
        return f"{number} in {unit}"

    return convert


in_feet = make("ft")


@workflow
def child(number):
    return fetch(number)


@workflow(name="one")
def one(task):
    """One instance, and one function of each name."""
    agent = Agent("ann")
    with open(os.devnull):
        found = [fetch(1), agent.think(task), agent.say(task), child(2), in_feet(3)]
        found.append(agent.think(task))
        crash()
        found.append(agent.say("the end"))
    return found


@workflow(name="two")
def two(task):
    """Two instances, of which the second was asked first."""
    ann, bob = Agent("ann"), Agent("bob")
    with open(os.devnull):
        if os.environ.get("CRASH"):
            bob.think(task)
            crash()
        return [ann.think(task), bob.think(task)]


@workflow(name="two_sides")
def two_sides(task):
    """The same with side effects."""
    ann, bob = Agent("ann"), Agent("bob")
    with open(os.devnull):
        if os.environ.get("CRASH"):
            bob.say(task)
            crash()
        return [ann.say(task), bob.say(task)]


class Refused(Exception):
    def __init__(self, what, *, why):
        super().__init__(what)
        self.why = why


class Kept:
    """An argument: it comes back as the caller's object."""


@workflow(name="inner")
def inner(number, kept):
    kept.number = number
    found, views = re.search("t.d", "the tides"), {"a": number}.keys()
    ended = threading.Thread(target=did, args=("thread",))
    ended.start()
    ended.join()
    try:
        raise Refused("no", why="late")
    except Refused as error:
        refused = error
    items = iter([1, 2, 3])
    next(items)

    def doubled(more):
        return number * 2 + more

    fetched = fetch(number)
    crash()
    alive = ended.is_alive()
    return [found[0], *views, alive, refused.why, *items, doubled(1), fetched, kept.number]


@workflow(name="outer")
def outer(task):
    first = fetch(1)
    did("between")
    kept = Kept()
    second = inner(7, kept)
    return [task, first, second, kept.number]


def main():
    flows = {"one": one, "two": two, "two_sides": two_sides, "outer": outer}
    print("result", flows[sys.argv[1]]("tides"))


def archive(home, path):
    """Put what the store holds into a small archive."""
    with tarfile.open(path, "w:xz") as file:
        for name in sorted(os.listdir(home)):
            file.add(os.path.join(home, name), arcname=name)
