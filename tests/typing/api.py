"""Type-checked by ``mypy --strict``, never run: what decorating leaves of a function's types.

A wrong call carries ``# type: ignore[...]``; should the type checker accept it one day, the unused
comment is an error.
"""

# ruff: noqa: B018, F841, PYI034

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, overload

from typing_extensions import assert_type

import stepwise
from stepwise import (
    CompletedCall,
    CurrentStep,
    DidNotHappen,
    Event,
    Inconclusive,
    InDoubtCall,
    Landed,
    Program,
    Recovered,
    Run,
    RunCheckpoint,
    StepAttempt,
    StepRecord,
    StreamItem,
    Verification,
    Workflow,
    background,
    configure,
    current_run,
    current_step,
    emit,
    get_run,
    on_event,
    reenterable,
    resource,
    runs,
    step,
    tool,
    workflow,
)

T = TypeVar("T")
Status = Literal[
    "running", "completed", "failed", "interrupted", "crashed", "stuck", "ready", "suspended",
    "cancelling", "cancelled", "superseded",
]  # fmt: skip


class Reply(TypedDict):
    """What a model answers."""

    done: bool
    content: str


# -- steps ---------------------------------------------------------------------------------------


@step
def bare(a: int, b: str = "", *, c: bool = False) -> float:
    return 1.0


@step(retries=3, retry_on=(OSError, TimeoutError), backoff=0.5, timeout=10)
def called(a: int, b: str = "", *, c: bool = False) -> float:
    return 1.0


@step()
def empty() -> None: ...


def check_functions() -> None:
    assert_type((bare(1), called(1, "b", c=True)), tuple[float, float])
    bare("1")  # type: ignore[arg-type]
    bare()  # type: ignore[call-arg]
    bare(1, d=2)  # type: ignore[call-arg]
    bare(1, "b", True)  # type: ignore[call-arg]
    called("1")  # type: ignore[arg-type]
    called(1, 2)  # type: ignore[arg-type]
    x: str = bare(1)  # type: ignore[assignment]
    empty(1)  # type: ignore[call-arg]
    wanted: Callable[[int], float] = bare
    unwanted: Callable[[str], float] = bare  # type: ignore[assignment]
    assert_type(bare.__name__, str)


@step
async def fetch(url: str, *, limit: int = 3) -> bytes:
    return b""


@step(timeout=1.5, executor="ray", resources={"num_gpus": 1}, record_arguments=True)
async def fetch_called(url: str) -> bytes:
    return b""


async def check_coroutines() -> None:
    assert_type(await fetch("u", limit=1), bytes)
    assert_type(await fetch_called("u"), bytes)
    assert_type(await asyncio.gather(fetch("a"), fetch_called("b")), tuple[bytes, bytes])
    await fetch(1)  # type: ignore[arg-type]
    wrong: bytes = fetch("u")  # type: ignore[assignment]
    task = asyncio.create_task(fetch("u"))
    assert_type(task, "asyncio.Task[bytes]")
    await bare(1)  # type: ignore[misc]


@step
def identity(value: T) -> T:
    return value


@overload
def pick(key: int) -> int: ...
@overload
def pick(key: str) -> str: ...
@step
def pick(key: int | str) -> int | str:
    return key


def check_generic_functions() -> None:
    assert_type((identity(3), identity("text"), pick(1), pick("a")), tuple[int, str, int, str])
    pick(1.5)  # type: ignore[call-overload]


class Client(Generic[T]):
    """Methods of every kind."""

    def __init__(self, value: T) -> None:
        self.value = value

    @step
    def method(self, a: int) -> T:
        return self.value

    @step(ignore=("trace", "self.session"), secret=("self.value",), redact=("a",))
    def method_called(self, a: int, trace: str = "") -> list[T]:
        return []

    @step
    async def coroutine(self, a: int) -> T:
        return self.value

    @tool(side_effect=True)
    def send(self, to: str) -> bool:
        return True

    @classmethod
    @step
    def made(cls, a: int) -> str:
        return ""

    @staticmethod
    @step(retries=1)
    def plain(a: int) -> str:
        return ""

    @step
    @classmethod
    def made_outside(cls, a: int) -> str:
        return ""

    @tool
    @staticmethod
    def plain_outside(a: int) -> str:
        return ""

    @property
    @step
    def length(self) -> int:
        return 0


