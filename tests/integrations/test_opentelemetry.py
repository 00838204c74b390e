"""Runs in traces and metrics: seen by the SDK's own exporters."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import sqlite3
import sys
import threading

import pytest
from clocks import LIMIT, be_late
from harness import Watched, python

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import stepwise
from stepwise import step, tool, workflow
from stepwise._runtime import observers
from stepwise.integrations._opentelemetry_spans import Metrics
from stepwise.integrations.opentelemetry import instrument, uninstrument
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

broken = set()


class Seen:
    """What the exporters of a test have got."""

    def __init__(self, **options):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.own = self.provider.get_tracer("own")
        self.meters = MeterProvider([self.reader])
        instrument(self.provider, self.meters, **options)

    @property
    def spans(self):
        """The spans that have ended, in the order of their beginnings."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def span(self, name):
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def tree(self):
        """The spans by name, each with those below it."""
        spans = self.spans
        known = {span.context.span_id for span in spans}

        def below(parent):
            inner = [s for s in spans if s.parent is not None and s.parent.span_id == parent]
            return [(s.name, below(s.context.span_id)) for s in inner]

        tops = [s for s in spans if s.parent is None or s.parent.span_id not in known]
        return [(s.name, below(s.context.span_id)) for s in tops]

    def metric(self, name):
        """The points of a metric: attributes without the workflow's, and the value."""
        data = json.loads(self.reader.get_metrics_data().to_json())
        found = {}
        for metric in data["resource_metrics"][0]["scope_metrics"][0]["metrics"]:
            for point in metric["data"]["data_points"] if metric["name"] == name else ():
                labels = {k: v for k, v in point["attributes"].items() if "workflow" not in k}
                found[tuple(sorted(labels.values()))] = point.get("value", point.get("sum"))
        return found


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture(autouse=True)
def whole():
    """Nothing is broken at the beginning of a test, and nothing stays attached at its end."""
    broken.clear()
    yield
    uninstrument()
    assert not trace.get_current_span().get_span_context().is_valid


@step
def think(topic):
    if topic in broken:
        raise ValueError(f"no thought about {topic}")
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    if "the line" in broken:
        raise ConnectionError("the line is dead")
    return f"sent {text}"


@workflow
def agent(topic):
    return send(think(topic))


def attributes(span):
    return {k.removeprefix("stepwise."): v for k, v in span.attributes.items()}


def events(span):
    return [(event.name, event.attributes.get("stepwise.step.name")) for event in span.events]


# -- spans ---------------------------------------------------------------------------------------


def test_a_run_and_its_steps(seen):
    """A run is a span, its steps are spans below it, with the names of the conventions."""
    assert agent("tides") == "sent about tides"
    assert seen.tree() == [
        ("invoke_workflow agent", [("step think", []), ("execute_tool send", [])])
    ]
    run, sent = attributes(seen.span("invoke_workflow agent")), seen.span("execute_tool send")
    assert run["gen_ai.operation.name"] == "invoke_workflow"
    ended = {"gen_ai.workflow.name": "agent", "run.status": "completed", "run.resumed": False}
    assert run.items() >= {**ended, "steps.executed": 2, "steps.skipped": 0}.items()
    names = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "send"}
    facts = {"step.number": 2, "step.side_effect": True, "step.status": "completed"}
    assert attributes(sent).items() >= {**names, **facts}.items()
    assert {span.status.status_code for span in seen.spans} == {StatusCode.UNSET}
    assert not any("tides" in str(v) for span in seen.spans for v in span.attributes.values())


def test_the_users_own_spans(seen):
    """A span that a body or the workflow makes lies below it; a run, below its caller's span."""

    @step
    def fetch():
        with seen.own.start_as_current_span("GET /"):
            return 1

    @step
    async def afetch():
        with seen.own.start_as_current_span("GET /later"):
            await asyncio.sleep(0)

    @workflow
    async def browse():
        with seen.own.start_as_current_span("look"):
            fetch()
        await afetch()

    with seen.own.start_as_current_span("request"):
        asyncio.run(browse())
    looks = ("look", [("step fetch", [("GET /", [])])])
    run = ("invoke_workflow browse", [looks, ("step afetch", [("GET /later", [])])])
    assert seen.tree() == [("request", [run])]


