"""Requests to models as recorded steps: what answers them, what is recorded, and what never is."""

import asyncio
import contextlib
import contextvars
import gc
import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import anthropic
import httpx
import openai
import pytest
from click.testing import CliRunner

import stepwise
from stepwise import (
    ConfigurationError,
    StepInDoubtError,
    StreamChangedError,
    cli,
    step,
    tool,
    workflow,
)
from stepwise._calls.perform import ShownValue
from stepwise._calls.steps import Step
from stepwise.testing import fresh_store


@pytest.fixture(autouse=True)
def store():
    with fresh_store() as opened:
        yield opened


@pytest.fixture(autouse=True)
def instrumented():
    stepwise.instrument()
    yield
    stepwise.uninstrument()


class Server:
    """Answers each request with its number, in the protocols of OpenAI and Anthropic."""

    def __init__(self, *statuses):
        self.requests = []
        self.statuses = list(statuses)
        self.pieces = ["a", "b", "c"]
        self.finish = False  # whether streams say why the model stopped
        self.read = 0  # pieces of streams that were fetched

    def __call__(self, request):
        library = sys.modules[type(request).__module__.partition(".")[0]]
        self.requests.append(request)
        number = len(self.requests)
        status = self.statuses.pop(0) if self.statuses else 200
        if status is None:
            raise library.ConnectError("no route", request=request)
        if status != 200:
            error = {"error": {"message": "no"}}
            return library.Response(status, json=error, headers={"retry-after-ms": "1"})
        body = json.loads(request.content or b"null")
        if isinstance(body, dict) and body.get("stream"):
            return self._stream(library, request, number)
        if request.url.path.endswith("/messages"):
            return library.Response(200, json=message(f"answer {number}"))
        if request.url.path.endswith("/chat/completions"):
            return library.Response(200, json=completion(f"answer {number}"))
        return library.Response(200, json={"number": number}, headers={"x-next": f"{number}"})

    async def awaited(self, request):
        return self(request)

    def _stream(self, library, request, number):
        outer = self

        class Stream(library.SyncByteStream, library.AsyncByteStream):
            def __iter__(self):
                for each in [*outer.pieces, f"{number}"]:
                    outer.read += 1
                    yield event(each if isinstance(each, dict) else chunk(each))
                if outer.finish:
                    yield event(chunk(None, finish="stop"))
                yield b"data: [DONE]\n\n"

            async def __aiter__(self):
                for each in self:
                    yield each

        headers = {"content-type": "text/event-stream"}
        return library.Response(200, headers=headers, stream=Stream(), request=request)


def completion(text):
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [choice],
        "usage": usage,
    }


def message(text):
    return {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "stop_reason": "x",
        "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }


def chunk(text, finish=None):
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    kind = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    return {**kind, "choices": [delta]}


def event(value):
    return f"data: {json.dumps(value)}\n\n".encode()


def transports(module):
    """The library of HTTP that a SDK uses: httpx2 today, httpx before."""
    return sys.modules[
        module._base_client.SyncAPIClient.__init__.__globals__["URL"].__module__.partition(".")[0]
    ]


def chat(server, **options):
    library = transports(openai)
    http = library.Client(transport=library.MockTransport(server))
    return openai.OpenAI(base_url="http://model/v1", api_key="k", http_client=http, **options)


def achat(server, **options):
    library = transports(openai)
    http = library.AsyncClient(transport=library.MockTransport(server.awaited))
    return openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http, **options)


def ask(client, text="hello", **options):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-4o", messages=messages, **options)


def said(answer):
    return answer.choices[0].message.content


def run_twice(wf, *args):
    """Call a workflow that fails the first time; return what it returns the second time."""
    with pytest.raises(Broken):
        wf(*args)
    return wf(*args)


class Broken(Exception):
    """The workflow is cut off here, once."""


class Once:
    def __init__(self, kind=Broken):
        self.broken = False
        self.kind = kind

    def __call__(self):
        if not self.broken:
            self.broken = True
            raise self.kind


# -- answers -------------------------------------------------------------------------------------


