"""Bodies of steps that run in an executor: in threads, in processes, on a cluster.

Only the body runs there.  The owner of the run asks the journal, writes the intent, and records the
outcome.  The decorated function goes to a worker with its arguments, and its outcome comes back as
bytes.  So a value or an exception that cannot be sent is reported by name, and breaks no pool.

An executor is an executor of ``concurrent.futures``.  Executors of a cluster may have more methods
(those of :class:`.RayExecutor`), looked up by ``getattr``, since users write executors too.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stepwise import errors
from stepwise._calls.driver import (
    Attempt,
    Operation,
    Ready,
    Result,
    at_once,
    gives_awaitable,
    in_thread_of,
    is_body,
    run,
    timed_out,
)
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import Scope, scope_variable
from stepwise._execution.tasks import background
from stepwise._journal.records import Call
from stepwise._runtime import observers
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import RemoteTraceback
from stepwise._values import codec
from stepwise._values.digest import DECORATED

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


_BEAT = 0.5  # seconds after which a coroutine's body can be interrupted, at the latest
_LOOK = 0.5  # seconds between two checks whether the run must end, while a thread waits for a body

_NAMES = ("ray",)
"""The executors that can be given by name; they are made with the ``resources`` of the step."""


# -- which executor ------------------------------------------------------------------------------


def check_executor(what: str, executor: object, resources: object = None) -> None:
    """Refuse an invalid executor, and resources without a named executor.

    Raises:
        ConfigurationError: the message names the possible values.
    """
    from concurrent.futures import Executor

    names = ", ".join(map(repr, _NAMES))
    if not (isinstance(executor, Executor) or (isinstance(executor, str) and executor in _NAMES)):
        raise errors.ConfigurationError(
            f"executor={executor!r} of {what}: it must be an executor of concurrent.futures, such "
            f"as ProcessPoolExecutor(), or the name of one: {names}"
        )
    if resources is not None and not isinstance(executor, str):
        raise errors.ConfigurationError(
            f"resources= of {what} belong to an executor that is given by name ({names}); "
            f"{type(executor).__name__} was made with its own"
        )


def find_executor(executor: Executor | str, resources: Mapping[str, Any] | None = None) -> Executor:
    """Return the executor for a value of the option ``executor=``.

    Raises:
        ConfigurationError: its package is not installed, or it does not support these resources.
    """
    if not isinstance(executor, str):
        return executor
    from stepwise._calls.ray_executor import RayExecutor  # on use: it needs a package

    return RayExecutor(**resources) if resources else _plainly(RayExecutor)


@functools.cache
def _plainly(kind: Callable[[], Executor]) -> Executor:
    return kind()


# -- in the owner --------------------------------------------------------------------------------


class Elsewhere:
    """A driver of operations that runs the bodies of one call's attempts in an executor.

    Args:
        find: returns the executor; called when the journal has not answered the call.
        function: the decorated function.
        args, kwargs: the arguments of the call.
    """

    def __init__(
        self,
        find: Callable[[], Any],
        function: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._find = find
        self._function = getattr(function, "__func__", function)
        self._args = args
        self._kwargs = kwargs
        self._executor: Any = None
        self._shares = False
        self._packed: codec.Encoded | None = None
        self._put: object = None

    def prepare(self) -> None:
        """Reach the executor and serialize the call, before anything of the call begins.

        Raises:
            NotRecordableError: the call cannot be sent to another process.
        """
        self._connect()
        if self._packed is None and not self._shares:
            self._packed = self._encoded(self._args, self._kwargs)

    def _connect(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        if self._executor is None:
            executor = self._find()
            if hasattr(executor, "connect"):
                executor.connect()
            # Python 3.14's pool of interpreters is a pool of threads, but they share no objects.
            interpreters = "Interpreter" in type(executor).__name__
            self._shares = isinstance(executor, ThreadPoolExecutor) and not interpreters
            self._executor = executor

    def _encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> codec.Encoded:
        far = getattr(self._executor, "far", False)
        return _packed(self._function, args, kwargs, far=far)

    def __call__(self, operation: Operation) -> Result:
        """Execute an operation of a call; a body runs in the executor while this thread waits."""
        return at_once(self._executed(operation, is_async=False))

    async def awaited(self, operation: Operation) -> Result:
        """Await an operation of a call; a body runs in the executor."""
        return await self._executed(operation, is_async=True)

    async def _executed(self, operation: Operation, *, is_async: bool) -> Result:
        if isinstance(operation, Ready):
            if is_async:
                import asyncio

                await asyncio.to_thread(self._connect)  # reaching a cluster may take seconds
            self.prepare()
            return Result()
        if not (isinstance(operation, Attempt) and is_body(operation)):
            if not is_async:
                return run(operation)
            from stepwise._calls.async_driver import arun  # on use: it loads asyncio

            return await arun(operation)
        left, future = observers.enter_attempt(operation), None
        try:
            future = self._submitted(operation)
            if is_async:
                result = await self._awaited(future, operation)
            else:
                result = self._wait(future, operation)
        except BaseException as error:  # travels as a value, and is raised by the step's wrapper
            if future is not None:
                future.cancel()
            result = Result(error=error)
        if left is not None:
            observers.leave(left, result.error)
        return result

    # -- one attempt -----------------------------------------------------------------------------

    def _wait(self, future: Future[Any], attempt: Attempt) -> Result:
        assert attempt.scope is not None
        scope, wait = attempt.scope, getattr(self._executor, "wait", _wait)
        may_end = scope.run.task is None and scope.call is not None and not scope.call.effect
        end = None if attempt.timeout is None else time.monotonic() + attempt.timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if may_end:
                left = _LOOK if left is None else min(left, _LOOK)
            if wait(future, left):
                return self._came_of(future, attempt)
            if end is not None and time.monotonic() >= end:
                return self._late(future, attempt)
            if scope.run.steering.would_end(scope.call) and future.cancel():
                # A body that cannot be cancelled runs to its end, as it would in this thread.
                scope.run.steering.check(scope.call, answered=False)

    async def _awaited(self, future: Future[Any], attempt: Attempt) -> Result:
        import asyncio

        waiting = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({waiting}, timeout=attempt.timeout)
        if not done:
            waiting.cancel()
            return self._late(future, attempt)
        if not waiting.cancelled():
            waiting.exception()  # so that asyncio does not report the error as never retrieved
        return self._came_of(future, attempt)

    def _submitted(self, attempt: Attempt) -> Future[Any]:
        executor, scope = self._executor, attempt.scope
        future: Future[Any]
        if self._shares:
            context = contextvars.copy_context()
            future = executor.submit(context.run, _in_this_thread, attempt)
            return future
        assert scope is not None
        assert scope.call is not None
        work = _Work(scope.call, scope.attempt, scope.run.run_id)
        packed: object = self._packed
        if attempt.args is not self._args:  # an approved call runs with copies
            packed = self._encoded(attempt.args, attempt.kwargs)
        elif hasattr(executor, "put"):
            if self._put is None:  # once for all attempts
                self._put = executor.put(packed)
            packed = self._put
        if hasattr(executor, "send"):
            future = executor.send(scope.call.name, execute, packed, work)
        else:
            with background():  # the thread that a pool starts with its first call outlives the run
                future = executor.submit(execute, packed, work)
        return future

    def _late(self, future: Future[Any], attempt: Attempt) -> Result:
        """Abandon a body at its timeout, unless it has just ended, so that its value counts."""
        if not future.cancel() and future.done() and not future.cancelled():
            return self._came_of(future, attempt)
        return Result(error=timed_out(attempt))  # a body that cannot be cancelled is abandoned

    def _came_of(self, future: Future[Any], attempt: Attempt) -> Result:
        try:
            came = future.result()
        except Exception as error:
            how, scope = self._died(error), attempt.scope
            if not how or scope is None or scope.call is None:
                raise
            raise errors.WorkerDiedError(
                f"the worker that executed {attempt.name!r} died: {how}",
                run_id=scope.run.run_id,
                step=scope.call.number,
                name=attempt.name,
                where=how,
            ) from error
        if self._shares:
            result: Result = came
            return result
        value, problem, trace, spent = came
        scope = attempt.scope
        if any(spent) and scope is not None and scope.call is not None:
            scope.run.account.spend(scope.call.number, *spent)
        if problem is None:
            return Result(codec.decode(value.data, value.form, stored=False))
        raised = codec.decode_error(bytes(problem.data), problem.form, stored=False)
        raised.__cause__ = RemoteTraceback(trace)
        return Result(error=raised)

    def _died(self, error: BaseException) -> str:
        from concurrent.futures import BrokenExecutor

        if hasattr(self._executor, "died"):
            how: str = self._executor.died(error)
            return how
        if isinstance(error, BrokenExecutor):
            return f"{type(self._executor).__name__}: {error or type(error).__name__}"
        return ""


def _wait(future: Future[Any], seconds: float | None) -> bool:
    from concurrent.futures import wait

    return bool(wait([future], seconds).done)


def _packed(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, far: bool
) -> codec.Encoded:
    call = (function, args, dict(kwargs))
    try:
        return codec.encode_for_afar(call) if far else codec.encode((*call, {}))
    except errors.NotRecordableError as error:
        place, name = error.path, getattr(function, "__qualname__", function)
        part = "function"
        for number in (1, 2):
            if place.startswith(f"[{number}]"):
                part = f"argument{place.removeprefix(f'[{number}]')}"
        raise errors.NotRecordableError(
            f"a call of {name!r} cannot be sent to another process: its {part} is a "
            f"{error.type_name}. Give it plain data, or an executor of threads",
            path=place,
            type_name=error.type_name,
        ) from error


def _in_this_thread(attempt: Attempt) -> Result:
    """Execute a body in a thread of an executor; a coroutine runs in a new event loop."""
    if inspect.iscoroutinefunction(attempt.function):
        function = functools.partial(call_plainly, attempt.function)
        attempt = Attempt(function, attempt.args, attempt.kwargs, attempt.scope, attempt.name)
    return in_thread_of(attempt)


# -- in the worker -------------------------------------------------------------------------------


class _Work(NamedTuple):
    """The facts of a call that its body can read in a worker process."""

    call: Call
    attempt: int
    run_id: str


class _Purse:
    """The account of a body in a worker process, which is sent back with its outcome."""

    def __init__(self) -> None:
        self.spent: tuple[float, float, float] = (0, 0, 0)
        self._lock = threading.Lock()

    def spend(self, number: int, usd: float, tokens: float, cached_tokens: float = 0) -> None:
        """Count what the body spends."""
        with self._lock:
            before = self.spent
            self.spent = before[0] + usd, before[1] + tokens, before[2] + cached_tokens

    def spend_usage(self, number: int, usage: Mapping[str, Any]) -> None:
        """Count the usage of a model request."""
        self.spend(number, *amounts_of_usage(usage))


class _NotHere:
    """A stand-in for the run in a worker process, where nothing can be recorded."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.account = _Purse()

    def __getattr__(self, name: str) -> Any:
        raise errors.OutsideRunError(
            f"a step, a workflow or a run was used in a worker process of run "
            f"{self.run_id!r}, which only the process that started it can record. Make the "
            "worker's whole job one step, of plain functions",
            run_id=self.run_id,
        )