def test_content_is_shown_on_request():
    """Arguments and results are attributes if that was asked for, with secrets masked."""

    @tool(secret=("password",))
    def log_in(user, password):
        return f"{user} is in with {password}"

    @workflow
    def visit(user):
        return log_in(user, "hunter2")

    seen = Seen(capture_content=True)
    visit("ann")
    facts = seen.span("execute_tool log_in").attributes
    assert "user='ann'" in facts["gen_ai.tool.call.arguments"]
    assert "ann is in" in facts["gen_ai.tool.call.result"]
    assert "hunter2" not in "".join(span.to_json() for span in seen.spans)


def test_the_environment_asks_for_content(monkeypatch):
    """The variable of the conventions turns arguments and results on."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    seen = Seen()
    agent("tides")
    assert seen.span("invoke_workflow agent").attributes["stepwise.arguments"] == "topic='tides'"


def test_an_exception_without_its_secret(seen):
    """The exception of a step is on its span with its type, and a secret in it is masked."""

    @step(secret=("password",))
    def log_in(password):
        raise PermissionError(f"{password} is wrong")

    @workflow
    def visit():
        log_in("hunter2")

    with pytest.raises(PermissionError):
        visit()
    failed, run = seen.span("step log_in"), seen.span("invoke_workflow visit")
    assert failed.status.status_code is run.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == run.attributes["error.type"] == "PermissionError"
    (event,) = failed.events
    assert event.attributes["exception.type"] == "builtins.PermissionError"
    assert "is wrong" in event.attributes["exception.message"]
    assert "in log_in" in event.attributes["exception.stacktrace"]
    assert "hunter2" not in "".join(
        f"{e.name}{dict(e.attributes)}" for s in seen.spans for e in s.events
    )
    assert "hunter2" not in f"{failed.status.description}{run.status.description}"


def test_retries(seen):
    """Each retry is a span below its step, which has the exception of the first attempt."""
    tries = []

    @step(retries=2, backoff=0)
    def flaky():
        tries.append(1)
        with seen.own.start_as_current_span(f"try {len(tries)}"):
            if len(tries) < 3:
                raise OSError(f"no {len(tries)}")

    @workflow
    def stubborn():
        flaky()

    stubborn()
    retry = [("retry flaky", [("try 2", [])]), ("retry flaky", [("try 3", [])])]
    step_ = ("step flaky", [("try 1", []), *retry])
    assert seen.tree() == [("invoke_workflow stubborn", [step_])]
    span, retries = seen.span("step flaky"), [s for s in seen.spans if s.name == "retry flaky"]
    assert [e.attributes["exception.message"] for e in span.events] == ["no 1"]
    assert [e.attributes["exception.message"] for e in retries[0].events] == ["no 2"]
    assert [s.status.status_code for s in retries] == [StatusCode.ERROR, StatusCode.UNSET]
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes["stepwise.step.attempts"] == 3
    assert seen.metric("stepwise.seconds.lost").keys() == {("flaky", "retry")}


def test_a_retry_that_waits_for_a_limit(seen):
    """A step that waits has not ended: its retry is below it, and no wait is a duration."""
    failing = ["at first"]

    @step(limit=stepwise.Limit("retried", requests=1, per=0.05), retries=1, backoff=0)
    def ask():
        if failing:
            raise ConnectionError(failing.pop())
        return "asked"

    @workflow
    def patient():
        stepwise.sleep(0.001)
        return ask()

    assert patient() == "asked"
    assert seen.tree() == [("invoke_workflow patient", [("step ask", [("retry ask", [])])])]
    facts = {"step.status": "completed", "step.attempts": 2}
    assert attributes(seen.span("step ask")).items() >= facts.items()
    ended = {("ask", "completed"), ("completed", "stepwise.sleep")}
    assert {*seen.metric("stepwise.step.duration")} == ended


def test_a_timeout(seen):
    """An attempt that took too long is an exception of its span; its body had the span current."""
    gate = threading.Event()

    @step(timeout=0.01)
    def slow():
        with seen.own.start_as_current_span("waiting"):
            gate.wait(60)

    @workflow
    def patient():
        slow()

    with pytest.raises(stepwise.StepTimeoutError):
        patient()
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "stepwise slow":
            thread.join()
    assert seen.tree() == [("invoke_workflow patient", [("step slow", [("waiting", [])])])]
    (event,) = seen.span("step slow").events
    assert event.attributes["exception.type"].endswith("StepTimeoutError")


def answer_of_model(request):
    """Answer as OpenAI's server: busy the first time, then in JSON, or as a stream."""
    library = sys.modules[type(request).__module__.partition(".")[0]]
    requests.append(request)
    if len(requests) == 1:
        return library.Response(429, json={}, headers={"retry-after-ms": "1"})
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    facts = {"id": "1", "created": 1, "model": "m-1-2026", "usage": usage}
    said = {"role": "assistant", "content": "hello"}
    if json.loads(request.content).get("stream"):
        delta = {"index": 0, "delta": said}
        piece = {**facts, "object": "chat.completion.chunk", "choices": [delta]}
        text = f"data: {json.dumps(piece)}\n\ndata: [DONE]\n\n"
        return library.Response(200, headers={"content-type": "text/event-stream"}, text=text)
    choice = {"index": 0, "finish_reason": "stop", "message": said}
    return library.Response(200, json={**facts, "object": "chat.completion", "choices": [choice]})


