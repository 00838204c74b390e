"""smolagents' ``ToolCallingAgent``: ``use_smolagents.py VARIANT/MODEL``."""

import os
import sys

import smolagents
from office import CLAUDE, MODEL, TASK, book_room, look_up, send_email

import stepwise

stepwise.instrument()
variant, _, kind = sys.argv[1].partition("/")
MODELS = {
    "openai": lambda: smolagents.OpenAIServerModel(MODEL),
    "litellm": lambda: smolagents.LiteLLMModel(MODEL, api_base=os.environ["OPENAI_BASE_URL"]),
    "litellm-anthropic": lambda: smolagents.LiteLLMModel(
        f"anthropic/{CLAUDE}", api_base=os.environ["ANTHROPIC_BASE_URL"]
    ),
}
secretary = smolagents.ToolCallingAgent(
    tools=[smolagents.tool(each) for each in (look_up, book_room, send_email)],
    model=MODELS[kind](),
    stream_outputs=variant == "stream",
    verbosity_level=0,
)


@stepwise.workflow
def run(task):
    return secretary.run(task)


@stepwise.workflow
def stream(task):
    return secretary.run(task)


print(globals()[variant](TASK))
