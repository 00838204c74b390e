"""``best_of``: one function called several times, and the result with the highest score.

Both parts are calls like others: first the calls of the function, then the score of each result.
The journal is asked in their order, so that a resumed run has the same results with the same scores
in the same places, and chooses the same.

Rejected: a record of the choice.  It follows from the records of the scores.  Rejected: a step
around all of it.  The child runs in it could not wait for a person.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from stepwise._calls.awaitables import coroutine_of
from stepwise._calls.driver import Result, gives_awaitable
from stepwise._calls.parallel import (
    Arguments,
    begin,
    check_workers,
    finder,
    in_tasks,
    in_threads,
    variations_of,
)
from stepwise._calls.steps import step, step_of
from stepwise._execution.active_run import current_scope
from stepwise._identity.identity import label_of
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, fold
from stepwise._values.preview import preview
from stepwise.errors import ConfigurationError, NoCandidateError, NotRecordableError

R = TypeVar("R")


# -- what is called --------------------------------------------------------------------------------


class CalledFunction(NamedTuple):
    """A step or a workflow, with the arguments that a partial or a method of it holds.

    Args:
        name: of the function, for messages.
        awaits: True if a call may return an awaitable.
    """

    function: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    awaits: bool

    @property
    def is_workflow(self) -> bool:
        """True if its calls are child runs."""
        return hasattr(self.function, "run_id_for")

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call it as anybody does."""
        return self.function(*self.args, *args, **{**self.kwargs, **kwargs})


