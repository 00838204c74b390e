"""Pickling what plain pickle cannot: code by value, with the names of ``__main__`` kept as names.

The only module that knows cloudpickle.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from stepwise._values.buffers import Data, collected
from stepwise._values.instances import by_name
from stepwise._values.reducers import Forms
from stepwise._values.trees import ITERATORS, LARGE_LEAF, NUMBERS, is_overtaken

__all__ = [
    "PROTOCOL",
    "PYTHON",
    "CodeByValue",
    "FindClass",
    "Reducers",
    "canonical_bytes",
    "dump",
    "dump_builtins",
    "dump_code",
    "dump_plain",
    "dump_tree",
    "from_module",
    "load_code",
    "load_tree",
    "masked_copy",
    "pickled_by_value",
    "too_deep",
    "with_deep_stack",
]

PROTOCOL = 5
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""Code by value is only read by the Python version that wrote it."""

T = TypeVar("T")
FindClass = Callable[[str, str], Any]

# Iterators that loops over containers leave among the variables; no reducer applies to them.
_EMPTY: tuple[Iterable[Any], ...] = (range(0), (), {}, set(), "", b"")
_PLAIN = frozenset({range, enumerate, reversed, zip, *(type(iter(each)) for each in _EMPTY)})
_BUILTINS = frozenset(map(id, (iter, reversed, range, enumerate, zip)))

_IOBase = io.IOBase.__mro__[1]  # the C class: the Python one's isinstance is ten times slower
_WITH_SETTER = 6  # the length of a reduced form that says how its state is set
_FRAME = 1 << 14  # characters or bytes: less than pickle writes outside of a frame
_DEEP_STACK = 512 << 20  # bytes
_DEEP_RECURSION = 400_000  # frames


def from_module(module: str, name: str) -> Any:
    """Return the object that a dotted name in a module leads to."""
    return attrgetter(name)(sys.modules[module])


