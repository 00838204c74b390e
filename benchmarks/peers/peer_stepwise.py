"""stepwise: the workloads as its users would write them."""

from __future__ import annotations

import asyncio
import os

import harness
import workloads
from harness import Peer, abody, body, passed, waited

import stepwise
from stepwise.stores import open_store


@stepwise.step
def step(number):
    return body(number)


@stepwise.step
def say(messages, number):
    return body(number)


@stepwise.step
async def astep(number):
    return await abody(number)


@stepwise.workflow
def loop(count):
    for number in range(count):
        step(number)


@stepwise.workflow
def agent(count):
    messages = []
    for number in range(count):
        messages.append(say(messages, number))


@stepwise.workflow
async def fanout(count):
    await asyncio.gather(*(astep(number) for number in range(count)))


@stepwise.workflow
def waiting(count):
    for number in range(count):
        passed(number)
        step(number)
    stepwise.wait_for("go")
    waited()


class Stepwise(Peer):
    """Variants: store, durability, and a checkpoint at every step or at every hundredth."""

    name = "stepwise"
    variants = (
        "disk-fsync",
        "disk-os",
        "disk-fsync-100",
        "disk-os-100",
    )
    distribution = "stepwise-agents"
    imports = "import stepwise"
    survives = {v: harness.POWER if "fsync" in v else harness.PROCESS for v in variants}

    def open(self):
        os.environ.update(STEPWISE_HOME=str(self.store / "home"), STEPWISE_QUIET="1")
        scheme, durability, *every = self.variant.split("-")
        self.where = open_store(f"{scheme}:{self.store / 'runs'}")
        self.options = {
            "store": self.where,
            "durability": durability,
            "checkpoint_every": int(every[0]) if every else 1,
        }

    def close(self):
        self.where.close()

    def loop(self, run_id, count):
        loop.options(run_id=run_id, **self.options)(count)

    def agent(self, run_id, count):
        agent.options(run_id=run_id, **self.options)(count)

    def fanout(self, run_id, count):
        asyncio.run(fanout.options(run_id=run_id, **self.options)(count))

    def waiting(self, run_id, count):
        waiting.options(run_id=run_id, **self.options)(count)

    def sender(self, run_id):
        run = stepwise.get_run(run_id, store=self.where)
        return lambda: run.send("go", {"number": 1})

    @classmethod
    def refusal(cls, variant, workload):
        if variant.endswith("-100") and workload in ("w4", "w6", "w10"):
            return "one checkpoint at most: as without -100"
        return super().refusal(variant, workload)


if __name__ == "__main__":
    workloads.main(Stepwise)
