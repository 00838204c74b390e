"""Workflows that are methods: of an instance that holds a client and changes, and of a class."""

import sys
import threading

import world

from stepwise import step, tool, workflow


class Agent:
    greeting = "hello"

    def __init__(self, name):
        self.name = name
        self.client = threading.Lock()  # cannot be pickled
        self.seen = []
        self.count = 0

    @step
    def think(self, n: int) -> int:
        with self.client:
            return world.doing(f"think({n})", n + 1)

    @tool(side_effect=True)
    def say(self, text: str) -> str:
        with self.client:
            return world.doing(f"say({text})", text.upper())

    @classmethod
    @step
    def greet(cls, n: int) -> str:
        return world.doing(f"greet({n})", f"{cls.greeting} {n}")

    @staticmethod
    @tool(side_effect=True)
    def wave(n: int) -> int:
        return world.doing(f"wave({n})", n * 2)

    @workflow
    def run(self, rounds: int) -> list:
        for n in range(rounds):
            self.count += self.think(n)
            world.got(f"think({n})")
            self.seen.append(self.say(f"{self.name} {self.count}"))
            world.got(f"say({self.name} {self.count})")
            self.seen.append(self.greet(n))
            world.got(f"greet({n})")
        self.last = self.wave(self.count)
        world.got(f"wave({self.count})")
        with self.client:
            return [self.seen, self.count, self.last]

    @workflow
    @classmethod
    def of_class(cls, n: int) -> list:
        found = [cls.greet(n)]
        world.got(f"greet({n})")
        found.append(cls.wave(n))
        world.got(f"wave({n})")
        found.append(cls.of_none(n + 1))
        return found

    @workflow
    @staticmethod
    def of_none(n: int) -> list:
        found = [Agent.greet(n)]
        world.got(f"greet({n})")
        found.append(Agent.wave(n))
        world.got(f"wave({n})")
        return found


def main():
    agent = Agent("ann")
    return [agent.run(2), agent.seen, agent.count, agent.last, agent.client.locked()]


if __name__ == "__main__":
    world.main({"run": main, "of_class": lambda: Agent.of_class(10)}[sys.argv[1]])
