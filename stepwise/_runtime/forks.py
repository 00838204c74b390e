"""The resources that forks, threads and worker processes inherit from their process.

Resources that a forked child can still use are process-wide locks and values computed once.

A child has only the thread that forked.  A lock held by another thread would stay held in the child
forever.

Threads that a run's code starts belong to the run; worker processes know of the run.

``asyncio.to_thread`` carries context variables over.  ``threading.Thread`` and
``ThreadPoolExecutor.submit`` do not (before Python 3.14's ``thread_inherit_context``), and a step
called there would run unrecorded.  While a run is in progress, these two are wrapped to carry one
variable over: the run and step in which they were called (``None`` outside any run).  The run is
notified when they begin and end.  Nothing else about them changes, and the wrappers are removed
with the last run.

A worker process that is started anew (``spawn``, ``forkserver``) gets the data that
``multiprocessing`` passes to each process, with a mark that a run is in progress.  The environment
was rejected: a fork server keeps the environment of its own start, and a step that is given
``os.environ`` would have other arguments in each process.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar
from typing import Any, Generic, TypeVar, overload

# -- forks ----------------------------------------------------------------------------------------


T = TypeVar("T")
Self = TypeVar("Self", bound="cached[Any]")


def process_lock() -> AbstractContextManager[bool]:
    """Return a lock for state that a whole process shares; a fork waits until it is free.

    So the child finds the lock free and the guarded state complete.  The lock is for short sections
    in which no other such lock is taken.
    """
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


def forget_in_child(inherited: Any) -> None:
    """Call ``forget()`` of an object in each forked child, as long as the object lives."""
    _inherited.add(inherited)


class _Inherited:
    """The objects that a child forgets.

    A ``WeakSet`` was rejected: it removes objects in callbacks, which lose a Ctrl-C.
    """

    def __init__(self) -> None:
        self._mutex = process_lock()
        self._references: list[weakref.ref[Any]] = []
        self._room = 16  # references until dead ones are removed
        os.register_at_fork(after_in_child=self._forget)

    def add(self, inherited: Any) -> None:
        with self._mutex:
            if len(self._references) >= self._room:
                self._references = [each for each in self._references if each() is not None]
                self._room = 2 * len(self._references) + 16
            self._references.append(weakref.ref(inherited))

    def _forget(self) -> None:
        for reference in self._references:
            inherited = reference()
            if inherited is not None:
                inherited.forget()


_inherited = _Inherited()


class cached(Generic[T]):  # noqa: N801 -- a decorator
    """A property that is computed once for each object, without a lock.

    ``functools.cached_property`` of Python 3.10 and 3.11 has one lock for all objects of a class.
    Here two threads may both compute the value at once; the last value stays.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self: Self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        value = self._compute(instance)
        object.__setattr__(instance, self._name, value)  # a __dict__ makes each attribute slower
        return value


# -- thread context -------------------------------------------------------------------------------


_IN_RUN = "stepwise_in_run"  # the process in which a run is in progress


def start_apart(thread: threading.Thread, *, daemon: bool = True) -> None:
    """Start a thread that belongs to no run, although a run's code may start it."""
    thread.daemon = daemon
    Context().run(thread.start)


@functools.cache
def call_at_exit(callback: Callable[[], None]) -> None:
    """Register ``callback`` for the end of the program, while threads and pools still work.

    ``atexit`` was rejected: its callbacks run after the interpreter has waited for its threads,
    when pools accept no jobs.  The newest callback is called first, so before the callbacks of
    pools.
    """
    import concurrent.futures.thread

    assert concurrent.futures.thread is not None  # registers its own fork callback first
    threading._register_atexit(callback)  # type: ignore[attr-defined]


@functools.cache
def works_for_a_run() -> bool:
    """Return whether this worker process was freshly started while a run was in progress."""
    processes = sys.modules.get("multiprocessing.process")
    parent = processes.parent_process() if processes is not None else None
    return parent is not None and handed_down().get(_IN_RUN) == parent.pid


def handed_down() -> dict[str, Any]:
    """Return the data that this process passes to later ``multiprocessing`` processes."""
    processes = sys.modules.get("multiprocessing.process")
    return processes.current_process()._config if processes is not None else {}


def _pools() -> list[Any]:
    """Return the class of thread pools, imported for the first run and not with the library."""
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:  # the main thread has ended: no pool can be created any more
        return []
    return [ThreadPoolExecutor]


class Carrier:
    """A carrier of one context variable into new threads while a run is in progress.

    Args:
        begin: called with the variable's value, the name of the thread or job, and whether it is a
            daemon, before it begins.  Returns ``None``, or a context manager in which the thread
            or job is executed.  It is left when that will never begin, too, and perhaps twice.
    """

    def __init__(self, variable: ContextVar[Any], begin: Callable[[Any, str, bool], Any]) -> None:
        self._variable = variable
        self._begin = begin
        self._mutex = process_lock()
        self._users = 0
        self._installed: list[_Wrapped] = []

    def __enter__(self) -> None:
        pools = _pools()
        with self._mutex:
            self._users += 1
            handed_down()[_IN_RUN] = os.getpid()
            if not self._installed:
                self._installed = [
                    _Wrapped(threading.Thread, "start", self._start),
                    *(_Wrapped(each, "submit", self._submit) for each in pools),
                ]

    def __exit__(self, *exception: object) -> None:
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                handed_down().pop(_IN_RUN, None)
            # Below a wrapper that was installed after ours, our wrapper stays installed but idle.
            if self._users == 0 and all(each.on_top for each in self._installed):
                for each in self._installed:
                    each.undo()
                self._installed = []

    def _start(self, start: Callable[..., None], thread: threading.Thread) -> None:
        value, run = self._variable.get(None), thread.run
        around = self._begin(value, thread.name, thread.daemon) or nullcontext()

        def carrying() -> None:
            del thread.run  # the instance's attribute, which would form a cycle
            self._variable.set(value)
            with around:
                run()

        thread.run = carrying  # type: ignore[method-assign]
        try:
            start(thread)
        except BaseException:
            if thread.ident is None:
                around.__exit__(None, None, None)
            raise

    def _submit(
        self,
        submit: Callable[..., Any],
        pool: Any,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        value = self._variable.get(None)
        name = f"{getattr(fn, '__qualname__', fn)} in a pool"
        around = self._begin(value, name, False) or nullcontext()

        def carrying(*args: Any, **kwargs: Any) -> Any:
            with around:  # left before a waiter of the result can continue
                token = self._variable.set(value)
                try:
                    return fn(*args, **kwargs)
                finally:
                    self._variable.reset(token)

        # A worker thread that this submit starts outlives the call, and must not keep the value.
        token = self._variable.set(None)
        try:
            future = submit(pool, carrying, *args, **kwargs)
        except BaseException:
            around.__exit__(None, None, None)
            raise
        finally:
            self._variable.reset(token)
        # For a cancelled future.
        future.add_done_callback(lambda _: around.__exit__(None, None, None))
        return future


class _Wrapped:
    """A method replaced by a function that gets the original method first."""

    def __init__(self, owner: type, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        self._owner, self._name, self._original, self._wrapper = owner, name, original, wrapper
        setattr(owner, name, wrapper)

    @property
    def on_top(self) -> bool:
        return getattr(self._owner, self._name) is self._wrapper

    def undo(self) -> None:
        setattr(self._owner, self._name, self._original)
