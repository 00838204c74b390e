"""A store with 100,000 runs: how long a page of ``runs``, a look of ``up`` and ``prune`` take.

A few runs are real: completed after five steps, failed, suspended.  The others are copies of them
under ids of their own, sealed anew record by record, so that each verifies.  One run in a hundred
is unfinished.

    [BENCH_STORES=disk,postgres] [BENCH_RUNS=100000] python benchmarks/many_runs.py [--quick]

``postgres`` is the server that ``STEPWISE_TEST_POSTGRES`` names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import common

import stepwise
from stepwise._journal.journal import Position, identity, mark, read_head, seal_for, seal_head
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Envelope, Seal
from stepwise.stores import Batch, Owner, Store, open_store

_UNFINISHED = 100  # one run in so many
_STEPS = 5
_PAGE = 50
_PIPED = 20_000  # rows of a listing that goes into a pipe
_SECONDS = {"page": 0.5, "work": 1.0, "piped": 3.0}


@stepwise.step
def add(number: int, other: int) -> int:
    return number + other


@stepwise.workflow(name="many_runs:ends", durability="os")
def ends(number: int) -> int:
    for each in range(_STEPS):
        number = add(number, each)
    return number


@stepwise.workflow(name="many_runs:fails", durability="os")
def fails(number: int) -> int:
    raise ValueError(add(number, 1))


@stepwise.workflow(name="many_runs:waits", durability="os")
def waits(number: int) -> Any:
    return stepwise.wait_for("go", type=str)


class Template(NamedTuple):
    """A run to be copied: its facts, and its records in the clear."""

    facts: RunFacts
    records: list[Envelope]

    @classmethod
    def of(cls, store: Store, seal: Seal, run_id: str) -> Template:
        head = read_head(store, seal, run_id)
        assert head is not None
        facts, _, _ = head
        found = [seal.open(identity(run_id, n), data) for n, data in store.read(run_id)]
        return cls(facts, found)

    def batch(self, seal: Seal, run_id: str, at: float, tags: dict[str, str]) -> Batch:
        """All that there is of a copy that began at a time."""
        facts, position, sealed = self.facts, Position(), []
        for number, (header, payload, _, effects, _) in enumerate(self.records, 1):
            place = identity(run_id, number)
            data, link = seal.close(place, header, payload, position.link or b"", effects)
            position = Position(number, link)
            sealed.append((number, data))
        took = facts.updated_at - facts.created_at
        moved = facts._replace(run_id=run_id, created_at=at, updated_at=at + took, tags=tags)
        head = seal_head(seal, moved, position.last, position.link or b"")
        return Batch(tuple(sealed), head=head, mark=mark(seal, run_id, position), durable=False)


def _id(number: int) -> str:
    return f"many-{number * 2654435761 % 2**32:08x}"


def fill(store: Store, many: int) -> None:
    """Put so many runs into a store, the oldest first."""
    seal = seal_for(store)
    stepwise.configure(store=store, quiet=True, suspend_after=0)
    ended = Template.of(store, seal, ends.execute(1).id)
    others = []
    for workflow, error in ((fails, ValueError), (waits, stepwise.RunSuspended)):
        with contextlib.suppress(error):
            workflow(1)
        others.append(Template.of(store, seal, workflow.run_id_for(1)))
    owner = Owner(os.getpid(), os.uname().nodename, time.time())
    began = time.time() - 60 * 86400
    for number in range(many):
        other = number % _UNFINISHED == 0
        template = others[number // _UNFINISHED % 2] if other else ended
        run_id = _id(number)
        epoch = store.acquire(run_id, owner)
        tags = {"customer": f"c{number // 20 % (many // 20)}", "week": f"{number % 7}"}
        store.write(run_id, epoch, template.batch(seal, run_id, began + number * 30, tags))
        store.release(run_id, epoch)


@contextlib.contextmanager
def filled(kind: str, many: int) -> Iterator[str]:
    """A store with so many runs, and a program that knows their workflows; its URL."""
    with common.folder() as path:
        os.environ.pop("STEPWISE_TEST_HOME", None)
        os.environ["STEPWISE_HOME"] = str(path / "home")
        url = f"{kind}:{path}/store"
        if kind == "postgres":
            url = f"{os.environ['STEPWISE_TEST_POSTGRES']}?schema=many_{os.getpid()}"
        os.environ["STEPWISE_STORE"] = url
        store = open_store(url)
        fill(store, many)
        yield url
        store.close()


def timed(what: str, work: Callable[[], object], rounds: int, limit: float = 0.0) -> common.Row:
    """Seconds, and those of the processor, which other programs make no longer."""
    found, busy = [], []
    for _ in range(rounds):
        began, before = time.perf_counter(), _processor()
        work()
        found.append(time.perf_counter() - began)
        busy.append(_processor() - before)
    note = f"processor: {common.Spread.of(busy)} s"
    return common.Row(what, common.Spread.of(found), "s", limit=limit, note=note)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(*words: str) -> Callable[[], str]:
    """A command in a process of its own, its start included."""
    here = pathlib.Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent)])
    return lambda: common.child("-m", "stepwise", *words, PYTHONPATH=path)


def measure(arguments: Any) -> list[common.Row]:
    many = int(os.environ.get("BENCH_RUNS") or (2_000 if arguments.quick else 100_000))
    rows = []
    for kind in os.environ.get("BENCH_STORES", "disk").split(","):
        began = time.perf_counter()
        with filled(kind, many):
            print(f"{kind}: filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
            rounds = arguments.rounds
            pages = {
                f"runs, a page of {_PAGE}": command("runs", "-n", str(_PAGE)),
                f"runs --json, a page of {_PAGE}": command("runs", "--json", "-n", str(_PAGE)),
                "runs --status failed": command("runs", "--status", "failed", "-n", str(_PAGE)),
                "runs --tag of every 7th": command("runs", "--tag", "week=3", "-n", str(_PAGE)),
                "runs --tag of 20 --status completed": command(
                    "runs", "--tag", "customer=c7", "--status", "completed"
                ),
                "up --once": command("up", "--once", "many_runs"),
                "show, by the beginning of an id": command("show", _id(many - 1)[:-1]),
                "prune of the oldest 100": command("prune", "--limit", "100"),
            }
            start = timed("", command("--version"), rounds).ours.median
            for what, work in pages.items():
                limit = _SECONDS["page" if what.startswith(("runs", "show")) else "work"]
                rows.append(timed(f"{kind}: {many:,} runs: {what}", work, rounds, limit))
            piped = min(many, _PIPED)
            whole = timed("", command("runs", "-n", str(piped)), rounds, _SECONDS["piped"])
            each = (whole.ours.median - start) / piped * 1e3
            rows += [
                dataclasses.replace(whole, what=f"{kind}: {piped:,} rows of runs, piped"),
                common.Row(
                    f"{kind}: a row of runs",
                    common.Spread.of([each]),
                    "ms",
                    other=f"stepwise --version: {start * 1e3:.0f} ms",
                    limit=0.1,
                ),
            ]
    return rows


if __name__ == "__main__":
    common.main(measure, "Many runs in one store")