def ready() -> None:
    """Do nothing; makes the executor start its processes before there are more threads."""


def call_plainly(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function; a coroutine runs in a new event loop."""
    value = function(*args, **kwargs)
    return _ended(value) if inspect.iscoroutinefunction(function) else value


def execute(
    encoded: codec.Encoded, work: _Work
) -> tuple[Any, Any, str, tuple[float, float, float]]:
    """Execute a body; return its encoded value or exception, its traceback text, what it spent."""
    call, run_id = work.call, work.run_id
    # The body can read its idempotency key; calls of steps are refused.
    here: Any = _NotHere(run_id)
    token = scope_variable.set(Scope(here, call, (call.number,), work.attempt))
    try:
        function, args, kwargs, names = codec.decode(encoded.data, encoded.form, stored=False)
        step = getattr(function, DECORATED, None)
        plain = step.function if step is not None else function
        with _named_in_main(names):
            try:
                value = call_plainly(plain, *args, **kwargs)
                value = codec.encode(value, f"the value returned by {call.name!r}")
                return value, None, "", here.account.spent
            except KeyboardInterrupt:
                raise  # the worker is interrupted, not the body
            except BaseException as raised:
                return _raised(raised, here.account)
    except Exception as error:  # the call cannot be loaded here
        return _raised(error, here.account)
    finally:
        scope_variable.reset(token)


def _raised(
    error: BaseException, account: _Purse
) -> tuple[Any, Any, str, tuple[float, float, float]]:
    return None, codec.encode_error(error), codec.traceback_text(error), account.spent


def _ended(coroutine: Any) -> Any:
    """Run a coroutine until it ends."""
    import asyncio

    async def main() -> Any:
        loop = asyncio.get_running_loop()

        def beat() -> None:
            # An idle event loop executes no bytecode, and Ray can interrupt only between bytecodes.
            loop.call_later(_BEAT, beat)

        beat()
        return await coroutine

    return asyncio.run(main())


@contextmanager
def _named_in_main(names: Mapping[str, Any]) -> Iterator[None]:
    """Put the owner's names into ``__main__``, so that values of its classes go back by name."""
    main = vars(sys.modules["__main__"])
    before = {name: main[name] for name in names if name in main}
    main.update(names)
    try:
        yield
    finally:
        for name in names:
            main.pop(name, None)
        main.update(before)


def refuse_awaitables(what: str, function: Any) -> None:
    """Refuse a plain function that returns an awaitable, since only this process could await it.

    Raises:
        ConfigurationError: the message says how to write the function.
    """
    if gives_awaitable(function) and not inspect.iscoroutinefunction(function):
        raise errors.ConfigurationError(
            f"executor= of {what}: the function returns an awaitable, which cannot leave the "
            "process that made it; write an `async def` that awaits it"
        )
