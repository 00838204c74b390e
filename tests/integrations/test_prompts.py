"""Where the prompt of a model request departs from the one before it, and what was cached."""

from __future__ import annotations

import json
import sys

import pytest
import sdks
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from stepwise import cli, step, workflow
from stepwise.integrations._model_calls import moved_prompt
from stepwise.integrations._recorded_responses import in_order
from stepwise.testing import fresh_store

TEXTS = st.text("abé x", max_size=6)
TOOLS = st.lists(st.fixed_dictionaries({"name": TEXTS, "parameters": st.just({})}), max_size=2)


@pytest.fixture(autouse=True)
def store():
    with fresh_store() as opened:
        yield opened


@pytest.fixture(autouse=True)
def instrumented():
    stepwise.instrument()
    yield
    stepwise.uninstrument()


def client_of(usage):
    """Return a client whose server answers ``yes``, with this usage."""
    http = sys.modules[
        sdks.openai._base_client.SyncAPIClient.__init__.__globals__["URL"].__module__.partition(
            "."
        )[0]
    ]
    said = {"index": 0, "message": {"role": "assistant", "content": "yes"}}
    answer = {"id": "1", "model": "gpt-4o", "choices": [said], "usage": usage}
    transport = http.MockTransport(lambda _: http.Response(200, json=answer))
    return sdks.openai.OpenAI(
        base_url="http://model/v1", api_key="k", http_client=http.Client(transport=transport)
    )


def asked(*bodies):
    """Return the steps of a run that sends these bodies of chat completions."""
    client = client_of({"prompt_tokens": 5, "completion_tokens": 7})

    @workflow(fresh=True)
    def agent():
        for body in bodies:
            client.chat.completions.create(**{"model": "gpt-4o", **body})

    agent()
    return stepwise.runs()[0].steps


def turns(*texts, system="Be brief."):
    """Messages: a system prompt, and these texts of the user with answers between them."""
    said = [{"role": "system", "content": system}]
    for number, text in enumerate(texts):
        said += [{"role": "assistant", "content": f"answer {number}"}] * (number > 0)
        said.append({"role": "user", "content": text})
    return {"messages": said}


def moved(*bodies):
    steps = asked(*bodies)
    return moved_prompt(steps[-1], steps)


def test_a_conversation_that_grows_has_not_moved():
    """A request that adds messages to an earlier one, or asks it again, keeps its prompt."""
    assert moved(turns("one"), turns("one", "two"), turns("one", "two", "three")) is None
    assert moved(turns("one", "two"), turns("one")) is None
    assert moved(turns("one"), turns("one", "two"), turns("other"), turns("one", "three")) is None


def test_another_conversation_is_not_compared():
    """Requests without a message in common, or to other models, are other prompts."""
    assert moved(turns("one"), turns("two", system="Be long.")) is None
    assert moved(turns("one"), {**turns("one", system="Be long."), "model": "gpt-5"}) is None


def test_a_time_in_the_system_prompt_is_named():
    """The part, the byte, and the characters around it are told of both prompts."""
    noon, later = (turns("one", system=f"Be brief. It is 12:0{n}.") for n in (0, 1))
    found = moved(noon, later)
    assert (found.step, found.path) == (1, "messages[0].content")
    assert found.before.endswith("12:00.")
    assert found.now.endswith("12:01.")
    texts = ["".join(map(in_order, each["messages"])) for each in (noon, later)]
    assert texts[0].encode()[: found.at] == texts[1].encode()[: found.at]
    assert texts[0].encode()[found.at] != texts[1].encode()[found.at]


def test_tools_in_another_order_are_named():
    """Tools stand before the messages; their order counts, and the order of a tool's keys."""

    def tools(*names, **more):
        made = [{"type": "function", "function": {"name": name, **more}} for name in names]
        return {**turns("one"), "tools": made}

    assert moved(tools("a", "b"), tools("b", "a")).path == "tools[0].function.name"
    long = {"description": "d" * 300, "parameters": {}}
    turned = dict(reversed(long.items()))
    assert moved(tools("a", **long), tools("a", **turned)).path == "tools[0].function"


@given(st.lists(TEXTS, min_size=1, max_size=4), TOOLS, st.data())
def test_the_byte_is_the_first_that_differs(texts, tools, data):
    """Wherever a part of a prompt changes, the told byte is the first one that differs."""
    one = {**turns(*texts, "last"), **({"tools": tools} if tools else {})}
    other = json.loads(json.dumps(one))
    parts = [*other.get("tools", []), *other["messages"][:-1]]
    changed = data.draw(st.sampled_from(parts))
    key = "name" if "name" in changed else "content"
    changed[key] = data.draw(TEXTS.filter(lambda text: text != changed[key]))
    found = moved(one, other)
    texts = [
        "".join(map(in_order, [*each.get("tools", []), *each["messages"]])).encode()
        for each in (one, other)
    ]
    same = next(n for n in range(len(texts[0])) if texts[0][: n + 1] != texts[1][: n + 1])
    # Two bytes of a character may begin alike: a character is not taken apart.
    assert 0 <= same - found.at <= 1
    assert found.of == len(texts[0])


def test_show_names_the_byte():
    """``show RUN STEP`` says where the prompt moved, and so does its JSON; a kept one, nothing."""
    asked(turns("one", system="It is 12:00."), turns("one", system="It is 12:01."))
    run = stepwise.runs()[0].id
    shown = [CliRunner().invoke(cli.main, ["show", run, n]).output for n in ("1", "2")]
    assert "became" not in shown[0]
    assert "differs from step 1 after" in shown[1]
    assert "'It is 12:00.' became 'It is 12:01.'" in shown[1]
    told = json.loads(CliRunner().invoke(cli.main, ["show", run, "2", "--json"]).output)
    assert told["prompt_moved"]["path"] == "messages[0].content"


CACHED = {
    "openai": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}},
    "anthropic": {"input_tokens": 36, "cache_read_input_tokens": 64},
    "responses": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}},
}


@pytest.mark.parametrize("usage", CACHED.values(), ids=CACHED)
def test_cached_tokens_stand_in_what_is_spent(usage):
    """Tokens of the provider's cache are told by the run, its requests and its children, once."""
    client = client_of(usage)

    def ask():
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "?"}])

    @step
    def thinks():
        ask()

    @workflow
    def child():
        ask()

    @workflow
    def agent():
        ask()
        thinks()
        child()

    agent()
    (run,) = (each for each in stepwise.runs() if each.parent is None)
    assert (run.spent.tokens, run.spent.cached_tokens) == (300, 192)
    assert run.spent.to_dict()["cached_tokens"] == 192
    output = CliRunner().invoke(cli.main, ["show", run.id], env={"COLUMNS": "200"}).output
    assert "300 tokens, 192 of them cached" in output
    assert "100 (64 cached)" in output
    assert "100 (64 cached)" in run._repr_html_()