class Special(Client[int]):
    """Overrides one."""

    @step
    def method(self, a: int) -> int:
        return super().method(a) + 1


async def check_methods(client: Client[str]) -> None:
    assert_type((client.method(1), client.method_called(1, trace="t")), tuple[str, list[str]])
    assert_type(await client.coroutine(1), str)
    assert_type((client.send("to"), Client.made(1), client.made(1)), tuple[bool, str, str])
    assert_type((Client.plain(1), Client.plain_outside(1), client.length), tuple[str, str, int])
    assert_type(Special(1).method(1), int)
    client.method("1")  # type: ignore[arg-type]
    client.method()  # type: ignore[call-arg]
    client.send(1)  # type: ignore[arg-type]
    Client.made("1")  # type: ignore[arg-type]
    Client.plain("1")  # type: ignore[arg-type]
    bound: Callable[[int], str] = client.method
    unbound = Client.method(client, 1)


@dataclass
class Toolbox:
    """Decorated functions as fields."""

    search: Callable[[str], list[str]]
    retries: int = 3
    others: list[Callable[..., Any]] = field(default_factory=list)


@tool
def search(query: str) -> list[str]:
    return []


toolbox = Toolbox(search, others=[search, bare, Client.plain])
wrong_toolbox = Toolbox(bare)  # type: ignore[arg-type]


# -- wrong options -------------------------------------------------------------------------------


def reconcile(call: InDoubtCall) -> Landed | DidNotHappen | Inconclusive:
    assert_type((call.name, call.idempotency_key, call.started_at), tuple[str, str, float])
    assert_type(call.error, "BaseException | None")
    return Landed(call.arguments["to"])


@tool(
    side_effect=True,
    in_doubt=reconcile,
    fails_cleanly=(ValueError, KeyError),
    idempotent=True,
    name="send",
    retries=1,
    retry_on=lambda error: "busy" in str(error),
    backoff=lambda attempt: attempt * 2.0,
    timeout=3,
    key=["to"],
    ignore=["body"],
    secret=["body"],
    redact=lambda name, value: f"{name} of {type(value)}" if name == "to" else None,
)
def send(to: str, body: str = "") -> str:
    return ""


@tool(side_effect=True, fails_cleanly=ValueError, in_doubt="retry", key=lambda to: to)
async def asend(to: str) -> str:
    return ""


def unsend(call: CompletedCall) -> None:
    assert_type((call.name, call.compensation_key), tuple[str, str])


async def check_tools() -> None:
    assert_type(send("a", body="b"), str)
    assert_type(await asend("a"), str)
    send(1)  # type: ignore[arg-type]
    step(retrys=3)  # type: ignore[call-overload]
    step(executor=3)  # type: ignore[call-overload]
    step(executor="ray", resources=3)  # type: ignore[call-overload]
    step(retries="3")  # type: ignore[call-overload]
    step(timeout="3s")  # type: ignore[call-overload]
    step(ignore=3)  # type: ignore[call-overload]
    step(side_effect=True)  # type: ignore[call-overload]
    step(3)  # type: ignore[call-overload]
    step("name")  # type: ignore[call-overload]
    tool(in_doubt="maybe")  # type: ignore[call-overload]
    tool(side_effect=True, fails_cleanly=3)  # type: ignore[call-overload]
    tool(retry_on=3)  # type: ignore[call-overload]
    tool(side_effect=True, compensate=unsend)
    tool(side_effect=True, compensate=reconcile)  # type: ignore[arg-type]
    tool(side_effect=True, in_doubt=unsend)  # type: ignore[arg-type]


# -- workflows -----------------------------------------------------------------------------------


@workflow
def agent(task: str, limit: int = 3) -> Reply:
    return {"done": True, "content": task}


