"""A recorded run as a test: its model calls are answered from a file."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
import threading

import httpx2
import pytest
import sdks
from click.testing import CliRunner
from resuming import resumed

import stepwise
from stepwise import ConfigurationError, tool, workflow
from stepwise.cli import main
from stepwise.testing import RequestNotRecorded, crash_everywhere, fresh_store, recorded

SYSTEM = {"role": "system", "content": "You know the weather of every city. " * 10}


class Server:
    """A model that calls the weather tool, then tells the weather; counts what it is asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked += 1
        body = json.loads(request.content)
        last = body["messages"][-1]
        if request.url.path == "/v1/messages":
            return httpx2.Response(200, json=message(f"told: {last['content']}"))
        if body.get("stream"):
            words = ["It ", "rains ", "ünd shines."]
            chunks = [completion({"content": word}, "delta") for word in words]
            events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, content=events + "data: [DONE]\n\n")
        if last["role"] == "user":
            function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
            call = {"id": f"call_{self.asked}", "type": "function", "function": function}
            return httpx2.Response(200, json=completion({"content": None, "tool_calls": [call]}))
        return httpx2.Response(200, json=completion({"content": f"It has {last['content']}."}))

    def client(self, **options) -> httpx2.Client:
        return httpx2.Client(transport=httpx2.MockTransport(self), **options)


def completion(said: dict, where: str = "message") -> dict:
    reason = "stop" if where == "message" else None
    choice = {"index": 0, "finish_reason": reason, where: {"role": "assistant", **said}}
    return {"id": "1", "object": "o", "created": 0, "model": "m", "choices": [choice]}