def test_each_request_is_made_once():
    """A statement that is executed again gets the recorded answers of the requests it had made."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow
    def agent():
        return [said(ask(client, text)) for text in ("one", "two", "one")] + [broken()]

    assert run_twice(agent) == ["answer 1", "answer 2", "answer 3", None]
    assert len(server.requests) == 3


@pytest.mark.parametrize("form", ["raw", "streamed", "parsed", "copied"])
def test_every_form_of_an_answer_is_made_of_the_record(form):
    """Raw and streamed responses, and copies of the client, are answered as plain calls are."""
    server, broken = Server(), Once()
    client = chat(server)
    completions = client.chat.completions
    request = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}

    def answer():
        if form == "raw":
            raw = completions.with_raw_response.create(**request)
            assert raw.status_code == 200
            return raw.parse()
        if form == "streamed":
            with completions.with_streaming_response.create(**request) as response:
                return response.parse()
        if form == "copied":
            return client.with_options(timeout=3).chat.completions.create(**request)
        return completions.create(**request)

    @workflow
    def agent():
        return [said(answer()), broken()]

    assert run_twice(agent) == ["answer 1", None]
    assert len(server.requests) == 1


def test_clients_of_anthropic_are_recorded():
    """The requests to ``messages`` are steps, with the model and the tokens of each."""
    server, broken = Server(), Once()
    library = transports(anthropic)
    http = library.Client(transport=library.MockTransport(server))
    client = anthropic.Anthropic(base_url="http://model", api_key="k", http_client=http)

    @workflow
    def agent():
        asked = [{"role": "user", "content": "hello"}]
        answer = client.messages.create(model="claude", max_tokens=9, messages=asked)
        return [answer.content[0].text, broken()]

    assert run_twice(agent) == ["answer 1", None]
    (recorded,) = stepwise.runs()[0].steps
    assert (recorded.name, recorded.preview) == ("messages", "answer 1")
    assert recorded.usage["input_tokens"] == 3
    assert recorded.usage["output_tokens"] == 4
    assert recorded.usage["model"] == "claude"


def test_asynchronous_requests_side_by_side():
    """Requests of a gather are recorded each, and each gets its own answer back."""
    server, broken = Server(), Once()
    client = achat(server)

    @workflow
    async def agent():
        async def one(text):
            return said(await ask(client, text))

        return [*await asyncio.gather(*map(one, "abc")), broken()]

    with pytest.raises(Broken):
        asyncio.run(agent())
    assert asyncio.run(agent()) == ["answer 1", "answer 2", "answer 3", None]
    assert len(server.requests) == 3


def test_a_request_that_differs_is_made():
    """An edited prompt is another request; its recorded answer is not given to it."""
    server, broken, texts = Server(), Once(), ["one", "two"]
    client = chat(server)

    @workflow
    def agent():
        return [said(ask(client, texts[0])), broken()]

    with pytest.raises(Broken):
        agent()
    texts.reverse()
    assert agent.options(run_id=stepwise.runs()[0].id)() == ["answer 2", None]


def test_json_codec():
    """A run that is recorded as data only keeps the answers of models, too."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow(codec="json", trust="data")
    def agent():
        return [said(ask(client)), "".join(texts(ask(client, stream=True))), broken()]

    assert run_twice(agent) == ["answer 1", "abc2", None]
    assert len(server.requests) == 2


def test_events_and_listing_say_model_and_tokens():
    """Completed and answered requests carry their usage; the listing shows question and answer."""
    server, broken, heard = Server(), Once(), []
    client = chat(server)

    @workflow
    def agent():
        return [said(ask(client)), broken()]

    end = stepwise.on_event(heard.append)
    try:
        run_twice(agent)
    finally:
        end()
    usages = {each.kind: each.usage for each in heard if each.step}
    assert usages["step_completed"]["output_tokens"] == 7
    assert usages["step_answered"]["model"] == "gpt-4o"
    (recorded,) = stepwise.runs()[0].steps
    assert "model='gpt-4o'" in recorded.arguments
    assert "hello" in recorded.arguments
    assert recorded.site.startswith("test_instrument.py:")
    assert recorded.to_dict()["usage"]["input_tokens"] == 5
    shown = CliRunner().invoke(cli.main, ["show", stepwise.runs()[0].id], env={"COLUMNS": "200"})
    assert "answer 1 · gpt-4o, 5 + 7 tokens" in shown.output
    assert "gpt-4o, 5 + 7 tokens" in stepwise.runs()[0]._repr_html_()


# -- what they spend -----------------------------------------------------------------------------


def tokens_spent():
    (run,) = (each for each in stepwise.runs() if each.parent is None)
    return run.spent.tokens


def cut_off(wf, kind):
    """Call a workflow that fails, or is interrupted, the first time; and again."""
    with pytest.raises(kind):
        wf()
    return wf()


