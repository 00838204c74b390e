"""Bodies of steps as tasks of a Ray cluster: an executor of ``concurrent.futures`` over Ray.

Ray places a task and never repeats it: the step decides whether a body is executed again.
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
from typing import Any

from stepwise._runtime.messages import RemoteTraceback
from stepwise.errors import ConfigurationError

_GRACE = 5.0  # seconds between the interrupt of a cancelled task and the end of its process
_LEND = 1.0  # seconds after which a lending thread checks again, at the latest
_BETWEEN = 0.005  # seconds
_PATIENCE = 10.0  # seconds for a cluster to answer
_OURS = ("max_retries", "retry_exceptions", "num_returns", "max_calls")
_DEATHS = (
    "WorkerCrashedError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "OutOfMemoryError",
    "ObjectLostError",  # its node died with the outcome
    "TaskCancelledError",  # cancelled by somebody else: our own cancelled futures are already over
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
        address: the address of the cluster, if the program has not connected yet.  ``None`` leaves
            the choice to ``ray.init()``: ``RAY_ADDRESS``, else a new cluster on this machine.

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
    """Raise OSError if nothing answers at HOST:PORT: Ray would retry for minutes, then abort."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


class RayExecutor(Executor):
    """An executor whose workers are the workers of a Ray cluster.

    The executor connects on first use, as Ray does: to the cluster of ``ray.init(...)`` if that was
    called, else to ``RAY_ADDRESS``.  Without either, it starts Ray on this machine.

    Args:
        options: options of a Ray task: ``num_cpus``, ``num_gpus``, ``resources``, ``runtime_env``,
            ``scheduling_strategy`` and others.

    Raises:
        ConfigurationError: Ray is not installed, Ray has no such option, or stepwise sets the
            option.
    """

    far = True
    """True: ``__main__`` is another program there, so that its code is sent by value."""

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
        """Connect to the cluster, unless already connected."""
        with _connecting:
            connected()

    def put(self, value: object) -> object:
        """Store a value in Ray's object store; return the reference to send in its place."""
        return self._ray.put(value)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Execute a function as a task; see :meth:`concurrent.futures.Executor.submit`."""
        return self.send(getattr(fn, "__qualname__", "") or "stepwise", fn, *args, **kwargs)

    def send(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Execute a function as a task under a name that Ray's dashboard shows."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.connect()
        task = self._task.options(**{"name": name, **self._options})
        future = _TaskFuture(task.remote(function, *args, **kwargs))
        self._open.add(future)
        return future

    def wait(self, future: Future[Any], seconds: float | None) -> bool:
        """Wait for a future in this thread; return whether it has ended.

        Inside a task of Ray, use Ray's own wait: Ray then lends the CPUs of the waiting task to
        other tasks, possibly the very task that is waited for.
        """
        if isinstance(future, _TaskFuture) and not future.done() and self._is_in_a_task():
            if not self._ray.wait([future.ref], timeout=seconds)[0]:
                return False
            seconds = None  # the callback of the future is about to run
        return bool(wait([future], seconds).done)

    def lend(self, over: Callable[[], bool]) -> None:
        """Lend the CPUs of the current Ray task to others until ``over()`` is true.

        Ray lends CPUs only while the main thread waits, and :meth:`wait` may be called in others.
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
        worker = getattr(self._ray.get_runtime_context(), "worker", None)  # a client has no worker
        return bool(getattr(worker, "mode", None) == self._ray.WORKER_MODE)

    def died(self, error: BaseException) -> str:
        """Return how the worker of a task that ended with an error died; "" if it did not."""
        if not any(isinstance(error, getattr(self._ray.exceptions, each)) for each in _DEATHS):
            return ""
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new tasks; Ray stays connected.  See ``concurrent.futures.Executor.shutdown``."""
        self._closed = True
        for future in list(self._open):
            if cancel_futures:
                future.cancel()
            if wait and not future.cancelled():
                future.exception()


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a worker: one task for all functions, so that Ray exports only one."""
    return function(*args, **kwargs)


class _TaskFuture(Future[Any]):
    """The future of a task; when cancelled, it is over at once and Ray ends the task."""

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self.ref = ref  # Ray drops the outcome of a task without references
        ref.future().add_done_callback(self._ended)

    def _ended(self, done: Future[Any]) -> None:
        with contextlib.suppress(InvalidStateError):  # the future was cancelled meanwhile
            error = done.exception()  # Ray never cancels such a future
            if error is None:
                self.set_result(done.result())
            else:
                self.set_exception(_own(error))

    def cancel(self) -> bool:
        """Cancel the task, even while it is running; return False if it had ended."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()  # else waiters would not be notified
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
    cause.__cause__ = RemoteTraceback(f"{error}")  # the cause carries all other attributes
    return cause


def _stop(ref: Any, *, force: bool) -> None:
    """Interrupt a task, so that it cleans up; or kill its process, which may be stuck in C."""
    # Ray may be shut down by now; its tasks are gone then.
    with contextlib.suppress(Exception):
        loaded().cancel(ref, force=force)
