"""Requests to models as recorded steps: what answers them, what is recorded, and what never is."""

import asyncio
import contextlib
import contextvars
import gc
import http.client
import inspect
import json
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import sdks
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
from stepwise._calls.steps import Step
from stepwise._execution.outcomes import ShownValue
from stepwise._matching.subjects import Subjects
from stepwise._runtime import messages
from stepwise._workflows.frame import WorkflowFrame
from stepwise.integrations import instrument as _unseen_requests
from stepwise.integrations._recorded_responses import is_broken
from stepwise.testing import fresh_store

ENDS = b"data: [DONE]\n\n"
STREAMED = {"content-type": "text/event-stream"}
ASKED = [{"role": "user", "content": "hello"}]


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

    def __init__(self):
        self.requests = []
        self.statuses = []  # of the first requests; None is a connection that fails
        self.pieces = ["a", "b", "c"]
        self.finish = False  # whether streams say why the model stopped
        self.number = None  # what streams end with, if not the number of the request
        self.cut = 0  # how many streams break off without an error
        self.failing = 0  # how many streams end with the error of an overload
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
            return streamed(library, request, self.events(number))
        if request.url.path.endswith("/messages"):
            return library.Response(200, json=message(f"answer {number}"))
        if request.url.path.endswith("/chat/completions"):
            return library.Response(200, json=completion(f"answer {number}"))
        return library.Response(200, json={"number": number}, headers={"x-next": f"{number}"})

    async def awaited(self, request):
        return self(request)

    def events(self, number):
        if number <= self.failing:
            yield event(chunk("a"))
            yield b'data: {"error": {"message": "overloaded"}}\n\n' + ENDS
            return
        whole = number > self.cut
        for each in [*self.pieces, *[f"{self.number or number}"] * whole]:
            self.read += 1
            yield event(each if isinstance(each, dict) else chunk(each))
        if self.finish:
            yield event(chunk(None, finish="stop"))
        if whole:
            yield ENDS


def streamed(library, request, events):
    """Answer with a stream of events."""

    class Stream(library.SyncByteStream, library.AsyncByteStream):
        def __iter__(self):
            yield from events

        async def __aiter__(self):
            for each in events:
                yield each

    return library.Response(200, headers=STREAMED, stream=Stream(), request=request)


def completion(text):
    said = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    choices = [{"index": 0, "finish_reason": "stop", "message": said}]
    kind = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
    return {**kind, "choices": choices, "usage": usage}


def message(text):
    kind = {"id": "1", "type": "message", "role": "assistant", "model": "claude"}
    usage = {"input_tokens": 3, "output_tokens": 4}
    return {**kind, "stop_reason": "x", "content": [{"type": "text", "text": text}], "usage": usage}


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
    library = transports(sdks.openai)
    http = library.Client(transport=library.MockTransport(server))
    return sdks.openai.OpenAI(base_url="http://model/v1", api_key="k", http_client=http, **options)


def achat(server):
    library = transports(sdks.openai)
    http = library.AsyncClient(transport=library.MockTransport(server.awaited))
    return sdks.openai.AsyncOpenAI(base_url="http://model/v1", api_key="k", http_client=http)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def client(server):
    return chat(server)


@pytest.fixture
def aclient(server):
    return achat(server)


def ask(client, text="hello", **options):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-4o", messages=messages, **options)


def said(answer):
    return answer.choices[0].message.content


def texts(stream):
    for each in stream:
        yield each.choices[0].delta.content or ""


async def atexts(stream):
    async for each in await stream:
        yield each.choices[0].delta.content or ""


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


def in_two_starts(call, kind=Broken):
    """Call a workflow that fails the first time; return what it returns the second time."""
    with pytest.raises(kind):
        call()
    return call()


def twice(body, **options):
    """Run a body in a workflow that fails behind it; return what the next start has of it."""
    broken = Once()

    if inspect.iscoroutinefunction(body):

        @workflow(**options)
        async def aagent():
            return [await body(), broken()]

        return in_two_starts(lambda: asyncio.run(aagent()))[0]

    @workflow(**options)
    def agent():
        return [body(), broken()]

    return in_two_starts(agent)[0]


def steps():
    return stepwise.runs()[0].steps


# -- answers -------------------------------------------------------------------------------------


def test_each_request_is_made_once(server, client):
    """A statement that is executed again gets the recorded answers of the requests it had made."""
    asked = twice(lambda: [said(ask(client, text)) for text in ("one", "two", "one")])
    assert asked == ["answer 1", "answer 2", "answer 3"]
    assert len(server.requests) == 3


