"""Reduced forms of objects that pickle refuses or stores wrongly: locks, views, iterators, threads.

- A lock, an event, a semaphore, a condition, a barrier, a queue.  The form keeps whether an event
  is set, the count of a semaphore, the items of a queue.  An asyncio object forgets its loop.  An
  object that a thread or task holds or waits for is refused: another process could not continue.
- An exception whose class has its own ``__init__``: pickle would call that with the final ``args``,
  which fails or repeats words (``error: error: no``).
- Objects that share memory, which pickle would copy: see ``memory``.
- A view of a dictionary, and an iterator over its values or items: pickle would make a copy, which
  no longer follows the dictionary.
- ``enumerate``, ``zip`` and the like over an iterator whose ``__iter__`` starts over: pickle would
  request its iterator again.
- An iterator over a list that is now shorter than the iterator's position: pickle would restore the
  iterator at the end of the list.
- A match of a regular expression; a generator, a coroutine, a task, a future or a thread that has
  ended.
- An object that a module holds under a name and that is compared with ``is``, the environment and
  the namespaces of modules (see ``trees``).
- An object that is cleaned up when it goes or the process ends (``TemporaryDirectory``).  This is
  refused: a copy would refer to a resource that no longer exists.
- The running event loop: the form is the loop that runs after the restart.
"""

from __future__ import annotations

import builtins
import functools
import gc
import itertools
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from operator import is_
from typing import Any

from stepwise._values.trees import HEAP_TYPE, SHRINKING, form_of, is_overtaken

# -- synchronizers --------------------------------------------------------------------------------


_SHARED = ("multiprocessing.queues", "multiprocessing.synchronize")
_SIMPLE = ("queue.SimpleQueue", "_queue.SimpleQueue")
_LOCKS = ("_thread.lock", "_thread.RLock", "threading._RLock", "asyncio.locks.Lock")
_CONDITIONS = ("threading.Condition", "asyncio.locks.Condition")
_SEMAPHORES = ("threading.Semaphore", "asyncio.locks.Semaphore")
_BARRIERS = ("threading.Barrier", "asyncio.locks.Barrier")
_QUEUES = ("queue.Queue", "asyncio.queues.Queue")
_EVENTS = ("threading.Event", "asyncio.locks.Event")
_KINDS = frozenset((*_SIMPLE, *_LOCKS, *_CONDITIONS, *_SEMAPHORES, *_BARRIERS, *_QUEUES, *_EVENTS))
_MACHINERY = frozenset(
    (
        *("_cond", "_waiters", "_loop", "_lock", "mutex", "not_empty", "not_full"),
        *("all_tasks_done", "_getters", "_putters", "_finished"),
    )
)
"""Attributes that are made from scratch: waiters, and the objects that they wait with."""


@functools.lru_cache(maxsize=1000)
def _kind_of(cls: Any) -> str:
    for base in cls.__mro__:
        module: str = base.__module__
        name = f"{module}.{base.__qualname__}"
        if module in _SHARED or name in _KINDS:
            return module if module in _SHARED else name
    return ""


def is_synchronizer(value: object) -> bool:
    """Return whether tasks or threads use an object to coordinate."""
    cls: Any = type(value)
    return bool(_kind_of(cls))


def is_lock(value: object) -> bool:
    """Return whether an object is a synchronizer that holds no items, unlike a queue."""
    cls: Any = type(value)
    kind = _kind_of(cls)
    return bool(kind) and kind not in (*_SIMPLE, *_QUEUES, *_SHARED)


def lock_of(value: Any) -> Any:
    """Return the lock that a condition acquires on entry; ``None`` for other objects."""
    cls: Any = type(value)
    return value._lock if _kind_of(cls) in _CONDITIONS else None


def synchronizer_form(value: Any, entered: int = 0) -> Any:
    """Return the reduced form of a lock, event or the like; ``NotImplemented`` for other objects.

    Args:
        entered: see :func:`state_of`.
    """
    cls: Any = type(value)
    kind = _kind_of(cls)
    if not kind:
        return NotImplemented
    state = state_of(value, entered)
    if kind in _CONDITIONS:
        return cls, (value._lock,)
    if kind in _MADE:
        return _lock, (kind,)
    return _synchronizer, (cls, kind, state.get("_parties")), state, None, None, put_state


