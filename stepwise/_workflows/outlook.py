"""The prediction whether a statement may call a step, and loops that can be started again.

Some iterators cannot be recorded, but can be made again and advanced by the items already yielded.
``for each in tqdm(items)`` iterates over a generator; ``itertools.pairwise`` does not pickle.  Such
a loop qualifies if its head calls only the functions below, and names only local variables of plain
types.  The head yields the same items again as long as these variables hold what they held when the
loop began.  Every checkpoint proves this by identity: a restored list holds the same items in the
same order.

A file that is only read is opened again, too.  Its size, time and number, and a digest of the items
already read, show whether the file is unchanged; if not, the checkpoint does not hold.

The names in the next statement are looked up without calling anything (``isinstance`` would call
code of a proxy).  Each is a step, a workflow, an object that certainly calls no step, or unknown.
Builtins certainly call no step, nor does most of the standard library: it calls only its arguments.

A statement that calls no step may still leave an object in a variable that no checkpoint can hold,
such as an open file or a generator.
"""

from __future__ import annotations

import builtins
import functools
import gc
import hashlib
import io
import itertools
import os
import stat
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stepwise._calls.steps import step_of
from stepwise._execution.waits import may_wait
from stepwise._rewrite.frame import Rewritten
from stepwise._rewrite.statements import Ahead
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count
from stepwise._values.digest import digest
from stepwise._values.preview import error_text
from stepwise._values.trees import same
from stepwise.errors import DigestError

# -- loops ----------------------------------------------------------------------------------------


_CALLS = {
    "builtins": ("enumerate", "len", "list", "range", "reversed", "sorted", "tuple", "zip"),
    "itertools": (
        *("accumulate", "batched", "chain", "combinations", "combinations_with_replacement"),
        *("compress", "count", "cycle", "islice", "pairwise", "permutations", "product", "repeat"),
        "zip_longest",
    ),
    "_csv": ("reader",),
    "_io": ("open",),
    "io": ("open",),
    "tqdm": ("tqdm", "tqdm_asyncio", "tqdm_notebook", "trange"),
    "rich": ("track",),
}
"""Functions, by root package, that return their inputs in an order that nothing else affects."""

_INSIDE = ("accumulate", "compress", "reader", "sorted")  # these read the contents of items
_ATOMS = (str, bytes, int, float, bool, type(None))
_FILES = (io.TextIOWrapper, io.BufferedReader)
_MODES = ("r", "rt", "rb")
_PATH = "PosixPath"  # what pathlib.Path() makes
_METHODS: dict[str, tuple[str, ...]] = {
    "dict": ("items", "keys", "values"),
    "str": ("split", "splitlines"),
    "DataFrame": ("groupby", "iterrows", "itertuples"),
    _PATH: ("open",),
}


class FileChangedError(LookupError):
    """A file that a loop reads has changed."""


