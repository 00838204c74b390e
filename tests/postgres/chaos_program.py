"""Workflows with side effects, for nodes that are killed at any moment: see ``chaos.py``.

What a workflow does comes from its seed; the tokens that it draws on the way do not, so that a run
that began anew would show.  ``CHAOS_SERVICE`` is the address of the counter service,
``CHAOS_TRACE`` a file that has a line for each statement of a workflow that was executed outside of
steps, ``CHAOS_PACE`` how many times slower than usual the service answers.  ``CHAOS_MUTANT`` makes
the program, or the library in its process, one that the judge must find guilty.
"""

import asyncio
import json
import os
import random
import sys
import time

from counter_service import post

import stepwise
from stepwise import DidNotHappen, Landed, current_step, step, tool, workflow

PROCESS = os.urandom(4).hex()  # its number says little: each node may have numbers of its own
STEPS = 40
EFFECTS = ("keyed", "asked", "raised")
MUTANT = os.environ.get("CHAOS_MUTANT", "")
KINDS = ("look", "look", *EFFECTS, *EFFECTS, "look", "branches", "child", "sleep", "long", "wait")


def plan_of(seed):
    """The kinds of the calls of a workflow, in their order; its name says which there are."""
    chosen = seed.split("-")[1]
    kinds = KINDS if chosen == "any" else chosen.split(".")
    draw = random.Random(f"plan {seed}")
    plan = [draw.choice(kinds) for _ in range(STEPS)]
    for kind, most in {"long": 1, "wait": 2, "sleep": 3, "child": 4}.items():
        for number in [n for n, each in enumerate(plan) if each == kind][most:]:
            plan[number] = draw.choice([each for each in kinds if each in EFFECTS])
    return plan


def note(run, number):
    """Write down that a statement of a workflow is executed."""
    line = {"run": run, "number": number, "at": time.time(), "process": PROCESS}
    file = os.open(os.environ["CHAOS_TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(file)


def ask(path, run, number, token, *, once=False):
    """Ask the service, which takes some time to answer."""
    draw = random.Random(f"{run} {number}")
    seconds = draw.choice((0.01, 0.05, 0.1, 0.3)) * float(os.environ.get("CHAOS_PACE", "1"))
    return post(
        path, run=run, number=number, token=token, once=once, seconds=seconds,
        key=current_step().idempotency_key, node=os.environ.get("CHAOS_NODE", ""), process=PROCESS,
    )  # fmt: skip


def has_happened(call):
    """Ask the service what became of a call in doubt."""
    if MUTANT == "a reconciler lies":
        return DidNotHappen()
    run, number, token = (call.arguments[name] for name in ("run", "number", "token"))
    found = post("asked", run=run, number=number, token=token, key=call.idempotency_key)
    return DidNotHappen() if found is None else Landed(found)


# -- steps and tools -------------------------------------------------------------------------------


@step
def look(run, number, token):
    return ask("look", run, number, token)


@tool(side_effect=True, in_doubt="retry", idempotent=True)
def keyed(run, number, token):
    return ask("effect", run, number, token, once=True)


@tool(side_effect=True, in_doubt=has_happened)
def asked(run, number, token):
    return ask("effect", run, number, token)


@tool(side_effect=True)
def raised(run, number, token):
    return ask("effect", run, number, token)


@step
async def alook(run, number, token):
    return await asyncio.to_thread(ask, "look", run, number, token)


@tool(side_effect=True, in_doubt="retry", idempotent=True)
async def akeyed(run, number, token):
    return await asyncio.to_thread(ask, "effect", run, number, token, once=True)


@tool(side_effect=True, in_doubt=has_happened)
async def aasked(run, number, token):
    return await asyncio.to_thread(ask, "effect", run, number, token)


@tool(side_effect=True)
async def araised(run, number, token):
    return await asyncio.to_thread(ask, "effect", run, number, token)


# -- workflows -------------------------------------------------------------------------------------


@workflow
def child(run, number, token):
    return look(run, f"{number}/0", token) + keyed(run, f"{number}/1", token)


@workflow
async def achild(run, number, token):
    return await alook(run, f"{number}/0", token) + await akeyed(run, f"{number}/1", token)


@workflow
def job(run, plan):
    note(run, -1)
    drawn, total = [], 0
    for number, kind in enumerate(plan):
        note(run, number)
        token = random.SystemRandom().getrandbits(40)
        drawn.append(token)
        if kind == "look":
            total += look(run, number, token)
        elif kind == "keyed":
            total += keyed(run, number, token)
        elif kind == "asked":
            total += asked(run, number, token)
        elif kind == "raised":
            total += raised(run, number, token)
        elif kind == "branches":
            parts = [(run, f"{number}/{part}", token) for part in range(3)]
            total += sum(stepwise.map(part_of, parts))
        elif kind == "child":
            total += child.options(run_id=f"{run}-{number}")(run, number, token)
        elif kind == "wait":
            total += stepwise.wait_for(f"go {number}", type=int)
        else:
            stepwise.sleep(0.2 if kind == "sleep" else 1.5)
    note(run, len(plan))
    return {"drawn": drawn, "total": total}


@tool(side_effect=True, in_doubt=lambda call: has_happened(_Part(call)))
def part_of(item):
    return ask("effect", *item)


class _Part:
    """A call of ``part_of`` as a call of the others."""

    def __init__(self, call):
        self.arguments = dict(zip(("run", "number", "token"), call.arguments["item"], strict=True))
        self.idempotency_key = call.idempotency_key


@workflow
async def ajob(run, plan):
    note(run, -1)
    drawn, total = [], 0
    for number, kind in enumerate(plan):
        note(run, number)
        token = random.SystemRandom().getrandbits(40)
        drawn.append(token)
        if kind == "look":
            total += await alook(run, number, token)
        elif kind == "keyed":
            total += await akeyed(run, number, token)
        elif kind == "asked":
            total += await aasked(run, number, token)
        elif kind == "raised":
            total += await araised(run, number, token)
        elif kind == "branches":
            parts = [(run, f"{number}/{part}", token) for part in range(3)]
            total += sum(await asyncio.gather(*(aasked(*each) for each in parts)))
        elif kind == "child":
            total += await achild.options(run_id=f"{run}-{number}")(run, number, token)
        elif kind == "wait":
            total += await stepwise.wait_for(f"go {number}", type=int)
        else:
            await stepwise.sleep(0.2 if kind == "sleep" else 1.5)
    note(run, len(plan))
    return {"drawn": drawn, "total": total}


# -- libraries that do not keep their word ---------------------------------------------------------

if MUTANT == "outcomes are not recorded":
    from stepwise._journal.journal import Journal
    from stepwise._journal.records import Outcome

    _append = Journal.append

    def _forgetful(self, *items, **options):
        kept = [each for each in items if not isinstance(each[0], Outcome)]
        if kept:
            _append(self, *kept, **options)

    Journal.append = _forgetful
elif MUTANT == "runs begin anew":
    from stepwise._workflows.definition import Definition

    Definition.rewritten = lambda self: None


# -- starting --------------------------------------------------------------------------------------


def workflow_of(run):
    """The workflow that a run is of, by its name."""
    return ajob if run.startswith("ajob") else job


async def begin(runs):
    """Start runs, and execute them until this process is killed."""
    started = [workflow_of(run).options(run_id=run).start(run, plan_of(run)) for run in runs]
    print(f"{len(started)} begun", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import chaos_program  # the module that the nodes know, not this script

    stepwise.configure(suspend_after=1)
    asyncio.run(chaos_program.begin(sys.argv[1:]))