@workflow(
    name="agent",
    checkpoint_every=3,
    retention="all",
    keep=2,
    prune_journal=True,
    start="new",
    durability="os",
    store="disk:/tmp/x",
    key=("task",),
    ignore=["limit"],
    secret={"limit"},
    redact=("task",),
)
def agent_called(task: str, limit: int = 3) -> Reply:
    return {"done": True, "content": task}


@workflow
async def aagent(task: str) -> Reply:
    return {"done": True, "content": task}


@workflow()
async def aagent_called(task: str) -> None: ...


def check_workflows() -> None:
    assert_type((agent("t"), agent_called("t", limit=1)), tuple[Reply, Reply])
    assert_type((agent.execute("t", limit=2), agent.run_id_for("t", 3)), tuple[Run, str])
    assert_type((agent.full_name, agent.options(run_id="x", fresh=True)("t")), tuple[str, Reply])
    assert_type(agent.options(start="unfinished")("t"), Reply)
    assert_type(agent.options(store=Path("/x")).execute("t"), Run)
    assert_type(agent.options().run_id_for("t"), str)
    agent(1)  # type: ignore[arg-type]
    agent()  # type: ignore[call-arg]
    agent("t", 3, 4)  # type: ignore[call-arg]
    agent("t", max=3)  # type: ignore[call-arg]
    agent_called(1)  # type: ignore[arg-type]
    agent.execute(1)  # type: ignore[arg-type]
    agent.execute()  # type: ignore[call-arg]
    agent.run_id_for(1)  # type: ignore[arg-type]
    agent.run_id_for()  # type: ignore[call-arg]
    agent.options(run_id="x")(1)  # type: ignore[arg-type]
    agent.options("x")  # type: ignore[call-arg]
    agent.fresh  # type: ignore[attr-defined]
    text: str = agent("t")  # type: ignore[assignment]
    wanted: Callable[[str], Reply] = agent
    unwanted: Callable[[int], Reply] = agent  # type: ignore[assignment]
    any_of_them: Workflow[..., Any] = agent


async def check_async_workflows() -> None:
    assert_type(await aagent("t"), Reply)
    assert_type(await aagent.execute("t"), Run)
    assert_type(await aagent.options(run_id="x").execute("t"), Run)
    assert_type(await aagent.options(run_id="x")("t"), Reply)
    assert_type(aagent.run_id_for("t"), str)
    assert_type(await asyncio.gather(aagent("a"), aagent("b")), tuple[Reply, Reply])
    await aagent(1)  # type: ignore[arg-type]
    await aagent.execute(1)  # type: ignore[call-overload]
    run: Run = aagent.execute("t")  # type: ignore[assignment]
    await agent("t")  # type: ignore[misc]
    await agent.execute("t")  # type: ignore[misc]
    asyncio.run(aagent("t"))
    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
        group.create_task(aagent("t"))


class Agent:
    """Workflows as methods."""

    @workflow
    def run(self, task: str) -> int:
        return 0

    @workflow(checkpoint_every=2)
    async def arun(self, task: str) -> int:
        return 0

    @classmethod
    @workflow
    def of_class(cls, task: str) -> int:
        return 0

    @workflow
    @classmethod
    def above(cls, task: str) -> int:
        return 0

    @workflow(checkpoint_every=2)
    @classmethod
    async def aabove(cls, task: str) -> int:
        return 0

    @staticmethod
    @workflow
    def of_none(task: str) -> int:
        return 0