class Reducers:
    """The reduction of objects for a pickle; a subclass adds :meth:`special`."""

    forms: Forms

    def begin(self) -> None:
        """Everything is taken apart from the beginning."""

    def special(self, obj: Any) -> Any:
        """A reduced form of this object, or ``NotImplemented``."""
        return NotImplemented

    def identity(self, obj: Any) -> Any:
        """Return the reference that replaces the object in the pickle, or ``None``.

        Asked only if ``identifies`` is set, and not for numbers and short strings unless
        ``identifies_all`` is.
        """
        return None

    identifies = False
    identifies_all = False

    def takes(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether a large buffer is kept elsewhere, and comes back when it is loaded."""
        return False

    def reduce(self, obj: Any) -> Any:
        """See ``pickle.Pickler.reducer_override``."""
        form = self.special(obj)
        if form is not NotImplemented:
            return form
        if isinstance(obj, (type, types.FunctionType)) or getattr(type(obj), "_by_name", False):
            name = by_name(obj)
            if name is not None:  # a by-value copy would come back as a stranger
                return from_module, ("__main__", name)
        elif isinstance(obj, _IOBase) and not isinstance(obj, (io.BytesIO, io.StringIO)):
            # cloudpickle would silently make it a StringIO copy
            raise pickle.PicklingError("an open file cannot be recorded")
        return self.forms.of(obj)


class CodeByValue(Reducers):
    """The reduction for another program: what ``__main__`` defines goes by value.

    Attributes:
        names: what was met of it, by the names that it has there.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def reduce(self, obj: Any) -> Any:
        """See ``pickle.Pickler.reducer_override``."""
        name = by_name(obj) if isinstance(obj, (type, types.FunctionType)) else None
        if name is None:
            return super().reduce(obj)
        self.names.add(name.partition(".")[0])
        return NotImplemented  # cloudpickle knows that nobody else has it


def dump(value: object, reducers: Reducers) -> Data:
    """Pickle a value, however deeply nested."""
    reducers.forms = Forms()
    data = _dump_once(value, reducers)
    return _dump_once(value, reducers) if reducers.forms.shares() else data


def _dump_once(value: object, reducers: Reducers) -> Data:
    fast, deep = _picklers(reducers.identifies, reducers.identifies_all)
    try:
        return _dump(value, reducers, fast)
    except (RecursionError, pickle.PicklingError) as error:
        if not too_deep(error):
            raise
        # The C pickler nests as deep as the C stack; the Python one as deep as it is allowed.
        return with_deep_stack(lambda: _dump(value, reducers, deep))


class _Sink:
    """The output of a pickler, which receives large buffers without copying them."""

    __slots__ = ("_written", "write")

    def __init__(self) -> None:
        self._written: list[bytes | memoryview | pickle.PickleBuffer] = []
        self.write = self._written.append

    def data(self) -> Data:
        """All that was written."""
        written = self._written
        if len(written) == 1 and type(written[0]) is bytes:
            return written[0]
        return collected(
            [
                each.raw() if type(each) is pickle.PickleBuffer else memoryview(each)
                for each in written
            ]
        )


class _Plain(pickle.Pickler):
    forms: Forms | None = None  # most values have none of these

    def reducer_override(self, obj: Any) -> Any:
        if self.forms is None:
            self.forms = Forms()
        return self.forms.of(obj)


class _PlainDeep(pickle._Pickler):
    forms: Forms | None = None

    def reducer_override(self, obj: Any) -> Any:
        if self.forms is None:
            self.forms = Forms()
        return self.forms.of(obj)


def dump_plain(value: object) -> Data:
    """Pickle a value as ``pickle.dumps`` does, however deeply nested.

    Code goes by name: what has none is not picklable.
    """
    cls = type(value)
    if cls in NUMBERS or (cls in (bytes, str) and len(value) < _FRAME):  # type: ignore[arg-type]
        return pickle.dumps(value, PROTOCOL)  # the same bytes, in a sixth of the time
    data, forms = _dump_plain(value, None)
    return _dump_plain(value, forms)[0] if forms is not None and forms.shares() else data


def _dump_plain(value: object, forms: Forms | None) -> tuple[Data, Forms | None]:
    sink = _Sink()
    pickler: Any = _Plain(sink, PROTOCOL)
    pickler.forms = forms
    try:
        pickler.dump(value)
    except RecursionError:
        sink = _Sink()
        pickler = _PlainDeep(sink, PROTOCOL)
        pickler.forms = forms
        with_deep_stack(lambda: pickler.dump(value))
    return sink.data(), pickler.forms


class _BuiltinsOnly(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        cls = type(value)
        if cls in _PLAIN or id(value) in _BUILTINS:
            return NotImplemented
        if cls in ITERATORS and not is_overtaken(value):
            return NotImplemented
        raise TypeError(cls)


def dump_builtins(value: object) -> tuple[bytes, dict[int, tuple[int, Any]]] | None:
    """Pickle plain data and iterators over it; return also its objects and their places, by ids.

    Numbers and empty tuples have no places.  Everything is done in C, the proof that the data is
    plain included: the pickler asks only about other objects.

    Returns:
        ``None`` if it is not plain data, or nested too deeply for the C pickler.
    """
    file = io.BytesIO()
    pickler = _BuiltinsOnly(file, PROTOCOL)
    try:
        pickler.dump(value)
    except (TypeError, ValueError, RuntimeError, pickle.PicklingError):
        return None  # RuntimeError: too deep, or another thread changed a dict meanwhile
    memo: Any = pickler.memo
    return file.getvalue(), memo.copy()


class _Canonical(pickle.Pickler):
    """A pickler of plain data only: exact builtin containers, texts, bytes and numbers.

    In its fast mode equal values give equal bytes, whichever of their parts are one object.
    Protocol 3 is the newest one without frames, and the newest one that hands a set, which has no
    order, to :meth:`reducer_override`.
    """

    def reducer_override(self, value: object) -> Any:
        raise TypeError(type(value))


def canonical_bytes(value: object) -> bytes | None:
    """Return bytes that equal plain data has in common; ``None`` for anything else.

    The order of keys counts.  It is five times as fast as JSON with sorted keys, and the same in
    every version of Python.
    """
    file = io.BytesIO()
    pickler = _Canonical(file, 3)
    pickler.fast = True
    try:
        pickler.dump(value)
    except (TypeError, ValueError, RecursionError):  # not plain; cyclic; deep
        return None
    return file.getvalue()


def masked_copy(value: T, masked: Callable[[Any], Any]) -> T:
    """Return a copy of a value in which texts and bytes are what ``masked`` makes of them."""

    class Masking(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if type(obj) not in (str, bytes):
                return None
            other = masked(obj)
            return None if other == obj else (other,)

    class Unmasking(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return pid[0]

    sink = io.BytesIO()
    Masking(sink, PROTOCOL).dump(value)
    copy: T = Unmasking(io.BytesIO(sink.getvalue())).load()
    return copy


class _TreePickler(pickle.Pickler):
    # Methods: in Python 3.13.0 the hooks of an instance cannot be set.
    def __init__(self, sink: _Sink, refer: Callable[[Any], Any]) -> None:
        super().__init__(sink, PROTOCOL)
        self._refer = refer

    def persistent_id(self, obj: Any) -> Any:
        return self._refer(obj)


def dump_tree(
    tree: object, refer: Callable[[Any], Any] | None, places: dict[int, int] | None = None
) -> Data:
    """Pickle a tree; ``refer`` may return a reference that replaces an object.

    Args:
        places: is given the place of each object in the pickle, by its id.
    """
    sink = _Sink()
    pickler: Any = pickle.Pickler(sink, PROTOCOL) if refer is None else _TreePickler(sink, refer)
    pickler.dump(tree)
    if places is not None:
        memo = pickler.memo.copy()
        places.update((here, place) for here, (place, _) in memo.items())
    return sink.data()


class _TreeUnpickler(pickle.Unpickler):
    named = False

    def __init__(
        self, data: bytes, resolve: Callable[[Any], Any] | None, find: FindClass | None
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._resolve = resolve
        self._find = find

    def persistent_load(self, pid: Any) -> Any:
        if self._resolve is None:
            raise pickle.UnpicklingError("a result refers to something")
        return self._resolve(pid)

    def find_class(self, module: str, name: str) -> Any:
        if self._find is None:
            raise pickle.UnpicklingError(f"plain data names {module}.{name}")
        self.named = True
        return self._find(module, name)


def load_tree(
    data: bytes, resolve: Callable[[Any], Any] | None = None, find: FindClass | None = None
) -> tuple[Any, dict[int, Any] | None]:
    """Load what :func:`dump_tree` made, from verified bytes.

    Args:
        resolve: knows the references.
        find: finds classes by module and name.

    Returns:
        the tree, and its objects by their places in the pickle if it names classes.
    """
    unpickler = _TreeUnpickler(data, resolve, find)
    tree = unpickler.load()
    objects: Any = unpickler.memo
    return tree, objects.copy() if unpickler.named else None


def too_deep(error: BaseException) -> bool:
    """Return whether a value could not be pickled because it is nested too deeply."""
    # cloudpickle makes a PicklingError of it.
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _dump(value: object, reducers: Reducers, pickler: Any) -> Data:
    sink = _Sink()
    reducers.begin()
    pickler(sink, reducers).dump(value)
    return sink.data()


@functools.cache
def _picklers(identifies: bool, identifies_all: bool) -> tuple[Any, Any]:
    import cloudpickle  # on use: most values never need it

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, sink: _Sink, reducers: Reducers) -> None:
            takes = reducers.takes
            super().__init__(sink, PROTOCOL, lambda buffer: not takes(buffer))
            self._reduce = reducers.reduce
            self._identity = reducers.identity

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) in _PLAIN or id(obj) in _BUILTINS:
                return NotImplemented
            form = self._reduce(obj)
            return _named(obj, super().reducer_override(obj)) if form is NotImplemented else form

    class Deep(pickle._Pickler):
        dispatch_table = cloudpickle.Pickler.dispatch_table
        _cloud = cloudpickle.Pickler.reducer_override
        _function_reduce = cloudpickle.Pickler._function_reduce
        _dynamic_function_reduce = cloudpickle.Pickler._dynamic_function_reduce
        _function_getnewargs = cloudpickle.Pickler._function_getnewargs

        def __init__(self, sink: _Sink, reducers: Reducers) -> None:
            takes = reducers.takes
            super().__init__(sink, PROTOCOL, buffer_callback=lambda buffer: not takes(buffer))
            self._reduce = reducers.reduce
            self._identity = reducers.identity
            self.globals_ref: dict[int, Any] = {}

        def reducer_override(self, obj: Any) -> Any:
            form = self._reduce(obj)
            return _named(obj, self._cloud(obj)) if form is NotImplemented else form

    if identifies or identifies_all:
        # Defined at all, it is called for every object, which doubles the time of many messages.
        for cls in (Pickler, Deep):
            cls.persistent_id = (  # type: ignore[method-assign]
                _any_persistent_id if identifies_all else _persistent_id
            )
    return Pickler, Deep


def _named(obj: Any, form: Any) -> Any:
    """A class by value with its qualified name, which cloudpickle forgets and its repr may show."""
    if isinstance(obj, type) and isinstance(form, tuple) and len(form) == _WITH_SETTER:
        form[2][0].setdefault("__qualname__", obj.__qualname__)
    return form


def _persistent_id(pickler: Any, obj: Any) -> Any:
    cls = type(obj)
    if cls in NUMBERS or (cls is str and len(obj) < LARGE_LEAF):
        return None  # most objects: nothing refers to these
    return pickler._identity(obj)


def _any_persistent_id(pickler: Any, obj: Any) -> Any:
    return pickler._identity(obj)


def with_deep_stack(function: Callable[[], T]) -> T:
    """Call ``function`` in a thread where nesting may go a thousand times deeper than usual."""
    results: list[Any] = []

    def target() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _DEEP_RECURSION))
        try:
            results.append((True, function()))
        except BaseException as error:
            results.append((False, error))
        finally:
            sys.setrecursionlimit(limit)

    before = threading.stack_size(_DEEP_STACK)
    try:
        thread = threading.Thread(target=target, name="stepwise deep stack", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    worked, result = results[0]
    if not worked:
        raise result
    value: T = result
    return value


def dump_code(value: object) -> bytes:
    """Pickle a call for another process: what ``__main__`` defines goes by value."""
    import cloudpickle  # on use

    data: bytes = cloudpickle.dumps(value, PROTOCOL)
    return data


def load_code(data: bytes) -> Any:
    """Load what :func:`dump_code` made, in a process that trusts its sender."""
    return pickle.loads(data)


def pickled_by_value() -> bool:
    """Return whether cloudpickle, or a framework's own copy of it, is the caller."""
    frame = sys._getframe(2)
    while frame is not None:
        if "cloudpickle" in str(frame.f_globals.get("__name__")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