def test_the_text_of_streams_is_said(server, client, aclient):
    """With ``emit=`` the text of streamed answers is said as it arrives, once over all starts.

    A request in the body of a step is no step itself, and its text is the step's.
    """
    stepwise.instrument(emit="main")
    broken = Once()

    @step
    def think():
        return "".join(texts(ask(client, "two", stream=True)))

    @workflow
    async def agent():
        pieces = [each async for each in atexts(ask(aclient, "one", stream=True))]
        broken()
        return pieces, await asyncio.to_thread(think)

    pieces, thought = in_two_starts(lambda: asyncio.run(agent()))
    *said, end = stepwise.runs()[0].stream()
    assert "".join(each.value for each in said) == "".join(pieces) + thought
    assert len(said) > len(pieces)
    assert end.value == "completed"
    assert len(server.requests) == 2


def test_the_request_is_among_the_recorded_arguments(server, client, aclient):
    """With ``record_arguments`` a model call has its request: messages and model, without a key."""
    stepwise.configure(record_arguments=True)

    @workflow
    def agent(key):
        return said(ask(client, f"hello {key}")), "".join(texts(ask(client, "two", stream=True)))

    @workflow(secret=["key"])
    async def hidden(key):
        return said(await ask(aclient, f"hello {key}"))

    agent("ann")
    one, two = steps()
    assert one.inputs["url"] == "http://model/v1/chat/completions"
    assert one.inputs["body"]["messages"] == [{"role": "user", "content": "hello ann"}]
    assert (one.inputs["body"]["model"], two.inputs["body"]["stream"]) == ("gpt-4o", True)
    asyncio.run(hidden("sesame-open-4711"))
    (third,) = steps()
    assert third.inputs["body"]["messages"] == [{"role": "user", "content": "hello <secret>"}]


def test_prompts_that_differ_in_what_is_masked_are_two_requests(server, client):
    """Asked again in another order, each prompt has its own answer, and no mask makes them one."""
    order = ['{"secret": "The butler"}', '{"secret": "The maid"}']

    def asked():
        order.reverse()
        return {text: said(ask(client, text)) for text in order}

    assert twice(asked) == {order[1]: "answer 1", order[0]: "answer 2"}
    assert len(server.requests) == 2
    assert not any("butler" in each.arguments or "maid" in each.arguments for each in steps())


@pytest.mark.parametrize("form", ["raw", "streamed", "copied"])
def test_every_form_of_an_answer_is_made_of_the_record(form, server, client):
    """Raw and streamed responses, and copies of the client, are answered as plain calls are."""
    completions = client.chat.completions
    request = {"model": "gpt-4o", "messages": ASKED}

    def answer():
        if form == "raw":
            raw = completions.with_raw_response.create(**request)
            assert raw.status_code == 200
            return said(raw.parse())
        if form == "streamed":
            with completions.with_streaming_response.create(**request) as response:
                return said(response.parse())
        return said(client.with_options(timeout=3).chat.completions.create(**request))

    assert twice(answer) == "answer 1"
    assert len(server.requests) == 1


def test_clients_of_anthropic_are_recorded(server):
    """The requests to ``messages`` are steps, with the model and the tokens of each."""
    library = transports(sdks.anthropic)
    http = library.Client(transport=library.MockTransport(server))
    client = sdks.anthropic.Anthropic(base_url="http://model", api_key="k", http_client=http)

    def asked():
        answer = client.messages.create(model="claude", max_tokens=9, messages=ASKED)
        return answer.content[0].text

    assert twice(asked) == "answer 1"
    (recorded,) = steps()
    assert (recorded.name, recorded.preview) == ("messages", "answer 1")
    usage = {"input_tokens": 3, "output_tokens": 4, "model": "claude"}
    assert usage.items() <= recorded.usage.items()


def test_asynchronous_requests_side_by_side(server, aclient):
    """Requests of a gather are recorded each, and each gets its own answer back."""

    async def asked():
        return [said(each) for each in await asyncio.gather(*[ask(aclient, t) for t in "abc"])]

    assert twice(asked) == ["answer 1", "answer 2", "answer 3"]
    assert len(server.requests) == 3


def test_a_request_that_differs_is_made(client):
    """An edited prompt is another request; its recorded answer is not given to it."""
    broken, texts = Once(), ["one", "two"]

    @workflow
    def agent():
        return [said(ask(client, texts[0])), broken()]

    with pytest.raises(Broken):
        agent()
    texts.reverse()
    assert agent.options(run_id=stepwise.runs()[0].id)() == ["answer 2", None]


def test_json_codec(server, client):
    """A run that is recorded as data only keeps the answers of models, too."""
    asked = twice(
        lambda: [said(ask(client)), "".join(texts(ask(client, stream=True)))], codec="json"
    )
    assert asked == ["answer 1", "abc2"]
    assert len(server.requests) == 2