def message(text: str) -> dict:
    content = [{"type": "text", "text": text}]
    return {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": content}


@tool
def weather(city: str) -> str:
    return "rain"


server = None  # what the clients talk to; the real one if there is none


def converse(question: str) -> str:
    """Ask with the clients of both SDKs: a loop, a stream, a message."""
    http_client = server.client() if server is not None else None
    client = sdks.openai.OpenAI(http_client=http_client, max_retries=2)
    messages = [SYSTEM, {"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model="m", messages=messages).choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    stream = client.chat.completions.create(model="m", messages=messages, stream=True)
    words = [chunk.choices[0].delta.content for chunk in stream]
    other = sdks.anthropic.Anthropic(http_client=http_client, max_retries=2)
    told = other.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": question}]
    )
    return f"{reply.content} {'|'.join(words)} {told.content[0].text}"


@workflow
def sub_agent(question: str) -> str:
    return converse(question)


@workflow
def agent(question: str) -> str:
    return sub_agent(question)


ANSWER = "It has rain. It |rains |ünd shines. told: How is Oslo?"


@pytest.fixture(autouse=True)
def _instrumented(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    stepwise.instrument()
    yield
    stepwise.uninstrument()


def the_run() -> stepwise.Run:
    (run,) = [run for run in stepwise.runs() if run.to_dict()["parent"] is None]
    return run


def export(path: pathlib.Path, *options: str) -> pathlib.Path:
    done = CliRunner().invoke(main, ["export", the_run().id, "-o", f"{path}", *options])
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture
def file(tmp_path, monkeypatch, request):
    """The export of a run."""
    with fresh_store(), monkeypatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-very-secret")
        patch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
        patch.setattr(sys.modules[__name__], "server", Server())
        assert agent("How is Oslo?") == ANSWER
        return export(tmp_path / "run.json", getattr(request, "param", "--format=model-calls"))


@pytest.mark.parametrize("file", ["--format=model-calls", "--json"], indirect=True)
def test_a_run_is_answered_from_its_export(file):
    """A workflow, and a plain function, get the recorded answers without key and network."""
    assert "sk-very-secret" not in file.read_text()
    with fresh_store(), recorded(file, strict=True) as calls:
        assert len(calls.unused) == 4
        assert agent("How is Oslo?") == ANSWER
        assert calls.unused == []
        (child,) = the_run().steps
        steps = [step.name for step in stepwise.get_run(child.child).steps]
        assert steps == ["chat.completions", "weather", *2 * ["chat.completions"], "messages"]
    with recorded(file, strict=True):
        assert converse("How is Oslo?") == ANSWER
    stepwise.uninstrument()
    with recorded(file, strict=True):
        stepwise.uninstrument()
        assert converse("How is Oslo?") == ANSWER


def test_the_file_says_a_conversation_once(file):
    """Each message of a conversation is in the file once, under the call that sent it first."""
    calls = json.loads(file.read_text())["model_calls"]
    assert file.read_text().count(SYSTEM["content"]) == 1
    assert [call["id"] for call in calls] == [1, 2, 3, 4]
    assert calls[1]["body"]["messages"]["$like"] == 1
    assert calls[2]["answer"]["events"][-1] == "data: [DONE]\n\n"


def test_a_request_that_differs_is_refused_with_the_difference(file, monkeypatch):
    """A request that was not recorded is an error at once, which names the nearest one."""
    counting = Server()
    monkeypatch.setattr(sys.modules[__name__], "server", counting)
    with recorded(file), pytest.raises(RequestNotRecorded) as caught:
        converse("How is Bern?")
    assert counting.asked == 0
    assert str(caught.value) == (
        "POST https://api.openai.com/v1/chat/completions: none of the 4 recorded calls in "
        f"{file} is this request. The nearest is call 1:\n"
        "  body.messages[1].content: recorded 'How is Oslo?', now 'How is Bern?'\n"
        "If the program is meant to ask this, record it anew: run it outside of the test, and "
        f"`stepwise export RUN --format model-calls -o {file}`"
    )


def test_a_difference_deep_in_a_long_text_is_shown(file):
    """Of a long text, what is around the first difference is shown, and items that are missing."""
    with recorded(file), pytest.raises(RequestNotRecorded) as caught:
        changed = {**SYSTEM, "content": SYSTEM["content"].replace("city. You", "town. You", 1)}
        sdks.openai.OpenAI().chat.completions.create(model="m", messages=[changed], seed=1)
    assert (
        "body.messages[0].content: recorded 'You know the weather of every city. You know"
        in str(caught.value)
    )
    assert "body.messages[1]: recorded {'role': 'user', 'content':" in str(caught.value)
    assert "'}, now missing" in str(caught.value)
    assert "body.seed: not recorded, now 1" in str(caught.value)


def test_a_refused_request_shows_no_credential_of_its_prompt(file):
    """What is masked in a prompt is masked in the difference, too."""
    key = "sk-proj-" + "a1B2c3D4e5F6" * 4
    with recorded(file), pytest.raises(RequestNotRecorded, match="now 'my key is ") as caught:
        converse(f"my key is {key}")
    assert key[8:20] not in str(caught.value)


def test_each_recorded_call_answers_once(file):
    """A request that is made too often is an error; a new block begins anew."""
    messages = [{"role": "user", "content": "How is Oslo?"}]
    calls = recorded(file)
    for _ in range(2):
        with calls, pytest.raises(RequestNotRecorded, match=r"has this request once \(call 4\)"):
            client = sdks.anthropic.Anthropic()
            for _ in range(2):
                client.messages.create(model="m", max_tokens=9, messages=messages)


def test_equal_requests_are_answered_in_their_order(tmp_path):
    """Of recorded calls with one identity, the first answers first."""

    class Counter(Server):
        def __call__(self, request):
            self.asked += 1
            return httpx2.Response(200, json=completion({"content": f"{self.asked}"}))

    client = sdks.openai.OpenAI(api_key="k", http_client=Counter().client())

    @workflow
    def thrice() -> list[str]:
        asked = [client.chat.completions.create(model="m", messages=[SYSTEM]) for _ in range(3)]
        return [each.choices[0].message.content for each in asked]

    with fresh_store():
        assert thrice() == ["1", "2", "3"]
        file = export(tmp_path / "run.json", "--format=model-calls")
    with recorded(file, strict=True), fresh_store():
        assert thrice() == ["1", "2", "3"]


def test_a_call_that_is_not_used_is_an_error_if_the_block_is_strict(file):
    """``strict`` refuses a program that asks less than it did; another error is not hidden."""
    with pytest.raises(AssertionError, match=r"not used: call 1: chat.completions, call 2"):
        with recorded(file, strict=True):
            pass
    with pytest.raises(KeyError):
        with recorded(file, strict=True):
            raise KeyError
    with recorded(file, strict=True), pytest.raises(RequestNotRecorded):
        converse("How is Bern?")


def test_another_server_counts_as_the_same(file):
    """A proxy or a test server in the place of the provider is answered alike."""
    with recorded(file):
        client = sdks.anthropic.Anthropic(base_url="http://localhost:1")
        messages = [{"role": "user", "content": "How is Oslo?"}]
        told = client.messages.create(model="m", max_tokens=9, messages=messages)
    assert told.content[0].text == "told: How is Oslo?"


def test_asynchronous_clients_and_threads_are_answered(file):
    """Clients of every kind are answered, in every task and thread of the block."""
    messages = [{"role": "user", "content": "How is Oslo?"}]

    async def ask() -> str:
        client = sdks.anthropic.AsyncAnthropic()
        told = await client.messages.create(model="m", max_tokens=9, messages=messages)
        return told.content[0].text

    found = []
    with recorded(file):
        assert asyncio.run(ask()) == "told: How is Oslo?"
    with recorded(file):
        thread = threading.Thread(target=lambda: found.append(asyncio.run(ask())))
        thread.start()
        thread.join()
    assert found == ["told: How is Oslo?"]


def test_a_request_that_asks_no_model_is_refused(file):
    """A request about files is not sent either."""
    with recorded(file), pytest.raises(RequestNotRecorded, match="is no request to a model"):
        sdks.openai.OpenAI().files.create(file=("a.txt", b"a"), purpose="batch")


def test_a_stream_that_was_left_is_answered_as_far_as_it_was_read(tmp_path):
    """A reader that leaves at the same place is answered; one that reads on is told."""

    class Slow(httpx2.SyncByteStream):
        def __iter__(self):
            for word in ("one", "two", "three"):
                yield f"data: {json.dumps(completion({'content': word}, 'delta'))}\n\n".encode()

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Slow(), request=request)

    transport = httpx2.MockTransport(answer)
    client = sdks.openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=transport))

    @workflow
    def first(count: int = 1) -> list[str]:
        found = []
        with client.chat.completions.create(model="m", messages=[SYSTEM], stream=True) as stream:
            for chunk in stream:
                found.append(chunk.choices[0].delta.content)
                if len(found) == count:
                    break
        return found

    with fresh_store():
        assert first() == ["one"]
        file = export(tmp_path / "run.json", "--format=model-calls")
    with recorded(file, strict=True), fresh_store():
        assert first() == ["one"]
    with (
        recorded(file),
        fresh_store(),
        pytest.raises(RequestNotRecorded, match="call 1 is a stream"),
    ):
        first(9)


