"""For users of Ray: workflows that a cluster executes, and that outlive its nodes.

::

    from stepwise.integrations.ray import submit

    handle = submit(agent, "invite the team", num_cpus=2)
    print(handle.result())

Ray places and schedules the tasks, and restarts them elsewhere when their node dies.  There a run
continues in the middle of its function, at the statement where it stopped, and no completed step
runs twice.  All nodes must reach the store (``STEPWISE_STORE=postgresql://...``), and have the same
secret in ``STEPWISE_KEY``.

``RayExecutor(num_gpus=1)`` executes the body of a single step as a task of the cluster:
``@step(executor="ray", resources={"num_gpus": 1})``.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from stepwise._calls.ray_executor import RayExecutor, connected, loaded
from stepwise._runtime.forks import start_apart
from stepwise._values.codec import decode_error
from stepwise._workflows import engines
from stepwise._workflows.engines import Underway
from stepwise._workflows.handles import StartedRun, waker
from stepwise.errors import ConfigurationError, StepwiseError
from stepwise.stores import Store

__all__ = ["RayExecutor", "RayHandle", "submit"]

R = TypeVar("R")

_OURS_OF_RUNS = ("num_returns", "retry_exceptions", "name")
_OF_A_FOLDER = "disk:"


# -- the cluster -----------------------------------------------------------------------------------


def job() -> str:
    """Return the id of this process's connection to a cluster; empty if it has none."""
    ray = loaded()
    return str(ray.get_runtime_context().get_job_id()) if ray.is_initialized() else ""


def check_options(resources: Mapping[str, Any]) -> None:
    """Refuse options of Ray's tasks that stepwise itself sets.

    Raises:
        ConfigurationError: there is such an option.
    """
    for option in _OURS_OF_RUNS:
        if option in resources:
            raise ConfigurationError(
                f"submit({option}=...): stepwise sets this option of the task itself; give those "
                "that say where it is executed: num_cpus, num_gpus, resources, runtime_env, ..."
            )


def check_store(store: Store, ray: Any) -> None:
    """Refuse a store that other nodes cannot use; let a shared one trust Ray about deaths."""
    check_reach(store, ray.nodes())
    knows_deaths(store.url)


