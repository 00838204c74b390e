"""The objects that a call was given, and the paths at which they stood when it began.

A client or a connection has no value that a checkpoint could hold.  Where the call was given it, at
whatever depth (``self.agents[0].client``), the call that resumes the run is given one, too: the
checkpoint names the path.  Paths are taken as the call begins, before anything is moved, so that
none ever leads to the client of another agent.
"""

from __future__ import annotations

import enum
import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepwise._identity.clients import fields_of, is_foreign
from stepwise._values.instances import attributes, by_name
from stepwise._values.synchronizers import is_as_it_was, is_synchronizer, snapshot

__all__ = ["Found", "GivenObjects", "follow", "is_plain", "root_of", "walk", "why_no_handle"]

_MOST = 50_000  # objects of a call that are looked at
_LARGE = 500_000  # plain data, which C looks at
_ATOMS = frozenset(
    (
        *(str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, slice),
        *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType),
    )
)
_NOWHERE = "…"  # in the path to what no path leads to: an item of a set, say
_KEYS = (str, bytes, int, bool, type(None))
_DATA = frozenset({list, dict, tuple, set, frozenset, deque, bytearray})
_SIMPLE = (list, dict, tuple, set, frozenset, deque, types.SimpleNamespace)
_PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__",),
    functools.partial: ("func", "args", "keywords"),
    types.CellType: ("cell_contents",),
    types.FunctionType: ("__closure__", "__defaults__", "__kwdefaults__"),
}
_HANDLES = frozenset(
    (
        *("_asyncio", "_contextvars", "_ctypes", "_io", "_socket", "_sqlite3", "_ssl", "_thread"),
        *("asyncio", "concurrent", "contextvars", "ctypes", "ftplib", "http", "imaplib", "io"),
        *("logging", "multiprocessing", "poplib", "select", "selectors", "smtplib", "socket"),
        *("sqlite3", "ssl", "subprocess", "threading", "urllib", "xmlrpc"),
    )
)
"""Modules of the standard library whose objects stand for something outside of the program."""

_ITERABLES: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items())
_ITERATORS = frozenset((*(type(iter(each)) for each in _ITERABLES), enumerate, reversed, zip))
_PLAIN_STATE = getattr(object, "__getstate__", None)  # since Python 3.11
_MISSING: Any = object()


class Found:
    """An object that a walk has found.

    Args:
        path: to it.
        value: the object itself.
        holder: the object that holds it; ``None`` for a root.
        theirs: the path to the object of an installed package in which it is, and that object.
        is_open: what it holds is found as well; else its path ends here.
    """

    __slots__ = ("holder", "is_open", "path", "theirs", "value")

    def __init__(
        self, path: str, value: Any, holder: Any, theirs: tuple[str, Any] | None, is_open: bool
    ) -> None:
        self.path = path
        self.value = value
        self.holder = holder
        self.theirs = theirs
        self.is_open = is_open

    @property
    def attribute(self) -> str:
        """The name of the attribute that the path ends with; empty if it ends otherwise."""
        return self.path.rpartition(".")[2] if self.path[-1] != "]" else ""


def is_plain(value: object) -> bool:
    """Return whether a value is an instance whose class leaves pickling and state to Python."""
    cls = type(value)
    state = getattr(cls, "__getstate__", None)
    if isinstance(state, types.MethodDescriptorType) and state is not _PLAIN_STATE:
        return False  # laid out by C (a StringIO): its state is not in its attributes
    return (
        getattr(cls, "__reduce_ex__", None) is object.__reduce_ex__
        and getattr(cls, "__reduce__", None) is object.__reduce__
        and "__getnewargs__" not in dir(cls)
        and not isinstance(value, (type, types.ModuleType, types.FunctionType))
        and (hasattr(value, "__dict__") or hasattr(cls, "__slots__"))
    )


# -- walking -------------------------------------------------------------------------------------


