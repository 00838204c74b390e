"""The OpenAI Agents SDK: ``use_openai_agents.py VARIANT/MODEL``."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from office import MODEL, TASK, book_room, look_up, send_email
from openai import AsyncOpenAI

import stepwise
from stepwise.integrations.openai_agents import StepwiseSession

stepwise.instrument()
variant, _, protocol = sys.argv[1].partition("/")
MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
secretary = Agent(
    name="Secretary",
    model=MODELS[protocol](MODEL, AsyncOpenAI()),
    tools=[function_tool(each) for each in (look_up, book_room, send_email)],
)


@stepwise.workflow
async def run(task):
    result = await Runner.run(secretary, task)
    return result.final_output


@stepwise.workflow
async def run_streamed(task):
    result = Runner.run_streamed(secretary, task)
    async for _event in result.stream_events():
        pass
    return result.final_output


@stepwise.workflow
async def run_in_session(task):
    session = StepwiseSession("office")
    result = await Runner.run(secretary, task, session=session)
    assert len(await session.get_items()) == len(result.to_input_list())  # none lost, none twice
    return result.final_output


@stepwise.workflow
def run_sync(task):
    return Runner.run_sync(secretary, task).final_output


answer = globals()[variant](TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
