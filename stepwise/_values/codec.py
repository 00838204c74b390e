"""Values and exceptions to bytes and back.

Plain pickle comes first.  It is the fastest, and stores classes and functions by name, as classes
and functions of ``__main__`` must be stored.  Where plain pickle fails (a lambda, a class made
inside a function), cloudpickle stores code by value; only this module knows cloudpickle.  Named
objects of ``__main__`` are still stored by name, since a by-value copy comes back as a stranger
(``isinstance`` is False, an enum member is no longer itself).  Bytes are loaded only after their
envelope was verified.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import inspect
import io
import json
import pickle
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from operator import attrgetter
from typing import Any, TypeVar, cast

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import fold, link, link_facts, linked_to, members, summary_of
from stepwise._runtime.system_limits import ran_out
from stepwise._values import data as _data
from stepwise._values import trees
from stepwise._values.preview import NO_SECRETS, Secrets, error_text, short_repr
from stepwise._values.reducers import Forms, NamespaceMetError
from stepwise._values.trees import LARGE_LEAF, NUMBERS, by_name, held_at, is_view, place_of_dict
from stepwise._values.unpickling import Data, Unpickler, collected, loads
from stepwise.errors import NotRecordableError, UnreadableValueError

# -- pickling -------------------------------------------------------------------------------------


PROTOCOL = 5
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The running Python version; only the version that wrote code by value can read the code."""

T = TypeVar("T")
FindClass = Callable[[str, str], Any]

# Iterators that loops over containers leave in the variables; no reducer applies to them.
_EMPTY: tuple[Iterable[Any], ...] = (range(0), (), {}, set(), "", b"")
_OVER_CONTAINERS = frozenset({range, reversed, *(type(iter(each)) for each in _EMPTY)})
_BUILTINS = frozenset(map(id, (iter, reversed, range, enumerate, zip)))

_IOBase = io.IOBase.__mro__[1]  # the C class: isinstance of the Python class is ten times slower
_NO_FILE = "<dynamic-code>"  # the file name that cloudpickle gives to all code
_WITH_SETTER = 6  # the length of a reduced form with a state setter
_FRAME = 1 << 14  # characters or bytes: pickle writes only larger ones outside of a frame
_DEEP_STACK = 512 << 20  # bytes
_DEEP_RECURSION = 400_000  # frames


def from_module(module: str, name: str) -> Any:
    """Return the object that a dotted name in an imported module leads to."""
    return attrgetter(name)(sys.modules[module])