def check_reach(store: Store, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a store that other nodes of the cluster cannot use.

    Args:
        nodes: the result of ``ray.nodes()``.

    Raises:
        ConfigurationError: the store is in memory; or in a folder, and nodes are on other machines.
    """
    url = store.url
    if not store.persistent:
        raise ConfigurationError(
            f"the store {url} is in the memory of this process, where no worker of Ray reaches it: "
            "choose another one with STEPWISE_STORE: postgresql://..."
        )
    if not url.startswith(_OF_A_FOLDER):
        return
    mine = os.uname().nodename
    others = sorted({str(each["NodeManagerHostname"]) for each in nodes if each["Alive"]} - {mine})
    if others:
        raise ConfigurationError(
            f"the store {url} is a folder of this machine, and the cluster has nodes on others "
            f"({', '.join(others[:5])}), which have no such runs: choose a store that all of them "
            "reach, with STEPWISE_STORE: postgresql://..."
        )


def sent(
    function: Callable[[Any], engines.Reply],
    order: Any,
    run_id: str,
    resources: Mapping[str, Any],
) -> Any:
    """Submit the task that executes an order; return Ray's reference to its reply."""
    options = {"max_retries": -1, **resources}
    options |= {"retry_exceptions": False, "name": f"stepwise {run_id}"}
    return loaded().remote(function).options(**options).remote(order)


def watch(ref: Any, ended: Callable[[Any], None]) -> None:
    """Call ``ended`` with Ray's future, in a thread of Ray, once a task has ended."""
    ref.future().add_done_callback(ended)


def execute(order: engines.Order) -> engines.Reply:
    """Execute an order in a worker process of Ray."""
    return engines.carry_out(order, place_here(order.store))


def place_here(url: str) -> str:
    """Return the place of this process, as text, and register its node for presence checks.

    Args:
        url: the URL of the store that is about to be opened.
    """
    node: str = loaded().get_runtime_context().get_node_id()
    knows_deaths(url, node)
    return f"on node {node[:12]} ({os.uname().nodename})"


def knows_deaths(url: str, node: str = "") -> None:
    """Let a shared store trust Ray about the death of a node.

    Args:
        url: the URL of the store.
        node: the id of this process's node; empty if the process executes no runs.
    """
    if not url.startswith("postgresql:"):
        return  # the operating system knows which processes of this machine are alive
    from stepwise.stores import _postgres_presence as presence

    if node:
        presence.set_node(node)
    if _is_dead not in presence.proofs:
        presence.proofs.append(_is_dead)


def _is_dead(process: Any) -> bool:
    """Return whether Ray reports the node of a process as dead; an unknown node may be alive."""
    ray, node = loaded(), process.node
    if not node or not ray.is_initialized():
        return False
    return any(each["NodeID"] == node and not each["Alive"] for each in ray.nodes())


# -- the engine of stepwise up --ray ---------------------------------------------------------------


class RayEngine:
    """An engine that executes each run in a task of a Ray cluster.

    Args:
        address: of the cluster; ``"auto"`` finds the cluster of this machine.
        modules: the modules that the workers import.
        logs: a folder for the output of runs, on the executing machine.

    Raises:
        ConfigurationError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str, modules: Sequence[str], logs: str = "") -> None:
        self._ray = connected(address)
        self._modules, self._logs = tuple(modules), logs
        self._refs: dict[str, Any] = {}

    def check(self, stores: Iterable[Store]) -> None:
        """Refuse stores that other nodes cannot use.

        Raises:
            ConfigurationError: a store is in a folder, and nodes are on other machines.
        """
        for store in stores:
            check_store(store, self._ray)

    def begin(self, job: Underway) -> str:
        """Submit a run; see :class:`.engines.Engine`."""
        run_id = job.run.facts.run_id
        order = engines.continuation(job.run, self._modules, self._logs)
        # Ray must not retry: the supervisor waits before it retries a run whose process died.
        ref = self._refs[run_id] = sent(go_on, order, run_id, {"max_retries": 0})
        watch(ref, lambda future: self._ended(job, future))
        return "on the cluster"

    def drain(self) -> None:
        """Let no further step begin on the cluster; see :class:`.engines.Engine`."""
        for ref in list(self._refs.values()):
            self._ray.cancel(ref, force=False, recursive=False)

    def _ended(self, job: Underway, future: Any) -> None:
        self._refs.pop(job.run.facts.run_id, None)
        error = future.exception()
        if error is not None:
            job.end(error, lost=True)
            return
        reply: engines.Reply = future.result()
        raised = decode_error(reply.data, stored=False) if reply.data else None
        job.end(raised, refused=reply.refused)


def go_on(order: engines.Continuation) -> engines.Reply:
    """Continue a run in a worker process of Ray."""
    return engines.carry_on(order, place_here(order.store))


# -- runs that a program submits -------------------------------------------------------------------

_LOOK = 1.0  # seconds between two checks whether this process is still connected


class RayHandle(StartedRun, Generic[R]):
    """A run that a Ray cluster executes."""

    def __init__(self, placement: engines.Placement, resources: Mapping[str, Any]) -> None:
        super().__init__(placement.run)
        self._placement = placement
        self._resources = resources
        self._ended = threading.Event()
        self._mutex = threading.Lock()
        self._reply: engines.Reply | None = None
        self._error: BaseException | None = None
        self._value: Any = None
        self._is_loaded = False
        self._ref: Any = None
        self._job = ""

    @property
    def ref(self) -> Any:
        """Ray's reference to the task, for ``ray.wait`` and the like; ``None`` if none was needed.

        The referenced value is internal: :meth:`result` returns the result.
        """
        return self._ref

    @property
    def done(self) -> bool:
        """True if the run ended or stopped; a suspended run is not done."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or stopped; return False after ``timeout`` seconds.

        Ctrl-C ends the waiting, not the run.

        Raises:
            StepwiseError: this process has left the cluster, which ended the task.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended.is_set():
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                return False
            if not self._ended.wait(left) and not self._is_connected():
                raise StepwiseError(
                    f"run {self.id!r}: this process has left the Ray cluster, which ends the tasks "
                    "that it submitted. stepwise up --ray continues the run, as does the same "
                    "submit()"
                )
        return True

    def result(self, timeout: float | None = None) -> R:
        """Wait for the run, and return its result, or raise its exception.

        A suspended run continues by itself when its signal or time has come; this method waits on.

        Args:
            timeout: in seconds; ``None`` waits for as long as it takes.

        Raises:
            TimeoutError: the run has not ended after ``timeout`` seconds; it continues.
            ray.exceptions.RayError: Ray has given up the task; the run is ``crashed``.
            StepwiseError: this process has left the cluster, which ended the task.
        """
        if not self.wait(timeout):
            raise self._late(timeout)
        with self._mutex:
            if not self._is_loaded and self._error is None:
                assert self._reply is not None
                try:
                    self._value = self._placement.result(self._reply)
                except BaseException as error:
                    self._error = error
                self._is_loaded = True
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio

        return asyncio.to_thread(self.result).__await__()

    def cancel(self, reason: str = "") -> None:
        """Cancel the run; see :meth:`stepwise.Run.cancel`.

        The clean-up runs on the cluster, and :meth:`result` raises :class:`stepwise.RunCancelled`.
        """
        self.run.cancel(reason)

    def _is_connected(self) -> bool:
        """Return whether this process still has the connection to which the task belongs."""
        return self._job == job()

    # -- internal --------------------------------------------------------------------------------

    def _begin(self) -> None:
        recalled = self._placement.recalled
        if recalled is not None:
            self._value, self._is_loaded = recalled.value, True
            self._ended.set()
            return
        with _mutex:
            _live[self._placement.key] = self
        self._send()

    def _send(self) -> None:
        self._job = job()
        ref = self._ref = sent(execute, self._placement.order(), self.id, self._resources)
        watch(ref, lambda future: _news().put((self, future)))

    def _end(self, value: engines.Reply | None = None, error: BaseException | None = None) -> None:
        self._reply, self._error = value, error
        if value is not None and value.kind != "error":
            self._placement.completed()
        with _mutex:
            if _live.get(self._placement.key) is self:
                del _live[self._placement.key]
        self._ended.set()


_mutex = threading.Lock()
_live: dict[tuple[str, str], RayHandle[Any]] = {}  # the runs that this process has submitted
_queue: queue.SimpleQueue[tuple[RayHandle[Any], Any]] = queue.SimpleQueue()
_threads: list[threading.Thread] = []


def submit(
    workflow: Any,
    /,
    *args: Any,
    run_id: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **resources: Any,
) -> RayHandle[Any]:
    """Have a Ray cluster execute a run; return its handle at once.

    The arguments decide which run is meant, as in a call; ``run_id`` overrides them.  The run is on
    record when this returns.  A completed run returns its recorded result.  A run that a process
    already executes is not executed twice; the handle returns its result as well.

    The task belongs to this process, and ends with it; the run is then ``crashed``.  The command
    ``stepwise up --ray`` continues such a run, as does the same ``submit()``.  When the node of the
    task dies, Ray restarts the task on another node, where the run continues in the middle of its
    function.  Ray never retries after an exception of the workflow: :meth:`RayHandle.result` raises
    the exception.

    Args:
        workflow: decorated with ``@workflow``; a method is bound to its object.  Workers import the
            definitions of modules; the definitions of a script or a notebook are sent along.
        args: of the workflow.
        run_id: the id of the run, instead of the one derived from the arguments.
        kwargs: keyword arguments of the workflow.
        resources: options of Ray's tasks: ``num_cpus``, ``num_gpus``, ``memory`` (bytes),
            ``resources``, ``runtime_env``, ``scheduling_strategy``, ``max_retries`` (-1: no limit).

    Raises:
        ConfigurationError: Ray is not installed; other nodes cannot reach the store; the caller is
            a run; the workflow is a generator.
        StepwiseError: any error that a call of the workflow raises before it begins.
    """
    ray = connected()
    check_options(resources)
    if run_id is not None:
        workflow = workflow.options(run_id=run_id)
    placement = engines.place(
        workflow,
        args,
        kwargs or {},
        what="submit()",
        check=lambda store: check_store(store, ray),
    )
    with _mutex:
        known = _live.get(placement.key)
    if known is not None and known._is_connected():
        return known
    handle: RayHandle[Any] = RayHandle(placement, resources)
    handle._begin()
    return handle


# -- results of the tasks ----------------------------------------------------------------------


def _news() -> queue.SimpleQueue[tuple[RayHandle[Any], Any]]:
    """Return the queue of ended tasks, and start the thread that empties it."""
    with _mutex:
        if not _threads or not _threads[0].is_alive():
            _threads[:] = [threading.Thread(target=_take_news, name="stepwise ray")]
            start_apart(_threads[0])
    return _queue


def _take_news() -> None:
    while True:
        handle, future = _queue.get()
        reply: engines.Reply | None = None
        try:
            error = future.exception()
            reply = future.result() if error is None else None
        except CancelledError as cancelled:
            error = cancelled
        if reply is not None and reply.kind == "error" and reply.suspended:
            _send_when_due(handle, reply)
        else:
            handle._end(reply, error)


def _send_when_due(handle: RayHandle[Any], reply: engines.Reply) -> None:
    """Submit a suspended run again, as soon as it is due."""

    def send() -> None:
        try:
            handle._send()
        except BaseException as error:  # Ray's error: the waiting caller gets it
            handle._end(reply, error)

    try:
        waker.park(handle.run, send, lambda: handle._end(reply))
    except BaseException as error:  # the store's error
        handle._end(reply, error)