requests = []


@pytest.fixture
def client():
    """A client of OpenAI's SDK, instrumented, of a model that answers at once."""
    openai = pytest.importorskip("openai")
    requests.clear()
    made = openai.OpenAI(api_key="none")
    httpx = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    made = made.copy(http_client=httpx.Client(transport=httpx.MockTransport(answer_of_model)))
    stepwise.instrument(made)
    yield made
    stepwise.uninstrument(made)


def test_a_model_request(seen, client):
    """A request to a model is a client span with model and tokens; one that failed is another."""

    @workflow(checkpoint_every=9)
    def chat():
        asked = {"model": "m-1", "messages": [{"role": "user", "content": "hi"}]}
        with seen.own.start_as_current_span("ask"):
            client.chat.completions.create(**asked)
        for _ in client.chat.completions.create(**asked, stream=True):
            pass
        think("tides")

    broken.add("tides")
    with pytest.raises(ValueError, match="tides"):
        chat()
    broken.clear()
    chat()
    assert seen.tree()[0][1][0] == ("ask", [("chat m-1", []), ("chat m-1", [])])
    failed, done, streamed = (s for s in seen.spans if s.name == "chat m-1")
    assert failed.status.status_code is StatusCode.ERROR
    assert {span.kind for span in (failed, done, streamed)} == {SpanKind.CLIENT}
    for span in (done, streamed):
        asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1"}
        said = {"gen_ai.provider.name": "openai", "gen_ai.response.model": "m-1-2026"}
        spent = {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3}
        assert attributes(span).items() >= {**asked, **said, **spent}.items()
    tokens = {
        ("chat", "input", "m-1", "m-1-2026", "openai"): 24,
        ("chat", "m-1", "m-1-2026", "openai", "output"): 6,
    }
    assert seen.metric("gen_ai.client.token.usage") == tokens
    saved = seen.metric("stepwise.tokens.saved")
    assert sum(n for labels, n in saved.items() if "input" in labels) == 24
    assert sum(n for labels, n in saved.items() if "output" in labels) == 6
    assert {label for labels in saved for label in labels} > {"answered", "checkpoint"}
    assert len(seen.metric("gen_ai.client.operation.duration")) == 1
    assert len(requests) == 3