async def check_workflow_methods(a: Agent) -> None:
    assert_type(a.run("t"), int)
    assert_type(await a.arun("t"), int)
    assert_type(a.run.execute("t"), Run)
    assert_type(await a.arun.execute("t"), Run)
    assert_type((a.run.options(run_id="x")("t"), a.run.run_id_for("t")), tuple[int, str])
    assert_type(Agent.of_none("t"), int)
    assert_type(await Agent.arun(a, "t"), int)
    assert_type((a.of_class("t"), a.of_class.execute("t")), tuple[int, Run])
    assert_type((Agent.of_none.execute("t"), Agent.run(a, "t")), tuple[Run, int])
    a.run(1)  # type: ignore[arg-type]
    a.run()  # type: ignore[call-arg]
    a.run.execute(1)  # type: ignore[arg-type]
    a.run.options(run_id="x")(1)  # type: ignore[arg-type]
    a.run.run_id_for()  # type: ignore[call-arg]
    await a.arun(1)  # type: ignore[arg-type]
    Agent.of_none(1)  # type: ignore[arg-type]
    a.of_class(1)  # type: ignore[arg-type]
    Agent.of_class("t")
    # mypy cannot tell what a descriptor of ours is wrapped in: this is right, and refused.
    a.of_none("t")  # type: ignore[call-arg]


class Heir(Agent):
    """Inherits them."""


async def check_workflows_above_classmethod(a: Agent) -> None:
    assert_type((Agent.above("t"), a.above("t"), Heir.above("t")), tuple[int, int, int])
    assert_type((Agent.above.execute("t"), a.above.execute("t")), tuple[Run, Run])
    assert_type(Agent.above.options(run_id="x")("t"), int)
    assert_type(Agent.above.run_id_for("t"), str)
    assert_type(await Agent.aabove("t"), int)
    assert_type(await a.aabove.execute("t"), Run)
    assert_type(await Agent.aabove.options(fresh=True)("t"), int)
    Agent.above(1)  # type: ignore[arg-type]
    Agent.above()  # type: ignore[call-arg]
    Agent.above(Agent, "t")  # type: ignore[call-arg, arg-type]
    a.above.execute(1)  # type: ignore[arg-type]
    Agent.above.options(run_id="x")(1)  # type: ignore[arg-type]
    await Agent.aabove(1)  # type: ignore[arg-type]


@workflow
def takes_a_class(kind: type[Agent], task: str) -> int:
    return 0


def check_a_class_as_an_argument() -> None:
    assert_type(takes_a_class(Agent, "t"), int)
    takes_a_class("t")  # type: ignore[call-arg, arg-type]


async def check_options_and_execute(a: Agent) -> None:
    agent.options(
        name="n",
        store="memory:",
        durability="os",
        key=["task"],
        ignore="limit",
        checkpoint_every=2,
        retention="thinned",
        keep=1,
        prune_journal=False,
        compensate_on_failure=True,
        progress=None,
        codec="json",
        run_id=None,
        fresh=False,
        tags={"customer": "ann"},
    )
    agent.options(tags={"customer": 1})  # type: ignore[dict-item]
    agent.options(tags="customer=ann")  # type: ignore[arg-type]
    agent.options(run_idd="x")  # type: ignore[call-arg]
    agent.options(run_id=3)  # type: ignore[arg-type]
    agent.options(fresh="yes")  # type: ignore[arg-type]
    agent.options(retention="none")  # type: ignore[arg-type]
    agent.options(side_effect=True)  # type: ignore[call-arg]
    a.run.options(codec="yaml")  # type: ignore[arg-type]
    a.run.execute("t", 3)  # type: ignore[call-arg]
    a.run.execute(task=3)  # type: ignore[arg-type]
    Agent.of_none.execute(3)  # type: ignore[arg-type]
    agent.execute("t").stauts  # type: ignore[attr-defined]
    (await aagent.execute("t")).stauts  # type: ignore[attr-defined]


class Loud(Agent):
    """Overrides one."""

    @workflow
    def run(self, task: str) -> int:
        return super().run(task) + super().run.options(fresh=True)(task)


@workflow
def stream(task: str) -> Iterator[str]:
    yield task


@workflow
async def astream(task: str) -> AsyncIterator[str]:
    yield task


async def check_generators() -> None:
    assert_type(list(stream("t")), "list[str]")
    assert_type([item async for item in astream("t")], "list[str]")
    stream(1)  # type: ignore[arg-type]


