"""A program as users write it: both type checkers accept it in strict mode, and it runs.

Nothing in it is said to please a type checker: no cast, no comment, no ``Any`` of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

import stepwise
from stepwise import (
    AsyncHandle,
    CheckpointStore,
    CompletedCall,
    DidNotHappen,
    Event,
    Handle,
    Inconclusive,
    InDoubtCall,
    Landed,
    RecoverableAgent,
    Run,
    RunCheckpoint,
    StepInDoubtError,
    StepRecord,
    Verification,
    Workflow,
    current_step,
    on_event,
    reenterable,
    resource,
    step,
    tool,
    workflow,
)
from stepwise.agent import StepContext
from stepwise.graph import CheckpointManager, Edge, ExecutionResult, Graph, GraphExecutor, Node
from stepwise.graph import Memory as GraphMemory
from stepwise.testing import CrashReport, SimulatedCrash, crash_at, fresh_store


@dataclass(frozen=True)
class Paper:
    """What a search finds."""

    title: str
    year: int
    authors: tuple[str, ...] = ()


@dataclass
class Notes:
    """What the agent remembers."""

    papers: list[Paper] = field(default_factory=list[Paper])
    summary: str = ""


class Session:
    """A connection."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> Session:  # noqa: PYI034 -- Self is not in Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.url = ""

    def get(self, path: str) -> str:
        return f"{self.url}/{path}"


@resource
def connect(url: str) -> Session:
    return Session(url)


# -- steps and tools -------------------------------------------------------------------------------


def is_temporary(error: BaseException) -> bool:
    return isinstance(error, (OSError, TimeoutError))


def pause(attempt: int) -> float:
    return 0.1 * attempt


@step(retries=3, retry_on=is_temporary, backoff=pause, timeout=30)
def search(topic: str, limit: int = 2) -> list[Paper]:
    return [Paper(f"{topic} {number}", 2000 + number) for number in range(limit)]


@step
async def summarise(paper: Paper, *, words: int = 10) -> str:
    await asyncio.sleep(0)
    return paper.title[:words]


@step(name="count", key=["paper"], ignore=["trace"])
def count(paper: Paper, trace: str = "") -> int:
    return len(paper.title)


def was_sent(call: InDoubtCall) -> Landed | DidNotHappen | Inconclusive:
    if call.arguments["to"] == "nobody":
        return DidNotHappen()
    return Landed(f"sent {call.idempotency_key}") if call.error is None else Inconclusive()


def unsend(call: CompletedCall) -> None:
    print("undo", call.name, call.arguments["to"], call.compensation_key[:3])


@tool(side_effect=True, in_doubt=was_sent, fails_cleanly=(ValueError, KeyError), compensate=unsend)
def send(to: str, body: str) -> str:
    return f"{to}: {body} ({current_step().idempotency_key[:3]})"


@tool(side_effect=True, idempotent=True, retries=2, secret=["token"], redact=["body"])
async def publish(body: str, token: str) -> int:
    return len(body)


# -- workflows -------------------------------------------------------------------------------------


@workflow
def agent(topic: str, limit: int = 2) -> Notes:
    notes = Notes()
    with reenterable(connect("https://example.org")) as session:
        notes.papers = search(topic, limit)
        notes.summary = session.get(topic)
    sizes: list[int] = stepwise.map(count, notes.papers, max_workers=2)
    send("team@example.org", f"{notes.summary}: {sum(sizes)}")
    return notes


