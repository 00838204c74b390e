"""``instrument(cache=...)``: requests to models that answers of other runs answer."""

import asyncio
import gzip
import pathlib
import sys
from datetime import timedelta

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from test_instrument import STREAMED, Server, achat, ask, atexts, chat, said, texts

import stepwise
from stepwise import ConfigurationError, Limit, step, workflow
from stepwise._calls import limited
from stepwise.integrations._model_calls import calls_in, model_calls
from stepwise.integrations.instrument import answering
from stepwise.stores import open_store


@pytest.fixture(autouse=True)
def place(tmp_path):
    """A store on the disk, as the default one, and every model request cached."""
    stepwise.configure(store=open_store(f"disk:{tmp_path}/store"))
    stepwise.instrument(cache="dev")
    yield tmp_path
    stepwise.uninstrument()


@pytest.fixture
def server():
    return Server()


@workflow
def agent(client, *prompts):
    return [said(ask(client, text)) for text in prompts]


def fresh(flow, *args):
    """The value of a new run, and the run."""
    run_id = f"run-{len(stepwise.runs())}"
    value = flow.options(run_id=run_id)(*args)
    return value, stepwise.get_run(run_id)


def test_a_second_run_sends_no_request(server):
    """Equal requests of another run are answered, marked, and counted as saved and not as spent."""
    client = chat(server)
    first, before = fresh(agent, client, "one", "two")
    second, run = fresh(agent, client, "one", "two")
    assert second == first == ["answer 1", "answer 2"]
    assert len(server.requests) == 2
    assert (run.spent.tokens, run.spent.steps, run.spent.saved_by_cache["tokens"]) == (0, 0, 24)
    assert (before.spent.tokens, before.spent.saved_by_cache) == (24, {})
    assert [each.cached["run"] for each in run.steps] == [before.id, before.id]
    assert "24 tokens" in str(run.spent).partition("the cache saved ")[2]
    assert run.to_dict()["spent"]["saved_by_cache"]["tokens"] == 24
    assert run.steps[0].to_dict()["cached"]["run"] == before.id


def test_equal_requests_of_one_run_are_several_answers(server):
    """The n-th equal request of a run is answered by the n-th of another: samples stay samples."""
    client = chat(server)
    first, _ = fresh(agent, client, "one", "one", "one")
    assert first == ["answer 1", "answer 2", "answer 3"]
    assert fresh(agent, client, "one", "one", "one", "one")[0] == [*first, "answer 4"]
    assert len(server.requests) == 4


def test_a_run_that_asks_again_gets_another_answer(server):
    """A run that failed with an answer asks the model again, and is not given that answer."""
    client, broken = chat(server), [True]

    @step(retries=1, backoff=0)
    def think():
        answer = said(ask(client, "think"))
        if answer == "answer 1" or (answer == "answer 2" and broken):
            raise ValueError(answer)
        return answer

    @workflow
    def flow():
        return think()

    with pytest.raises(ValueError, match="answer 2"):
        fresh(flow)
    broken.clear()
    assert flow.options(run_id="run-0")() == "answer 3"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_streams_are_streams_again(server, asynchronous):
    """A streamed answer comes in the same pieces, and what ``emit=`` says of it is said again."""
    stepwise.instrument(cache="dev", emit="main")
    client, aclient = chat(server), achat(server)

    @workflow
    def flow():
        return [*texts(ask(client, "one", stream=True))]

    @workflow
    async def aflow():
        return [each async for each in atexts(ask(aclient, "one", stream=True))]

    found = []
    for number in range(2):
        called = aflow.options(run_id=f"r{number}") if asynchronous else None
        value = asyncio.run(called()) if called else flow.options(run_id=f"r{number}")()
        items = [each.value for each in stepwise.get_run(f"r{number}").stream()][:-1]
        found.append((value, "".join(items)))
    assert found[0] == found[1]
    assert found[0][1] == "".join(found[0][0])
    assert len(server.requests) == 1


def test_a_compressed_stream_is_kept(server):
    """A streamed answer that the server compresses answers the next run, too."""

    def compressing(request):
        plain, library = server(request), sys.modules[type(request).__module__.partition(".")[0]]
        content = gzip.compress(plain.read())
        headers = {**STREAMED, "content-encoding": "gzip"}
        return library.Response(200, headers=headers, stream=library.ByteStream(content))

    client = chat(compressing)

    @workflow
    def flow():
        return [*texts(ask(client, "one", stream=True))]

    assert fresh(flow)[0] == fresh(flow)[0] == ["a", "b", "c", "1"]
    assert len(server.requests) == 1


def test_requests_that_are_not_recorded_are_sent(server):
    """Requests outside of runs, and in the bodies of steps, are sent each time."""
    client = chat(server)

    @step
    def think(text):
        return said(ask(client, text))

    @workflow
    def flow():
        return think("one")

    assert [fresh(flow)[0], fresh(flow)[0]] == ["answer 1", "answer 2"]
    assert [said(ask(client, "one")), said(ask(client, "one"))] == ["answer 3", "answer 4"]
    fresh(agent, client, "one")
    assert said(ask(client, "one")) == "answer 6"


