"""Bodies of steps as tasks of a Ray cluster: an executor of ``concurrent.futures`` over Ray.

Ray places a task, and never repeats it: whether a body is executed again is the step's decision.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError, wait
from typing import Any, Protocol

from stepwise._runtime.messages import RemoteTraceback
from stepwise.errors import ConfigurationError

_GRACE = 5.0  # seconds between the interrupt of a cancelled task and the end of its process
_LEND = 1.0  # seconds after which a thread that lends looks around, at the latest
_BETWEEN = 0.005  # seconds
_PATIENCE = 10.0  # seconds for a cluster to answer
_OURS = ("max_retries", "retry_exceptions", "num_returns", "max_calls")
_DEATHS = (
    "WorkerCrashedError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "OutOfMemoryError",
    "ObjectLostError",  # its node died with the outcome
    "TaskCancelledError",  # by somebody else: a call of ours that is cancelled is over
)

_connecting = threading.Lock()


def loaded() -> Any:
    """Return the module ``ray``.

    Raises:
        ConfigurationError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(
            "stepwise.integrations.ray needs Ray: pip install 'stepwise-agents[ray]'"
        ) from error
    return ray


def connected(address: str | None = None) -> Any:
    """Return the module ``ray``, connected to a cluster.

    Args:
        address: of the cluster, if the program has not connected yet; ``None`` as ``ray.init()``
            chooses it: ``RAY_ADDRESS``, else a new one on this machine.

    Raises:
        ConfigurationError: Ray is not installed, or there is no such cluster.
    """
    ray = loaded()
    if not ray.is_initialized():
        try:
            _knock(address or "")
            ray.init(address=address)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"there is no Ray cluster at {address or 'RAY_ADDRESS'}: {error}"
            ) from error
    return ray


def _knock(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT: Ray would try for minutes, then abort."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


class RayExecutor(Executor):
    """An executor whose workers are those of a Ray cluster.

    It connects on use, as Ray does: to the cluster of ``ray.init(...)`` if that was called, else to
    that of ``RAY_ADDRESS``, else it starts Ray on this machine.

    Args:
        options: options of a Ray task: ``num_cpus``, ``num_gpus``, ``resources``, ``runtime_env``,
            ``scheduling_strategy`` and others.

    Raises:
        ConfigurationError: Ray is not installed or has no such option, or stepwise decides it.
    """

    far = True

    def __init__(self, **options: Any) -> None:
        ours = sorted(options.keys() & set(_OURS))
        if ours:
            raise ConfigurationError(
                f"{ours[0]}= of executor='ray' is not yours to set: a body is sent once, and "
                "`retries` of its step decide about another attempt"
            )
        self._ray = loaded()
        try:
            self._task = self._ray.remote(max_retries=0, retry_exceptions=False)(_call)
            self._task.options(**options)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the resources of executor='ray': {error}") from error
        self._options = options
        self._open: weakref.WeakSet[_TaskFuture] = weakref.WeakSet()
        self._closed = False

    def connect(self) -> None:
        """Connect to the cluster, unless that was done."""
        with _connecting:
            connected()

    def put(self, value: object) -> object:
        """Store a value in Ray's object store; the reference is sent in its place."""
        return self._ray.put(value)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Execute a function as a task; see :meth:`concurrent.futures.Executor.submit`."""
        return self.send(getattr(fn, "__qualname__", "") or "stepwise", fn, *args, **kwargs)

    def send(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Execute a function as a task of a name, which Ray's dashboard shows."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.connect()
        task = self._task.options(**{"name": name, **self._options})
        future = _TaskFuture(task.remote(function, *args, **kwargs))
        self._open.add(future)
        return future

    def wait(self, future: Future[Any], seconds: float | None) -> bool:
        """Wait for a future in this thread; return whether it has ended.

        In a task of Ray, Ray is the one that waits: so it lends the CPUs of a task that waits to
        others, which may be the very task that is waited for.
        """
        if isinstance(future, _TaskFuture) and not future.done() and self._is_in_a_task():
            if not self._ray.wait([future.ref], timeout=seconds)[0]:
                return False
            seconds = None  # its callback is on its way
        return bool(wait([future], seconds).done)

    def lend(self, over: Callable[[], bool]) -> None:
        """Lend the CPUs of the task that this is executed in, until something is over.

        Ray lends them for its main thread alone, and :meth:`wait` may be called in others.
        """
        if not self._is_in_a_task():
            return
        while not over():
            refs = [each.ref for each in list(self._open) if not each.done()]
            if refs:
                self._ray.wait(refs, timeout=_LEND)
            else:
                time.sleep(_BETWEEN)  # outcomes are being recorded

    def _is_in_a_task(self) -> bool:
        worker = getattr(self._ray.get_runtime_context(), "worker", None)  # a client has none
        return bool(getattr(worker, "mode", None) == self._ray.WORKER_MODE)

    def died(self, error: BaseException) -> str:
        """Say how the worker of a task that ended with an error died; empty if it did not."""
        if not any(isinstance(error, getattr(self._ray.exceptions, each)) for each in _DEATHS):
            return ""
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; see :meth:`concurrent.futures.Executor.shutdown`.  Ray stays connected."""
        self._closed = True
        for future in list(self._open):
            if cancel_futures:
                future.cancel()
            if wait and not future.cancelled():
                future.exception()


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a worker: one task for all functions, so that Ray exports one."""
    return function(*args, **kwargs)


class _Waitable(Protocol):
    """A reference to the outcome of a task."""

    def future(self) -> Future[Any]:
        """Return a future of the outcome."""


class _TaskFuture(Future[Any]):
    """The future of a task.  Cancelled, it is over at once, and Ray ends the task."""

    def __init__(self, ref: _Waitable) -> None:
        super().__init__()
        self.ref = ref  # Ray forgets the outcome of a task that nobody refers to
        ref.future().add_done_callback(self._ended)

    def _ended(self, done: Future[Any]) -> None:
        with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
            error = done.exception()  # Ray never cancels such a future
            if error is None:
                self.set_result(done.result())
            else:
                self.set_exception(_own(error))

    def cancel(self) -> bool:
        """Cancel the task, also while it is being executed; return False if it had ended."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()  # else nobody who waits for it would know
        _stop(self.ref, force=False)
        later = threading.Timer(_GRACE, _stop, (self.ref,), {"force": True})
        later.daemon = True
        later.name = "stepwise ray cancel"
        later.start()
        return True


def _own(error: BaseException) -> BaseException:
    """Return the exception that a task raised, instead of Ray's copy of its class."""
    cause = getattr(error, "cause", None)
    if not (
        isinstance(error, loaded().exceptions.RayTaskError) and isinstance(cause, BaseException)
    ):
        return error
    cause.__cause__ = RemoteTraceback(f"{error}")  # its other attributes are those of the cause
    return cause


def _stop(ref: Any, *, force: bool) -> None:
    """Interrupt a task, which then cleans up; or end its process, which may be stuck in C."""
    # Ray may be shut down by now, and its tasks are gone then.
    with contextlib.suppress(Exception):
        loaded().cancel(ref, force=force)