def test_a_clients_own_keys_are_used_if_there_are_any(file, monkeypatch):
    """The placeholder for a key is only there where none is, and only within the block."""
    import os

    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    with recorded(file):
        assert os.environ["OPENAI_API_KEY"] == "mine"
        assert os.environ["ANTHROPIC_API_KEY"] == "recorded"
    assert "ANTHROPIC_API_KEY" not in os.environ


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        ("<html>", "is no export of a run with model calls"),
        ('{"id": "run"}', "is no export of a run with model calls"),
        ('{"model_calls": [{"id": 1}]}', "is no export of a run with model calls"),
        ('{"model_calls": 5}', "is no export of a run with model calls"),
        ('{"model_calls": []}', r"was stepwise.instrument\(\) called"),
    ],
)
def test_a_file_without_model_calls_is_refused(tmp_path, content, problem):
    """A file that answers nothing is refused with the command that makes a right one."""
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=problem):
        recorded(path)


def test_an_export_of_no_model_calls_is_refused(tmp_path):
    """A run of a program that does not instrument its clients has nothing to export."""

    @workflow
    def plain() -> str:
        return weather("Oslo")

    with fresh_store():
        plain()
        (run,) = stepwise.runs()
        path = tmp_path / "run.json"
        done = CliRunner().invoke(main, ["export", run.id, "--format=model-calls", "-o", f"{path}"])
    assert done.exit_code == 1
    assert "has no recorded model calls" in done.output
    assert not path.exists()


def test_crashes_everywhere_with_recorded_answers(file):
    """A crash test of the agent needs no model."""
    with recorded(file):
        assert crash_everywhere(agent, "How is Oslo?", limit=3).result == ANSWER


def test_a_run_that_was_killed_is_exported_whole(tmp_path, monkeypatch):
    """The calls of a run that was killed and resumed have whole requests."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")
    monkeypatch.setattr(sys.modules[__name__], "server", Server())
    with fresh_store():
        assert resumed(agent, "How is Oslo?", at="chat.completions", nth=3) == ANSWER
        file = export(tmp_path / "run.json", "--format=model-calls")
    with recorded(file, strict=True), fresh_store():
        assert agent("How is Oslo?") == ANSWER
