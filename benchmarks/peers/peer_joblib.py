"""joblib.Memory: each step is a memoized function, found by its arguments."""

from __future__ import annotations

import asyncio

import harness
import workloads
from harness import Peer, abody, body
from joblib import Memory


def step(run_id, number):
    return body(number)


def say(run_id, messages, number):
    return body(number)


async def astep(run_id, number):
    return await abody(number)


class Joblib(Peer):
    """Results in files that are renamed into place and never flushed."""

    name = "joblib"
    distribution = "joblib"
    imports = "from joblib import Memory"
    survives = {"default": harness.PROCESS}

    def open(self):
        self.memory = Memory(self.store, verbose=0)

    def loop(self, run_id, count):
        cached = self.memory.cache(step)
        for number in range(count):
            cached(run_id, number)

    def agent(self, run_id, count):
        cached, messages = self.memory.cache(say), []
        for number in range(count):
            messages.append(cached(run_id, messages, number))

    def fanout(self, run_id, count):
        cached = self.memory.cache(astep)

        async def everything():
            await asyncio.gather(*(cached(run_id, number) for number in range(count)))

        asyncio.run(everything())


if __name__ == "__main__":
    workloads.main(Joblib)