@pytest.mark.parametrize("kind", [Broken, KeyboardInterrupt])
def test_requests_spend_by_themselves(kind):
    """Each request counts its tokens once, in steps too, and when its step is cut off."""
    server, broken = Server(), Once(kind)
    client = chat(server)

    @step
    def thinks(text):
        ask(client, text)
        answer = said(ask(client, f"{text} again"))
        broken()
        return answer

    @workflow
    def agent():
        return [said(ask(client)), thinks("hello")]

    assert cut_off(agent, kind) == ["answer 1", "answer 5"]
    assert len(server.requests) == 5  # those of the step are made again
    assert tokens_spent() == 5 * 12


def test_a_budget_of_tokens_stops_before_the_next_request():
    """A request that would begin beyond the budget is not sent; the SDK does not try again."""
    server = Server()
    client = chat(server, max_retries=2)

    @workflow(budget=stepwise.Budget(tokens=20))
    def agent():
        return [said(ask(client, text)) for text in "abc"]

    with pytest.raises(stepwise.BudgetExceeded):
        agent()
    assert len(server.requests) == 2
    answers = agent.options(budget=stepwise.Budget(tokens=37))()
    assert answers == ["answer 1", "answer 2", "answer 3"]
    assert tokens_spent() == 36


def test_failed_requests_spend_nothing():
    """A limit of the server is an attempt that costs no tokens, and no step of a budget."""
    client = chat(Server(429, 429), max_retries=3)

    @workflow(budget=stepwise.Budget(steps=1))
    def agent():
        return said(ask(client))

    assert agent() == "answer 3"
    assert tokens_spent() == 12
    assert stepwise.runs()[0].spent.steps == 1


def test_streams_and_asynchronous_requests_spend():
    """Requests side by side count each, and so do streams in the bodies of steps."""
    server = Server()
    server.pieces = [{**chunk("a"), "usage": {"prompt_tokens": 2, "completion_tokens": 3}}]
    client, plain = achat(server), chat(server)

    @step
    async def streams():
        stream = await ask(client, stream=True)
        return [each async for each in stream] and None

    @step
    def breaks_off():
        for _ in ask(plain, stream=True):
            break

    @workflow
    async def agent():
        await asyncio.gather(*[ask(client, text) for text in "abcd"])
        await streams()
        breaks_off()

    asyncio.run(agent())
    gc.collect()
    assert tokens_spent() == 4 * 12 + 2 * 5


class _Engine(Step):
    """A step that reports the usage of a request which an instrumented client records, too."""

    def shown_value(self, value):
        return ShownValue("said", {"model": "gpt-4o", "input_tokens": 6, "output_tokens": 7})


def test_a_request_that_two_layers_record_counts_once():
    """Usage that a framework's step reports is that of the requests inside it, not more of it."""
    client = chat(Server())

    def request():
        stepwise.spend(tokens=100)
        return said(ask(client))

    engine = _Engine(request, kind="step", name="engine request")

    @workflow
    def agent():
        return engine()

    assert agent() == "answer 1"
    assert tokens_spent() == 113  # the larger report: 12 of the request, and 1 more


# -- what is no outcome --------------------------------------------------------------------------


@pytest.mark.parametrize("status", [None, 401, 403, 408, 409, 425, 429, 500, 503, 529])
def test_an_answer_of_the_moment_is_an_attempt(status):
    """A limit, a refused key, a failed server or connection is not recorded as the answer."""
    server, broken = Server(status), Once()
    client = chat(server, max_retries=0)

    @workflow
    def agent():
        def asked():
            with contextlib.suppress(openai.APIError):
                return said(ask(client))

        return [asked(), broken()]

    assert run_twice(agent) == ["answer 2", None]


def test_attempts_are_repeated_as_the_client_says():
    """After two limits the SDK's third attempt answers; a rerun sends nothing more."""
    server, broken, heard = Server(429, 429), Once(), []
    client = chat(server, max_retries=2)

    @workflow
    def agent():
        return [said(ask(client)), broken()]

    end = stepwise.on_event(heard.append)
    try:
        assert run_twice(agent) == ["answer 3", None]
    finally:
        end()
    assert len(server.requests) == 3
    assert [each.kind for each in heard if each.step and "failed" in each.kind] == 2 * [
        "step_failed"
    ]