@workflow(checkpoint_every=2, retention="prune_old", keep=5, on_owned="wait", start="unfinished")
async def reader(topics: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic in topics:
        papers = search(topic)
        first, second = await asyncio.gather(*map(summarise, papers))
        longer: list[str] = await stepwise.map(summarise, papers)
        found[topic] = f"{first} {second} {len(longer)}"
    print(await publish("; ".join(found), token="secret"))
    return found


@workflow
def pages(topic: str) -> Iterator[str]:
    for paper in search(topic):
        yield paper.title


@workflow
async def apages(topic: str) -> AsyncIterator[str]:
    for paper in search(topic):
        yield await summarise(paper)


class Assistant:
    """Steps and workflows as methods."""

    def __init__(self, name: str) -> None:
        self.name = name

    @step(ignore=("hint",))
    def think(self, task: str, hint: str = "") -> str:
        return f"{self.name} thinks about {task}"

    @tool(side_effect=True)
    async def act(self, thought: str) -> int:
        return len(thought)

    @workflow
    def answer(self, task: str) -> str:
        return self.think(task, hint="short")

    @workflow(durability="os", progress=False)
    async def work(self, task: str) -> int:
        return await self.act(self.think(task))

    @workflow
    @classmethod
    def of_name(cls, name: str) -> str:
        return cls(name).think("itself")


Reader = Callable[[list[str]], Awaitable[dict[str, str]]]


def call_plain_workflows() -> None:
    notes: Notes = agent.options(run_id="tides", codec="pickle", secret=())("tides", limit=1)
    run: Run = agent.execute("tides", limit=1)
    other: Run = agent.options(store="memory:", tags={"job": "7"}).execute("winds")
    handle: Handle[Notes] = agent.options(start="new").start("waves")
    started: Notes = handle.result(timeout=10)
    any_workflow: Workflow[..., Notes] = agent
    titles: list[str] = list(pages("moon"))
    print(notes.summary, run.label, other.id, started.papers, any_workflow.full_name, titles)
    assistant = Assistant("Ann")
    answer: str = assistant.answer.options(fresh=True)("sums")
    method: Handle[str] = assistant.answer.start("products")
    print(answer, method.result(), assistant.answer.execute("x").status, Assistant.of_name("Ben"))
    print(assistant.answer.run_id_for("sums"), agent.options(run_id="a").run_id_for("tides"))


async def call_async_workflows() -> None:
    found: dict[str, str] = await reader(["tides"])
    run: Run = await reader.options(run_id="reading").execute(["winds"])
    handle: AsyncHandle[dict[str, str]] = reader.start(["waves"])
    one, two = await handle, await handle.result(timeout=10)
    as_function: Reader = reader
    count: int = await Assistant("Ann").work.options(run_id="w")("sums")
    started: AsyncHandle[int] = Assistant("Ann").work.start("products")
    print(found, run.result, one == two, await as_function(["sun"]), count, await started)
    print([title async for title in apages("moon")])


# -- looking and settling --------------------------------------------------------------------------


def describe(record: StepRecord) -> str:
    took = "" if record.duration is None else f"{record.duration:.0f}"
    return f"{record.number} {record.name} {record.status.upper()} {record.error!r} {took}"


def look() -> list[str]:
    lines: list[str] = []
    for run in stepwise.runs(agent, status="completed", tags={}):
        checkpoints: list[RunCheckpoint] = run.checkpoints
        verified: Verification = run.verify()
        lines += [describe(record) for record in run.steps]
        lines += [f"{each.position} {each.size}" for each in checkpoints]
        lines += [f"{name}" for name in run.locals()] if verified.ok else list(verified.problems)
    if stepwise.get_run("tides").status == "completed":
        fork = stepwise.get_run("tides").fork(at=1, run_id="fork")
        lines.append(agent.options(run_id=fork.id)("tides", limit=1).summary)
    return lines


def settle(topic: str) -> Notes:
    try:
        return agent(topic)
    except StepInDoubtError as doubt:
        stepwise.get_run(doubt.run_id).resolve(doubt.step, landed="sent")
        return agent(topic)


# -- the classic interfaces, and tests -------------------------------------------------------------


async def one_step(ctx: StepContext) -> str | None:
    found = await ctx.tool(search, ctx.task, side_effect=False)
    ctx.state["papers"] = found
    return f"{len(found)} papers" if ctx.step == 2 else None


def draft(memory: GraphMemory) -> str:
    return f"draft about {memory.goal}"


def is_long(memory: GraphMemory) -> bool:
    return len(memory.read("draft", "")) > 5


async def classic() -> ExecutionResult:
    recoverable = RecoverableAgent(one_step, CheckpointStore(), checkpoint_every_n=1)
    print((await recoverable.run_with_recovery("tides", run_id="classic"))["result"])
    graph = Graph([Node("draft", draft, retries=1), Node("end")], [Edge("draft", "end", is_long)])
    return await GraphExecutor(None, CheckpointManager("memory:")).execute(graph, goal="tides")


def test_the_agent_survives(crash_everywhere: Callable[..., CrashReport]) -> None:
    assert crash_everywhere(agent, "tides").starts > 2


@fresh_store()
def test_a_crash() -> None:
    try:
        with crash_at(search, "after"):
            agent("tides")
    except SimulatedCrash:
        assert agent("tides").papers


def main() -> None:
    stepwise.configure(quiet=True)
    heard: list[str] = []

    def listen(event: Event) -> None:
        heard.append(f"{event.kind} {event.name} {event.duration}")

    end = on_event(listen)
    call_plain_workflows()
    asyncio.run(call_async_workflows())
    print(len(look()), settle("stars").summary, asyncio.run(classic()).status)
    test_a_crash()
    with ThreadPoolExecutor() as pool, stepwise.background():
        print(stepwise.map(count, search("none", 1), executor=pool))
    for resumed in stepwise.recover(agent, max_workers=2):
        print(resumed.id, resumed.status)
    end()
    print(len(heard) > 10)


if __name__ == "__main__":
    main()