# -- where bodies run ----------------------------------------------------------------------------


def test_tasks_side_by_side(seen):
    """The spans of steps in a gather lie below their run, and not below each other."""

    @step
    async def visit(n):
        with seen.own.start_as_current_span(f"inner {n}"):
            await asyncio.sleep(0)

    @workflow
    async def crowd():
        await asyncio.gather(*map(visit, range(3)))

    asyncio.run(crowd())
    ((_, steps),) = seen.tree()
    assert steps == [("step visit", [(f"inner {n}", [])]) for n in range(3)]


def test_a_map_and_threads(seen):
    """Steps of a map, a pool and a plain thread lie below the run, their bodies below them."""

    @step
    def visit(n):
        with seen.own.start_as_current_span(f"inner {n}"):
            return n

    @workflow
    def crowd():
        stepwise.map(visit, [0, 1])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pool.submit(visit, 2).result()
        thread = threading.Thread(target=visit, args=(3,))
        thread.start()
        thread.join()

    crowd()
    ((_, steps),) = seen.tree()
    assert sorted(steps) == [("step visit", [(f"inner {n}", [])]) for n in range(4)]


@step
def double(n):
    return 2 * n


@workflow
def counting(numbers):
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return stepwise.map(double, numbers, executor=pool)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_of_processes(seen):
    """Bodies in worker processes have their span in the process that records them."""
    assert counting([1, 2]) == [2, 4]
    assert seen.tree() == [("invoke_workflow counting", [("step double", []), ("step double", [])])]


def test_a_function_that_returns_an_awaitable(seen):
    """A plain step whose awaitable is awaited later is one span, current in both parts."""

    @step
    def fetch():
        with seen.own.start_as_current_span("now"):
            pass

        async def later():
            with seen.own.start_as_current_span("later"):
                await asyncio.sleep(0)

        return later()

    @workflow
    async def browse():
        await fetch()

    asyncio.run(browse())
    assert seen.tree() == [
        ("invoke_workflow browse", [("step fetch", [("now", []), ("later", [])])])
    ]


def test_child_runs_and_steps_in_steps(seen):
    """A child run lies below the run that calls it, a step that a step calls below that step."""

    @step
    def outer():
        return think("tides")

    @workflow
    def parent():
        outer()
        return agent("winds")

    parent()
    child = ("invoke_workflow agent", [("step think", []), ("execute_tool send", [])])
    steps = [("step outer", [("step think", [])]), child]
    assert seen.tree() == [("invoke_workflow parent", steps)]
    assert len({span.context.trace_id for span in seen.spans}) == 1


def test_a_generator(seen):
    """Between two items of a generator, its span is not current in the caller's code."""

    @workflow
    def items():
        for n in range(2):
            yield think(n)

    with seen.own.start_as_current_span("request"):
        for item in items():
            with seen.own.start_as_current_span(f"got {item}"):
                pass
    ((_, inner),) = seen.tree()
    assert inner == [
        ("invoke_workflow items", [("step think", []), ("step think", [])]),
        ("got about 0", []),
        ("got about 1", []),
    ]


def test_agents(seen):
    """The runs of other hosts are traced as those of workflows are."""

    @tool
    def look(place):
        return place

    async def one_step(ctx):
        return await ctx.tool(look, "Oslo")

    recoverable = stepwise.RecoverableAgent(one_step, stepwise.CheckpointStore())
    asyncio.run(recoverable.run_with_recovery("travel", "run"))
    ((name, steps),) = seen.tree()
    assert name.startswith("invoke_workflow ")
    assert "execute_tool look" in str(steps)


def test_a_started_run(seen):
    """A run that another thread executes lies below the span in which it was started."""
    with seen.own.start_as_current_span("request"):
        assert agent.start("tides").result() == "sent about tides"
    steps = [("step think", []), ("execute_tool send", [])]
    assert seen.tree() == [("request", [("invoke_workflow agent", steps)])]