def test_an_attempt_in_the_handler_of_the_last_one_is_answered():
    """What a client got while it handled a failed attempt, as older SDKs do, answers a rerun."""
    server, broken = Server(429), Once()
    client = chat(server, max_retries=0)

    def asked():
        try:
            return ask(client)
        except openai.RateLimitError:
            return ask(client)

    @workflow
    def agent():
        return [said(asked()), broken()]

    assert run_twice(agent) == ["answer 2", None]
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_request_is_an_outcome(status):
    """A request that the server refuses for what it is, is refused again without being sent."""
    server, broken = Server(status), Once()
    client = chat(server)

    @workflow
    def agent():
        def code():
            try:
                ask(client)
            except openai.APIStatusError as error:
                return error.status_code

        return [code(), broken()]

    assert run_twice(agent) == [status, None]
    assert len(server.requests) == 1


# -- streams -------------------------------------------------------------------------------------


def texts(stream):
    for each in stream:
        yield each.choices[0].delta.content or ""


def test_a_stream_is_given_again_as_it_came():
    """A recorded stream gives the same pieces, synchronous or not, and asks no server."""
    server, broken = Server(), Once()
    client, aclient = chat(server), achat(server)

    @workflow
    def agent():
        return [list(texts(ask(client, stream=True))), broken()]

    @workflow
    async def aagent():
        async def whole():
            stream = await ask(aclient, stream=True)
            return [each.choices[0].delta.content async for each in stream]

        return [await whole(), broken()]

    assert run_twice(agent) == [["a", "b", "c", "1"], None]
    broken.broken = False
    with pytest.raises(Broken):
        asyncio.run(aagent())
    assert asyncio.run(aagent()) == [["a", "b", "c", "2"], None]
    assert len(server.requests) == 2


def test_a_stream_that_an_error_cut_off_is_requested_again():
    """A workflow that fails while it reads gets a whole stream at its next start."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow
    def agent():
        found = ""
        for each in texts(ask(client, stream=True)):
            found += each
            if each == "b":
                broken()
        return found

    assert run_twice(agent) == "abc2"


def test_a_stream_that_was_left_is_recorded_as_its_beginning():
    """A reader that closes a stream and goes on gets the same beginning, without a request."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow
    def agent():
        def first():
            with ask(client, stream=True) as stream:
                return next(texts(stream))

        return [first(), said(ask(client, "after")), broken()]

    assert run_twice(agent) == ["a", "answer 2", None]
    assert len(server.requests) == 2
    assert [each.preview for each in stepwise.runs()[0].steps] == ["a", "answer 2"]


def test_a_stream_whose_reader_breaks_and_closes_nothing_is_recorded_as_its_beginning():
    """A side effect that follows a loop that was left is not made again for another answer."""
    server, broken, sent = Server(), Once(), []
    client = chat(server)

    @tool(side_effect=True)
    def send(text):
        sent.append(text)

    @workflow(checkpoint_every=1000)  # it replays from the top
    def agent():
        def first():
            stream = ask(client, stream=True)
            for piece in stream:  # noqa: B007 -- left at once
                break
            return piece.choices[0].delta.content + f"{len(server.requests)}"

        found = first()
        gc.collect()
        for text in [found]:
            send(text)
        return [found[:1], broken()]

    assert run_twice(agent) == ["a", None]
    assert sent == ["a1"]
    assert len(server.requests) == 1
    assert [each.name for each in stepwise.runs()[0].steps] == ["chat.completions", "send"]


def test_a_stream_that_is_dropped_at_its_last_word_is_recorded():
    """A reader that stops at the reason why the model stopped, and closes nothing, has it all."""
    server, broken = Server(), Once()
    client, kept = chat(server), []

    @workflow
    def agent():
        def read():
            kept.append(iter(ask(client, stream=True)))  # open, for ever
            found = []
            for piece in kept[-1]:
                found.append(piece.choices[0].delta.content)
                if piece.choices[0].finish_reason:
                    break
            return found

        return [read(), broken()]

    server.finish = True
    assert run_twice(agent) == [["a", "b", "c", "1", None], None]
    assert len(server.requests) == 1


def left_and_read_on(server):
    """A workflow that reads one piece of a stream, and all of it when it is called again."""
    client, broken, whole = chat(server), Once(), []

    @workflow
    def agent():
        def found():
            stream = ask(client, stream=True)
            if whole:
                return list(texts(stream))
            whole.append(True)
            with stream:
                return [next(texts(stream))]

        return [found(), said(ask(client, "after")), broken()]

    return agent


def test_reading_on_requests_the_stream_again():
    """Code that now reads behind the recorded beginning gets the rest of an equal stream."""
    server = Server()
    server._stream = same_stream(server._stream)
    assert run_twice(left_and_read_on(server)) == [["a", "b", "c", "9"], "answer 2", None]
    assert len(server.requests) == 3


def same_stream(stream):
    return lambda library, request, _: stream(library, request, 9)