def test_events_and_listing_say_model_and_tokens(client):
    """Completed and answered requests carry their usage; the listing shows question and answer."""
    heard = []
    end = stepwise.on_event(heard.append)
    try:
        twice(lambda: said(ask(client)))
    finally:
        end()
    usages = {each.kind: each.usage for each in heard if each.step}
    assert usages["step_completed"]["output_tokens"] == 7
    assert usages["step_answered"]["model"] == "gpt-4o"
    (recorded,) = steps()
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


@pytest.mark.parametrize("kind", [Broken, KeyboardInterrupt])
def test_requests_spend_by_themselves(kind, server, client):
    """Each request counts its tokens once, in steps too, and when its step is cut off."""
    broken = Once(kind)

    @step
    def thinks(text):
        ask(client, text)
        answer = said(ask(client, f"{text} again"))
        broken()
        return answer

    @workflow
    def agent():
        return [said(ask(client)), thinks("hello")]

    assert in_two_starts(agent, kind) == ["answer 1", "answer 5"]
    assert len(server.requests) == 5  # those of the step are made again
    assert tokens_spent() == 5 * 12


def test_a_budget_of_tokens_stops_before_the_next_request(server):
    """A request that would begin beyond the budget is not sent; the SDK does not try again."""
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


def test_failed_requests_spend_nothing(server):
    """A limit of the server is an attempt that costs no tokens, and no step of a budget."""
    server.statuses = [429, 429]
    client = chat(server, max_retries=3)

    @workflow(budget=stepwise.Budget(steps=1))
    def agent():
        return said(ask(client))

    assert agent() == "answer 3"
    assert tokens_spent() == 12
    assert stepwise.runs()[0].spent.steps == 1


def test_streams_and_asynchronous_requests_spend(server, client, aclient):
    """Requests side by side count each, and so do streams in the bodies of steps."""
    server.pieces = [{**chunk("a"), "usage": {"prompt_tokens": 2, "completion_tokens": 3}}]

    @step
    async def streams():
        return [each async for each in atexts(ask(aclient, stream=True))] and None

    @step
    def breaks_off():
        for _ in ask(client, stream=True):
            break

    @workflow
    async def agent():
        await asyncio.gather(*[ask(aclient, text) for text in "abcd"])
        await streams()
        breaks_off()

    asyncio.run(agent())
    gc.collect()
    assert tokens_spent() == 4 * 12 + 2 * 5


class _Engine(Step):
    """A step that reports the usage of a request which an instrumented client records, too."""

    def shown_value(self, value):
        return ShownValue("said", {"model": "gpt-4o", "input_tokens": 6, "output_tokens": 7})


def test_a_request_that_two_layers_record_counts_once(client):
    """Usage that a framework's step reports is that of the requests inside it, not more of it."""

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
def test_an_answer_of_the_moment_is_an_attempt(status, server):
    """A limit, a refused key, a failed server or connection is not recorded as the answer."""
    server.statuses = [status]
    client = chat(server, max_retries=0)

    def asked():
        with contextlib.suppress(sdks.openai.APIError):
            return said(ask(client))

    assert twice(asked) == "answer 2"


def test_attempts_are_repeated_as_the_client_says(server):
    """After two limits the SDK's third attempt answers; a rerun sends nothing more."""
    server.statuses, heard = [429, 429], []
    client = chat(server, max_retries=2)
    end = stepwise.on_event(heard.append)
    try:
        assert twice(lambda: said(ask(client))) == "answer 3"
    finally:
        end()
    assert len(server.requests) == 3
    failed = [each.kind for each in heard if each.step and "failed" in each.kind]
    assert failed == ["step_failed"] * 2


def test_an_attempt_in_the_handler_of_the_last_one_is_answered(server):
    """What a client got while it handled a failed attempt, as older SDKs do, answers a rerun."""
    server.statuses = [429]
    client = chat(server, max_retries=0)

    def asked():
        try:
            return said(ask(client))
        except sdks.openai.RateLimitError:
            return said(ask(client))

    assert twice(asked) == "answer 2"
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_request_is_an_outcome(status, server, client):
    """A request that the server refuses for what it is, is refused again without being sent."""
    server.statuses = [status]

    def asked():
        with pytest.raises(sdks.openai.APIStatusError) as refused:
            ask(client)
        return refused.value.status_code

    assert twice(asked) == status
    assert len(server.requests) == 1


# -- streams -------------------------------------------------------------------------------------


def test_a_stream_is_given_again_as_it_came(server, client, aclient):
    """A recorded stream gives the same pieces, synchronous or not, and asks no server."""

    async def whole():
        return [each async for each in atexts(ask(aclient, stream=True))]

    assert twice(lambda: list(texts(ask(client, stream=True)))) == ["a", "b", "c", "1"]
    assert twice(whole) == ["a", "b", "c", "2"]
    assert len(server.requests) == 2


