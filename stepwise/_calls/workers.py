"""Bodies of steps that an executor runs, in threads or processes, while the owner records them.

Only the body is executed there: the owner has asked the journal, has written an intent, and records
the outcome.  What goes to a worker process is the decorated function with its arguments, and comes
back as bytes, so that a value or an exception that cannot be sent names itself and breaks no pool.
"""

from __future__ import annotations

import contextvars
from typing import Any, NamedTuple

from stepwise._calls.driver import in_thread_of, run, timed_out
from stepwise._calls.operations import Attempt, Operation, Result
from stepwise._calls.steps import step_of
from stepwise._execution.active_run import Scope, scope_variable
from stepwise._journal.records import Call
from stepwise._values import codec
from stepwise.errors import NotRecordableError, OutsideRunError

__all__ = ["Elsewhere", "ready"]


class Elsewhere:
    """Runs the bodies of a call's attempts in an executor; a driver of operations.

    Args:
        step: the decorated function.
        args: what it is called with.

    Raises:
        NotRecordableError: the call cannot be sent to another process; nothing of it has begun.
    """

    def __init__(self, executor: Any, step: Any, args: tuple[Any, ...]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._executor = executor
        # Python 3.14's pool of interpreters is a pool of threads, but they share no objects.
        interpreters = "Interpreter" in type(executor).__name__
        self._shares = isinstance(executor, ThreadPoolExecutor) and not interpreters
        self._encoded = None if self._shares else _packed(getattr(step, "__func__", step), args)

    def __call__(self, operation: Operation) -> Result:
        """Execute an operation of a call; a body in the executor."""
        if not isinstance(operation, Attempt) or operation.scope is None:
            return run(operation)
        try:
            if self._encoded is None:
                context = contextvars.copy_context()
                future = self._executor.submit(context.run, in_thread_of, operation)
            else:
                future = self._executor.submit(_execute, _work(self._encoded, operation.scope))
            return self._came_of(future, operation)
        except Exception as error:  # the pool is broken or shut down
            return Result(error=error)

    def _came_of(self, future: Any, attempt: Attempt) -> Result:
        from concurrent.futures import wait

        done, _ = wait([future], attempt.timeout)
        if not done:
            future.cancel()  # a body that has begun is abandoned
            return Result(error=timed_out(attempt))
        came = future.result()
        if self._shares:
            result: Result = came
            return result
        value, error, trace = came
        if error is None:
            return Result(codec.decode(value.data, value.form))
        raised = codec.decode_error(error.data, error.form)
        raised.__cause__ = _Remote(trace)
        return Result(error=raised)


def _packed(function: Any, args: tuple[Any, ...]) -> codec.Encoded:
    try:
        return codec.encode((function, args))
    except NotRecordableError as error:
        place, name = error.path, getattr(function, "__qualname__", function)
        part = f"argument{place.removeprefix('[1]')}" if place.startswith("[1]") else "function"
        raise NotRecordableError(
            f"a call of {name!r} cannot be sent to another process: its {part} is a "
            f"{error.type_name}. Give it plain data, or an executor of threads",
            path=place,
            type_name=error.type_name,
        ) from error


def _work(encoded: codec.Encoded, scope: Scope) -> _Work:
    assert scope.call is not None
    return _Work(encoded, scope.call, scope.attempt, scope.run.run_id)


class _Remote(Exception):  # noqa: N818
    """The traceback of a body in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


# -- in the worker -------------------------------------------------------------------------------


class _Work(NamedTuple):
    """The task that is sent to a worker process."""

    encoded: codec.Encoded
    call: Call
    attempt: int
    run_id: str


class _NotHere:
    """A stand-in for the run in a worker process, where nothing can be recorded."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def __getattr__(self, name: str) -> Any:
        raise OutsideRunError(
            f"a step, a workflow or a run was used in a worker process of run "
            f"{self.run_id!r}, which only the process that started it can record. Make the "
            "worker's whole job one step, of plain functions",
            run_id=self.run_id,
        )


def ready() -> None:
    """Do nothing: the executor starts its processes, before there are more threads."""


def _execute(work: _Work) -> tuple[Any, Any, str]:
    """Execute a body: its value or its exception, encoded, and the text of its traceback."""
    call, run_id = work.call, work.run_id
    # The body can read its idempotency key; steps that it calls are refused.
    here: Any = _NotHere(run_id)
    token = scope_variable.set(Scope(here, call, (call.number,), work.attempt, []))
    try:
        function, args = codec.decode(work.encoded.data, work.encoded.form)
        step = step_of(function)
        plain = step.function if step is not None else function
        value = plain(*args)
        return codec.encode(value, f"the value returned by {call.name!r}"), None, ""
    except Exception as error:
        return None, codec.encode_error(error), codec.traceback_text(error)
    finally:
        scope_variable.reset(token)