def test_runs_side_by_side(seen):
    """Runs in several threads at once are traces of their own, each with its steps."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(agent, "abcd")]) == 4
    steps = [("step think", []), ("execute_tool send", [])]
    assert seen.tree() == [("invoke_workflow agent", steps)] * 4
    assert len({span.context.trace_id for span in seen.spans}) == 4


def test_coroutines_that_fail(seen):
    """A coroutine step that takes too long is retried below its span; a cancelled one is marked."""
    tries, begun = [], asyncio.Event()

    @step(timeout=LIMIT, retries=1, backoff=0)
    async def slow():
        tries.append(1)
        with seen.own.start_as_current_span(f"try {len(tries)}"):
            if len(tries) == 1:
                be_late()
                await asyncio.Event().wait()

    @step
    async def endless():
        begun.set()
        await asyncio.Event().wait()

    @workflow
    async def patient():
        await slow()
        call = asyncio.ensure_future(endless())
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(patient())
    slow_ = ("step slow", [("try 1", []), ("retry slow", [("try 2", [])])])
    assert seen.tree() == [("invoke_workflow patient", [slow_, ("step endless", [])])]
    (event,) = seen.span("step slow").events
    assert event.attributes["exception.type"].endswith("StepTimeoutError")
    cut = seen.span("step endless")
    assert cut.attributes["stepwise.step.status"] == "cancelled"
    assert cut.attributes["error.type"] == "CancelledError"


CELL = """
    import json, sys
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
    from stepwise.integrations.opentelemetry import instrument
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(
        out=open("spans", "a"), formatter=lambda span: span.to_json(indent=None) + "\\n"
    )))
    instrument(provider)
    fetch = stepwise.step(lambda n: n, name="fetch")
"""


def test_a_notebook(notebook):
    """A cell is a step, and its steps lie below it; a restarted kernel continues the trace."""
    for number in range(2):
        kernel = notebook.start()
        kernel.run(CELL)
        kernel.run("%%step one\nfetch(1)")
        kernel.run(f"%%step cell{number}\nfetch(2)")
    spans = [*map(json.loads, (notebook.folder / "spans").read_text().splitlines())]
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    names = {span["context"]["span_id"]: span["name"] for span in spans}
    below = [(span["name"], names.get(span["parent_id"])) for span in spans]
    steps = [pair for pair in below if not pair[0].startswith("invoke")]
    runs = [pair[0] for pair in below if pair[0].startswith("invoke")]
    assert (len(runs), len(set(runs))) == (3, 1)
    cells = [f"cell {name}" for name in ("one", "cell0", "cell1")]
    assert steps[::2] == [("step fetch", cell) for cell in cells]
    assert steps[1::2] == [(cell, runs[0]) for cell in cells]


# -- resuming ------------------------------------------------------------------------------------


def test_a_resumed_run(seen):
    """A resumed run is a new span in the same trace, linked; answered steps are events on it."""

    @workflow(checkpoint_every=9, retention="latest_only")
    def fragile(topic):
        return think(topic), think("winds")

    broken.add("winds")
    for _ in range(2):
        with pytest.raises(ValueError, match="winds"):
            fragile("tides")
    broken.clear()
    with seen.own.start_as_current_span("another request"):
        fragile("tides")
    first, second, third = (s for s in seen.spans if s.name == "invoke_workflow fragile")
    other = seen.span("another request")
    assert {s.context.trace_id for s in (first, second, third)} == {first.context.trace_id}
    one, two, request = (s.context.span_id for s in (first, second, other))
    assert [s.parent and s.parent.span_id for s in (first, second, third)] == [None, one, one]
    assert [link.context.span_id for link in second.links] == [one]
    assert [link.context.span_id for link in third.links] == [two, request]
    assert [e for e in events(third) if e[1]] == [("stepwise.step.answered", "think")]
    again = [s for s in seen.spans if s.parent and s.parent.span_id == third.context.span_id]
    assert [s.name for s in again] == ["step think"]
    assert seen.metric("stepwise.steps.answered") == {("think",): 2}
    assert seen.metric("stepwise.seconds.saved").keys() >= {("answered", "think")}
    assert seen.metric("stepwise.seconds.lost").keys() == {("restart", "think")}


def test_a_run_that_cannot_resume(seen, monkeypatch):
    """An attempt that ends before the run's code is entered is a span with an error."""
    broken.add("tides")
    with pytest.raises(ValueError, match="tides"):
        agent("tides")
    monkeypatch.setattr("stepwise._workflows.resume.WorkflowRun._enter", fail)
    with pytest.raises(RuntimeError, match="oops"):
        agent("tides")
    _, stopped = (s for s in seen.spans if s.name == "invoke_workflow agent")
    assert stopped.status.status_code is StatusCode.ERROR
    assert stopped.attributes["stepwise.run.status"] == "stopped"