def test_what_differs_is_asked(server):
    """Another model, prompt, temperature or address is another request; another key is not."""
    one, other = chat(server), chat(server)
    other.api_key = "another"
    elsewhere = one.with_options(base_url="http://other/v1")
    messages = [{"role": "user", "content": "hello"}]

    @workflow
    def flow(client, asked):
        return said(client.chat.completions.create(**asked))

    for client, options, number in [
        (one, {}, 1),
        (other, {}, 1),
        (elsewhere, {}, 2),
        (one, {"model": "o3"}, 3),
        (one, {"temperature": 0.5}, 4),
        (one, {"temperature": 0.5}, 4),
    ]:
        asked = {"model": "gpt-4o", "messages": messages, **options}
        assert fresh(flow, client, asked)[0] == f"answer {number}"


def test_failures_and_what_a_provider_keeps_are_not_answered(server):
    """Refusals are asked again; so is what changes a conversation of the provider."""
    client = chat(server, max_retries=0)

    @workflow
    def flow(body):
        client.post("/responses", body=body, cast_to=object)

    server.statuses = [500, 404]
    for _ in range(2):
        with pytest.raises(Exception, match="no"):
            fresh(agent, client, "one")
    assert [fresh(agent, client, "one")[0] for _ in range(2)] == 2 * [["answer 3"]]
    for _ in range(2):
        fresh(flow, {"model": "m", "input": "x", "conversation": "c"})
    assert len(server.requests) == 5
    tools = [{"type": "mcp", "server_url": "http://m"}]  # a tool of another server may act
    for _ in range(2):
        fresh(flow, {"model": "m", "input": "x", "tools": tools})
    assert len(server.requests) == 7


def test_a_stream_that_is_left_is_not_kept(server):
    """Only a whole answer is kept: a stream that its reader left early is asked again."""
    client = chat(server)

    @workflow
    def flow():
        with ask(client, "one", stream=True) as stream:
            next(iter(stream))

    for _ in range(2):
        fresh(flow)
    assert len(server.requests) == 2


def test_nothing_secret_is_stored(server, place):
    """Neither the key of the account nor the prompt is readable in an encrypted cache."""
    stepwise.configure(encrypt=True)
    client = chat(server)
    client.api_key = "sk-sesame-4711"
    fresh(agent, client, "the butler")
    assert fresh(agent, client, "the butler")[0] == ["answer 1"]
    data = b"".join(path.read_bytes() for path in (place / "store" / "cache").iterdir())
    assert data
    for text in (b"sesame", b"butler", b"answer 1", b"chat.completions"):
        assert text not in data


def test_off_in_production(server, monkeypatch):
    """``"dev"`` is off where ``STEPWISE_ENV`` is ``production``; an age holds there, too."""
    client = chat(server)

    def asked():
        return fresh(agent, client, "one")[0][0]

    monkeypatch.setenv("STEPWISE_ENV", "production")
    assert [asked(), asked()] == ["answer 1", "answer 2"]
    stepwise.instrument(cache=timedelta(hours=1))
    assert [asked(), asked()] == ["answer 3", "answer 3"]
    stepwise.instrument()
    assert asked() == "answer 4"
    stepwise.instrument(cache="dev")
    monkeypatch.setenv("STEPWISE_ENV", "prod")
    with pytest.raises(ConfigurationError, match="use 'development' or 'production'"):
        asked()
    with pytest.raises(ConfigurationError, match=r"cache=True of instrument\(\)"):
        stepwise.instrument(cache=True)


def test_an_answer_takes_nothing_of_a_limit(server):
    """Answered requests wait for no limit."""
    limit = Limit("api", requests=2, per=3600)
    stepwise.instrument(cache="dev", limits={"model": limit})
    client = chat(server)
    fresh(agent, client, "one", "two")
    for _ in range(3):
        assert fresh(agent, client, "one", "two")[0] == ["answer 1", "answer 2"]
    limited.settle()


def test_a_test_s_own_answers_are_not_cached(server):
    """Where a test answers requests by a function, the cache neither answers nor learns."""
    client = chat(server)
    fake = Server()
    fake.requests += [None] * 7

    def answer(request, **_):
        response = fake(request)
        response.request = request
        return response

    with answering(answer):
        assert fresh(agent, client, "one")[0] == ["answer 8"]
    assert fresh(agent, client, "one")[0] == ["answer 1"]
    with answering(answer):
        assert fresh(agent, client, "one")[0] == ["answer 9"]


def test_an_export_has_the_requests(server):
    """An answered call has its own request, whatever the run that made the answer shared."""
    client = chat(server)

    @workflow
    def flow(*said_before):
        history = [{"role": "user", "content": text * 300} for text in said_before]
        for _ in range(2):
            answer = client.chat.completions.create(model="gpt-4o", messages=history)
            history.append({"role": "assistant", "content": said(answer)})

    fresh(flow, "a")
    for run in (fresh(flow, "a")[1], stepwise.get_run("run-0")):
        bodies = [request.body for _, request, _ in calls_in(model_calls(run))]
        assert [len(body["messages"]) for body in bodies] == [1, 2]
    assert len(server.requests) == 2
