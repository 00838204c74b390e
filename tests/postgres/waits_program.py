"""Workflows that wait, ask, are cancelled and have budgets, for several processes of one store.

``WAITS_LOG`` is a file that has a line for each thing that was really done.
"""

import asyncio
import os
import time

import stepwise
from stepwise import Budget, step, tool, workflow


def log(text):
    """Write down that something was done."""
    file = os.open(os.environ["WAITS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


@step
def work(text):
    log(text)
    return text


@step
async def awork(text):
    log(text)
    return text


@step
async def hang(text):
    log(text)
    await asyncio.Event().wait()


@tool(side_effect=True, approve=True)
def pay(amount):
    log(f"pay {amount}")
    return amount


@workflow
def patient(name):
    log(f"begin {name}")
    found = [stepwise.wait_for("go", type=int)]
    found.append(stepwise.wait_for("on", type=int))
    work(f"work {name}")
    return found


@workflow
async def apatient(name):
    log(f"begin {name}")
    found = await asyncio.gather(stepwise.wait_for("go", type=int), stepwise.wait_for("on"))
    await awork(f"work {name}")
    return found


@workflow
def parent(name):
    return patient.options(run_id=f"{name}-child")(name)


@workflow
def asking(name):
    try:
        return pay(7)
    except stepwise.ApprovalDenied as denied:
        return f"denied: {denied}"


@workflow
def cleans_up(name):
    work(f"begin {name}")
    try:
        return stepwise.wait_for("never")
    finally:
        work(f"clean {name}")


@workflow
async def acleans_up(name):
    await awork(f"begin {name}")
    try:
        await hang(f"hang {name}")
    finally:
        await awork(f"clean {name}")


@workflow
def naps(name, seconds):
    log(f"begin {name}")
    stepwise.sleep(seconds)
    return work(f"work {name}")


@step
def lasts(name):
    log(f"lasts {name}")
    while os.path.exists(f"hold {name}"):
        time.sleep(0.01)
    return name


@workflow
def holds(name):
    stepwise.wait_for("go")
    lasts(name)
    return work(f"work {name}")


@workflow(budget=Budget(steps=3))
def spends(name):
    for number in range(5):
        stepwise.spend(usd=0.5)
        work(f"work {number}")
    return "spent"