def test_a_stream_that_an_error_cut_off_is_requested_again(client):
    """A workflow that fails while it reads gets a whole stream at its next start."""
    broken, again = Once(), Once()

    @workflow
    def agent():
        found = ""
        for each in texts(ask(client, stream=True)):
            found += each
            if each == "b":
                broken()
        return found

    @workflow
    def reader():
        found = []
        for piece in ask(client, stream=True):
            found.append(piece.choices[0].delta.content)
            again()
        return found

    assert in_two_starts(agent) == "abc2"
    assert in_two_starts(reader) == ["a", "b", "c", "4"]


def left_by_with(stream):
    with stream:
        return next(texts(stream))


def left_by_close(stream):
    piece = left_by_break(stream)
    stream.close()
    return piece


def left_by_break(stream):
    for piece in stream:  # noqa: B007 -- left at once
        break
    return piece.choices[0].delta.content


def left_by_a_dropped_reader(stream):
    for piece in texts(stream):  # noqa: B007 -- left at once
        break
    return piece


LEFT = [left_by_with, left_by_close, left_by_break, left_by_a_dropped_reader]


@pytest.mark.parametrize("after", ["a request", "a side effect", "an exception"])
@pytest.mark.parametrize("leave", LEFT, ids=lambda leave: leave.__name__)
def test_a_stream_that_was_left_is_recorded_as_its_beginning(leave, after, server, client):
    """A reader that leaves a stream gets the same beginning, whatever follows: no request."""
    sent = []

    @tool(side_effect=True)
    def send(text):
        sent.append(text)
        return text

    def first():
        found = leave(ask(client, stream=True)) + f"{len(server.requests)}"
        if after != "an exception":
            gc.collect()
        if after == "a request":
            return found, said(ask(client, "after"))
        return found, send(found) if after == "a side effect" else None

    found, then = twice(first, checkpoint_every=1000)
    assert found == {"a request": "a2"}.get(after, "a1")
    assert then == {"a request": "answer 2", "a side effect": "a1"}.get(after)
    assert len(server.requests) == (2 if after == "a request" else 1)
    assert sent == ["a1"] * (after == "a side effect")
    assert steps()[0].preview == "a"


def test_a_stream_that_is_dropped_at_its_last_word_is_recorded(server, client):
    """A reader that stops at the reason why the model stopped, and closes nothing, has it all."""
    server.finish, kept = True, []

    def read():
        kept.append(iter(ask(client, stream=True)))  # open, for ever
        found = []
        for piece in kept[-1]:
            found.append(piece.choices[0].delta.content)
            if piece.choices[0].finish_reason:
                break
        return found

    assert twice(read) == ["a", "b", "c", "1", None]
    assert len(server.requests) == 1


def left_and_read_on(client):
    """A workflow that reads one piece of a stream, and all of it when it is called again."""
    broken, whole = Once(), []

    @workflow
    def agent():
        def found():
            stream = ask(client, stream=True)
            if whole:
                return list(texts(stream))
            whole.append(True)
            return [left_by_with(stream)]

        return [found(), said(ask(client, "after")), broken()]

    return agent


def test_reading_on_requests_the_stream_again(server, client):
    """Code that now reads behind the recorded beginning gets the rest of an equal stream."""
    server.number = 9
    read = in_two_starts(left_and_read_on(client))
    assert read == [["a", "b", "c", "9"], "answer 2", None]
    assert len(server.requests) == 3


def test_a_stream_that_begins_otherwise_is_not_joined(server, client):
    """A second stream that begins otherwise raises; the next start requests it as a whole."""
    agent = left_and_read_on(client)
    with pytest.raises(Broken):
        agent()
    server.pieces = ["x", "y"]
    with pytest.raises(StreamChangedError, match="run the program again"):
        agent()
    assert agent() == [["x", "y", "4"], "answer 2", None]


def test_a_side_effect_reads_open_streams_first(server, client, aclient):
    """A stream is recorded to its end before a side effect is announced; its reader goes on."""
    sent = []

    @tool(side_effect=True, ignore="server")
    def send(text, *, server):
        sent.append((text, server.read, stepwise.current_run().steps[0].preview))

    @tool(side_effect=True, ignore="server")
    async def asend(text, *, server):
        sent.append((text, server.read))

    def talk():
        found = []
        for each in texts(ask(client, stream=True)):
            found.append(each)
            if each == "b":
                send(each, server=server)
        return found

    async def atalk():
        found = []
        async for each in atexts(ask(aclient, stream=True)):
            found.append(each)
            if each == "b":
                await asend(each, server=server)
        return found

    assert twice(talk) == ["a", "b", "c", "1"]
    assert twice(atalk) == ["a", "b", "c", "2"]
    assert sent == [("b", 4, "abc1"), ("b", 8)]
    assert len(server.requests) == 2


