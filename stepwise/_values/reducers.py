"""Objects that pickle stores wrongly, or not at all, although they can be made again.

- An exception whose class has an ``__init__`` of its own: pickle would call that with the final
  ``args``, which is an error or says things twice (``error: error: no``).
- A numpy view: pickle would make a copy of it, which no longer shares memory with what it views.
  (One that can be written of an array that cannot comes back as one that cannot, too.)
- A view of a dictionary, and an iterator over its values or items: pickle would make a copy, which
  no longer follows the dictionary.
- An iterator over a list that has become shorter than the iterator has come: pickle would restore
  it at the end of the list.
- A match of a regular expression; a generator, a coroutine, a task, a future or a thread that has
  ended.
- An object that a module holds under a name and that is compared with ``is`` (``sentinels``).
- An array whose memory is a file (``np.memmap``, opened for writing): pickle would make a copy, and
  what is written to that does not reach the file.  It is refused.
- What is cleaned up when the object goes or the process ends (``TemporaryDirectory``): a copy would
  stand for something that is no more.  It is refused.
- The running event loop: after a restart it is another one.
- A lock, an event, a queue of asyncio, which has to forget its loop (``synchronizers``).
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any

from stepwise._values.sentinels import form_of
from stepwise._values.synchronizers import synchronizer_form
from stepwise._values.trees import SHRINKING, is_overtaken

__all__ = ["Forms", "iterator_at"]

_ASYNCIO = ("asyncio.locks", "asyncio.queues")
_FUTURES = ("_asyncio", "asyncio.futures", "asyncio.tasks", "concurrent.futures._base")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement


class Forms:
    """The reduction of the objects of one value."""

    def __init__(self) -> None:
        self._views: dict[int, int] = {}
        self._viewed = False
        self._shared: frozenset[int] = frozenset()

    def shares(self) -> bool:
        """Return whether arrays of the pickled value share memory; then pickle it once more."""
        if not self._viewed:
            return False
        self._shared = frozenset(each for each, count in self._views.items() if count > 1)
        self._views.clear()
        self._viewed = False
        return bool(self._shared)

    def of(self, obj: Any) -> Any:
        """Return the result of a pickler's ``reducer_override`` for this object."""
        cls = type(obj)
        if issubclass(cls, BaseException):
            return _exception(obj, cls)
        if cls.__module__ == "numpy" and cls.__name__ in ("ndarray", "memmap"):
            _refuse_mapped(obj)
            return self._array(obj) if cls.__name__ == "ndarray" else NotImplemented
        if cls.__module__ in _ASYNCIO:
            return synchronizer_form(obj)
        if cls.__name__ in ("Future", "Task") and cls.__module__ in _FUTURES:
            return _future(obj, cls)
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and isinstance(obj, asyncio.AbstractEventLoop):
            return (_running_loop, ()) if obj is asyncio._get_running_loop() else NotImplemented
        make = _MADE.get(cls)
        return form_of(obj) if make is None else make(obj)

    def _array(self, array: Any) -> Any:
        """An array by itself; a view of one that is met again elsewhere as a view of it."""
        owner = array
        while type(owner.base) is type(array):
            owner = owner.base
        self._views[id(owner)] = self._views.get(id(owner), 0) + 1
        if owner is array:
            return NotImplemented
        self._viewed = True
        contiguous = owner.flags.c_contiguous or owner.flags.f_contiguous
        if id(owner) not in self._shared or array.dtype.hasobject or not contiguous:
            return NotImplemented
        start = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        shape = array.dtype, array.shape, array.strides
        return _view, (owner, start, *shape, array.flags.writeable)


def _refuse_mapped(array: Any) -> None:
    """Refuse an array through which a file is written."""
    if not array.flags.writeable:
        return
    memory = array
    while getattr(memory, "base", None) is not None:
        if getattr(memory, "mode", None) == "c":
            return  # copied on write: the file never sees it
        memory = memory.base
    if type(memory).__name__ == "mmap":
        raise TypeError("it is mapped to a file, and writes to a copy would not reach the file")


