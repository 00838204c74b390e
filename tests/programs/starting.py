"""A job of two agents and a counter: started by cron, or by a server that recovers what crashed."""

import sys

import world

import stepwise
from stepwise import step, tool, workflow


class Agent:
    def __init__(self, name):
        self.name = name
        self.seen = []

    @step
    def think(self, n: int) -> int:
        self.seen.append(n)
        return world.doing(f"think({self.name}, {n})", n + len(self.seen))

    @tool(side_effect=True)
    def say(self, text: str) -> str:
        return world.doing(f"say({text})", text.upper())


def counter(word):
    count = 0

    @step
    def advance(by: int) -> str:
        nonlocal count
        count += by
        return world.doing(f"advance({word}, {by}, {count})", f"{word} {count}")

    return advance


def work(task):
    first, second, seen = Agent("ann"), Agent("bob"), []
    up, down = counter("up"), counter("down")
    for n in range(2):
        for agent in (first, second):
            thought = agent.think(n)
            world.got(f"think({agent.name}, {n})")
            seen.append(agent.say(f"{agent.name} {task} {thought}"))
            world.got(f"say({agent.name} {task} {thought})")
        seen += [up(1), down(-1)]
        world.got(f"advance(down, -1, {-n - 1})")
    return [seen, first.seen, second.seen, up(0), down(0)]


@workflow(start="unfinished")
def nightly(task: str) -> list:
    return work(task)


@workflow(start="new")
def request(task: str) -> list:
    return work(task)


def completed():
    """The results of completed runs: a job that is done is not started again."""
    return [run.result for run in stepwise.runs() if run.status == "completed"]


def cron():
    return [*completed(), *([] if completed() else [nightly("task")])]


def server():
    for handle in stepwise.recover():
        handle.result()
    return [*completed(), *([] if completed() else [request("task")])]


if __name__ == "__main__":
    world.main({"cron": cron, "server": server}[sys.argv[1]])