def test_a_plain_side_effect_beside_an_asynchronous_stream_warns(aclient):
    """A plain function cannot await the rest of a stream, which a warning says."""

    @tool(side_effect=True)
    def send(text):
        return text

    @workflow
    async def agent():
        async for each in atexts(ask(aclient, stream=True)):
            if each == "b":
                send("b")

    with pytest.warns(stepwise.RunWarning, match="send has side effects.*async def"):
        asyncio.run(agent())


@pytest.mark.parametrize("how", ["one piece", "a side effect reads it"])
def test_a_stream_that_ends_with_an_error_is_no_outcome(how, server, client):
    """An overload that is told inside a stream is not given again: the next start asks anew."""
    server.failing = 1

    @tool(side_effect=True)
    def send():
        pass

    @workflow
    def agent():
        def found():
            for each in texts(ask(client, stream=True)):
                if how != "one piece" and each == "a":
                    send()
                yield each

        return "".join(found())

    with pytest.raises(sdks.openai.APIError, match="overloaded"):
        agent()
    assert agent() == "abc2"


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_stream_without_its_end_mark(asynchronous, goes_on, told, server, client, aclient):
    """A stream that broke off without an error is requested again, unless the run went on from it.

    If another call followed, it is what happened, and is given again as it came.
    """
    server.cut, sent = 1, []

    @tool(side_effect=True)
    def send(text):
        sent.append(text)

    async def aread():
        return [each async for each in atexts(ask(aclient, stream=True))]

    def read():
        found = asyncio.run(aread()) if asynchronous else [*texts(ask(client, stream=True))]
        if goes_on:
            send("".join(found))
        return found

    assert twice(read) == (["a", "b", "c"] if goes_on else ["a", "b", "c", "2"])
    assert sent == ["abc"] * goes_on
    assert len(server.requests) == (1 if goes_on else 2)
    assert "the stream of chat.completions ended without its end mark" in told()


TEXT = b'data: {"text": "say \\"finish_reason\\": \\"stop\\", then [DONE]"}\r\n\r\n'
UNFINISHED = b'data: {"choices": [{"delta": {}, "finish_reason": null}]}\n\n'


def broken_off(endpoint, *parts):
    """Say whether a stream of these bytes was cut off."""
    lines = parts[-1].startswith(b"{")
    kind = {"content-type": "application/x-ndjson"} if lines else STREAMED
    return is_broken(httpx.Response(200, headers=kind), endpoint, [*parts])