def test_a_stream_that_begins_otherwise_is_not_joined():
    """A second stream that begins otherwise raises; the next start requests it as a whole."""
    server = Server()
    agent = left_and_read_on(server)
    with pytest.raises(Broken):
        agent()
    server.pieces = ["x", "y"]
    with pytest.raises(StreamChangedError, match="run the program again"):
        agent()
    assert agent() == [["x", "y", "4"], "answer 2", None]


def test_a_side_effect_reads_open_streams_first():
    """A stream is recorded to its end before a side effect is announced; its reader goes on."""
    server, broken, sent = Server(), Once(), []
    client = chat(server)

    @tool(side_effect=True, ignore="server")
    def send(text, *, server):
        sent.append((text, server.read, [each.preview for each in stepwise.current_run().steps]))

    @workflow
    def agent():
        def talk():
            for each in texts(ask(client, stream=True)):
                if each == "b":
                    send(each, server=server)
                yield each

        return [*talk(), broken()]

    assert run_twice(agent) == ["a", "b", "c", "1", None]
    ((text, read, previews),) = sent
    assert (text, read) == ("b", 4)
    assert previews[0] == "abc1"
    assert len(server.requests) == 1


def test_an_asynchronous_side_effect_awaits_open_streams():
    """What holds of a synchronous stream holds of an asynchronous one."""
    server, broken, sent = Server(), Once(), []
    client = achat(server)

    @tool(side_effect=True, ignore="server")
    async def send(text, *, server):
        sent.append((text, server.read))

    @workflow
    async def agent():
        async def talk():
            found = []
            async for each in await ask(client, stream=True):
                found.append(each.choices[0].delta.content)
                if found[-1] == "b":
                    await send("b", server=server)
            return found

        return [*await talk(), broken()]

    with pytest.raises(Broken):
        asyncio.run(agent())
    assert asyncio.run(agent()) == ["a", "b", "c", "1", None]
    assert sent == [("b", 4)]
    assert len(server.requests) == 1


def test_a_plain_side_effect_beside_an_asynchronous_stream_warns():
    """A plain function cannot await the rest of a stream, which a warning says."""
    server = Server()
    client = achat(server)

    @tool(side_effect=True)
    def send(text):
        return text

    @workflow
    async def agent():
        async for each in await ask(client, stream=True):
            if each.choices[0].delta.content == "b":
                send("b")

    with pytest.warns(stepwise.RunWarning, match="send has side effects.*async def"):
        asyncio.run(agent())


@pytest.mark.parametrize("how", ["one piece", "a side effect reads it"])
def test_a_stream_that_ends_with_an_error_is_no_outcome(how):
    """An overload that is told inside a stream is not given again: the next start asks anew."""
    server, effects = Server(), []
    library, client = transports(openai), chat(server)
    error = b'data: {"error": {"message": "overloaded"}}\n\n'

    @tool(side_effect=True)
    def send():
        effects.append(True)

    class Failing(library.SyncByteStream):
        def __iter__(self):
            yield event(chunk("a"))
            yield error + b"data: [DONE]\n\n"

    def fail_once(library, request, number, stream=server._stream):
        response = stream(library, request, number)
        if number == 1:
            response.stream = Failing()
        return response

    server._stream = fail_once

    @workflow
    def agent():
        def found():
            for each in texts(ask(client, stream=True)):
                if how != "one piece" and each == "a":
                    send()
                yield each

        return "".join(found())

    with pytest.raises(openai.APIError, match="overloaded"):
        agent()
    assert agent() == "abc2"