def test_a_fork_begins_a_trace(seen):
    """A fork is another run, and has a trace of its own."""
    agent.options(run_id="one")("tides")
    stepwise.get_run("one").fork(at=1, run_id="two")
    agent.options(run_id="two")("tides")
    first, second = (s for s in seen.spans if s.name == "invoke_workflow agent")
    assert first.context.trace_id != second.context.trace_id


def test_doubt(seen):
    """A side effect in doubt is marked on the run, on the step that is made again, and counted."""
    answers = [stepwise.Inconclusive, stepwise.DidNotHappen]

    @tool(side_effect=True, in_doubt=lambda call: answers.pop(0))
    def pay():
        if "the line" in broken:
            raise ConnectionError("the line is dead")

    @workflow
    def shop():
        pay()

    broken.add("the line")
    with pytest.raises(ConnectionError):
        shop()
    broken.clear()
    with pytest.raises(stepwise.StepInDoubtError):
        shop()
    shop()
    _, stopped, last = (s for s in seen.spans if s.name == "invoke_workflow shop")
    assert ("stepwise.step.in_doubt", "pay") in events(stopped)
    assert attributes(stopped)["run.in_doubt"]
    assert attributes(stopped)["run.status"] == "stopped"
    assert stopped.status.status_code is StatusCode.ERROR
    assert attributes(seen.spans[-1])["step.in_doubt"] is True
    assert "run.in_doubt" not in attributes(last)
    assert seen.metric("stepwise.steps.in_doubt") == {("pay",): 2}


def test_interrupted_inside_a_side_effect(seen):
    """A side effect that Ctrl-C cut off ends with its run, as an error, and is marked in doubt."""

    @tool(side_effect=True)
    def pay():
        raise KeyboardInterrupt

    @workflow
    def shop():
        pay()

    with pytest.raises(KeyboardInterrupt):
        shop()
    cut = seen.span("execute_tool pay")
    assert attributes(cut)["step.in_doubt"] is True
    assert cut.status.status_code is StatusCode.ERROR
    assert attributes(seen.span("invoke_workflow shop"))["run.status"] == "interrupted"


PROGRAM = """
import os, signal, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import stepwise
from stepwise import step, tool, workflow
from stepwise.integrations.opentelemetry import instrument

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(
    out=open(sys.argv[1], "w"), formatter=lambda span: span.to_json(indent=None) + "\\n"
)))
instrument(provider)

@step
def fetch(n):
    if n == 2 and "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return n

@tool(side_effect=True)
def send(text):
    return text

@workflow(checkpoint_every=9)
def inner(n):
    return [fetch(1), send("hi"), fetch(n)]

@workflow(checkpoint_every=9)
def agent():
    return [fetch(0), send("hello"), *inner(2)]

print(agent())
"""


