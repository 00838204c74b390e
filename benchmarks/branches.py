"""What branches cost, against copies: the bytes that the store gains, and the time.

``python benchmarks/branches.py`` executes a run of 10,000 steps that keeps its results, makes 32
branches and 32 forks near its end, and executes each of them to the end.  The seconds of the
processor (``cpu``) do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time

import stepwise
from stepwise import step, workflow
from stepwise._runs.branching import make

STEPS, MANY = 10_000, 32


@step
def say(number: int) -> str:
    """Return a message of 1 KB."""
    return f"{number} ".ljust(1000, "x")


@workflow(checkpoint_every=50, durability="os", retention="all")
def talk(steps: int, model: str = "a") -> tuple[int, str]:
    """Keep the messages of many steps."""
    messages = []
    for number in range(steps):
        message = say(number)
        messages.append(message)
    return len(messages), model


def size_of(run: stepwise.Run) -> int:
    """Return the bytes that a store holds of a run: records, objects, and its head."""
    store, head = run.store, run.store.head(run.id)
    objects = sum(len(store.get(run.id, name) or b"") for name in store.names(run.id))
    rows = sum(len(data) for _, data in store.read(run.id))
    return rows + objects + (len(head.data) if head is not None else 0)


def measure(steps: int, many: int) -> dict[str, float]:
    """Return the seconds and bytes of as many branches and copies of a run."""
    with tempfile.TemporaryDirectory() as folder:
        stepwise.configure(store=f"disk:{folder}")
        run = talk.execute(steps)
        at, took = steps - steps // 100, {"run_bytes": float(size_of(run))}
        began, used = time.perf_counter(), time.process_time()
        given = {"at": at, "variations": [{"model": str(n)} for n in range(many)]}
        make(run, at, given["variations"], "refuse")
        took["branch_making_seconds"] = time.perf_counter() - began
        took["branch_making_cpu"] = time.process_time() - used
        branches = run.branch(**given)
        took["branch_seconds"] = time.perf_counter() - began
        took["branch_cpu"] = time.process_time() - used
        wrong = [each for each in branches if each.run.status != "completed"]
        assert not wrong, wrong[0].error
        took["branch_bytes"] = sum(size_of(each.run) for each in branches)
        began, used = time.perf_counter(), time.process_time()
        forks = [run.fork(at=at, locals={"model": str(n)}) for n in range(many)]
        took["fork_making_seconds"] = time.perf_counter() - began
        took["fork_making_cpu"] = time.process_time() - used
        for fork in forks:
            fork.resume().result()
        took["fork_seconds"] = time.perf_counter() - began
        took["fork_cpu"] = time.process_time() - used
        took["fork_bytes"] = sum(size_of(each) for each in forks)
        return took


def main() -> None:
    """Measure a few times, and print the medians with their spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a run of 1,000 steps, 4 branches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    steps, many = (1000, 4) if given.quick else (STEPS, MANY)
    rounds = [measure(steps, many) for _ in range(given.rounds)]
    if given.json:
        json.dump(rounds, sys.stdout)
        return
    print(f"{many} branches and {many} copies of a run of {steps:,} steps, executed to the end")
    for unit in ("bytes", "making_seconds", "making_cpu", "seconds", "cpu"):
        one, other = ([each[f"{kind}_{unit}"] for each in rounds] for kind in ("branch", "fork"))
        part = statistics.median(a / b for a, b in zip(one, other, strict=True))
        shown = ", ".join(
            f"{kind} {statistics.median(each):,.2f} ({min(each):,.2f} to {max(each):,.2f})"
            for kind, each in (("branches", one), ("copies", other))
        )
        print(f"{unit}: {shown}: {part:.1%}")


if __name__ == "__main__":
    main()
