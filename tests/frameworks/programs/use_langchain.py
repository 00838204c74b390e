"""LangChain's ``create_agent``: ``use_langchain.py VARIANT/PROVIDER``."""

import asyncio
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from office import CLAUDE, MODEL, TASK, book_room, look_up, send_email

import stepwise

stepwise.instrument()
variant, _, provider = sys.argv[1].partition("/")
MODELS = {
    "openai": lambda: ChatOpenAI(model=MODEL),
    "responses": lambda: ChatOpenAI(model=MODEL, use_responses_api=True),
    "anthropic": lambda: ChatAnthropic(model=CLAUDE),
}
secretary = create_agent(MODELS[provider](), tools=[look_up, book_room, send_email])


def asked(task):
    return {"messages": [{"role": "user", "content": task}]}


@stepwise.workflow
def invoke(task):
    return secretary.invoke(asked(task))["messages"][-1].text


@stepwise.workflow
async def ainvoke(task):
    state = await secretary.ainvoke(asked(task))
    return state["messages"][-1].text


@stepwise.workflow
def stream(task):
    text = ""
    for message, about in secretary.stream(asked(task), stream_mode="messages"):
        if about["langgraph_node"] == "model":
            text = text + message.text if message.type == "AIMessageChunk" else message.text
        else:
            text = ""  # a tool's result: what was said before it was not the end
    return text


@stepwise.workflow
async def astream(task):
    state = {}
    async for mode, part in secretary.astream(asked(task), stream_mode=["messages", "values"]):
        state = part if mode == "values" else state
    return state["messages"][-1].text


answer = globals()[variant](TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
