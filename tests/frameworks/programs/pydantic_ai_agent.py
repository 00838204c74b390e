"""An agent of pydantic-ai that notes what it does in a file, and kills itself where it is told.

Started as ``python pydantic_ai_agent.py SCENARIO FILE PLACE``: the process dies by SIGKILL when it
notes PLACE.
"""

import asyncio
import dataclasses
import json
import os
import signal
import sys

from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    ModelRetry,
    RunContext,
    UsageLimits,
)
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from stepwise import Landed, tool, workflow
from stepwise.integrations.pydantic_ai import StepwiseDurability

SCENARIO, FILE, PLACE = sys.argv[1:4]
RESUMED = os.path.exists(FILE)
SECOND_IS_DONE = asyncio.Event()


def note(what):
    with open(FILE, "a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    if what == PLACE:
        os.kill(os.getpid(), signal.SIGKILL)


def results(messages):
    parts = [part for message in messages for part in message.parts]
    return [part.content for part in parts if part.part_kind == "tool-return"]


def scripted(*turns, name="request"):
    """A model that calls the tools of each turn, then says what they returned."""

    def turn(messages):
        number = sum(isinstance(message, ModelResponse) for message in messages)
        note(f"{name} {number}")
        return number, turns[number] if number < len(turns) else ()

    def answer(messages, info):
        calls = [ToolCallPart(*call) for call in turn(messages)[1]]
        return ModelResponse(calls or [TextPart(f"done: {results(messages)}")])

    async def stream(messages, info):
        number, calls = turn(messages)
        for index, (called, arguments) in enumerate(calls):
            call = f"call_{number}_{index}"
            yield {index: DeltaToolCall(called, json.dumps(arguments), tool_call_id=call)}
        if not calls:
            yield "done: "
            note("midway")
            yield f"{results(messages)}"

    return FunctionModel(answer, stream_function=stream)


# -- scenarios -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Customer:
    number: int
    seen: int = 0


def every_kind():
    """A plain tool that changes its dependencies, decorated tools, and two calls that are equal."""

    @tool(side_effect=True)
    def send(to: str) -> str:
        note(f"send {to}")
        return "sent"

    agent = Agent(
        scripted(
            [("look", {"what": "a"})],
            [("look", {"what": "a"}), ("send", {"to": "ann"})],
        ),
        deps_type=Customer,
        name="agent",
        tools=[send],
        capabilities=[StepwiseDurability()],
    )

    @agent.tool
    async def look(context: RunContext[Customer], what: str) -> str:
        context.deps.seen += 1
        note(f"look {context.deps.seen}")
        return f"{what}{context.deps.seen}"

    @workflow
    async def main():
        customer = Customer(1)
        result = await agent.run("hi", deps=customer, usage_limits=UsageLimits(request_limit=3))
        return result.output, result.usage.requests, result.usage.input_tokens, customer.seen

    return asyncio.run(main())


def streams():
    """Events of the model and the tools; then a stream that the program reads itself."""

    async def handle(context, events):
        async for event in events:
            text = getattr(getattr(event, "delta", None), "content_delta", "")
            note(f"event {type(event).__name__}{text}")

    durability = StepwiseDurability(event_stream_handler=handle)
    agent = Agent(scripted([("look", {})]), name="agent", capabilities=[durability])

    @agent.tool_plain
    def look() -> str:
        note("look")
        return "seen"

    async def read():
        async with agent.run_stream("again") as result:
            return [text async for text in result.stream_text(delta=True)]

    @workflow
    async def main():
        first = (await agent.run("hi")).output
        note("second")
        return first, await read()

    return asyncio.run(main())


def agents_in_tools():
    """An agent asks another one twice, side by side; both count on one account."""
    inner = Agent(
        scripted([("deep", {})], name="inner"), name="inner", capabilities=[StepwiseDurability()]
    )
    outer = Agent(
        scripted([("ask", {"what": "a"}), ("ask", {"what": "b"})], [("last", {})]),
        name="outer",
        capabilities=[StepwiseDurability()],
    )

    @inner.tool_plain
    def deep() -> str:
        return "d"

    @outer.tool
    async def ask(context: RunContext, what: str) -> str:
        answer = await inner.run(what, usage=context.usage)
        note(f"asked {what}")
        return answer.output

    @outer.tool_plain
    def last() -> str:
        note("last")
        return "l"

    @workflow
    async def main(limit: int):
        result = await outer.run("hi", usage_limits=UsageLimits(request_limit=limit))
        usage = result.usage
        return result.output, usage.requests, usage.tool_calls, usage.input_tokens

    return asyncio.run(main(int(os.environ.get("LIMIT", "7"))))


def side_by_side():
    """Two customers ask the same, and their runs call one tool with equal arguments."""
    agent = Agent(
        scripted([("balance", {})]),
        deps_type=Customer,
        name="agent",
        capabilities=[StepwiseDurability()],
    )

    @agent.tool
    async def balance(context: RunContext[Customer]) -> int:
        if context.deps.number == 2 and not RESUMED:
            await SECOND_IS_DONE.wait()
        return context.deps.number * 100

    async def ask(number):
        if number == 1 and RESUMED:
            await SECOND_IS_DONE.wait()
        answer = (await agent.run("my balance?", deps=Customer(number))).output
        note(f"answered {number}")
        SECOND_IS_DONE.set()
        return answer

    @workflow
    async def main():
        # The first process answers customer 1 first, the next one asks for customer 2 first.
        return await asyncio.gather(ask(1), ask(2))

    return asyncio.run(main())


def ways_out():
    """Tools that end by the exceptions with which pydantic-ai steers an agent."""
    agent = Agent(
        scripted([("again", {})], [("again", {})], [("approve", {}), ("defer", {})]),
        name="agent",
        output_type=[str, DeferredToolRequests],
        capabilities=[StepwiseDurability(tool_options={"side_effect": True})],
    )

    @agent.tool(retries=2)
    async def again(context: RunContext) -> str:
        note(f"again {context.retry}")
        if context.retry == 0:
            raise ModelRetry("once more")
        return "well"

    @agent.tool_plain
    async def approve() -> str:
        note("approve")
        raise ApprovalRequired(metadata={"for": "you"})

    @agent.tool_plain
    async def defer() -> str:
        note("defer")
        raise CallDeferred

    @workflow
    async def main():
        result = await agent.run("hi")
        note("end")
        asked = result.output
        names = [[call.tool_name for call in calls] for calls in (asked.approvals, asked.calls)]
        return names, list(asked.metadata.values()), result.run_id == result.response.run_id

    return asyncio.run(main())


def servers():
    """A tool of an MCP server in this process."""
    from mcp.server import MCPServer
    from pydantic_ai.mcp import MCPToolset

    server = MCPServer("weather")

    @server.tool()
    def weather(city: str) -> str:
        note(f"weather {city}")
        return "rain"

    class Noted(MCPToolset):
        async def list_tools(self):
            note("list")
            return await super().list_tools()

    agent = Agent(
        scripted([("weather", {"city": "Oslo"})]),
        name="agent",
        toolsets=[Noted(server, id="weather")],
        capabilities=[StepwiseDurability()],
    )

    @workflow
    def main():
        return agent.run_sync("hi").output

    return main()


def options():
    """A tool with options of its own, one that is not recorded, and JSON as the journal's form."""
    agent = Agent(
        scripted([("send", {})], [("free", {})]),
        name="agent",
        capabilities=[StepwiseDurability()],
    )

    @agent.tool_plain(metadata={"stepwise": {"side_effect": True}})
    def send() -> str:
        note("send")
        return "sent"

    @agent.tool_plain(metadata={"stepwise": False})
    def free() -> str:
        note("free")
        return "f"

    @workflow(codec="json")
    def main() -> str:
        return agent.run_sync("hi").output

    return main()


def reconciled():
    """A side effect whose reconcile function looks outside, and answers with what it finds."""

    def was_sent(call):
        note(f"asked for {call.arguments['to']}")
        return Landed("found")

    durability = StepwiseDurability(tool_options={"side_effect": True})
    agent = Agent(scripted([("send", {"to": "ann"})]), name="agent", capabilities=[durability])

    @agent.tool_plain(metadata={"stepwise": {"in_doubt": was_sent}})
    def send(to: str) -> str:
        note("send")
        return "sent"

    @workflow
    def main() -> str:
        return agent.run_sync("hi").output

    return main()


print(globals()[SCENARIO]())
