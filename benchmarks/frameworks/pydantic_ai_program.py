"""The agent of ``pydantic_ai_durability.py``: ``pydantic_ai_program.py ENGINE RUNS``."""

import asyncio
import json
import os
import signal
import sys
import time

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

ENGINE, RUNS = sys.argv[1], int(sys.argv[2])
FOLDER, PLACE = os.environ["FOLDER"], os.environ["KILL"]


def note(what):
    with open(f"{FOLDER}/notes", "a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    if what == PLACE:
        os.kill(os.getpid(), signal.SIGKILL)


def answer(messages, info):
    number = sum(isinstance(message, ModelResponse) for message in messages)
    note(f"request {number}")
    if number < 3:
        return ModelResponse([ToolCallPart("send", {"number": number})])
    return ModelResponse([TextPart("done")])


async def send(number: int) -> str:
    """Send an e-mail."""
    note(f"send {number}")
    return "sent"


def made(tool, *capabilities):
    return Agent(FunctionModel(answer), name="agent", tools=[tool], capabilities=capabilities)


async def timed(run):
    """Run an agent, a first time unmeasured if it is to be measured."""
    if RUNS == 1:
        await run(1)
        return
    await run(0)
    began = time.perf_counter()
    for number in range(1, RUNS + 1):
        await run(number)
    print(json.dumps({"ms": (time.perf_counter() - began) / RUNS * 1000}))


def with_stepwise():
    from stepwise import tool, workflow
    from stepwise.integrations.pydantic_ai import StepwiseDurability

    decorated = tool(side_effect=True)(send) if ENGINE == "stepwise side effects" else send
    agent = made(decorated, StepwiseDurability())

    @workflow
    async def main(number: int) -> str:
        return (await agent.run(f"hi {number}")).output

    asyncio.run(timed(main))


def with_dbos():
    from dbos import DBOS, SetWorkflowID
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    database = f"sqlite:///{FOLDER}/dbos.sqlite"
    DBOS(
        config={
            "name": "agent",
            "system_database_url": database,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    agent = made(DBOS.step()(send) if ENGINE == "dbos steps" else send, DBOSDurability())

    @DBOS.workflow()
    async def main(number: int) -> str:
        return (await agent.run(f"hi {number}")).output

    async def run(number):
        with SetWorkflowID(f"run-{number}"):
            handle = await DBOS.start_workflow_async(main, number)
        return await handle.get_result()

    DBOS.launch()
    asyncio.run(timed(run))
    DBOS.destroy()


def plainly():
    agent = made(send)
    asyncio.run(timed(lambda number: agent.run(f"hi {number}")))


if ENGINE == "plain":
    plainly()
elif ENGINE.startswith("dbos"):
    with_dbos()
else:
    with_stepwise()