def test_a_stream_that_its_reader_dropped_is_recorded_as_its_beginning():
    """A loop that is left by break closes its stream when it is collected: it is left, not cut."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow
    def agent():
        def first():
            found = []
            for each in texts(ask(client, stream=True)):
                found.append(each)
                break
            return found[0]

        return [first(), bool(gc.collect()), said(ask(client, "after")), broken()]

    assert run_twice(agent) == ["a", True, "answer 2", None]
    assert len(server.requests) == 2


def test_threads_that_leave_streams_at_once():
    """A stream that one thread left is recorded once, whichever thread goes on first."""
    server = Server()
    client = chat(server)

    def left(number):
        for each in range(20):
            with ask(client, f"{number} {each}", stream=True) as stream:
                assert next(texts(stream)) == "a"

    @workflow
    def agent():
        context = contextvars.copy_context
        with ThreadPoolExecutor(8) as pool:
            [*map(Future.result, [pool.submit(context().run, left, each) for each in range(8)])]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        agent()
    finally:
        sys.setswitchinterval(interval)
    assert [each.preview for each in stepwise.runs()[0].steps] == ["a"] * 160


def test_a_stream_that_fails_in_one_task_is_not_left_by_another():
    """While an exception unwinds the reader, calls of other tasks do not record what it had."""
    server, broken = Server(), Once()
    client = achat(server)

    @step
    async def think(number):
        await asyncio.sleep(0)
        return number

    @workflow
    async def agent():
        async def read():
            found = []
            async with await ask(client, stream=True) as stream:
                async for each in stream:
                    found.append(each.choices[0].delta.content)
                    gone.set()
                    broken()
            return found

        async def others():
            await gone.wait()
            return [await think(each) for each in range(3)]

        gone = asyncio.Event()
        return await asyncio.gather(read(), others())

    with pytest.raises(Broken):
        asyncio.run(agent())
    assert {each.name for each in stepwise.runs()[0].steps} == {"think"}
    assert asyncio.run(agent()) == [["a", "b", "c", "2"], [0, 1, 2]]


def test_a_stream_that_is_read_after_its_run_is_whole():
    """A stream that a workflow hands out is not recorded to its end, and not cut short."""
    server, streams = Server(), []
    client, aclient = chat(server), achat(server)

    @workflow
    def agent():
        streams.append(ask(client, stream=True))

    @workflow
    async def aagent():
        streams.append(await ask(aclient, stream=True))

    async def read():
        await aagent()
        return [each.choices[0].delta.content async for each in streams[1]]

    agent()
    assert list(texts(streams[0])) == ["a", "b", "c", "1"]
    assert asyncio.run(read()) == ["a", "b", "c", "2"]


def test_a_streamed_response_says_how_long_it_took():
    """What the library notes when a stream is closed is there, recorded or not."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow
    def agent():
        def took():
            streaming = client.chat.completions.with_streaming_response
            with streaming.create(model="m", messages=[], stream=True) as response:
                assert b"".join(response.iter_bytes()).endswith(b"[DONE]\n\n")
            return response.elapsed.total_seconds() >= 0

        return [took(), broken()]

    assert run_twice(agent) == [True, None]


class Slow:
    """A stream whose second piece comes when it is told to, in the event loop of its connection."""

    def __init__(self):
        self.library = library = transports(openai)
        outer = self

        class Stream(library.AsyncByteStream):
            async def __aiter__(self):
                yield event(chunk("a"))
                await outer.next
                yield event(chunk("b")) + b"data: [DONE]\n\n"

        async def answer(request):
            self.next = asyncio.get_running_loop().create_future()
            headers = {"content-type": "text/event-stream"}
            return library.Response(200, headers=headers, stream=Stream(), request=request)

        http = library.AsyncClient(transport=library.MockTransport(answer))
        self.client = openai.AsyncOpenAI(base_url="http://m/v1", api_key="k", http_client=http)


def test_a_side_effect_that_is_cancelled_while_it_reads_a_stream_is_not_made():
    """Time runs out before the stream has ended: nothing is sent, and its reader loses nothing."""
    slow, sent = Slow(), []

    @tool(side_effect=True)
    async def send(text):
        sent.append(text)

    @workflow
    async def agent():
        async def talk():
            found = []
            async for each in await ask(slow.client, stream=True):
                found.append(each.choices[0].delta.content)
                if found == ["a"]:
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(send("mail"), 0.01)
                    slow.next.set_result(None)
            return found

        return await talk()

    assert asyncio.run(agent()) == ["a", "b"]
    assert sent == []


def test_a_side_effect_in_another_event_loop_leaves_a_stream_alone():
    """A stream is read in the loop of its connection only; elsewhere a warning says so."""
    slow = Slow()

    @tool(side_effect=True)
    async def send(text):
        return text

    @workflow
    async def agent():
        async def talk():
            found = []
            async for each in await ask(slow.client, stream=True):
                found.append(each.choices[0].delta.content)
                if found == ["a"]:
                    found.append(await asyncio.to_thread(lambda: asyncio.run(send("mail"))))
                    slow.next.set_result(None)
            return found

        return await talk()

    with pytest.warns(stepwise.RunWarning, match="another event loop"):
        assert asyncio.run(agent()) == ["a", "mail", "b"]


# -- what is never recorded ----------------------------------------------------------------------