def state_of(value: Any, entered: int = 0) -> dict[str, Any]:
    """Return the state of a lock, event or the like; empty for a lock that is free.

    Args:
        entered: how many times the code that continues later has entered it, and enters it again.

    Raises:
        TypeError: the object is held, or a thread or task waits for it.
    """
    cls: Any = type(value)
    kind = _kind_of(cls)
    if kind in _SHARED:
        raise TypeError("its state is with the processes that share it")
    if kind in _SIMPLE:
        raise TypeError("it does not show its items; a queue.Queue does")
    if _held(value, kind) > entered:
        raise TypeError("it is held")
    if kind.startswith("_thread.") or kind == "threading._RLock":
        return {}
    if any(_waits(value, name) for name in ("", "_cond", "_finished", *_MACHINERY)):
        raise TypeError("something waits for it")
    if kind in _BARRIERS and vars(value)["_count"]:
        raise TypeError("something waits for it")
    state = {name: held for name, held in vars(value).items() if name not in _MACHINERY}
    if kind == "asyncio.locks.Lock":
        del state["_locked"]
    elif kind in _CONDITIONS:
        return {}  # its lock is a separate object, and everything else belongs to the lock
    elif kind in _SEMAPHORES:
        state["_value"] += entered
    return state


def _held(value: Any, kind: str) -> int:
    """Return how many times a lock is held."""
    if kind in ("_thread.lock", "asyncio.locks.Lock"):
        return int(value.locked())
    if kind in _LOCKS:  # its methods answer only for the calling thread
        count = repr(value).partition(" count=")[2].partition(" ")[0]
        return int(count or 0)
    return 0


def _waits(value: Any, name: str) -> bool:
    """Return whether a thread or task waits, according to an attribute of a lock or the like."""
    part = getattr(value, name, None) if name else value
    waiting = part if name in ("_waiters", "_getters", "_putters") else None
    if waiting is None:
        waiting = getattr(part, "_waiters", None)
    return any(not getattr(each, "done", bool)() for each in waiting or ())


def snapshot(value: Any) -> dict[str, Any] | None:
    """Return the state of a lock, event or the like for a later comparison; ``None`` if in use.

    Items that it holds are copied into a list.
    """
    try:
        state = state_of(value)
    except TypeError:
        return None
    return {n: list(held) if isinstance(held, (list, deque)) else held for n, held in state.items()}


def is_as_it_was(value: Any, before: dict[str, Any] | None, entered: int = 0) -> bool:
    """Return whether a lock, event or the like still has the state of a :func:`snapshot`."""
    now = state_of(value, entered)
    if before is None or before.keys() != now.keys():
        return False
    for name, held in now.items():
        then = before[name]
        if not isinstance(held, (list, deque)):
            if held is not then and held != then:
                return False
        elif len(held) != len(then) or not all(map(is_, held, then)):
            return False
    return True


def put_state(value: Any, state: dict[str, Any]) -> None:
    """Restore the state of a lock, event or the like."""
    vars(value).update(state)
    finished = getattr(value, "_finished", None)
    if finished is not None:  # a queue of asyncio
        (finished.clear if state["_unfinished_tasks"] else finished.set)()


def _lock(kind: str) -> Any:
    return _MADE[kind]()


_MADE: dict[str, Callable[[], Any]] = {
    "_thread.RLock": threading.RLock,
    "_thread.lock": threading.Lock,
}


def _synchronizer(cls: Any, kind: str, parties: int | None) -> Any:
    base = next(each for each in cls.__mro__ if f"{each.__module__}.{each.__qualname__}" == kind)
    made = cls.__new__(cls)
    base.__init__(made, *([parties] if parties is not None else []))
    return made


# -- reducers -------------------------------------------------------------------------------------


_BLOCKS = "pandas.core.internals.blocks"
_COPIES_ON_WRITE = 3  # version of pandas; before, what is written to a view reaches the DataFrame
_ASYNCIO = ("asyncio.locks", "asyncio.queues")
_FUTURES = ("_asyncio", "asyncio.futures", "asyncio.tasks", "concurrent.futures._base")
_ModuleSpec = type(sys.__spec__)


class NamespaceMetError(Exception):
    """A pickler is about to take the namespace of a module apart."""