@pytest.mark.parametrize(
    ("endpoint", "end"),
    [
        ("chat.completions", ENDS),
        ("chat.completions", b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'),
        ("completions", b'data: {"choices": [{"text": "", "finish_reason":"length"}]}\n\n'),
        ("responses", b'event: response.completed\ndata: {"response": {}}\n\n'),
        ("responses", b'data: {"type":"response.incomplete","response":{}}\n\n'),
        ("messages", b'event: message_stop\ndata: {"type": "message_stop"}\n\n'),
        ("generate_content", b'data: {"candidates": [{"finishReason": "STOP"}]}\r\n\r\n'),
        ("generate_content", b'data: {"promptFeedback": {"blockReason": "SAFETY"}}\r\n\r\n'),
        ("chat", b'event: message-end\ndata: {"type":"message-end"}\n\n'),
        ("chat", b'{"message": {"content": ""}, "done": true}\n'),
    ],
)
def test_end_marks(endpoint, end):
    """Each protocol's stream is whole with its end mark, and broken without it."""
    assert broken_off(endpoint, TEXT, UNFINISHED)
    assert not broken_off(endpoint, TEXT + end[:7], end[7:] if end[:1] != b"{" else end)
    assert not broken_off("embeddings", TEXT)


@pytest.mark.parametrize(
    ("endpoint", "end"),
    [
        ("responses", b'event: response.completed\ndata: {"response": {"output": ['),
        ("responses", b'data: {"type":"response.completed","response":{"output'),
        ("messages", b"event: message_stop\r\n"),
        ("chat.completions", b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], "us'),
        ("chat", b'{"done": true, "total_dur'),
    ],
)
def test_a_stream_that_ends_inside_its_end_mark_is_broken(endpoint, end):
    """The event that says how an answer ends was not read, if the connection was cut inside it."""
    assert broken_off(endpoint, TEXT, end)


def test_threads_that_leave_streams_at_once(client):
    """A stream that one thread left is recorded once, whichever thread goes on first."""

    def left(number):
        for each in range(8):
            assert left_by_with(ask(client, f"{number} {each}", stream=True)) == "a"

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
    assert [each.preview for each in steps()] == ["a"] * 64


def test_a_stream_that_fails_in_one_task_is_not_left_by_another(aclient):
    """While an exception unwinds the reader, calls of other tasks do not record what it had."""
    broken = Once()

    @step
    async def think(number):
        await asyncio.sleep(0)
        return number

    @workflow
    async def agent():
        async def read():
            found = []
            async with await ask(aclient, stream=True) as stream:
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
    assert {each.name for each in steps()} == {"think"}
    assert asyncio.run(agent()) == [["a", "b", "c", "2"], [0, 1, 2]]


def test_a_stream_that_is_read_after_its_run_is_whole(client, aclient):
    """A stream that a workflow hands out is not recorded to its end, and not cut short."""
    streams = []

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


def test_a_streamed_response_says_how_long_it_took(client):
    """What the library notes when a stream is closed is there, recorded or not."""

    def took():
        streaming = client.chat.completions.with_streaming_response
        with streaming.create(model="m", messages=[], stream=True) as response:
            assert b"".join(response.iter_bytes()).endswith(ENDS)
        return response.elapsed.total_seconds() >= 0

    assert twice(took) is True


@pytest.fixture
def slow():
    """A stream whose second piece comes when it is told to, in the event loop of its connection."""
    library = transports(sdks.openai)

    class Stream(library.AsyncByteStream):
        async def __aiter__(self):
            yield event(chunk("a"))
            await slow.next
            yield event(chunk("b")) + ENDS

    async def answer(request):
        slow.next = asyncio.get_running_loop().create_future()
        return library.Response(200, headers=STREAMED, stream=Stream(), request=request)

    http = library.AsyncClient(transport=library.MockTransport(answer))
    slow = sdks.openai.AsyncOpenAI(base_url="http://m/v1", api_key="k", http_client=http)
    return slow


def beside(slow, send):
    """A workflow that does something between the two pieces of a slow stream."""

    @workflow
    async def agent():
        async def talk():
            found = []
            async for each in atexts(ask(slow, stream=True)):
                found.append(each)
                if found == ["a"]:
                    found.append(await send())
                    slow.next.set_result(None)
            return found

        return await talk()

    return agent


def test_a_side_effect_that_is_cancelled_while_it_reads_a_stream_is_not_made(slow):
    """Time runs out before the stream has ended: nothing is sent, and its reader loses nothing."""
    sent = []

    @tool(side_effect=True)
    async def send(text):
        sent.append(text)

    async def in_time():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(send("mail"), 0.01)

    assert asyncio.run(beside(slow, in_time)()) == ["a", None, "b"]
    assert sent == []


def test_a_side_effect_in_another_event_loop_leaves_a_stream_alone(slow):
    """A stream is read in the loop of its connection only; elsewhere a warning says so."""

    @tool(side_effect=True)
    async def send(text):
        return text

    def elsewhere():
        return asyncio.to_thread(lambda: asyncio.run(send("mail")))

    with pytest.warns(stepwise.RunWarning, match="another event loop"):
        assert asyncio.run(beside(slow, elsewhere)()) == ["a", "mail", "b"]


# -- what is never recorded ----------------------------------------------------------------------


def test_requests_inside_recorded_code_are_part_of_it(client):
    """Requests of step bodies, of reconcile, of resources and of the background are not steps."""
    broken = Once()

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

    first, second = in_two_starts(agent)
    assert (first, second[:6]) == ("answer 1", "answer")
    assert {each.name.rpartition(".")[2] for each in steps()} == {"think", "send"}


def test_other_endpoints_are_left_alone(client):
    """A list of models, or a file, is the state of a provider, and asked for each time."""
    assert twice(lambda: client.get("/files/1", cast_to=object)["number"]) == 2
    assert steps() == []


def test_outside_a_run_nothing_is_recorded(client):
    """Outside of runs a client works as usual, and no store is opened."""
    assert [said(ask(client)), said(ask(client))] == ["answer 1", "answer 2"]
    assert stepwise.runs() == []


def test_uninstrument(client):
    """After uninstrument, requests are made as usual, and the classes are as before."""
    stepwise.uninstrument()
    assert twice(lambda: said(ask(client))) == "answer 2"
    assert not hasattr(transports(sdks.openai).Client.send, "__wrapped__")


def plainly(client, path="/v1/chat/completions", **body):
    """Ask as an SDK does that is not known by name."""
    return client.post(f"http://model{path}", json=body or {"model": "m", "messages": ASKED}).json()


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_request_of_any_client_is_known_by_its_shape(library, server):
    """A client of no named SDK is recorded where it asks a model; its other requests are made."""
    module = pytest.importorskip(library)
    client = module.Client(transport=module.MockTransport(server))

    def requests():
        asked = (plainly(client)["choices"][0]["message"]["content"] for _ in range(2))
        sent = {"path": "/v1/messages", "to": "+41", "text": "hello"}
        return [*asked, plainly(client, **sent)["content"][0]["text"]]

    assert twice(requests) == ["answer 1", "answer 2", "answer 4"]
    recorded = [(each.name, each.usage["model"]) for each in steps()]
    assert recorded == [("chat.completions", "gpt-4o")] * 2


def test_a_stream_of_any_asynchronous_client_is_recorded(server):
    """A stream that an asynchronous client of no named SDK reads is given again as it came."""
    asked = {"model": "m", "messages": ASKED, "stream": True}

    async def lines():
        async with httpx.AsyncClient(transport=httpx.MockTransport(server.awaited)) as client:
            url = "http://model/v1/chat/completions"
            async with client.stream("POST", url, json=asked) as response:
                return [line async for line in response.aiter_lines()]

    given = twice(lines)
    assert len(server.requests) == 1
    assert '"content": "1"' in given[-4]
    assert given[-2] == "data: [DONE]"


class _Answering(BaseHTTPRequestHandler):
    """Answers each POST with an empty object."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def address():
    """The address of a server of models."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def by_http_client(address, path):
    connection = http.client.HTTPConnection(address)
    connection.request("POST", path, body=b"{}")
    connection.getresponse().read()
    connection.close()


def test_a_request_that_is_not_seen_is_noticed_once(address, capsys, monkeypatch):
    """A request to a model that no httpx sends is named, once, with the two ways to record it."""
    monkeypatch.setenv("STEPWISE_QUIET", "0")
    monkeypatch.setattr(_unseen_requests, "_is_first", messages.Once())

    @step
    def asked_by_a_step():
        by_http_client(address, "/v1/chat/completions")

    @workflow
    def quiet():
        by_http_client(address, "/v1/files")
        asked_by_a_step()

    @workflow
    def agent():
        for _ in range(2):
            by_http_client(address, "/model/anthropic.claude/converse?x=1")

    by_http_client(address, "/v1/chat/completions")
    quiet()
    assert "instrument" not in capsys.readouterr().err
    agent()
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "instrument" in each]
    assert "(POST /model/anthropic.claude/converse) through http.client" in line
    assert "@step" in line
    assert "name=" in line
    assert __name__.partition(".")[0] in line