class Reducers:
    """The reduction of objects for a pickle; a subclass adds :meth:`special`."""

    forms: Forms

    def begin(self) -> None:
        """Prepare for a new pickle: each object will be reduced from the start."""

    def special(self, obj: Any) -> Any:
        """Return a reduced form of this object, or ``NotImplemented`` to leave it to others."""
        return NotImplemented

    def identity(self, obj: Any) -> Any:
        """Return the reference that replaces the object in the pickle, or ``None``.

        Called only if ``identifies`` or ``identifies_all`` is set.  Numbers and short strings are
        passed only if ``identifies_all`` is set.
        """
        return None

    def arrays(self) -> Iterable[Any]:
        """Return the arrays that a reference may replace."""
        return ()

    identifies = False
    identifies_all = False
    keeps_links = False

    def takes(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether a large buffer is stored elsewhere, so that the pickle omits it."""
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
    """The reduction for another program: definitions of ``__main__`` are stored by value.

    Attributes:
        names: the names of the definitions that were met, as ``__main__`` has them.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def reduce(self, obj: Any) -> Any:
        """See ``pickle.Pickler.reducer_override``."""
        name = by_name(obj) if isinstance(obj, (type, types.FunctionType)) else None
        if name is None:
            return super().reduce(obj)
        self.names.add(name.partition(".")[0])
        return NotImplemented  # cloudpickle stores definitions of __main__ by value


def dump(value: object, reducers: Reducers) -> Data:
    """Pickle a value, however deeply nested."""
    reducers.forms = Forms()
    reducers.forms.keeps_links = reducers.keeps_links
    if reducers.identifies or reducers.identifies_all:
        reducers.forms.kept, reducers.forms.arrays = reducers.identity, reducers.arrays
    data = _dump_once(value, reducers)
    return _dump_once(value, reducers) if reducers.forms.shares() else data


def _dump_once(value: object, reducers: Reducers) -> Data:
    fast, deep = _picklers(reducers.identifies, reducers.identifies_all)
    try:
        if not reducers.forms.names_dicts:
            return _dump(value, reducers, fast)
    except NamespaceMetError:
        reducers.forms.names_dicts = True
    except (RecursionError, pickle.PicklingError) as error:
        if not too_deep(error):
            raise
    # The C pickler nests as deep as the C stack, the Python pickler as deep as the recursion limit.
    return with_deep_stack(lambda: _dump(value, reducers, deep))


class _Sink:
    """The output of a pickler, which receives large buffers without copying them."""

    __slots__ = ("_written", "write")

    def __init__(self) -> None:
        self._written: list[bytes | memoryview | pickle.PickleBuffer] = []
        self.write = self._written.append

    def data(self) -> Data:
        """Return everything that was written."""
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
    forms: Forms | None = None  # most values need no special form

    def reducer_override(self, obj: Any) -> Any:
        if self.forms is None:
            self.forms = Forms()
        return self.forms.of(obj)


class _NamesDicts(pickle._Pickler):
    """A pickler that replaces module namespaces by their names, which the C pickler cannot do."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
        inherited: Any = super()
        this: Any = self
        place = place_of_dict(obj) if type(obj) is dict and id(obj) not in this.memo else None
        if place is None:
            return inherited.save(obj, save_persistent_id)
        return this.save_reduce(held_at, place, obj=obj)


class _PlainDeep(_NamesDicts):
    forms: Forms | None = None
    reducer_override = _Plain.reducer_override


def dump_plain(value: object) -> Data:
    """Pickle a value as ``pickle.dumps`` does, however deeply nested.

    Code goes by name; code without a name does not pickle.
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
    except (RecursionError, NamespaceMetError):
        sink = _Sink()
        pickler = _PlainDeep(sink, PROTOCOL)
        pickler.forms = forms or Forms()
        pickler.forms.names_dicts = True
        with_deep_stack(lambda: pickler.dump(value))
    return sink.data(), pickler.forms


class _Canonical(pickle.Pickler):
    """A pickler of plain data only: exact builtin containers, texts, bytes and numbers.

    In its fast mode equal values give equal bytes, whichever of their parts are one object.
    Protocol 3 is the newest one without frames, and the newest one that hands a set, which has no
    order, to :meth:`reducer_override`.
    """

    def reducer_override(self, value: object) -> Any:
        raise TypeError(type(value))


def canonical_bytes(value: object) -> bytes | None:
    """Return bytes that are the same for equal plain data; ``None`` for other values.

    The order of keys counts.  This takes a fifth of the time of JSON with sorted keys, and gives
    the same bytes in every version of Python.
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
    """Return a copy of a value with each text, bytes and number replaced by ``masked`` of it."""

    class Masking(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if type(obj) not in (str, bytes, int, float):
                return None
            other = masked(obj)
            return None if other is obj or other == obj else (other,)

    class Unmasking(Unpickler):
        stored = False

        def persistent_load(self, pid: Any) -> Any:
            return pid[0]

    sink = io.BytesIO()
    Masking(sink, PROTOCOL).dump(value)
    copy: T = Unmasking(sink.getvalue()).load()
    return copy


class _TreePickler(pickle.Pickler):
    # Methods: in Python 3.13.0 the hooks of an instance cannot be set.
    def __init__(self, sink: _Sink, refer: Callable[[Any], Any]) -> None:
        super().__init__(sink, PROTOCOL)
        self._refer = refer

    def persistent_id(self, obj: Any) -> Any:
        return self._refer(obj)

    def reducer_override(self, obj: Any) -> Any:
        if not is_view(obj):
            return NotImplemented
        from stepwise._values.memory import view_of  # on use: few values hold arrays

        return view_of(obj.base, obj)


def dump_tree(
    tree: trees.Tree, refer: Callable[[Any], Any] | None, places: dict[int, int] | None = None
) -> Data:
    """Pickle a tree; without ``refer``, in the order of :func:`dump_plain`.

    Args:
        refer: may return a reference that replaces an object.  Views of arrays stay views then.
        places: receives the place of each object in the pickle, by the id of the object.
    """
    sink = _Sink()
    pickler: Any = pickle.Pickler(sink, PROTOCOL)
    if refer is not None:
        pickler = _TreePickler(sink, refer)
    elif tree.arrays:
        forms = _dump_plain(tree.root, None)[1]
        pickler = _Plain(sink, PROTOCOL)
        pickler.forms = forms if forms is not None and forms.shares() else None
    pickler.dump(tree.root)
    if places is not None:
        memo = pickler.memo.copy()
        places.update((here, place) for here, (place, _) in memo.items())
    return sink.data()


class _TreeUnpickler(Unpickler):
    named = False
    resolve: Callable[[Any], Any] | None = None
    find: FindClass | None = None

    def persistent_load(self, pid: Any) -> Any:
        if self.resolve is None:
            raise pickle.UnpicklingError("a result refers to something")
        return self.resolve(pid)

    def find_class(self, module: str, name: str) -> Any:
        if self.find is None:
            raise pickle.UnpicklingError(f"plain data names {module}.{name}")
        self.named = True
        return self.find(module, name)

    def tree(self) -> tuple[Any, dict[int, Any] | None]:
        """Load the tree; see :func:`load_trees`."""
        tree = self.load()
        if not self.named:
            return tree, None
        objects: Any = self.memo
        return tree, objects.copy()


def load_trees(
    pickles: Iterable[bytes],
    find: FindClass | None = None,
    resolve: Callable[[Any], Any] | None = None,
) -> Iterator[tuple[Any, dict[int, Any] | None]]:
    """Load pickles that :func:`dump_tree` made, from verified bytes.

    Args:
        find: finds classes by module and name; without it, pickles that name classes are refused.
        resolve: returns the object behind a reference; without it, references are refused.

    Yields:
        each tree, with its objects by their places in the pickle if the pickle names classes.
    """
    for unpickler in _TreeUnpickler.each(pickles):
        if find is not None:
            unpickler.find = find
        if resolve is not None:
            unpickler.resolve = resolve
        yield unpickler.tree()


def too_deep(error: BaseException) -> bool:
    """Return whether a value could not be pickled because it is nested too deeply."""
    # cloudpickle raises a PicklingError from the RecursionError.
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _dump(value: object, reducers: Reducers, pickler: Any) -> Data:
    sink = _Sink()
    reducers.begin()
    pickler(sink, reducers).dump(value)
    return sink.data()


@functools.cache
def _picklers(identifies: bool, identifies_all: bool) -> tuple[Any, Any]:
    import cloudpickle  # on use: most values never need it

    reduced = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def code(obj: types.CodeType) -> Any:  # keeps the file name
        make, args = reduced(obj)
        return make, tuple(obj.co_filename if each == _NO_FILE else each for each in args)

    class Reducing:
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: code})

        def __init__(self, sink: _Sink, reducers: Reducers) -> None:
            takes, inherited = reducers.takes, cast("Any", super())
            inherited.__init__(sink, PROTOCOL, buffer_callback=lambda buffer: not takes(buffer))
            self._reduce = reducers.reduce
            self._identity = reducers.identity
            self.globals_ref: dict[int, Any] = {}

    class Pickler(Reducing, cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) in _OVER_CONTAINERS or id(obj) in _BUILTINS:
                return NotImplemented
            form = self._reduce(obj)
            return _named(obj, super().reducer_override(obj)) if form is NotImplemented else form

    class Deep(Reducing, _NamesDicts):
        _cloud = cloudpickle.Pickler.reducer_override
        _function_reduce = cloudpickle.Pickler._function_reduce
        _dynamic_function_reduce = cloudpickle.Pickler._dynamic_function_reduce
        _function_getnewargs = cloudpickle.Pickler._function_getnewargs

        def reducer_override(self, obj: Any) -> Any:
            form = self._reduce(obj)
            return _named(obj, self._cloud(obj)) if form is NotImplemented else form

    if identifies or identifies_all:
        # A persistent_id is called for every object, which doubles the time for many messages.
        for cls in (Pickler, Deep):
            cls.persistent_id = (  # type: ignore[method-assign]
                _any_persistent_id if identifies_all else _persistent_id
            )
    return Pickler, Deep


def _named(obj: Any, form: Any) -> Any:
    """Add the qualified name of a class by value: cloudpickle forgets the name, a repr shows it."""
    if isinstance(obj, type) and isinstance(form, tuple) and len(form) == _WITH_SETTER:
        form[2][0].setdefault("__qualname__", obj.__qualname__)
    return form


def _persistent_id(pickler: Any, obj: Any) -> Any:
    cls = type(obj)
    if cls in NUMBERS or (cls is str and len(obj) < LARGE_LEAF):
        return None  # most objects: no reference ever replaces these
    return pickler._identity(obj)


def _any_persistent_id(pickler: Any, obj: Any) -> Any:
    return pickler._identity(obj)


def with_deep_stack(function: Callable[[], T]) -> T:
    """Call ``function`` in a thread that allows nesting a thousand times deeper than usual."""
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
    """Pickle a call for another process, with definitions of ``__main__`` by value."""
    return bytes(dump(value, CodeByValue()))


def pickled_by_value() -> bool:
    """Return whether cloudpickle, or a framework's own copy of it, is the caller."""
    stack = traceback.walk_stack(sys._getframe(2))
    return any("cloudpickle" in str(frame.f_globals.get("__name__")) for frame, _ in stack)


# -- codec ----------------------------------------------------------------------------------------


_PARTS = 100  # parts of a value to search for the unpicklable one
_TRACEBACK_CHARACTERS = 8_000
_GROUPS: tuple[Any, ...] = tuple(  # since Python 3.11
    getattr(builtins, name)
    for name in ("ExceptionGroup", "BaseExceptionGroup")
    if hasattr(builtins, name)
)


class Encoded(NamedTuple):
    """The bytes of a value, in pieces if there are many bytes.

    ``form`` is ``None`` for a pickle, ``"json"`` for data, and the Python version for a pickle that
    holds code, which only that version can read.
    """

    data: Data
    form: str | None = None


JSON = "json"
"""The form of values that were recorded as data."""


class Codec(NamedTuple):
    """The rules by which one run records values.

    Args:
        name: ``""`` to record pickles, ``"json"`` to record data only.
        secrets: the texts that must not be recorded.
    """

    name: str = ""
    secrets: Secrets = NO_SECRETS

    @property
    def data_only(self) -> bool:
        """True if values are recorded as JSON."""
        return self.name != ""

    def encode(self, value: object, what: str, kind: Any = Any) -> Encoded:
        """Encode a value; ``kind`` is the type that it is annotated with.

        Raises:
            NotRecordableError: the value cannot be recorded; names the part that cannot.
        """
        if self.name:  # data only
            return Encoded(_data.encode_data(value, kind, what), JSON)
        return encode(value, what)

    def encode_error(self, error: BaseException, then: str = "") -> Encoded:
        """Encode an exception; ``then`` is for exceptions as data only, see ``encode_raised``."""
        if not self.data_only:
            return encode_error(error, self.secrets)
        from stepwise._values.exception_data import (
            encode_raised,  # on use: most programs record pickles
        )

        return Encoded(encode_raised(error, self.traceback, then, self.secrets), JSON)

    def traceback(self, error: BaseException) -> str:
        """Return the traceback of one exception, without secrets."""
        return traceback_text(error, self.secrets.cleaned_text)

    def decode(self, data: bytes, form: str | None, kind: Any = Any) -> Any:
        """Load a value from verified bytes.

        Raises:
            UnreadableValueError: the value cannot be loaded, or this process loads no pickles.
        """
        return decode(data, form, kind)

    def decode_error(self, data: bytes, form: str | None, *, whole: bool = False) -> BaseException:
        """Load an exception from verified bytes.

        Args:
            whole: load an exception that was recorded as data whole, not as a summary.

        Raises:
            UnreadableValueError: it cannot be loaded, or this process loads no pickles.
        """
        return decode_error(data, form, whole=whole)


def encode(value: object, what: str = "the value") -> Encoded:
    """Encode ``value`` as a pickle; ``what`` names the value in messages.

    Raises:
        NotRecordableError: the value cannot be pickled; names the part that cannot.
        MemoryError: memory ran out; says what was being recorded.
    """
    try:
        return _encode(value)
    except MemoryError as error:
        raise ran_out(f"{what} was recorded", error) from None
    except Exception as error:
        raise _not_recordable(value, what, error) from error


def encode_for_afar(values: tuple[Any, ...]) -> Encoded:
    """Encode values for a process with another ``__main__``: code of ``__main__`` goes by value.

    Returns:
        the encoded tuple of the values and a dict of the ``__main__`` definitions that they use.

    Raises:
        NotRecordableError: the values cannot be pickled; names the part that cannot.
        MemoryError: memory ran out; says what was being recorded.
    """
    by_value = CodeByValue()
    try:
        data = dump((*values, {}), by_value)
        if by_value.names:
            main = vars(sys.modules["__main__"])
            data = dump((*values, {name: main[name] for name in by_value.names}), by_value)
        return Encoded(data, PYTHON)
    except MemoryError as error:
        raise ran_out("the value was recorded", error) from None
    except Exception as error:
        raise _not_recordable(values, "the value", error) from error


def _encode(value: object) -> Encoded:
    try:
        return tuple.__new__(Encoded, (dump_plain(value), None))  # the constructor is Python's
    except MemoryError:
        raise
    except Exception:
        return Encoded(dump(value, Reducers()), PYTHON)


def decode(data: Data, form: str | None = None, kind: Any = Any, *, stored: bool = True) -> Any:
    """Load a value that :func:`encode` or :meth:`Codec.encode` encoded, from verified bytes.

    Args:
        stored: false for bytes that this program made or sent itself: see ``unpickling``.

    Raises:
        UnreadableValueError: the value needs a class that is gone, or holds code of another Python
            version, or is a pickle and this process loads none.
        MemoryError: memory ran out.
    """
    if form == JSON:
        return _data.decode_data(bytes(data), kind)
    return decode_with(lambda: loads(bytes(data), stored=stored), form)


def decode_with(load: Callable[[], Any], python: str | None) -> Any:
    """Load a value with ``load``, and raise the errors of :func:`decode`.

    Args:
        python: the Python version that the value needs; ``None`` for any.
    """
    if python is not None and python != PYTHON:
        # Not a formality: by-value code of 3.11 crashes the interpreter of 3.12 and 3.13.
        raise UnreadableValueError(
            f"the value holds code recorded by Python {python}, which Python {PYTHON} cannot load; "
            f"run the program with Python {python}"
        )
    try:
        return load()
    except MemoryError as error:
        raise ran_out("a recorded value was loaded", error) from None
    except UnreadableValueError:
        raise
    except Exception as error:
        raise UnreadableValueError(
            f"a recorded value cannot be loaded: {type(error).__name__}: {error_text(error)}. "
            "Bring back the class or module that it names"
        ) from error


def plain_value(data: bytes) -> Any:
    """Return the value of a pickle that holds plain data only; nothing else is loaded.

    Raises:
        ValueError: the pickle holds anything that JSON would not give back as it is.
    """
    try:
        [(value, _)] = load_trees((data,))  # names no class and no function
    except pickle.UnpicklingError as error:
        raise ValueError(f"it holds more than plain data: {error}") from None
    if not is_plain(value):
        raise ValueError("JSON would not give it back as it is")
    return value


def is_plain(value: Any) -> bool:
    """Return whether JSON gives a value back as it is."""
    from stepwise._values.comparison import held_twice  # on use

    waiting, met = [value], 0
    while waiting:
        each = waiting.pop()
        met += 1
        if type(each) is dict and all(type(key) is str for key in each):
            waiting += each.values()
        elif type(each) is list:
            waiting += each
        elif type(each) is float:
            if not isfinite(each):
                return False
        elif type(each) not in (str, int, bool, type(None)):
            return False
        if met > _MOST_PLAIN:
            return False
    return held_twice(value) is None


_MOST_PLAIN = 1_000_000  # parts of a value; one that holds itself has no end


def texts_in(data: bytes) -> Iterator[str]:
    """Yield the texts in a pickle, and in bytes and pickles in it, without loading it."""
    import pickletools  # on use

    for _, held, _ in pickletools.genops(data):
        if isinstance(held, str):
            yield held
        elif isinstance(held, (bytes, bytearray)):
            yield held.decode("utf-8", "replace")
            with contextlib.suppress(ValueError):  # it is no pickle
                yield from texts_in(bytes(held)) if held[:1] == b"\x80" else ()


# -- naming the part that does not pickle --------------------------------------------------------


def _not_recordable(value: object, what: str, error: BaseException) -> NotRecordableError:
    path, culprit = ("", value) if too_deep(error) else _culprit(value)
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    where = f"{what}{path}" if path else what
    reason = "it is nested too deeply" if too_deep(error) else error_text(error)
    hint = "Return plain data (the text, the id, the path) instead of the live object"
    if inspect.isawaitable(culprit):
        hint = f"An `await` is missing where this {kind} is made"
    return NotRecordableError(
        f"{where} is a {kind} and cannot be recorded: {reason}. {hint}",
        path=path,
        type_name=kind,
    )


def _culprit(value: Any) -> tuple[str, Any]:
    """Return the topmost part that fails to pickle although its own parts pickle, and its path."""
    waiting, met = collections.deque([("", value)]), {id(value)}
    for _ in range(_PARTS):
        if not waiting:
            break
        path, part = waiting.popleft()
        failing = [(piece, each) for piece, each in _parts(part) if not pickles(each)]
        if not failing:
            return path, part
        for piece, each in failing:
            if id(each) not in met:  # else a cycle leads back up, and the reason is elsewhere
                met.add(id(each))
                waiting.append((path + piece, each))
    return "", value


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [
            *((f"[{short_repr(key)}]", item) for key, item in value.items()),
            *((f" key {short_repr(key)}", key) for key in value),
        ]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    try:
        state = value.__reduce_ex__(2)[2]
    except Exception:
        state = getattr(value, "__dict__", None)
    states = state if isinstance(state, tuple) else (state,)  # a tuple: __dict__ and __slots__
    return [
        (f".{name}", item)
        for each in states
        if isinstance(each, dict)
        for name, item in each.items()
    ]


def pickles(value: object) -> bool:
    """Return whether a value can be recorded as a pickle."""
    try:
        _encode(value)
    except MemoryError:
        raise
    except Exception:
        return False
    return True


# -- exceptions ----------------------------------------------------------------------------------


def encode_error(error: BaseException, secrets: Secrets = NO_SECRETS) -> Encoded:
    """Encode an exception with its causes, contexts and group members, and theirs in turn.

    Each exception is pickled and loaded once here, since many exceptions with an ``__init__`` of
    their own pickle but do not load.  An exception that does not survive is recorded as a summary
    only, and loads as a :class:`~stepwise.errors.StepFailedError`.  Secrets and texts that look
    like credentials are masked, in the messages and in the attributes.
    """
    chain, index = linked_to(error, members)
    facts = [_facts(each, index, secrets) for each in chain]
    return Encoded(pickle.dumps(facts, PROTOCOL))


def _facts(error: BaseException, index: dict[int, int], secrets: Secrets) -> dict[str, Any]:
    """Return the record of one exception of a chain: its pickle if it pickles, and a summary."""
    plain_group = type(error) in _GROUPS  # loading makes it again from its members
    message = str(getattr(error, "message", "")) if plain_group else error_text(error)
    return {
        **link_facts(error, index),
        "pickled": (None, None) if plain_group else _surviving(error, secrets),
        "message": secrets.cleaned_text(message),
        "traceback": traceback_text(error, secrets.cleaned_text),
        "notes": [*map(secrets.cleaned_text, _notes(error))],
    }


def _notes(error: BaseException) -> tuple[str, ...]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, (list, tuple)):  # any code may set it
        return ()
    return tuple(note for note in notes if isinstance(note, str))


