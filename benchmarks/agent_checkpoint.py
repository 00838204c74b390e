"""What a checkpoint of 4 MB of messages costs a step loop, and how fast a new process recovers.

A ``RecoverableAgent`` saves 2,000 messages of 2 KB.  The save is timed inside the loop, as it
delays the agent, beside a pickle of the same messages that is written and flushed.  Then the
process dies, and a new one is timed from its start (Python and the import of stepwise included)
until the step function is called with the messages.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import common

_PROGRAM = """
import asyncio, os, sys, time
from stepwise import CheckpointStore, RecoverableAgent

COUNT, DIES = int(sys.argv[1]), sys.argv[2] == "dies"
took = []

class Timed(RecoverableAgent):
    def _checkpoint(self, ctx):
        began = time.perf_counter(), time.process_time()
        super()._checkpoint(ctx)
        took.append((time.perf_counter() - began[0], time.process_time() - began[1]))

def agent(ctx):
    if ctx.step > 3:
        print("entered", time.monotonic(), len(ctx.messages), flush=True)
        os._exit(9)
    if not ctx.messages:
        for number in range(COUNT):
            ctx.messages.append({"role": "user", "content": f"{number:06d}" + "message " * 255})
    ctx.messages.append({"role": "assistant", "content": f"step {ctx.step}"})

async def main():
    store = CheckpointStore(f"disk:{os.environ['STEPWISE_HOME']}/store")
    timed = Timed(agent, store, checkpoint_every_n=1)
    await timed.run_with_recovery("task", sys.argv[3])

if DIES:
    import atexit
    real = os._exit
    def told(code):
        print("saved", *(f"{wall} {cpu}" for wall, cpu in took), flush=True)
        real(code)
    os._exit = told
asyncio.run(main())
"""
_COUNT = 2000
_SAVE, _RECOVERY = 50.0, 2000.0  # milliseconds


def messages() -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"{number:06d}" + "message " * 255} for number in range(_COUNT)
    ]


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    walls, cpus, recoveries, starts, raws = [], [], [], [], []
    kept = messages()
    with common.folder() as path:
        program = path / "agent.py"
        program.write_text(_PROGRAM, encoding="utf-8")
        os.environ["STEPWISE_HOME"] = str(path)
        for turn in range(arguments.rounds):
            said = common.child(str(program), str(_COUNT), "dies", f"run {turn}", expect=9)
            [line] = [each for each in said.splitlines() if each.startswith("saved")]
            found = [float(each) * 1e3 for each in line.split()[1:]]
            walls += found[::2]
            cpus += found[1::2]
            raws.append(common.pickled(kept, path))
            began = time.monotonic()
            said = common.child(str(program), str(_COUNT), "recovers", f"run {turn}", expect=9)
            _, entered, count = said.split()
            recoveries.append((float(entered) - began) * 1e3)
            if int(count) != _COUNT + 3:
                raise RuntimeError(said)
            began = time.monotonic()
            said = common.child("-c", "import stepwise, time; print(time.monotonic())")
            starts.append((float(said) - began) * 1e3)
    spread = common.Spread.of
    size = sum(len(each["content"]) for each in kept) / 1e6
    plain = f"pickle, written and flushed: {spread(raws)} ms"
    import_only = f"Python and import alone: {spread(starts)} ms"
    what = f"{size:.1f} MB of messages"
    return [
        common.Row(f"a checkpoint of {what}", spread(walls), "ms", other=plain, limit=_SAVE),
        common.Row("the same, processor time", spread(cpus), "ms"),
        common.Row(
            f"start to the step after it, {what}",
            spread(recoveries),
            "ms",
            other=import_only,
            limit=_RECOVERY,
        ),
    ]


if __name__ == "__main__":
    sys.exit(common.main(measure, "A step loop with 4 MB of messages"))