def _view(owner: Any, start: int, dtype: Any, shape: Any, strides: Any, writeable: bool) -> Any:
    memory = owner if owner.flags.c_contiguous else owner.T
    array = type(owner)(shape, dtype, memory, start, strides)
    if not writeable:
        array.flags.writeable = False
    return array


def _exception(error: Any, cls: Any) -> Any:
    if not isinstance(cls.__init__, types.FunctionType):
        return NotImplemented
    if cls.__reduce__ is not BaseException.__reduce__ or cls.__reduce_ex__ is not _reduce_ex:
        return NotImplemented  # it knows by itself
    _, args, *state = error.__reduce__()
    return _made_exception, (cls, args), *state


_reduce_ex = object.__reduce_ex__


def _made_exception(cls: Any, args: tuple[Any, ...]) -> BaseException:
    builtin = next(each for each in cls.__mro__ if not each.__flags__ & _HEAP_TYPE)
    error: BaseException = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    return error


def _future(future: Any, cls: Any) -> Any:
    if not future.done():
        return NotImplemented
    if cls.__name__ == "Task":  # nobody can tell the two apart by what they still do
        cls = sys.modules["asyncio"].Future
    # Asked by its methods, it would take its exception for noticed.
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


def _dict_view(view: Any) -> Any:
    """``mapping.keys()`` and the like; only the garbage collector knows the dictionary itself."""
    return _viewing, (*gc.get_referents(view), _VIEWS[type(view)])


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
    """Return an iterator over a list at a place, which may be behind the end of the list."""
    missing = place + 1 - len(items)
    if missing > 0:  # it takes no place that is not there
        items.extend(bytes(missing))
    iterator: Any = reversed(items) if backwards else iter(items)
    iterator.__setstate__(place)
    if missing > 0:
        del items[-missing:]
    return iterator


def _mapping_proxy(proxy: Any) -> Any:
    return types.MappingProxyType, (*gc.get_referents(proxy),)


def _match(found: re.Match[Any]) -> Any:
    ends = found.string, found.pos, found.endpos
    for way in ("search", "fullmatch", "match"):
        again = getattr(found.re, way)(*ends)
        if again is not None and again.regs == found.regs:
            return _matched, (found.re, way, *ends)
    return NotImplemented  # one of several


def _matched(pattern: re.Pattern[Any], way: str, *ends: Any) -> Any:
    return getattr(pattern, way)(*ends)


def _generator(each: Generator[Any, Any, Any]) -> Any:
    return NotImplemented if each.gi_frame is not None else (_ended_generator, ())  # type: ignore[attr-defined]


def _ended_generator() -> Generator[None, None, None]:
    nothing: tuple[None, ...] = ()
    ended = (each for each in nothing)
    ended.close()
    return ended


def _coroutine(each: Coroutine[Any, Any, Any]) -> Any:
    return NotImplemented if each.cr_frame is not None else (_ended_coroutine, ())  # type: ignore[attr-defined]


def _ended_coroutine() -> Coroutine[Any, Any, None]:
    async def nothing() -> None: ...

    ended = nothing()
    ended.close()
    return ended


def _async_generator(each: AsyncGenerator[Any, Any]) -> Any:
    return NotImplemented if each.ag_frame is not None else (_ended_async_generator, ())  # type: ignore[attr-defined]


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
_MADE: dict[Any, Any] = {
    **dict.fromkeys(_VIEWS, _dict_view),
    **dict.fromkeys(_ITERATORS, _dict_iterator),
    **dict.fromkeys(SHRINKING, _list_iterator),
    types.MappingProxyType: _mapping_proxy,
    re.Match: _match,
    threading.Thread: _thread,
    weakref.finalize: _finalizer,
    types.GeneratorType: _generator,
    types.CoroutineType: _coroutine,
    types.AsyncGeneratorType: _async_generator,
}