def check_wrong_options_of_workflows() -> None:
    workflow(every=3)  # type: ignore[call-overload]
    workflow(checkpoint_every="3")  # type: ignore[call-overload]
    workflow(retention="none")  # type: ignore[call-overload]
    workflow(durability="none")  # type: ignore[call-overload]
    workflow(ignore=3)  # type: ignore[call-overload]
    workflow(secret=3)  # type: ignore[call-overload]
    workflow(redact=lambda name: name)  # type: ignore[arg-type, misc]
    workflow("name")  # type: ignore[call-overload]


# -- map -----------------------------------------------------------------------------------------


@step
def square(x: int) -> float:
    return x * x


@step
async def asquare(x: int) -> float:
    return x * x


@workflow
def child(x: int) -> float:
    return x * x


@workflow
async def achild(x: int) -> float:
    return x * x


def rate(value: float) -> int:
    return round(value)


async def arate(value: float) -> int:
    return round(value)


async def check_best_of() -> None:
    assert_type(stepwise.best_of(8, square, 2, score=rate), float)
    assert_type(stepwise.best_of([{"x": 1}], child, score=rate, max_workers=2), float)
    assert_type(stepwise.best_of(8, square, 2, score=lambda value: -value), float)
    assert_type(await stepwise.best_of(8, asquare, 2, score=rate), float)
    assert_type(await stepwise.best_of(8, square, 2, score=arate), float)
    assert_type(await stepwise.best_of(8, achild, 2, score=arate), float)
    stepwise.best_of(8, square)  # type: ignore[call-overload]
    stepwise.best_of(8, square, score=rate, workers=2)  # type: ignore[call-overload]


def check_evaluate() -> None:
    found = stepwise.evaluate(stepwise.runs(), 3, [{"model": "a"}], score=rate)
    assert_type(found, stepwise.Evaluation)
    assert_type(found.rows(), "list[dict[str, Any]]")
    assert_type(found.to_csv("found.csv"), str)
    stepwise.evaluate(["r1"], at="think", variations=8, score=arate, effects="collect")
    stepwise.evaluate("r1", score=lambda result, run: run.spent.usd, effects=lambda call: call.name)
    stepwise.evaluate(stepwise.runs())  # type: ignore[call-arg]
    stepwise.evaluate([1], score=rate)  # type: ignore[list-item]


async def check_map() -> None:
    assert_type(stepwise.map(square, [1, 2]), "list[float]")
    assert_type(stepwise.map(square, range(3), max_workers=2), "list[float]")
    assert_type(await stepwise.map(asquare, [1, 2]), "list[float]")
    assert_type(stepwise.map(child, [1, 2]), "list[float]")
    assert_type(await stepwise.map(achild, [1, 2]), "list[float]")
    assert_type(stepwise.map(Client("v").method, [1, 2]), "list[str]")
    assert_type(stepwise.map(square, [1], executor=ProcessPoolExecutor()), "list[float]")
    assert_type(stepwise.map(square, [1], executor="ray"), "list[float]")
    assert_type(await stepwise.map(asquare, [1], executor="ray"), "list[float]")
    stepwise.map(square, [1], executor=3)  # type: ignore[call-overload]
    stepwise.map(square, ["a"])  # type: ignore[arg-type, unused-coroutine]
    stepwise.map(square, 3)  # type: ignore[call-overload]
    stepwise.map(square)  # type: ignore[call-overload]
    stepwise.map(square, [1], workers=2)  # type: ignore[call-overload]
    await stepwise.map(square, [1])  # type: ignore[misc]
    wrong: list[float] = stepwise.map(asquare, [1])  # type: ignore[assignment]


# -- runs beside their caller --------------------------------------------------------------------


@workflow(on_owned="wait")
def plain_flow(x: int) -> str:
    return str(x)


@workflow(on_owned="skip")
async def async_flow(x: int) -> str:
    return str(x)