def walk(roots: Mapping[str, Any], enters: Callable[[Any], bool] | None = None) -> Iterator[Found]:
    """Yield what values hold, each object once, those of short paths first; but no plain data.

    Opened are containers, functions that have no name to go by, and instances that Python pickles
    by their attributes: one of an installed package only if it is not held by another such one,
    and a known client never.

    Args:
        roots: the values, by their names.
        enters: says of an object that can be opened whether it is; by default it is.
    """
    waiting: deque[Any] = deque((name, value, None, None) for name, value in roots.items())
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        path, value, holder, theirs = waiting.popleft()
        cls: Any = type(value)
        if cls in _ATOMS or issubclass(cls, type) or id(value) in seen:
            continue
        if cls in _DATA and _are_data([value]):
            continue
        seen.add(id(value))
        inner = theirs
        if cls not in _DATA and cls not in _PARTS and cls not in _ITERATORS:
            is_theirs = is_foreign(cls) and not issubclass(cls, _SIMPLE)
            inner = (theirs or (path, value)) if is_theirs else None
        is_whole = theirs is not None and inner is theirs  # the second of theirs in a row
        is_open = _can_be_opened(value, cls, whole=is_whole) and (not enters or enters(value))
        yield Found(path, value, holder, theirs, is_open)
        if is_open:
            inside = _inside(value, cls)
            waiting.extend((f"{path}{step}", each, value, inner) for step, each in inside)


def _can_be_opened(value: Any, cls: Any, *, whole: bool) -> bool:
    if cls is types.FunctionType:
        return by_name(value, value.__module__) is None
    if cls in _DATA or cls in _ITERATORS or cls in _PARTS:
        return True
    if whole or fields_of(cls) is not None or _is_handle(cls):
        return False
    try:
        return isinstance(value, _SIMPLE) or is_plain(value)
    except Exception:  # somebody's __getattribute__
        return False


@functools.lru_cache(maxsize=1000)
def _is_handle(cls: type) -> bool:
    roots = {base.__module__.partition(".")[0] for base in cls.__mro__}
    return not roots.isdisjoint(_HANDLES) or cls.__module__.partition(".")[0] == "stepwise"


def why_no_handle(value: Any) -> str:
    """Return why another object does not do for one that cannot be recorded; empty if it does.

    One that stands for something outside of the program, a client or a connection, does.
    """
    cls: Any = type(value)
    if is_synchronizer(value):
        return "what holds it or waits for it is not recorded"
    if hasattr(cls, "add_done_callback") or isinstance(value, types.CoroutineType):
        return "what it will come to is not recorded"
    if hasattr(cls, "__next__") or hasattr(cls, "__anext__"):
        readable = getattr(value, "readable", None)
        if readable is None or value.closed or readable():
            return "how far it has come is not recorded"
        return ""
    module = cls.__module__.partition(".")[0]
    if module in sys.stdlib_module_names and not _is_handle(cls):
        return "its state is not recorded"
    return ""