class Forms:
    """The reduction of the objects of one value.

    Attributes:
        keeps_links: refuse shared memory that would become a copy.
        names_dicts: whether the pickler itself replaces the namespaces of modules by their names.
        kept: returns the reference that replaces an object, or ``None``.
        arrays: returns the arrays that a reference may replace.
    """

    keeps_links = False
    names_dicts = False
    kept: Callable[[Any], Any] = staticmethod(lambda _: None)
    arrays: Callable[[], Iterable[Any]] = tuple

    def __init__(self) -> None:
        self._memory: Any = None

    def shares(self) -> bool:
        """Return whether arrays of the value share memory, so that it must be pickled again."""
        return self._memory is not None and self._memory.shares()

    def of_memory(self, obj: Any) -> Any:
        """Return the reduced form of an object that may share memory with others."""
        if self._memory is None:
            from stepwise._values.memory import SharedMemory  # on use: few values hold arrays

            self._memory = SharedMemory(
                keeps_links=self.keeps_links, kept=self.kept, arrays=self.arrays
            )
        return self._memory.of(obj)

    def of(self, obj: Any) -> Any:
        """Return the result of a pickler's ``reducer_override`` for this object."""
        cls = type(obj)
        if not self.names_dicts and _is_of_namespace(obj, cls):
            raise NamespaceMetError
        if issubclass(cls, BaseException):
            return _exception(obj, cls)
        if cls.__module__ in _ASYNCIO:
            return synchronizer_form(obj)
        if cls.__name__ in ("Future", "Task") and cls.__module__ in _FUTURES:
            return _future(obj, cls)
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and isinstance(obj, asyncio.AbstractEventLoop):
            return (_running_loop, ()) if obj is asyncio._get_running_loop() else NotImplemented
        if _may_share_memory(cls):
            return self.of_memory(obj)
        make = _own_block if cls.__module__ == _BLOCKS else _REDUCED.get(cls)
        return form_of(obj) if make is None else make(obj)


def _may_share_memory(cls: Any) -> bool:
    is_array = cls.__module__ == "numpy" and cls.__name__ in ("ndarray", "memmap")
    is_data = cls is memoryview or type(cls).__module__ == "_ctypes"
    return is_array or is_data or hasattr(cls, "untyped_storage")


def _own_block(block: Any) -> Any:
    """Reduce a block of a DataFrame that pandas would copy before a write, since another shares it.

    Only pandas knows that, and not after loading: a write would change the other as well.
    """
    older = int(sys.modules["pandas"].__version__.split(".")[0]) < _COPIES_ON_WRITE
    if older or not block.refs.has_reference():
        return NotImplemented
    make, (values, *rest) = block.__reduce__()
    return make, (values.copy(), *rest)


def _is_of_namespace(obj: Any, cls: Any) -> bool:
    """Return whether an object is an entry with which every module's namespace begins."""
    return obj is builtins or cls is _ModuleSpec or hasattr(cls, "exec_module")


def _exception(error: Any, cls: Any) -> Any:
    if not isinstance(cls.__init__, types.FunctionType):
        return NotImplemented
    if cls.__reduce__ is not BaseException.__reduce__ or cls.__reduce_ex__ is not _reduce_ex:
        return NotImplemented  # the class defines its own form
    _, args, *state = error.__reduce__()
    return _made_exception, (cls, args), *state


_reduce_ex = object.__reduce_ex__


def _made_exception(cls: Any, args: tuple[Any, ...]) -> BaseException:
    builtin = next(each for each in cls.__mro__ if not each.__flags__ & HEAP_TYPE)
    error: BaseException = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    return error


def _future(future: Any, cls: Any) -> Any:
    if not future.done():
        return NotImplemented
    if cls.__name__ == "Task":  # an ended task behaves like a future
        cls = sys.modules["asyncio"].Future
    # Its methods would mark its exception as retrieved.
    return _ended_future, (cls, future.cancelled(), future._exception, future._result)


def _ended_future(cls: Any, cancelled: bool, error: Any, result: Any) -> Any:
    future = cls()
    if cancelled:
        future.cancel()
    elif error is not None:
        future.set_exception(error)
        future.exception()  # so that asyncio does not report it as never retrieved
    else:
        future.set_result(result)
    return future


def _thread(thread: threading.Thread) -> Any:
    if thread.ident is None or thread.is_alive():
        return NotImplemented
    new = vars(threading.Thread(name=thread.name))
    added = {name: value for name, value in vars(thread).items() if name not in new}
    return _ended_thread, (thread.name, thread.daemon), added


def _ended_thread(name: str, daemon: bool) -> threading.Thread:
    ended = threading.Thread(name=name, daemon=daemon)
    ended.start()
    ended.join()
    return ended


def _running_loop() -> Any:
    return sys.modules["asyncio"].get_running_loop()


def _viewing(mapping: Any, way: str) -> Any:
    return getattr(mapping, way)()


def _dict_iterator(iterator: Any) -> Any:
    mappings = [each for each in gc.get_referents(iterator) if isinstance(each, dict)]
    remaining = iterator.__length_hint__()
    if not mappings or not remaining:
        return NotImplemented
    done = len(mappings[0]) - remaining
    return _iterating, (mappings[0], _ITERATORS[type(iterator)], done)


def _iterating(mapping: dict[Any, Any], way: str, done: int) -> Any:
    iterator = iter(getattr(mapping, way)())
    for _ in range(done):
        next(iterator)
    return iterator