def survives(error: BaseException) -> bool:
    """Return whether an exception can be recorded whole, not just as a summary."""
    return type(error) in _GROUPS or _surviving(error, NO_SECRETS)[0] is not None


def _surviving(error: BaseException, secrets: Secrets) -> tuple[bytes | None, str | None]:
    from stepwise._values.credentials import without_credentials  # on use: few steps fail

    try:
        error = without_credentials(error)
        encoded, text = _encode(error), error_text(error)
        said = text, error.args, vars(error)
        if secrets.found_in(encoded.data) or secrets.changes(said):
            masked = masked_copy(error, secrets.cleaned)
            encoded, text = _encode(masked), error_text(masked)
            if secrets.found_in(encoded.data):
                return None, None
        loaded = decode(*encoded, stored=False)
    except MemoryError as problem:
        raise ran_out(f"the {type(error).__name__} that was raised was recorded", problem) from None
    except Exception:
        return None, None
    same = type(loaded) is type(error) and error_text(loaded) == text
    return (bytes(encoded.data), encoded.form) if same else (None, None)


def decode_error(
    data: bytes, form: str | None = None, *, whole: bool = False, stored: bool = True
) -> BaseException:
    """Load an exception that :func:`encode_error` encoded, with its links, from verified bytes.

    Args:
        whole: load an exception that was recorded as data whole, not as a summary.
        stored: as for :func:`decode`.
    """
    if form == JSON:
        from stepwise._values.exception_data import decode_raised  # on use

        return decode_raised(data, whole=whole)
    facts = loads(data, stored=stored)
    made: dict[int, BaseException] = {}

    def revive(number: int) -> BaseException:
        if number not in made:
            fact = facts[number]
            inside = [revive(each) for each in fact["members"]]
            made[number] = error = _revive(fact, inside, stored=stored)
            # A group that was pickled whole brings its own members.
            made.update(zip(fact["members"], members(error), strict=False))
        return made[number]

    for number in range(len(facts)):
        revive(number)
    revived = [made[number] for number in range(len(facts))]
    link(revived, facts)
    for error, fact in zip(revived, facts, strict=True):
        if fact["notes"]:
            BaseException.__setattr__(error, "__notes__", fact["notes"])
    return revived[0]