def test_one_client_alone(server):
    """A client that is given is instrumented, and no other."""
    recorded, plain = chat(server), chat(server)
    stepwise.uninstrument()
    stepwise.instrument(recorded)
    assert twice(lambda: [said(ask(recorded)), said(ask(plain))]) == ["answer 1", "answer 3"]
    stepwise.uninstrument(recorded)
    assert twice(lambda: said(ask(recorded))) == "answer 5"


def test_secrets_are_not_stored(server):
    """Neither keys in headers, URL and body nor a masked secret in the question reach the store."""
    given = {"default_headers": {"x-key": "SECRET-1"}, "default_query": {"api-key": "SECRET-2"}}
    client = chat(server, **given)
    twice(lambda: said(ask(client, extra_body={"api_key": "SECRET-3"})))
    assert len(server.requests) == 1
    exported = json.dumps(stepwise.runs()[0].to_dict(), default=str)
    (recorded,) = steps()
    assert "SECRET" not in exported + f"{recorded.result}{recorded.arguments}"


# -- clients of httpx ----------------------------------------------------------------------------


def named(server, kind=httpx.Client, **options):
    client = kind(transport=httpx.MockTransport(server), base_url="http://shop", **options)
    stepwise.instrument(client, name="shop")
    return client


def test_a_named_client_records_reads_and_announces_the_rest(server):
    """GET is a step; POST is a side effect, whose answer is its outcome if the server failed."""
    server.statuses = [200, 200, 503]
    client = named(server)

    def used():
        got = client.get("/orders", params={"page": 1})
        put = client.post("/orders", json={"item": 1})
        failed = client.post("/orders", json={"item": 2})
        return [got.json()["number"], got.headers["x-next"], put.json()["number"], failed]

    *answers, failed = twice(used)
    assert answers == [1, "1", 2]
    assert failed.status_code == 503
    assert len(server.requests) == 3
    kinds = {each.name: each.side_effect for each in steps()}
    assert kinds == {"shop GET": False, "shop POST": True}