def test_requests_inside_recorded_code_are_part_of_it():
    """Requests of step bodies, of reconcile, of resources and of the background are not steps."""
    server, broken = Server(), Once()
    client = chat(server)

    @step
    def think():
        return said(ask(client))

    def reconcile(call):
        return stepwise.Landed(said(ask(client, "did it happen?")))

    @tool(side_effect=True, in_doubt=reconcile)
    def send():
        broken()

    @stepwise.resource
    def connection():
        ask(client, "warm up")
        return client

    @workflow
    def agent():
        thought = think()
        connection()
        with stepwise.background():
            ask(client, "trace")
        return thought, send()

    first, second = run_twice(agent)
    assert (first, second[:6]) == ("answer 1", "answer")
    assert {each.name.rpartition(".")[2] for each in stepwise.runs()[0].steps} == {"think", "send"}


def test_other_endpoints_are_left_alone():
    """A list of models, or a file, is the state of a provider, and asked for each time."""
    server, broken = Server(), Once()
    client = chat(server)

    @workflow
    def agent():
        return [client.get("/files/1", cast_to=object)["number"], broken()]

    assert run_twice(agent)[0] == 2
    assert stepwise.runs()[0].steps == []


def test_outside_a_run_nothing_is_recorded():
    """Outside of runs a client works as usual, and no store is opened."""
    server = Server()
    client = chat(server)
    assert [said(ask(client)), said(ask(client))] == ["answer 1", "answer 2"]
    assert stepwise.runs() == []


def test_uninstrument():
    """After uninstrument, requests are made as usual, and the classes are as before."""
    server, broken = Server(), Once()
    client = chat(server)
    stepwise.uninstrument()

    @workflow
    def agent():
        return [said(ask(client)), broken()]

    assert run_twice(agent)[0] == "answer 2"
    library = transports(openai)
    assert not hasattr(library.Client.send, "__wrapped__")
    assert not hasattr(openai._base_client.SyncAPIClient.request, "__wrapped__")


def test_one_client_alone():
    """A client that is given is instrumented, and no other."""
    server, broken = Server(), Once()
    recorded, plain = chat(server), chat(server)
    stepwise.uninstrument()
    stepwise.instrument(recorded)

    @workflow
    def agent():
        return [said(ask(recorded)), said(ask(plain)), broken()]

    assert run_twice(agent) == ["answer 1", "answer 3", None]
    stepwise.uninstrument(recorded)
    assert agent.options(fresh=True)()[0] == "answer 4"


def test_secrets_are_not_stored(store):
    """Neither keys in headers, URL and body nor a masked secret in the question reach the store."""
    server, broken = Server(), Once()
    client = chat(
        server, default_headers={"x-key": "SECRET-1"}, default_query={"api-key": "SECRET-2"}
    )

    @workflow
    def agent():
        return [said(ask(client, extra_body={"api_key": "SECRET-3"})), broken()]

    run_twice(agent)
    assert len(server.requests) == 1
    exported = json.dumps(stepwise.runs()[0].to_dict(), default=str)
    (recorded,) = stepwise.runs()[0].steps
    assert "SECRET" not in exported + f"{recorded.result}{recorded.arguments}"


# -- clients of httpx ----------------------------------------------------------------------------


def named(server, **options):
    client = httpx.Client(transport=httpx.MockTransport(server), base_url="http://shop")
    stepwise.instrument(client, name="shop", **options)
    return client


def test_a_named_client_records_reads_and_announces_the_rest():
    """GET is a step; POST is a side effect, in doubt if the connection fails."""
    server, broken = Server(), Once()
    client = named(server)

    @workflow
    def agent():
        got = client.get("/orders", params={"page": 1})
        put = client.post("/orders", json={"item": 1})
        return [got.json()["number"], got.headers["x-next"], put.json()["number"], broken()]

    assert run_twice(agent) == [1, "1", 2, None]
    assert len(server.requests) == 2
    kinds = {each.name: each.side_effect for each in stepwise.runs()[0].steps}
    assert kinds == {"shop GET": False, "shop POST": True}


def test_a_post_whose_connection_fails_is_in_doubt():
    """Whether a request without an answer was carried out is not known: the next start asks."""
    server = Server(None)
    client = named(server)

    @workflow
    def agent():
        return client.post("/orders", json={"item": 1}).json()

    with pytest.raises(httpx.ConnectError):
        agent()
    with pytest.raises(StepInDoubtError, match="shop POST"):
        agent()
    assert len(server.requests) == 1


def test_the_answer_to_a_post_is_its_outcome():
    """A server that refused or failed has acted: its answer is given again."""
    server, broken = Server(503), Once()
    client = named(server)

    @workflow
    def agent():
        return [client.post("/orders", json={"item": 1}).status_code, broken()]

    assert run_twice(agent) == [503, None]
    assert len(server.requests) == 1