def _inside(value: Any, cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the steps that lead there."""
    if cls in _PARTS:
        for name in _PARTS[cls]:
            yield f".{name}", getattr(value, name, None)
        return
    if cls in _ITERATORS:
        for held in gc.get_referents(value):
            yield f".{_NOWHERE}", held
        return
    if isinstance(value, dict):
        for key, held in list(dict.items(value)):
            yield f"[{_key_text(key)}]", held
    elif isinstance(value, (list, tuple, deque)):
        for place, held in enumerate(list(value)):
            yield f"[{place}]", held
    elif isinstance(value, (set, frozenset)):
        for held in list(value):  # it has no order that another process would share
            yield f"[{_NOWHERE}]", held
    if cls not in _DATA:
        for name, held in attributes(value).items():
            yield f".{name if name.isidentifier() else _NOWHERE}", held


def _key_text(key: Any) -> str:
    if isinstance(key, enum.Enum):
        return f"{type(key).__name__}.{key.name}"
    if type(key) in _KEYS or (type(key) is tuple and all(type(each) in _KEYS for each in key)):
        return repr(key)
    return _NOWHERE


def follow(path: str, roots: Mapping[str, Any]) -> Any:
    """Return the object to which a path leads.

    Raises:
        LookupError: it leads nowhere.
    """
    root = root_of(path)
    value, rest = roots[root], path[len(root) :]
    while rest:
        for step, held in _inside(value, type(value)):
            if rest.startswith(step) and rest[len(step) : len(step) + 1] in ("", ".", "["):
                value, rest = held, rest[len(step) :]
                break
        else:
            raise LookupError(path)
    return value


# -- the objects of a call -----------------------------------------------------------------------


class _Standing:
    """An object that a call was given; instances are held weakly, as they might be twins.

    Args:
        before: of an instance, the names of the attributes that were not ``None``; of a lock, an
            event or the like, its state.
    """

    __slots__ = ("before", "holder", "path", "reference")

    def __init__(self, reference: Callable[[], Any], path: str, holder: int, before: Any) -> None:
        self.reference = reference
        self.path = path
        self.holder = holder
        self.before = before


class GivenObjects:
    """The objects that a call was given, but for plain data.

    Args:
        roots: its arguments and captured variables, by their names.
        globals: those of the globals of its module that it names.
    """

    def __init__(self, roots: Mapping[str, Any], globals_: Mapping[str, Any]) -> None:
        self._own = frozenset(roots)
        self._roots = {**globals_, **roots}
        self._nodes: dict[int, _Standing] = {}
        for variables in (roots, globals_):
            if not _are_data(variables.values()):
                for found in walk(variables):
                    self._add(found)

    def _add(self, found: Found) -> None:
        value: Any = found.value
        before: Any = None
        if id(value) in self._nodes:
            return  # a global names it as well
        if type(value) in _DATA:
            reference: Any = functools.partial(_itself, value)
        else:
            if is_synchronizer(value):
                before = snapshot(value)
            elif found.is_open and type(value) not in _PARTS:
                held = attributes(value)
                before = frozenset(name for name in held if held[name] is not None)
            try:
                reference = weakref.ref(value)
            except TypeError:
                reference = functools.partial(_itself, value)
        self._nodes[id(value)] = _Standing(reference, found.path, id(found.holder), before)

    def _node(self, value: Any) -> _Standing | None:
        node = self._nodes.get(id(value))
        return node if node is not None and node.reference() is value else None

    def path_of(self, value: Any) -> str | None:
        """Return the path at which an object stood when the call began; ``None`` if at none."""
        node = self._node(value)
        return node.path if node is not None and _NOWHERE not in node.path else None

    def has(self, value: Any) -> bool:
        """Return whether the call was given an object, and not by a global alone."""
        node = self._node(value)
        return node is not None and root_of(node.path) in self._own

    def is_made_anew(self, holder: Any, attribute: str) -> bool:
        """Return whether the fresh instance of another call makes an attribute by itself.

        So it is where the attribute was missing, or ``None``, in the beginning, and in what an
        installed package does with an object of its own.
        """
        node = self._node(holder)
        if node is None or not attribute:
            return False
        cls: Any = type(holder)
        return is_foreign(cls) or attribute not in (node.before or ())

    def is_as_it_was(self, value: Any, entered: int) -> bool:
        """Return whether a given lock, event or the like has the state it had in the beginning."""
        node = self._node(value)
        return node is not None and is_as_it_was(value, node.before, entered)

    def way_to(self, value: Any) -> dict[str, Any]:
        """Return the objects that held a given one, directly or not, by their paths.

        None of them if a global holds it: others may use that.
        """
        way: dict[str, Any] = {}
        node = self._node(value)
        if node is None or root_of(node.path) not in self._own:
            return way
        while (node := self._nodes.get(node.holder)) is not None:
            held = node.reference()
            if held is not None and _NOWHERE not in node.path:
                way[node.path] = held
        return way

    def at(self, path: str) -> Any:
        """Return what stands at a path; ``None`` if nothing does."""
        try:
            return follow(path, self._roots)
        except LookupError:
            return None


def root_of(path: str) -> str:
    """Return the name of the variable with which a path begins."""
    return path.partition(".")[0].partition("[")[0]


def _itself(value: Any) -> Any:
    return value


def _are_data(values: Iterable[Any]) -> bool:
    """Return whether values consist of plain data alone: they are looked at in C, all at once."""
    seen: set[int] = set()
    level = list(values)
    while level:
        inside = {id(each): each for each in level if type(each) not in _ATOMS}
        if not _DATA.issuperset(map(type, inside.values())):
            return False
        new = [each for here, each in inside.items() if here not in seen]
        seen.update(map(id, new))
        if len(seen) > _LARGE:
            return True  # what is in there is no target
        level = gc.get_referents(*new) if new else []
    return True