async def check_handles() -> None:
    handle = plain_flow.start(1)
    assert_type((handle, handle.id, handle.run), tuple[stepwise.Handle[str], str, Run])
    assert_type((handle.done, handle.wait(timeout=1.5), handle.result()), tuple[bool, bool, str])
    started = async_flow.start(1)
    assert_type(started, "stepwise.AsyncHandle[str]")
    assert_type(await started.wait(1), bool)
    assert_type(await started.result(timeout=1), str)
    assert_type(await started, str)
    assert_type(plain_flow.options(on_owned="wait").start(1).result(), str)
    assert_type(handle.run.inputs, "dict[str, Any]")
    handle.run.resume(x=2)
    assert_type(plain_flow.submit(1), stepwise.Run)
    assert_type(plain_flow.submit(1, run_id="r", at=dt.timedelta(hours=1)), stepwise.Run)
    assert_type(async_flow.options(concurrent=2).submit(1), stepwise.Run)
    plain_flow.submit("no number")  # type: ignore[call-overload]
    plain_flow.submit(1, at=5)  # type: ignore[call-overload]
    plain_flow.start("no number")  # type: ignore[arg-type]
    plain_flow.start()  # type: ignore[call-arg]
    assert_type(stepwise.recover(), Recovered)
    for each in stepwise.recover(plain_flow, max_workers=2):
        assert_type(each.id, str)


# -- runs ----------------------------------------------------------------------------------------


def check_runs(run: Run) -> None:
    assert_type((run.id, run.workflow, run.label, run.arguments), tuple[str, str, str, str])
    assert_type(run.superseded_by, str | None)
    assert_type((run.parent, run.status, run.created_at), tuple[str | None, Status, float])
    assert_type((run.updated_at, run.steps), tuple[float, list[StepRecord]])
    assert_type((run.error, run.secrets), tuple[BaseException | None, tuple[str, ...]])
    assert_type((run.resumed_from_step, run.steps_executed), tuple[int | None, int])
    assert_type((run.steps_skipped, run.locals(at=3)), tuple[int, dict[str, Any]])
    assert_type((run.checkpoints, run.verify()), tuple[list[RunCheckpoint], Verification])
    assert_type((run.repair(accept_loss=True), run.program), tuple[Verification, Program | None])
    assert_type(run.checkpoints[0].position, str)
    run.result.anything()
    run.forget(3)
    run.forget("send")
    run.delete()
    run.resolve(3, landed={"id": 1})
    run.resolve("send", did_not_happen=True)
    run.resolve(3, same=True)
    run.resolve(3, another=True, stop=17)
    run.resolve(3, same=True, stop="17")  # type: ignore[arg-type]
    run.resolve(3.5, landed=1)  # type: ignore[arg-type]
    run.resolve(3, Landed(1))  # type: ignore[call-arg]
    run.resolve(3, lands=1)  # type: ignore[call-arg]
    run.forget()  # type: ignore[call-arg]
    run.status = "completed"  # type: ignore[misc]
    run.stauts  # type: ignore[attr-defined]
    if run.owner is not None:
        assert_type((run.owner.pid, run.owner.host), tuple[int, str])


def check_steps(record: StepRecord) -> None:
    assert_type((record.number, record.name, record.status), tuple[int, str, str])
    assert_type((record.attempts, record.started_at), tuple[int, float])
    assert_type((record.tries, record.waited), tuple[tuple[StepAttempt, ...], float])
    assert_type((record.finished_at, record.duration), tuple[float | None, float | None])
    assert_type((record.side_effect, record.idempotency_key), tuple[bool, str])
    assert_type((record.error, record.traceback), tuple[BaseException | None, str])
    record.number = 3  # type: ignore[misc]


def check_listing() -> None:
    assert_type((runs(), runs(agent, "failed")), tuple[list[Run], list[Run]])
    assert_type(runs("agent", status="completed", store=Path("/x")), "list[Run]")
    assert_type((runs(tags={"customer": "ann"}), runs(limit=50)), tuple[list[Run], list[Run]])
    runs(limit="50")  # type: ignore[arg-type]
    runs(tags="ann")  # type: ignore[arg-type]
    runs(status="done")  # type: ignore[arg-type]
    assert_type((get_run("x"), get_run("x", store="memory:")), tuple[Run, Run])
    get_run(3)  # type: ignore[arg-type]
    run = get_run("x")
    assert_type(run.fork(), Run)
    assert_type(run.copy_to("disk:./copy", restored=True), Run)
    run.copy_to()  # type: ignore[call-arg]
    assert_type(run.fork(2, "other", {"mood": "calm"}, {1: "x", "think": 2}), Run)
    assert_type(run.forked_from, "str | None")
    assert_type(run.forked_by, "str | None")
    run.fork(at="think")  # type: ignore[arg-type]


