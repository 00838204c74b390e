"""The four forms of a workflow function, called: plain, coroutine, generator, asynchronous one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import TYPE_CHECKING, Any

from stepwise._calls.awaitables import made_by
from stepwise._calls.driver import drive
from stepwise._calls.operations import Result
from stepwise._execution.active_run import current_scope
from stepwise._runtime.tracebacks import fold
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import (
    execute,
    execute_async,
    execute_async_generator,
    execute_generator,
)
from stepwise._workflows.invoke import ChildCall, TopLevel, plain_call, run_of
from stepwise._workflows.opening import Recall
from stepwise.errors import RunSkipped

if TYPE_CHECKING:
    from stepwise._runs.run import Run

__all__ = ["invoke"]


def invoke(
    workflow: Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    want_run: bool,
) -> Any:
    """Call a workflow: its result, or its ``Run``; awaitable or iterable as its function is."""
    if workflow.is_generator or workflow.is_async_generator:
        if current_scope() is not None:
            # Its items cannot be recorded as an outcome, so its steps belong to the caller's run.
            return plain_call(workflow, instance, args, kwargs)
        top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
        if workflow.is_generator:
            return _drain(top) if want_run else _generate(top)
        return _adrain(top) if want_run else _agenerate(top)
    if not workflow.is_coroutine:
        return _plain(workflow, instance, args, kwargs, want_run)
    made_by.add(_coroutine.__code__)
    coroutine: Any = _coroutine(workflow, instance, args, kwargs, want_run)
    # Python reads the name here for "coroutine 'agent' was never awaited".
    coroutine.__name__ = coroutine.__qualname__ = workflow.label
    return coroutine


def _plain(workflow: Definition, instance: Any, args: Any, kwargs: Any, want_run: bool) -> Any:
    scope = current_scope()
    if scope is not None:
        child = ChildCall(workflow, instance, args, kwargs)
        return _given(child, drive(child.prepare(scope)), want_run)
    top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
    with top as opened:
        value = opened.value if isinstance(opened, Recall) else execute(opened)
        if want_run:
            value = run_of(top.store, top.run_id)
    return value


def _given(child: ChildCall, result: Result, want_run: bool) -> Any:
    """The result of a call of a child workflow."""
    if want_run and isinstance(result.error, RunSkipped):
        return child.handle()
    value = result.unwrap()
    return child.handle() if want_run else value


async def _coroutine(*call: Any) -> Any:
    try:
        return await _awaited(*call)
    except BaseException as error:
        raise fold(error)  # noqa: B904


async def _awaited(
    workflow: Definition, instance: Any, args: Any, kwargs: Any, want_run: bool
) -> Any:
    scope = current_scope()
    if scope is not None:
        from stepwise._calls.async_driver import (
            adrive,  # a synchronous program does not load asyncio
        )

        child = ChildCall(workflow, instance, args, kwargs)
        return _given(child, await adrive(child.prepare(scope)), want_run)
    import asyncio

    top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
    await top.begin()
    with top as opened:
        value = opened.value if isinstance(opened, Recall) else await execute_async(opened)
        # A Ctrl-C during the last piece is raised now.  Raised after the end, it would lose the
        # result, and the next call would be a new run.
        await asyncio.sleep(0)
    return run_of(top.store, top.run_id) if want_run else value


def _generate(top: TopLevel) -> Generator[Any, Any, Any]:
    with top as opened:
        if isinstance(opened, Recall):
            return None  # skipped; a generator recalls nothing
        return (yield from execute_generator(opened))


async def _agenerate(top: TopLevel) -> AsyncGenerator[Any, None]:
    await top.begin()
    with top as opened:
        if isinstance(opened, Recall):
            return  # skipped
        async for item in execute_async_generator(opened):
            yield item


def _drain(top: TopLevel) -> Run:
    for _ in _generate(top):
        pass
    return run_of(top.store, top.run_id)


async def _adrain(top: TopLevel) -> Run:
    async for _ in _agenerate(top):
        pass
    return run_of(top.store, top.run_id)