def callee_of(function: Any, role: str, what: str) -> CalledFunction:
    """Return a step or a workflow; a plain function becomes a step, so that its results are kept.

    Args:
        role: names a lambda, of which a run has one of each name.
        what: names the function in messages.

    Raises:
        ConfigurationError: it is no function.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while True:
        if isinstance(function, functools.partial):
            args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
            function = function.func
        elif inspect.ismethod(function):
            args, function = (function.__self__, *args), function.__func__
        else:
            break
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{what} must be a function, not {function!r:.200}")
    awaits = gives_awaitable(function)
    if step_of(function) is None and not hasattr(function, "run_id_for"):
        awaits = True
        if getattr(function, "__name__", "") == "<lambda>":
            function = step(name=f"{role}.<lambda>")(function)
        else:
            function = step(function)
    return CalledFunction(function, label_of(function), args, kwargs, awaits)


class _Round(NamedTuple):
    """A round of calls of one step or workflow, several at a time."""

    callee: CalledFunction
    each: Sequence[Arguments]
    max_workers: int

    def in_threads(self) -> list[Result]:
        """Make the calls in threads."""
        jobs, begun = self._jobs()
        find = finder(self.callee.function, None) if begun else None
        return in_threads([_kept(each) for each in jobs], self.max_workers, begun, find)

    async def in_tasks(self) -> list[Result]:
        """Make the calls in tasks, or in threads if nothing of them is to be awaited."""
        if not self.callee.awaits:
            return self.in_threads()
        jobs, begun = self._jobs()
        jobs = [each.acall for each in begun] or jobs
        return await in_tasks([_akept(each) for each in jobs], self.max_workers, begun)

    def _jobs(self) -> tuple[Sequence[Callable[[], Any]], Sequence[Any]]:
        """Begin the calls in their order; outside of a run there is nothing to begin."""
        function, of = self.callee.function, self.callee
        calls = [((*of.args, *args), {**of.kwargs, **kwargs}) for args, kwargs in self.each]
        scope = current_scope()
        if scope is None:
            return [functools.partial(function, *args, **kwargs) for args, kwargs in calls], ()
        begun = begin(scope, function, calls, finder(function, None))
        assert begun is not None  # neither plain, nor a generator
        return begun, begun


def _kept(job: Callable[[], Any]) -> Callable[[], Result]:
    """Return a job whose exception is its result; what stops the run is raised."""

    def kept() -> Result:
        try:
            value = job()
            if not inspect.isawaitable(value):
                return Result(value)
            told = "a plain function returned an awaitable, which nobody awaits: make it async def"
            return Result(error=NotRecordableError(told))
        except Exception as error:
            return Result(error=error)

    return kept


def _akept(job: Callable[[], Any]) -> Callable[[], Coroutine[Any, Any, Result]]:
    async def kept() -> Result:
        try:
            value = job()
            return Result(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            return Result(error=error)

    return kept


# -- choosing --------------------------------------------------------------------------------------


_Choice = Generator[_Round, list[Result], Any]


@overload
def best_of(
    variations: int | Iterable[Mapping[str, Any]],
    function: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    score: Callable[[R], Any],
    max_workers: int = 8,
) -> Coroutine[Any, Any, R]: ...
@overload
def best_of(
    variations: int | Iterable[Mapping[str, Any]],
    function: Callable[..., R],
    /,
    *args: Any,
    score: Callable[[R], Coroutine[Any, Any, Any]],
    max_workers: int = 8,
) -> Coroutine[Any, Any, R]: ...
@overload
def best_of(
    variations: int | Iterable[Mapping[str, Any]],
    function: Callable[..., R],
    /,
    *args: Any,
    score: Callable[[R], Any],
    max_workers: int = 8,
) -> R: ...
def best_of(variations: Any, function: Any, /, *args: Any, score: Any, max_workers: int = 8) -> Any:
    """Call a function several times, and return the result with the highest score.

    Each call is a recorded step, or a child run if the function is a workflow, and so is each
    score, of a plain function too.  A run that is killed makes none of them again, and chooses the
    same result.  A call that raises an exception is out; of equal scores the first counts.  If the
    function or the score is a coroutine function, the call is awaited.

    Args:
        variations: the number of calls; or for each call the arguments that differ, by name.
        function: a step, a workflow or a plain function, without side effects of its own.
        args: the arguments that all calls have.
        score: a function of a result; it returns numbers, or other values that can be compared.
        max_workers: the number of calls at a time, 1 or more.

    Raises:
        NoCandidateError: every call has failed.
        Exception: an exception of the score.
        ConfigurationError: a score is not a number, or cannot be compared; the function has side
            effects, or is a workflow and called outside of any run.
    """
    check_workers("best_of()", max_workers)
    each = [(args, kwargs) for kwargs in variations_of(variations, "calls")]
    callee = callee_of(function, "candidate", "what best_of() calls")
    judge = callee_of(score, "score", "score= of best_of()")
    _check(callee, judge)
    choice = _choose(_Round(callee, each, max_workers), judge)
    if gives_awaitable(function) or gives_awaitable(score):
        return coroutine_of(_awaited, "best_of", choice)
    try:
        return _driven(choice)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _check(callee: CalledFunction, judge: CalledFunction) -> None:
    """Refuse functions whose calls cannot be made just to choose one of them."""
    recorded = step_of(callee.function)
    if recorded is not None and recorded.effect:
        raise ConfigurationError(
            f"best_of() would make the side effect of {recorded.what} in each of its calls, and "
            f"drop all results but one: choose with a plain step, and call {recorded.name!r} with "
            "what was chosen"
        )
    for each in (callee, judge):
        definition = each.function.definition if each.is_workflow else None
        if definition is not None and (definition.is_generator or definition.is_async_generator):
            raise ConfigurationError(
                f"best_of(): workflow {each.name!r} is a generator, and what it yields is no "
                "result: call it in a workflow that returns a list"
            )
        if definition is not None and current_scope() is None:
            raise ConfigurationError(
                f"best_of() of workflow {each.name!r} was called outside of any run, where nothing "
                "would record which result was chosen: call it in a @workflow"
            )


def _driven(choice: _Choice) -> Any:
    try:
        calls = next(choice)
        while True:
            calls = choice.send(calls.in_threads())
    except StopIteration as stop:
        return stop.value


async def _awaited(choice: _Choice) -> Any:
    try:
        calls = next(choice)
        while True:
            calls = choice.send(await calls.in_tasks())
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _choose(calls: _Round, judge: CalledFunction) -> _Choice:
    """Make the calls, score their results, and return the best result."""
    ended = yield calls
    found = [(n, each.value) for n, each in enumerate(ended, 1) if each.error is None]
    if not found:
        failed = [each.error for each in ended]
        raise _none(calls.callee.name, failed) from failed[0]
    scored = yield _Round(judge, [((value,), {}) for _, value in found], calls.max_workers)
    scores = [each.unwrap() for each in scored]
    best = 0
    for n, score in enumerate(scores):
        try:
            comparable = bool(score == score)  # noqa: PLR0124 -- not a number
            if score > scores[best]:
                best = n
        except (TypeError, ValueError):
            comparable = False
        if not comparable:
            number, value = found[n]
            raise ConfigurationError(
                f"score= of best_of(): {judge.name!r} returned {preview(score)} for result "
                f"{number}, {preview(value)}, which cannot be compared with the other scores "
                f"({preview(scores)}): return a number for each result"
            )
    return found[best][1]


def _none(name: str, failed: Sequence[Any]) -> NoCandidateError:
    from stepwise._runs.steps import text_of_error  # on use

    return NoCandidateError(
        f"best_of() has no result to choose from: {count(len(failed), 'call')} of {name!r} "
        f"failed, the first with {text_of_error(failed[0])}",
        exceptions=tuple(failed),
    )