def check_events() -> None:
    def hear(event: Event) -> None:
        assert_type(event.duration, "float | None")
        event.kind = "run_started"  # type: ignore[misc]

    assert_type(on_event(hear), Callable[[], None])
    on_event(lambda: None)  # type: ignore[arg-type, misc]
    assert_type(current_run(), "Run | None")
    current_run().id  # type: ignore[union-attr]
    assert_type((current_step(), current_step().idempotency_key), tuple[CurrentStep, str])
    emit({"percent": 40}, "progress")
    assert_type(next(iter(get_run("r").stream(3, "progress", follow=False))), StreamItem)
    assert_type((current_step().attempt, current_step().name), tuple[int, str])
    assert_type(current_step().run_id, str)
    configure(store="memory:", quiet=True, injected=["package.Context"])
    configure(volatile={"package.Message": "created", Landed: ("value",)}, references={})
    configure(volatile=["created"])  # type: ignore[arg-type]
    configure("memory:")  # type: ignore[call-arg]
    configure(stores="memory:")  # type: ignore[call-arg]
    configure(quiet="yes")  # type: ignore[arg-type]
    with background():
        pass


# -- resources -----------------------------------------------------------------------------------


class Session:
    """A context manager."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None: ...


@resource
def session(url: str) -> Session:
    return Session()


@reenterable
class Lock(Session):
    """Said of a class."""


def check_resources() -> None:
    assert_type(session("u"), Session)
    session(1)  # type: ignore[arg-type]
    assert_type(Lock(), Lock)
    with reenterable(Session()) as entered:
        assert_type(entered, Session)


# -- errors --------------------------------------------------------------------------------------


def check_errors() -> None:
    try:
        agent("t")
    except stepwise.StepInDoubtError as doubt:
        assert_type((doubt.run_id, doubt.step, doubt.name), tuple[str, int, str])
        assert_type((doubt.arguments, doubt.idempotency_key), tuple[str, str | None])
        get_run(doubt.run_id).resolve(doubt.step, did_not_happen=True)
    except stepwise.RunConflictError as conflict:
        assert_type((conflict.recorded, conflict.given), tuple[str, str])
        conflict.owner  # type: ignore[attr-defined]
    except stepwise.StoreError as problem:
        assert_type((problem.path, problem.errno), tuple[str, int | None])
    except stepwise.RunOwnedError as owned:
        assert_type(owned.run_id, str)
    except (stepwise.RunBusyError, stepwise.RunSkipped) as busy:
        assert_type(busy.run_id, str)
    except stepwise.StepTimeoutError as late:
        assert_type((late.step, late.timeout), tuple[str, float])
    except stepwise.StepFailedError as failed:
        assert_type((failed.type_name, failed.traceback_text), tuple[str, str])
    except stepwise.StepNotFoundError as missing:
        assert_type(missing.step, "int | str")
    except (stepwise.DigestError, stepwise.NotRecordableError) as value:
        assert_type((value.path, value.type_name), tuple[str, str])
    exception: Exception = stepwise.StepInDoubtError()  # type: ignore[assignment]
    good: Exception = stepwise.ConfigurationError()


# -- decorated functions where others take functions ---------------------------------------------


def takes_coroutine(function: Callable[[str], Coroutine[Any, Any, bytes]]) -> None: ...
def takes_awaitable(function: Callable[[str], Awaitable[Reply]]) -> None: ...


takes_coroutine(fetch)
takes_awaitable(aagent)
takes_awaitable(fetch)  # type: ignore[arg-type]
takes_coroutine(bare)  # type: ignore[arg-type]
