"""A program that says something while it works, as ``python saying.py KIND``; it is killed.

What a step says names its process and attempt, so that what is said twice is told apart.
"""

import asyncio
import os
import sys
import time

from stepwise import emit, step, workflow

TURNS, TOKENS = 4, 25


@step
def answer(turn):
    """Say tokens; return who said them."""
    for token in range(TOKENS):
        emit(f"{os.getpid()}:{turn}:{token}")
        time.sleep(0.002)
    return os.getpid()


@step(retries=1, backoff=0)
def stumble(turn, tries=[]):  # noqa: B006 -- it tells the attempts of one process apart
    """Say tokens, fail, and say others."""
    tries.append(turn)
    for token in range(5):
        emit(f"{os.getpid()}:{turn}:{len(tries)}:{token}")
    if len(tries) % 2:
        time.sleep(0.06)  # what is withdrawn has been read
        raise ValueError(turn)
    return f"{os.getpid()}:{turn}:{len(tries)}"


@step
async def part(turn, name):
    """Say tokens on a stream beside others that do the same."""
    for token in range(TOKENS):
        emit(f"{os.getpid()}:{turn}{name}:{token}")
        await asyncio.sleep(0.002)
    return os.getpid()


@workflow
def talk():
    """Say something, between steps that say something."""
    emit("begin")
    for turn in range(TURNS):
        emit({"turn": turn})
        answer(turn)
        emit(["answered", turn])
        stumble(turn)
    emit("end", "other")


@workflow(checkpoint_every=3)
def rarely():
    """The same, where much is replayed."""
    emit("begin")
    for turn in range(TURNS):
        emit({"turn": turn})
        answer(turn)
        emit(["answered", turn])
        stumble(turn)


@step
def speak_once(text):
    """Say one thing."""
    emit(text)


@step
def die_once():
    """End the process, the first time."""
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(9)


@workflow(checkpoint_every=100)
def dies():
    """Die as soon as a step that said something is recorded."""
    speak_once("said")
    die_once()


@workflow
async def together():
    """Several steps at once say something on one stream."""
    emit("begin")
    for turn in range(2):
        await asyncio.gather(part(turn, "a"), part(turn, "b"), part(turn, "c"))
        emit(["answered", turn])


@workflow
def items():
    """A generator: what it yields is said."""
    for turn in range(TURNS):
        answer(turn)
        yield {"turn": turn}


def expected(run):
    """What the stream of a run that has completed holds: a list of parts that may interleave."""
    kind, steps = run.label, run.steps
    of = {each.name: [] for each in steps}
    for each in steps:
        of[each.name].append(each.result)
    said = [["begin"]] if kind != "items" else []
    for turn in range(2 if kind == "together" else TURNS):
        tokens = range(TOKENS)
        if kind == "together":
            found = {
                each.arguments.split("'")[1]: each.result
                for each in steps
                if each.arguments.startswith(f"turn={turn},")
            }
            said += [[f"{found[n]}:{turn}{n}:{t}" for n in "abc" for t in tokens]]
            said += [[["answered", turn]]]
        elif kind == "items":
            said += [[f"{of['answer'][turn]}:{turn}:{t}" for t in tokens], [{"turn": turn}]]
        else:
            said += [[{"turn": turn}], [f"{of['answer'][turn]}:{turn}:{t}" for t in tokens]]
            said += [[["answered", turn]], [f"{of['stumble'][turn]}:{t}" for t in range(5)]]
    return said


if __name__ == "__main__":
    kind = sys.argv[1]
    called = globals()[kind].options(run_id="talk")
    if kind == "together":
        asyncio.run(called())
    elif kind == "items":
        for _ in called():
            pass
    else:
        called()