def traceback_texts(data: bytes, form: str | None) -> list[str]:
    """Return the tracebacks of a recorded exception and of those linked to it, from verified bytes.

    The first text is that of the exception itself.

    Raises:
        UnreadableValueError: this process loads no pickles.
    """
    facts = json.loads(data) if form == JSON else loads(data)
    return [fact["traceback"] for fact in facts]


def _revive(fact: Mapping[str, Any], inside: list[BaseException], *, stored: bool) -> BaseException:
    pickled, python = fact["pickled"]
    if pickled is not None:
        try:
            return cast("BaseException", decode(pickled, python, stored=stored))
        except UnreadableValueError:
            pass  # its class is gone since; the summary still says what happened
    for group in _GROUPS:
        if inside and fact["type"] == group.__name__:
            return cast("BaseException", group(fact["message"], inside))
    return summary_of(fact)


def traceback_text(error: BaseException, mask: Callable[[str], str] = str) -> str:
    """Return the traceback of one exception without its chain, masked, with the middle cut out."""
    try:
        fold(error)
        lines = traceback.format_exception(type(error), error, error.__traceback__, chain=False)
        text = "".join(lines)
    except Exception:  # a SyntaxError made by hand
        text = f"{type(error).__qualname__}: {error_text(error)}\n"
    text = mask(text)
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    half = _TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n  [...]\n{text[-half:]}"
