"""A program whose unfinished runs version a6cd4d2 has left in ``tests/data``.

``archive()`` made them, with that version: each run is killed where ``CRASH`` is asked for.  All
that was recorded lies in a block that replays, so the records themselves have to answer.
"""

import os
import sys
import tarfile

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


def main():
    print("result", {"one": one, "two": two, "two_sides": two_sides}[sys.argv[1]]("tides"))


def archive(home, path):
    """Put what the store holds into a small archive."""
    with tarfile.open(path, "w:xz") as file:
        for name in sorted(os.listdir(home)):
            file.add(os.path.join(home, name), arcname=name)