def test_a_post_whose_connection_fails_is_in_doubt(server):
    """Whether a request without an answer was carried out is not known: the next start asks.

    The recorded error holds its request, and leaves out the keys in its headers and its query.
    """
    server.statuses = [None]
    client = named(server)
    client.headers["authorization"] = "Bearer SECRET-1"

    @workflow
    def agent():
        return client.post("/orders", params={"api_key": "SECRET-2"}).json()

    with pytest.raises(httpx.ConnectError) as caught:
        agent()
    assert caught.value.request.headers["authorization"] == "Bearer SECRET-1"
    (recorded,) = steps()
    assert b"ConnectError" in recorded._entry.payload
    assert b"SECRET" not in recorded._entry.payload
    with pytest.raises(StepInDoubtError, match="shop POST"):
        agent()
    assert len(server.requests) == 1


def test_reads_that_are_said_to_change_nothing(server):
    """With reads=, a POST that changes nothing is a plain step, repeated after a failure."""
    server.statuses = [503]
    client = httpx.Client(transport=httpx.MockTransport(server), base_url="http://shop")
    stepwise.instrument(client, name="shop", reads=["GET", "post"])
    assert twice(lambda: client.post("/search", json={"q": 1}).status_code) == 200


@pytest.mark.parametrize("make", ["httpx", "openai"])
def test_an_error_of_a_status_is_recorded_without_its_keys(make, server):
    """Errors that hold a response, as those of the SDKs do, leave no key behind either."""
    server.statuses = [404]
    client, asked = chat(server, default_headers={"x-key": "SECRET"}), named(server)
    asked.headers["authorization"] = "SECRET"

    @step
    def find():
        if make == "openai":
            return ask(client)
        return asked.get("/").raise_for_status()

    @workflow
    def agent():
        with contextlib.suppress(sdks.openai.NotFoundError, httpx.HTTPStatusError):
            return find()

    agent()
    (recorded,) = steps()
    assert b"SECRET" not in recorded._entry.payload
    assert recorded.error.response.status_code == 404


def test_answers_keep_their_length_and_encoding():
    """HEAD answers its content-length again, and a body without charset its client's encoding."""

    def serve(request):
        if request.method == "HEAD":
            return httpx.Response(200, headers={"content-length": "1234"})
        return httpx.Response(200, content=b"\xe9", headers={"content-type": "text/plain"})

    client, found = named(serve, default_encoding="latin-1"), []

    def asked():
        with client.stream("GET", "/streamed") as streamed:
            length = streamed.headers["content-length"]
        found.append((client.head("/").headers["content-length"], client.get("/").text, length))

    twice(asked)
    assert found == [("1234", "\xe9", "1")] * 2


@pytest.mark.parametrize("header", ["accept", "range", "if-match"])
def test_headers_that_choose_the_answer_are_part_of_a_request(header):
    """Requests that differ in such a header are not answered for each other, in whatever order."""
    order = ["a", "b"]

    async def serve(request):
        return httpx.Response(200, text=request.headers[header])

    client = named(serve, httpx.AsyncClient)

    async def asked():
        order.reverse()
        answers = [client.get("/", headers={header: value}) for value in order]
        return [*zip(order, [each.text for each in await asyncio.gather(*answers)], strict=True)]

    assert twice(asked) == [("a", "a"), ("b", "b")]


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (object, {}, "takes a client of openai or anthropic"),
        (lambda: sdks.openai.OpenAI, {}, "give an instance"),
        (lambda: sdks.openai, {}, "give an instance"),
        (httpx.Client, {}, "needs a name="),
        (lambda: None, {"name": "shop"}, "name= is for a client of httpx"),
    ],
    ids=["an object", "a class", "a module", "no name", "a name alone"],
)
def test_what_cannot_be_instrumented(given, options, message):
    """A wrong argument is refused with what is accepted, and how."""
    with pytest.raises(ConfigurationError, match=message):
        stepwise.instrument(given(), **options)


def test_a_version_that_does_not_fit_is_refused(monkeypatch):
    """A client of an SDK without the client of httpx that sends its requests is refused."""
    client = sdks.openai.OpenAI(api_key="k")
    monkeypatch.delattr(client, "_client")
    with pytest.raises(ConfigurationError, match=r"openai .* does not fit .*`_client`"):
        stepwise.instrument(client)


def test_nothing_is_kept_of_a_request_for_checkpoints(client, monkeypatch):
    """What is recorded of a request is in no variable, so no checkpoint is prepared to refer to it;
    what it was given is made for it alone, so nothing of it is watched.
    """
    looked, watched = [], []
    monkeypatch.setattr(WorkflowFrame, "look", lambda _, result: looked.append(result))
    monkeypatch.setattr(Subjects, "watch", lambda *_: watched.append(True))

    @step
    def note(values):
        return [*values, "noted"]

    @workflow
    def agent():
        return note([said(ask(client)), said(ask(client, "and then?"))])

    assert agent() == ["answer 1", "answer 2", "noted"]
    assert looked == [["answer 1", "answer 2", "noted"]]
    assert watched == [True]
