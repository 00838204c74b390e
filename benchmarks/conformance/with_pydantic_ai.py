"""pydantic-ai's own durability: an agent with ``DBOSDurability``, in a workflow of DBOS on SQLite.

Its tools are steps of DBOS, as its documentation says; a gate is ``DBOS.recv`` in the workflow,
around a second run of the agent.  The model is a function that asks for one tool after another.
"""

import asyncio

from dbos import DBOS, DBOSClient, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from world import BAD, FOLDER, KEYED, RUN, TWO_GATES, Waits, effect, main

URL = f"sqlite:///{FOLDER}/store.sqlite"
DBOS(
    config={
        "name": "order",
        "system_database_url": URL,
        "log_level": "CRITICAL",
        "run_admin_server": False,
        "notification_listener_polling_interval_sec": 0.05,
    }
)


def asked(messages, info):
    """The model: call the tools that the prompt names, one after the other; say what they said."""
    wanted = str(messages[0].parts[-1].content).split(", ")
    said = [
        str(part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if len(said) == len(wanted):
        return ModelResponse([TextPart("|".join(said))])
    name, _, value = wanted[len(said)].partition(" ")
    return ModelResponse([ToolCallPart(name, {"value": value} if value else {})])


def key():
    return f"{DBOS.workflow_id}/{DBOS.step_id}"


@DBOS.step(retries_allowed=KEYED, interval_seconds=0.1)
async def reserve() -> str:
    """Reserve."""
    said = effect("reserve", key=key())
    return None if BAD else said


@DBOS.step(retries_allowed=KEYED, interval_seconds=0.1)
async def charge(value: str) -> str:
    """Charge."""
    return effect("charge", value, key())


@DBOS.step(retries_allowed=KEYED, interval_seconds=0.1)
async def notify() -> str:
    """Notify."""
    return effect("notify", key=key())


tools = [reserve, charge, notify]
agent = Agent(FunctionModel(asked), name="agent", tools=tools, capabilities=[DBOSDurability()])


@DBOS.workflow()
async def order() -> list[str]:
    said = [(await agent.run("reserve")).output]
    await DBOS.set_event_async("asked", 1)
    value = await DBOS.recv_async("approval", timeout_seconds=3600)
    if TWO_GATES:
        said.append((await agent.run(f"charge {value}")).output)
        await DBOS.set_event_async("asked", 2)
        await DBOS.recv_async("approval", timeout_seconds=3600)
        return [*said, (await agent.run("notify")).output]
    return [*said, *(await agent.run(f"charge {value}, notify")).output.split("|")]


async def follow(gate=1, workflow=RUN):
    """Wait for the end of the workflow, or for its question with this number."""
    handle = await DBOS.retrieve_workflow_async(workflow)
    while (await handle.get_status()).status in ("PENDING", "ENQUEUED"):
        at = await DBOS.get_event_async(workflow, "asked", timeout_seconds=0.2)
        if at == gate and not (gate == 1 and (FOLDER / f"answered-{workflow}").exists()):
            raise Waits(f"gate {gate}")
    return await handle.get_result()


def start():
    async def begin():
        with SetWorkflowID(RUN):
            await DBOS.start_workflow_async(order)
        return await follow()

    DBOS.launch()
    return asyncio.run(begin())


def resume():
    DBOS.launch()  # recovers what is pending
    return asyncio.run(follow())


def send(value, workflow=RUN):
    client = DBOSClient(system_database_url=URL)
    client.send(workflow, value, "approval", idempotency_key=f"{workflow}, answer 1")
    (FOLDER / f"answered-{workflow}").touch()


def answer(value):
    DBOS.launch()
    send(value)
    return asyncio.run(follow(2))


def fork(value):
    DBOS.launch()
    steps = DBOS.list_workflow_steps(RUN)
    at = next(each["function_id"] for each in steps if "recv" in each["function_name"])
    forked = DBOS.fork_workflow(RUN, at).workflow_id
    send(value, forked)
    return asyncio.run(follow(2, forked))


main({"start": start, "resume": resume, "answer": answer, "replay": answer, "fork": fork})
