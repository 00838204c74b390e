"""The message stream of the AI SDK, with the client library of its authors, from npm."""

import json
import pathlib
import shutil
import signal
import subprocess

import pytest

import stepwise

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder with the client library."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("the client library needs node and npm")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "ai@6"]
    given = {"cwd": folder, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, check=False, **given)
    if done.returncode:
        pytest.skip(f"npm does not install the client library: {done.stderr[-200:]}")
    shutil.copy(HERE / "chat.mjs", folder)
    return folder


class Chat:
    """A chat in a process of node."""

    def __init__(self, library, address, name):
        self.process = subprocess.Popen(
            ["node", "chat.mjs", f"{address}/ai-sdk/{name}"],
            cwd=library,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, command, **given):
        """Give a command; return the status, the error and the messages after it."""
        self.process.stdin.write(json.dumps({"do": command, **given}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


@pytest.fixture
def chat(library):
    """Opens chats."""
    made = []

    def make(server, name):
        made.append(Chat(library, server.address, name))
        made[-1].do("open", id="c1")
        return made[-1]

    yield make
    for each in made:
        each.close()


def texts(state):
    """The texts of the last message that a page shows: those that are not withdrawn."""
    return [
        part["text"]
        for part in state["messages"][-1]["parts"]
        if part["type"] == "text" and "providerMetadata" not in part
    ]


def test_a_message_is_answered(server, chat):
    """What a run says becomes the parts of one message, whose id is that of the run."""
    page = chat(server(), "reply")
    page.do("send", text="hello")
    state = page.do("settle")
    (user, answer) = state["messages"]
    assert (state["status"], state.get("error")) == ("ready", None)
    assert answer["id"] == f"c1:{user['id']}"
    assert answer["role"] == "assistant"
    kinds = [(part["type"], part.get("text", part.get("data"))) for part in answer["parts"]]
    assert kinds == [
        ("text", "You said hello."),
        ("data-weather", {"wind": 3}),
        ("data-item", 42),
        ("text", "Goodbye."),
    ]
    run = stepwise.get_run(answer["id"])
    assert (run.status, run.tags) == ("completed", {"chat": "c1"})


def test_the_same_message_again(server, chat):
    """A message that was edited, and a regenerated answer, are other runs of the chat."""
    page = chat(server(), "reply")
    page.do("send", text="hello")
    first = page.do("settle")["messages"]
    page.do("regenerate")
    second = page.do("settle")["messages"]
    page.do("send", text="good evening", id=first[0]["id"])
    third = page.do("settle")["messages"]
    assert texts({"messages": third})[0] == "You said good evening."
    ids = [each[-1]["id"] for each in (first, second, third)]
    assert len({*ids}) == 3
    assert {run.id for run in stepwise.runs(tags={"chat": "c1"})} == {*ids}


def test_what_was_withdrawn_is_marked(server, chat):
    """A text that a failed attempt has said is marked, and what holds is said in a new one."""
    page = chat(server(), "stumble")
    page.do("send", text="x")
    seen = page.do("until", text="half a sent")
    assert texts(seen) == ["I think: half a sent"]
    run_id = seen["messages"][-1]["id"]
    stepwise.get_run(run_id).send("fail")
    state = page.do("settle")
    assert texts(state) == ["I think: the whole sentence."]
    withdrawn = [part for part in state["messages"][-1]["parts"] if "providerMetadata" in part]
    assert [part["text"] for part in withdrawn] == ["I think: half a sent"]
    assert withdrawn[0]["providerMetadata"] == {"stepwise": {"withdrawn": True}}
    later = chat(server(), "stumble")
    later.do("resume")
    assert later.do("settle")["messages"] == []  # nothing is active: 204


def test_a_page_is_reloaded(server, chat):
    """A page that is loaded again gets the whole message of the run in progress, and its end."""
    served = server()
    page = chat(served, "pause")
    page.do("send", text="x")
    run_id = page.do("until", text="before")["messages"][-1]["id"]
    reloaded = chat(served, "pause")
    reloaded.do("resume")
    reloaded.do("until", text="before")
    stepwise.get_run(run_id).send("go", "now")
    for each in (page, reloaded):
        state = each.do("settle")
        assert (state["status"], texts(state)) == ("ready", ["beforeafter"])
        assert state["messages"][-1]["id"] == run_id


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_is_killed(server, chat, number):
    """The client notices that its server died, and resuming replaces the message by the whole."""
    served = server()
    page = chat(served, "pause")
    page.do("send", text="x")
    run_id = page.do("until", text="before")["messages"][-1]["id"]
    served.end(number)
    state = page.do("settle")
    assert state["status"] == "error", state
    served.start()
    page.do("resume")
    page.do("until", text="before")
    stepwise.get_run(run_id).send("go", "now")
    state = page.do("settle")
    assert (state["status"], texts(state)) == ("ready", ["beforeafter"])
    assert [each["role"] for each in state["messages"]] == ["user", "assistant"]


def test_stop_cancels_the_run(server, chat):
    """With cancel_when_left, the stop() of the client cancels the run."""
    page = chat(server(left="0"), "pause")
    page.do("send", text="x")
    run_id = page.do("until", text="before")["messages"][-1]["id"]
    page.do("stop")
    *_, end = stepwise.get_run(run_id).stream()
    assert (end.kind, end.value) == ("end", "cancelled")


def test_a_run_fails(server, chat):
    """A failed run is an error of the chat, which does not show the exception."""
    page = chat(server(), "fail")
    page.do("send", text="x")
    state = page.do("settle")
    assert (state["status"], state["error"]) == ("error", "Error: The run failed.")


def test_another_body_is_refused(server):
    """A request that is not one of the client gets status 422."""
    with server().client() as client:
        for body in ({}, {"id": "c"}, {"id": "c", "messages": []}, {"id": 1, "messages": [{}]}):
            assert client.post("/ai-sdk/reply", json=body).status_code == 422, body