class FileState(NamedTuple):
    """The identity and state of a file, which reveal a change."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Any) -> FileState:
        """Return the state of an open file as of now."""
        now = os.fstat(file.fileno())
        return cls(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)

    def other(self, now: FileState) -> str:
        """Return a description of the change, or an empty string for none."""
        if self[:2] != now[:2]:
            return "it is another file"
        if self.size != now.size:
            return f"it had {self.size} bytes and has {now.size}"
        return "it was written to" if self.mtime_ns != now.mtime_ns else ""


class Skipped(NamedTuple):
    """The record of an iterator: the number of items that it had yielded.

    Args:
        file: the state of the file that it reads, when the record was made.
        digest: of the items, if they come from a file.
    """

    items: int
    file: FileState | None = None
    digest: bytes = b""


class Counted:
    """An iterator that counts its items.

    Args:
        held: the variables that the head of the loop names, and their contents, by name.
        file: the file that it reads, if any.
    """

    def __init__(
        self, iterator: Iterator[Any], held: Mapping[str, tuple[Any, Any]], file: Any = None
    ) -> None:
        self.iterator = iterator
        self.given = 0
        self.file = file
        self._held = held
        self._digest = hashlib.sha256()

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        item = next(self.iterator)
        self.given += 1
        if self.file is not None:  # items of a file are texts and numbers
            self._digest.update(f"{item!r}\n".encode())
        return item

    def skip(self, before: Skipped) -> None:
        """Consume the items that the recorded iterator had yielded.

        Raises:
            RuntimeError: fewer items are left.
            FileChangedError: the items differ.
        """
        for _ in itertools.islice(self, before.items):
            pass
        if self.given != before.items:
            raise RuntimeError(
                f"a loop that had yielded {count(before.items, 'item')} has only {self.given}"
            )
        if before.file is not None and before.digest != self._digest.digest():
            raise FileChangedError("the part that was read is different")

    def changed(self, values: Mapping[str, Any]) -> str:
        """Return the names of the variables that have changed since the loop began."""
        names = [
            repr(name)
            for name, (value, held) in self._held.items()
            if values.get(name) is not value or not _holds(value, held)
        ]
        return ", ".join(names)

    def __reduce__(self) -> Any:
        if self.file is None:
            return Skipped, (self.given,)
        return Skipped, (self.given, FileState.of(self.file), self._digest.digest())


def counting(
    iterator: Iterator[Any], head: Ahead, values: Mapping[str, Any], rewritten: Rewritten
) -> Iterator[Any]:
    """Return a counting iterator if the given one cannot be recorded, but can be made again.

    Otherwise return the given iterator.
    """
    file = _file_of(iterator) if head.opens else None
    if file is None and (head.opens or _is_recordable(iterator)):
        return iterator
    names = names_of(head, values, rewritten)
    if names is None:
        return iterator
    try:
        held = {name: (values[name], _held_by(values[name])) for name in names}
    except DigestError:
        return iterator
    return Counted(iterator, held, file)


def reopened(
    before: Skipped,
    head: Ahead,
    code: types.CodeType,
    values: Mapping[str, Any],
    rewritten: Rewritten,
) -> Counted:
    """Open the file of a loop again, and skip the items that the loop has already received.

    Args:
        code: the head of the loop, as an expression.

    Raises:
        FileChangedError: the file has changed; the message says how.
    """
    assert before.file is not None
    counted: Any = None
    try:
        iterator = iter(eval(code, rewritten.function.__globals__, {**values}))  # noqa: S307
        counted = counting(iterator, head, values, rewritten)
        if not isinstance(counted, Counted) or counted.file is None:
            raise FileChangedError("it is no longer a file that can be read twice")  # noqa: TRY301
        other = before.file.other(FileState.of(counted.file))
        if other:
            raise FileChangedError(other)  # noqa: TRY301
        counted.skip(before)
    except Exception as error:
        if isinstance(counted, Counted) and counted.file is not None:
            counted.file.close()
        if isinstance(error, FileChangedError):
            raise
        raise FileChangedError(f"{type(error).__name__}: {error_text(error)}") from error
    return counted


def _file_of(iterator: Any) -> Any:
    """Return the file that an iterator reads from its start, directly or through other iterators.

    Return ``None`` unless it is certain that the file can be opened again.
    """
    found, around, seen = [], [iterator], set()
    for each in around:
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) in _FILES:
            found.append(each)
        elif type(each) is types.GeneratorType:
            around += each.gi_frame.f_locals.values() if each.gi_frame is not None else ()
        elif hasattr(each, "__dict__") and _is_known(type(each)):
            around += vars(each).values()
        elif type(each) is tuple or hasattr(type(each), "__next__"):
            around += gc.get_referents(each)
    if len(found) != 1:
        return None
    file = found[0]
    try:
        named = isinstance(file.name, (str, bytes, os.PathLike))  # a number is a descriptor
        status = os.fstat(file.fileno())
        regular = stat.S_ISREG(status.st_mode) and status.st_size  # files in /proc have no size
        again = named and regular and file.mode in _MODES and file.tell() == 0
    except (AttributeError, OSError, ValueError):
        return None
    return file if again else None


def names_of(head: Ahead, values: Mapping[str, Any], rewritten: Rewritten) -> set[str] | None:
    """Return the variables that determine the items; ``None`` if other state may, too."""
    value: Any
    function, found, inside = rewritten.function, set(), head.opens
    for dotted in head.called | head.used:
        root, *attributes = dotted.split(".")
        called, value = dotted in head.called, values.get(root)
        if root not in rewritten.variables:
            value = function.__globals__.get(root, getattr(builtins, root, None))
        elif root not in values or root in function.__code__.co_freevars:
            return None
        elif cls := _plain_type(value):
            if attributes and not (called and dotted in _methods(root, cls)):
                return None
            found.add(root)
            continue
        for name in attributes:
            value = vars(value).get(name) if isinstance(value, types.ModuleType) else None
        if not called or not _is_known(value):
            return None
        inside = inside or value.__name__ in _INSIDE
    atoms = not inside or all(_are_atoms(_held_by(values[name])) for name in found)
    return found if atoms else None


def _methods(root: str, cls: str) -> set[str]:
    return {f"{root}.{name}" for name in _METHODS.get(cls, ())}


def _is_known(value: Any) -> bool:
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return value.__qualname__ in _CALLS.get(str(value.__module__).partition(".")[0], ())


def _plain_type(value: Any) -> str:
    """Return the type of a value whose contents can be compared; empty for other values."""
    cls = type(value)
    if cls in (*_ATOMS, list, tuple, dict, range):
        return cls.__name__
    package = {"DataFrame": "pandas", _PATH: "pathlib"}.get(cls.__name__)
    return cls.__name__ if package and _is_of_package(package, cls) else ""


def _is_of_package(package: str, cls: type) -> bool:
    return cls.__module__.partition(".")[0] == package


def _held_by(value: Any) -> Any:
    """Return the direct contents of a value; a digest of the value if its contents are unknown."""
    if type(value) is dict:
        return [*value, *value.values()]
    if type(value) in (list, tuple):
        return list(value)
    return digest(value) if _is_of_package("pandas", type(value)) else value


def _holds(value: Any, held: Any) -> bool:
    try:
        now = _held_by(value)
    except DigestError:
        return False
    return same(held, now) if type(held) is list else bool(held == now)


def _are_atoms(held: Any) -> bool:
    return all(type(each) in _ATOMS for each in held) if type(held) is list else True


def _is_recordable(iterator: Any) -> bool:
    """Return whether an iterator and all the iterators that it reads from can be pickled."""
    cls: Any = type(iterator)
    if cls is types.GeneratorType or cls.__reduce__ is object.__reduce__:
        return False
    referents = gc.get_referents(iterator)
    groups = [each for each in referents if type(each) is tuple]
    read = (each for each in itertools.chain(referents, *groups) if hasattr(type(each), "__next__"))
    return all(map(_is_recordable, read))


# -- reach ----------------------------------------------------------------------------------------


class Reach:
    """The furthest effect that a statement may have, as numbers in their order.

    Rejected: an enum.  Making one takes as many instructions as loading two small modules.
    """

    NOTHING = 0
    UNSURE = 1
    """No step, but the result may not be recordable."""
    PERHAPS = 2
    STEP = 3
    EFFECT = 4
    WAIT = 5


_SAME = frozenset(
    (
        *("base64", "binascii", "bisect", "builtins", "cmath", "collections", "copy"),
        *("dataclasses", "decimal", "fractions", "heapq", "html", "itertools", "json", "math"),
        *("pprint", "re", "statistics", "string", "textwrap", "typing", "unicodedata"),
    )
)
"""Modules whose results depend on the arguments alone, except for the functions below."""

_DRAWING = frozenset(("frozenset", "getattr", "globals", "hash", "id", "input", "open", "set"))

_PLAIN = _SAME - {"itertools"} | frozenset(
    (
        *("calendar", "datetime", "genericpath", "getpass", "logging", "ntpath", "os", "pathlib"),
        *("platform", "posix", "posixpath", "random", "secrets", "sys", "time", "uuid"),
        *("warnings", "zoneinfo"),
    )
)
"""Modules whose results can be recorded, except for functions that open or iterate."""

_OPEN = frozenset(
    (
        *("aiter", "fdopen", "filter", "finditer", "glob", "iter", "iterdir", "map", "memoryview"),
        *("open", "popen", "rglob", "scandir", "walk"),
    )
)

_PURE = _PLAIN | frozenset(
    (
        *("abc", "argparse", "array", "colorsys", "configparser", "contextlib", "copyreg", "csv"),
        *("difflib", "email", "enum", "fnmatch", "glob", "gzip", "hashlib", "hmac", "io"),
        *("ipaddress", "itertools", "linecache", "locale", "mimetypes", "numbers", "pickle"),
        *("quopri", "reprlib", "shlex", "shutil", "socket", "sqlite3", "stat", "struct"),
        *("subprocess", "tempfile", "traceback", "urllib", "zlib"),
    )
)
"""Functions that call only their arguments, which are examined as well."""

_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes, bytearray, range, deque)
_SCALARS = frozenset((int, float, bool, type(None), complex, *_CONTAINERS))
_INERT = _SCALARS - {set, frozenset, type(None)}
"""Types of values that call nothing and whose order depends on nothing else."""

_SUSPENDED: tuple[type, ...] = (
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    *(map, filter, zip, enumerate, functools.partial),
    *(each for each in vars(itertools).values() if isinstance(each, type)),
)
"""Objects that run user code when they are iterated, awaited or called."""

_ITERABLES: tuple[Any, ...] = (
    *([], (), {}, {}.values(), {}.items(), set(), "", b"", bytearray(), deque()),
    *(reversed([]), range(0), range(1 << 70)),
)
_SET_ITERATOR: type = type(iter(set[int]()))
_PLAIN_ITERATORS = tuple(type(iter(each)) for each in _ITERABLES)

_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)
_RUN_CODE = frozenset({id(exec), id(eval), id(builtins.__import__)})
_MISSING = object()


class Outlook:
    """The expected effect of the code between a point and the next point.

    Args:
        values: the local variables.
        entered: loops and ``with`` statements in which checkpoints can be taken.

    Attributes:
        reach: see :class:`Reach`.
        drawn: whether a second execution may produce other values.
    """

    def __init__(
        self,
        ahead: Ahead,
        values: Mapping[str, Any],
        rewritten: Rewritten,
        entered: Collection[str | int] = (),
    ) -> None:
        self.values, self.namespace = values, rewritten.function.__globals__
        self.is_local = rewritten.variables.__contains__
        self.reach, self.drawn = Reach.NOTHING, False
        # What the outlook rests on; ``None`` if that is more than the names alone.
        self._kinds: list[tuple[str, type]] = []  # of local variables
        self._named: list[tuple[str, Any]] | None = [] if ahead.inner is None else None  # globals
        self._steps: list[tuple[Any, Any]] = []  # of functions; a reloader may replace them
        self.at(ahead, entered)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether all names denote what they did, so that the outlook is the same now.

        Examining the names takes five times as long, and a loop passes the same ones each time.
        """
        if self._named is None:
            return False
        self.values = values
        for name, cls in self._kinds:
            if type(values.get(name)) is not cls:
                return False
        for name, value in self._named:
            if self.value(name) is not value:
                return False
        for function, step in self._steps:  # noqa: SIM110 -- a generator takes twice as long
            if step_of(function) is not step:
                return False
        return True

    def at(self, ahead: Ahead, entered: Collection[str | int]) -> None:
        """Examine the code ahead; a body only if no checkpoint may be taken inside."""
        if ahead.unknown or ahead.generates:
            self.found(Reach.PERHAPS if ahead.unknown else Reach.UNSURE, drawn=True)
        for names, called in ((ahead.called, True), (ahead.used, False)):
            for dotted in names:
                cls = type(self.values.get(dotted))
                if cls in _INERT:  # most names are local variables
                    self._kinds.append((dotted, cls))
                else:
                    self.name(dotted, called=called)
        if ahead.inner is not None and ahead.key not in entered:
            iterable: Any = () if ahead.iterable == "" else _MISSING
            if ahead.iterable:
                iterable = self.value(ahead.iterable)
            if type(iterable) not in _CONTAINERS:
                self.at(ahead.inner, entered)

    def found(self, reach: int, *, drawn: bool = False) -> None:
        self.reach = max(self.reach, reach)
        self.drawn = self.drawn or drawn

    def value(self, name: str) -> Any:
        """Return the value of a name."""
        if name in self.values:
            return self.values[name]
        if self.is_local(name):
            return _MISSING
        value = self.namespace.get(name, _MISSING)
        return getattr(builtins, name, _MISSING) if value is _MISSING else value

    def name(self, dotted: str, *, called: bool) -> None:
        """Examine the object that a dotted name denotes."""
        root, *attributes = dotted.split(".")
        if root[0] == "@":  # the iterator of a loop
            cls = type(self.values.get(root))
            self._kinds.append((root, cls))
            plain = cls in _PLAIN_ITERATORS or cls is Counted
            self.found(Reach.NOTHING if plain else Reach.PERHAPS, drawn=cls is _SET_ITERATOR)
            return
        value = self.value(root)
        if attributes or self.is_local(root):
            self._named = None
        elif self._named is not None:
            self._named.append((root, value))
        for number, name in enumerate(attributes):
            if _is_workflow(type(value)):
                break
            owner, value = value, _attribute(value, name)
            if value is _MISSING:  # created on first access
                self.found(Reach.PERHAPS if called else Reach.UNSURE, drawn=True)
                return
            cls = type(owner)
            of_theirs = issubclass(cls, (type, types.ModuleType)) or _is_of(_PURE, cls)
            if type(value) is types.FunctionType and of_theirs and _is_of(_PURE, value):
                if number == len(attributes) - 1:
                    self.call(value)
                else:
                    self.found(Reach.PERHAPS, drawn=True)
                return
        if attributes or not self.is_local(root):
            self.drawn = self.drawn or not callable(value)
        self.held(value, called=called, attribute=bool(attributes))

    def held(self, value: Any, *, called: bool, attribute: bool) -> None:
        """Examine a value that is named or called."""
        cls = type(value)
        if cls is types.MethodType:
            value, cls = value.__func__, types.FunctionType
        if cls in _SCALARS:
            self.found(Reach.NOTHING, drawn=cls in (set, frozenset))
        elif cls is types.FunctionType and value in may_wait:
            self.found(Reach.WAIT)
        elif cls is types.FunctionType and (step := step_of(value)) is not None:
            self._steps.append((value, step))
            waits = Reach.WAIT if step.approve else Reach.EFFECT  # for a person's answer
            self.found(waits if step.effect else Reach.STEP)
        elif issubclass(cls, types.ModuleType):
            self.found(Reach.NOTHING)
        elif issubclass(cls, functools.partial):
            self._named = None
            self.found(Reach.PERHAPS, drawn=True)
            self.held(value.func, called=True, attribute=False)
        elif _is_workflow(cls):
            self.found(Reach.WAIT)  # a child run, which may wait
        elif _perhaps(value, cls, called=called):
            self.found(Reach.PERHAPS, drawn=True)
        elif called:
            self.call(value)
        elif attribute and not _is_of(_PURE, cls):
            self.found(Reach.UNSURE)

    def call(self, value: Any) -> None:
        """Examine a builtin or a function of the standard library that is called."""
        module, name = _module_of(value), value.__name__
        plain = module in _PLAIN and name not in _OPEN
        same = module in _SAME and name not in _DRAWING
        self.found(Reach.NOTHING if plain else Reach.UNSURE, drawn=not same)


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute without calling any code of the user."""
    if issubclass(type(value), types.ModuleType):
        found = vars(value).get(name, _MISSING)
        if found is _MISSING and vars(value).get("__name__") == "stepwise":
            return getattr(value, name, _MISSING)  # functions that wait are loaded on use
        return found
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    classes = (*(value.__mro__ if issubclass(type(value), type) else ()), *type(value).__mro__)
    for holder in (own, *map(vars, classes)):
        if name in holder:
            found = holder[name]
            if issubclass(type(found), (staticmethod, classmethod)):
                return found.__func__
            return _MISSING if issubclass(type(found), property) else found
    return _MISSING


def _perhaps(value: Any, cls: type, *, called: bool) -> bool:
    """Return whether a value that is neither a step nor plain data may call a step."""
    if cls is types.FunctionType:
        return not _is_of(_PURE, value)
    if issubclass(cls, _C_FUNCTIONS):
        return id(value) in _RUN_CODE
    if issubclass(cls, type):
        return called and not _is_of(_PURE, value)
    suspended = issubclass(cls, _SUSPENDED) or hasattr(cls, "__await__")
    return suspended or hasattr(cls, "__next__") or called


def _is_workflow(cls: type) -> bool:
    return hasattr(cls, "run_id_for")


def _is_of(modules: Collection[str], value: Any) -> bool:
    """Return whether a class or function belongs to one of the modules."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0].lstrip("_") in modules


def _module_of(called: Any) -> str:
    module = getattr(getattr(called, "__objclass__", called), "__module__", None)
    if not isinstance(module, str):  # a method of a builtin object
        module = type(getattr(called, "__self__", None)).__module__
    return module.partition(".")[0].lstrip("_")