def _list_iterator(iterator: Any) -> Any:
    if not is_overtaken(iterator):
        return NotImplemented
    way, (items,), place = iterator.__reduce__()
    return iterator_at, (items, place, way is reversed)


def iterator_at(items: Any, place: int, backwards: bool = False) -> Any:
    """Return an iterator over a list at a place, possibly beyond the end of the list."""
    missing = place + 1 - len(items)
    if missing > 0:  # __setstate__ accepts no place beyond the end
        items.extend(bytes(missing))
    iterator: Any = reversed(items) if backwards else iter(items)
    iterator.__setstate__(place)
    if missing > 0:
        del items[-missing:]
    return iterator


def gives_itself(iterator: Any) -> bool:
    """Return whether ``iter()`` of an iterator certainly returns the iterator, without effect."""
    way = getattr(type(iterator), "__iter__", None)
    if not isinstance(way, types.WrapperDescriptorType):
        return False
    return way.__objclass__.__module__.partition(".")[0] in sys.stdlib_module_names


class Iterating:
    """The items of an iterator whose ``__iter__`` is missing, or may have effects."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Iterating:
        return self

    def __next__(self) -> Any:
        return next(self.iterator)


def _of_iterators(iterator: Any) -> Any:
    make, parts, *state = iterator.__reduce__()
    parts = tuple(
        Iterating(each) if hasattr(type(each), "__next__") and not gives_itself(each) else each
        for each in parts
    )
    return make, parts, *state


def _match(found: re.Match[Any]) -> Any:
    ends = found.string, found.pos, found.endpos
    for way in ("search", "fullmatch", "match"):
        again = getattr(found.re, way)(*ends)
        if again is not None and again.regs == found.regs:
            return _matched, (found.re, way, *ends)
    return NotImplemented  # a later match of several


def _matched(pattern: re.Pattern[Any], way: str, *ends: Any) -> Any:
    return getattr(pattern, way)(*ends)


def _ended(frame: Any, make: Callable[[], Any]) -> Any:
    return NotImplemented if frame is not None else (make, ())


def _ended_generator() -> Generator[None, None, None]:
    nothing: tuple[None, ...] = ()
    ended = (each for each in nothing)
    ended.close()
    return ended


def _ended_coroutine() -> Coroutine[Any, Any, None]:
    async def nothing() -> None: ...

    ended = nothing()
    ended.close()
    return ended


def _ended_async_generator() -> AsyncGenerator[None, None]:
    async def nothing() -> AsyncGenerator[None, None]:
        return
        yield

    ended = nothing()
    try:
        ended.aclose().send(None)
    except StopIteration:
        return ended
    raise AssertionError  # pragma: no cover


def _finalizer(finalizer: weakref.finalize[Any, Any]) -> Any:
    found = finalizer.peek()
    if found is None:
        return NotImplemented
    raise TypeError(
        f"it is cleaned up, by {getattr(found[1], '__qualname__', found[1])}, when it goes or the "
        "process ends, and a copy would refer to an object that no longer exists"
    )


_DICTS: tuple[Any, ...] = ({}, OrderedDict())
_WAYS = ("keys", "values", "items")
_VIEWS = {type(getattr(each, way)()): way for each in _DICTS for way in _WAYS}
_ITERATORS = {type(iter(getattr({}, way)())): way for way in ("values", "items")}
_MAKERS = (enumerate, filter, map, zip, *vars(itertools).values())
OF_ITERATORS = frozenset(each for each in _MAKERS if "__reduce__" in getattr(each, "__dict__", ()))
"""Python's own iterators that reduce to what they read from."""
_REDUCED: dict[Any, Any] = {
    **dict.fromkeys(OF_ITERATORS, _of_iterators),
    # Only the garbage collector reveals the dictionary of ``mapping.keys()`` and the like.
    **dict.fromkeys(_VIEWS, lambda view: (_viewing, (*gc.get_referents(view), _VIEWS[type(view)]))),
    **dict.fromkeys(_ITERATORS, _dict_iterator),
    **dict.fromkeys(SHRINKING, _list_iterator),
    types.MappingProxyType: lambda proxy: (types.MappingProxyType, (*gc.get_referents(proxy),)),
    re.Match: _match,
    threading.Thread: _thread,
    weakref.finalize: _finalizer,
    types.GeneratorType: lambda each: _ended(each.gi_frame, _ended_generator),
    types.CoroutineType: lambda each: _ended(each.cr_frame, _ended_coroutine),
    types.AsyncGeneratorType: lambda each: _ended(each.ag_frame, _ended_async_generator),
}