def test_reads_that_are_said_to_change_nothing():
    """With reads=, a POST that changes nothing is a plain step, repeated after a failure."""
    server, broken = Server(503), Once()
    client = named(server, reads=["GET", "post"])

    @workflow
    def agent():
        return [client.post("/search", json={"q": 1}).status_code, broken()]

    assert run_twice(agent) == [200, None]


def test_a_failed_request_is_recorded_without_its_keys():
    """The error of a connection holds its request: headers and query do not reach the store."""
    client = named(Server(None))
    client.headers["authorization"] = "Bearer SECRET-1"

    @workflow
    def agent():
        client.post("/orders", params={"api_key": "SECRET-2"})

    with pytest.raises(httpx.ConnectError) as caught:
        agent()
    assert caught.value.request.headers["authorization"] == "Bearer SECRET-1"
    (recorded,) = stepwise.runs()[0].steps
    assert b"ConnectError" in recorded._entry.payload
    assert b"SECRET" not in recorded._entry.payload


@pytest.mark.parametrize("make", ["httpx", "openai"])
def test_an_error_of_a_status_is_recorded_without_its_keys(make):
    """Errors that hold a response, as those of the SDKs do, leave no key behind either."""
    server = Server(404)
    client, asked = chat(server, default_headers={"x-key": "SECRET"}), named(server)
    asked.headers["authorization"] = "SECRET"

    @step
    def find():
        if make == "openai":
            return ask(client)
        return asked.get("/").raise_for_status()

    @workflow
    def agent():
        with contextlib.suppress(openai.NotFoundError, httpx.HTTPStatusError):
            return find()

    agent()
    (recorded,) = stepwise.runs()[0].steps
    assert b"SECRET" not in recorded._entry.payload
    assert recorded.error.response.status_code == 404


def test_answers_keep_their_length_and_encoding():
    """HEAD answers its content-length again, and a body without charset its client's encoding."""
    broken, found = Once(), []

    def serve(request):
        if request.method == "HEAD":
            return httpx.Response(200, headers={"content-length": "1234"})
        return httpx.Response(200, content=b"\xe9", headers={"content-type": "text/plain"})

    client = httpx.Client(
        transport=httpx.MockTransport(serve), base_url="http://shop", default_encoding="latin-1"
    )
    stepwise.instrument(client, name="shop")

    @workflow
    def agent():
        def asked():
            with client.stream("GET", "/streamed") as streamed:
                length = streamed.headers["content-length"]
            return client.head("/").headers["content-length"], client.get("/").text, length

        return [found.append(asked()), broken()]

    run_twice(agent)
    assert found == [("1234", "\xe9", "1")] * 2


@pytest.mark.parametrize("header", ["accept", "range", "if-match"])
def test_headers_that_choose_the_answer_are_part_of_a_request(header):
    """Requests that differ in such a header are not answered for each other, in whatever order."""
    broken, order = Once(), ["a", "b"]

    async def serve(request):
        return httpx.Response(200, text=request.headers[header])

    client = httpx.AsyncClient(transport=httpx.MockTransport(serve), base_url="http://shop")
    stepwise.instrument(client, name="shop")

    @workflow
    async def agent():
        async def one(value):
            return value, (await client.get("/", headers={header: value})).text

        return [await asyncio.gather(*map(one, order)), broken()]

    with pytest.raises(Broken):
        asyncio.run(agent())
    order.reverse()
    assert asyncio.run(agent()) == [[("b", "b"), ("a", "a")], None]


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (object(), {}, "takes a client of openai or anthropic"),
        (openai.OpenAI, {}, "give an instance"),
        (httpx.Client(), {}, "needs a name="),
        (None, {"name": "shop"}, "name= is for a client of httpx"),
    ],
    ids=["an object", "a class", "no name", "a name alone"],
)
def test_what_cannot_be_instrumented(given, options, message):
    """A wrong argument is refused with what is accepted, and how."""
    with pytest.raises(ConfigurationError, match=message):
        stepwise.instrument(given, **options)


def test_a_version_that_does_not_fit_is_refused(monkeypatch):
    """A SDK without the place where requests are made is refused with the reason."""
    stepwise.uninstrument()
    monkeypatch.delattr(openai._base_client.AsyncAPIClient, "request")
    with pytest.raises(
        ConfigurationError, match=r"openai .* does not fit .*AsyncAPIClient.request"
    ):
        stepwise.instrument()