def test_killed_and_resumed(tmp_path):
    """After a SIGKILL, another process continues the trace, with links, events and child runs."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)

    def run(name, *arguments):
        done = python(path, tmp_path / name, *arguments)
        return done, [*map(json.loads, (tmp_path / name).read_text().splitlines())]

    killed, before = run("before", "die")
    assert killed.returncode == -signal.SIGKILL
    assert [span["name"] for span in before] == ["step fetch", "execute_tool send"] * 2
    resumed, after = run("after")
    assert resumed.stdout == "[0, 'hello', 1, 'hi', 2]\n", resumed.stderr
    by_name = {span["name"]: span for span in after}
    assert [*by_name] == ["step fetch", "invoke_workflow inner", "invoke_workflow agent"]
    assert len(after) == 3
    assert {s["context"]["trace_id"] for s in (*before, *after)} == {
        before[0]["context"]["trace_id"]
    }
    agent_, inner = by_name["invoke_workflow agent"], by_name["invoke_workflow inner"]
    of_agent, of_inner = before[0]["parent_id"], before[2]["parent_id"]
    assert [link["context"]["span_id"] for link in agent_["links"]] == [of_agent]
    assert [link["context"]["span_id"] for link in inner["links"]] == [of_inner]
    assert (agent_["parent_id"], inner["parent_id"]) == (of_agent, agent_["context"]["span_id"])
    assert by_name["step fetch"]["parent_id"] == inner["context"]["span_id"]
    for span in (agent_, inner):
        names = [event["attributes"].get("stepwise.step.name") for event in span["events"]]
        assert names == [None, "fetch", "send"]


def test_a_head_that_is_lost(seen, tmp_path):
    """The place in the trace is derived from the records, if the row of the listing is lost."""
    store = f"disk:{tmp_path / 'store'}"
    broken.add("tides")
    for _ in range(2):
        with pytest.raises(ValueError, match="tides"):
            agent.options(store=store, run_id="run")("tides")
    damaged = sqlite3.connect(tmp_path / "store" / "cache.db")
    with contextlib.closing(damaged), damaged:
        assert damaged.execute("UPDATE Heads SET value = zeroblob(80)").rowcount
    broken.clear()
    agent.options(store=store, run_id="run")("tides")
    first, second, third = (s for s in seen.spans if s.name == "invoke_workflow agent")
    assert third.parent.span_id == first.context.span_id
    assert [link.context.span_id for link in third.links] == [second.context.span_id]


def test_the_example(tmp_path, monkeypatch):
    """The example, killed in its side effect and settled, prints all attempts as one tree."""
    monkeypatch.setenv("STEPWISE_HOME", f"{tmp_path}/home")
    command = [pathlib.Path(__file__).parents[2] / "examples" / "traced_agent.py", "--latency", "0"]
    os.mkfifo(tmp_path / "outbox.txt")  # opened for writing, it blocks
    killed = Watched(*command, cwd=tmp_path, env={**os.environ}, err=tmp_path / "errors")
    for line in killed.stdout:
        if line.startswith("[append]"):
            killed.kill()
    killed.wait()
    (tmp_path / "outbox.txt").unlink()
    assert "StepInDoubtError" in python(*command, cwd=tmp_path).stderr
    (run,) = stepwise.runs()
    run.resolve("append", did_not_happen=True)
    printed = python(*command, cwd=tmp_path).stdout
    shown = printed.partition("2 lines in outbox.txt\n")[2].splitlines()
    assert [line for line in shown if "invoke_workflow" in line or "append" in line] == [
        "invoke_workflow news, killed",
        "  invoke_workflow news",
        "  invoke_workflow news",
        "    execute_tool append",
    ]
    assert "    retry search" in shown


# -- metrics -------------------------------------------------------------------------------------


def test_metrics(seen):
    """Steps are counted by name and status, runs by status."""
    agent("tides")
    broken.add("winds")
    with pytest.raises(ValueError, match="winds"):
        agent("winds")
    assert seen.metric("stepwise.runs") == {("completed",): 1, ("failed",): 1}
    assert seen.metric("stepwise.step.duration").keys() == {
        ("completed", "think"),
        ("completed", "send"),
        ("failed", "think"),
    }


@contextlib.contextmanager
def ten_seconds_apart():
    """Each look at the clock is ten seconds after the one before."""
    moments = iter(range(10**6, 10**7, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: float(next(moments)))
        yield


def test_seconds_before_a_checkpoint(seen):
    """What the steps before the place where a run resumes had taken counts as saved."""

    @workflow
    def fragile():
        think("tides")
        think("winds")

    broken.add("winds")
    with ten_seconds_apart():
        with pytest.raises(ValueError, match="winds"):
            fragile()
    broken.clear()
    fragile()
    assert seen.metric("stepwise.seconds.saved")[("checkpoint",)] >= 10
    assert events(seen.spans[-2]) == [("stepwise.run.resumed", None)]


def test_seconds_that_a_crash_lost(seen):
    """They reach from an announced effect to the last record, and leave out steps inside of it."""

    @tool(side_effect=True, in_doubt="retry")
    async def pay():
        await gate.wait()

    @tool(side_effect=True, in_doubt="retry")
    async def outer():
        inner(1)
        await gate.wait()

    @step
    def inner(n):
        return n

    @step
    async def last():
        gate.set()

    async def rest():
        for n in range(3):
            inner(n)
            await asyncio.sleep(0)
        await last()

    @workflow
    async def shop():
        await asyncio.gather(pay(), outer(), rest())

    gate = asyncio.Event()
    with ten_seconds_apart(), fresh_store():
        with crash_at("last"), pytest.raises(SimulatedCrash):
            asyncio.run(shop())
        gate = asyncio.Event()
        asyncio.run(shop())
    lost = seen.metric("stepwise.seconds.lost")
    assert lost.keys() == {("pay", "restart")}
    assert lost["pay", "restart"] >= 10


# -- beside the run ------------------------------------------------------------------------------


def fail(*arguments, **options):
    raise RuntimeError("oops")


@pytest.mark.parametrize("when", ["on_start", "on_end"])
def test_a_processor_that_fails(seen, when):
    """What a processor of spans raises reaches neither the run nor its errors."""
    processor = SpanProcessor()
    setattr(processor, when, fail)
    seen.provider.add_span_processor(processor)
    assert agent("tides") == "sent about tides"
    broken.add("winds")
    with pytest.raises(ValueError, match="winds"):
        agent("winds")


def test_counting_that_fails(monkeypatch):
    """What counting raises does not reach the run, and leaves its spans alone."""
    monkeypatch.setattr(Metrics, "on_event", fail)
    seen = Seen()
    assert agent("tides") == "sent about tides"
    assert len(seen.spans) == 3


def test_without_an_sdk():
    """With the API alone, runs go on as ever, and record no place in a trace."""
    instrument(trace.NoOpTracerProvider())
    assert agent.options(run_id="plain")("tides") == "sent about tides"
    uninstrument()
    assert observers.tracer is None


def test_without_the_library(monkeypatch):
    """Without the API, or with one that is too old, an error names what to install."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.29.0")
    with pytest.raises(stepwise.ConfigurationError, match=r"opentelemetry-api 1\.29\.0 is older"):
        instrument()
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(stepwise.ConfigurationError, match=r"stepwise-agents\[otel\]"):
        instrument()


def test_turned_off(seen):
    """After ``uninstrument`` nothing is traced; a second ``instrument`` replaces the first."""
    other = Seen()
    agent("tides")
    uninstrument()
    uninstrument()
    agent("winds")
    assert (len(other.spans), seen.spans) == (3, [])


def test_turned_off_in_the_middle(seen):
    """Spans in progress end when tracing ends, and the run goes on."""

    @workflow
    def agent():
        think("tides")
        uninstrument()
        return think("winds")

    assert agent() == "about winds"
    assert seen.tree() == [("invoke_workflow agent", [("step think", [])])]
    assert {span.status.status_code for span in seen.spans} == {StatusCode.UNSET}
