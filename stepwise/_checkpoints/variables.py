"""The local variables of a workflow function, to bytes and back into a live frame.

One pickle holds all variables, so that shared objects stay shared.  The pickle refers to these
objects instead of storing their values:

- *cells*: the frame's own cells and the cells that its function closes over, so that nested
  functions still share variables with the frame;
- mutable *arguments*, and the mutable objects that ``self`` holds: the caller's objects keep their
  identity and get their contents back in place;
- attributes of ``self`` that do not pickle: they keep the value of the fresh object;
- functions of the workflow's own modules: they run on the live globals, not on a copy of them;
- unpicklable instances that a global of the module names (a client): the run gets today's object;
- instances that globals hold: the run gets today's, unless it differs from the recorded one;
- objects that a ``@stepwise.resource`` factory made: the factory is called again;
- the secrets of the call, also inside texts: the call that resumes the run passes them again;
- values that the journal or a chunk already holds (see ``references``).

A client or a connection has no value that a checkpoint could hold.  If the call was given one, at
any depth (``self.agents[0].client``), the call that resumes the run is given one, too: the
checkpoint names the path.  Paths are noted as the call begins, before anything is moved, so that no
path leads to the client of another agent.

Bytes are loaded only after their envelope was verified.

:func:`dump_graph` and :func:`load_graph` do the same for any object, and replace named objects by
their names.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import enum
import functools
import gc
import pickle
import sys
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from stepwise._checkpoints.references import Reader, References
from stepwise._checkpoints.resources import SdkClients, made_by
from stepwise._identity.call_parts import same_code
from stepwise._identity.clients import fields_of, has_key, is_foreign
from stepwise._rewrite.build import codes_within, names_within
from stepwise._runtime.facts import NamedTuple
from stepwise._values import preview
from stepwise._values.codec import PROTOCOL, Reducers, dump, pickles
from stepwise._values.data import parameter_types
from stepwise._values.preview import error_text
from stepwise._values.reducers import (
    is_as_it_was,
    is_synchronizer,
    put_state,
    snapshot,
    state_of,
    synchronizer_form,
)
from stepwise._values.trees import ITERATORS, attributes, by_name, few, look_for, place_of
from stepwise._values.unpickling import Data, Unpickler

# -- objects that a call was given ----------------------------------------------------------------


_MOST = 50_000  # objects of a call that are examined
_FEW = 100  # objects whose identity is kept
_LARGE = 500_000  # items of plain data, examined in C
_ATOMS = frozenset(
    (
        *(str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, slice),
        *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType),
    )
)
_NOWHERE = "…"  # in the path of an object without a real path, such as an item of a set
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
"""Modules of the standard library whose objects represent something outside the program."""

_ITERABLES: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items())
_ENTERED = frozenset(
    (*(type(iter(each)) for each in _ITERABLES), enumerate, reversed, zip)
)  # iterators that a walk enters
_PLAIN_STATE = getattr(object, "__getstate__", None)  # since Python 3.11


class Found(NamedTuple):
    """An object that a walk has found.

    Args:
        path: the path to the object.
        value: the object itself.
        holder: the object that holds it; ``None`` for a root.
        theirs: the path to the enclosing object of an installed package, and that object.
        is_open: True if its contents are walked as well; otherwise its path ends here.
    """

    path: str
    value: Any
    holder: Any
    theirs: tuple[str, Any] | None
    is_open: bool

    @property
    def attribute(self) -> str:
        """The name of the attribute that the path ends with; empty for other paths."""
        return self.path.rpartition(".")[2] if self.path[-1] != "]" else ""


def is_plain(value: object) -> bool:
    """Return whether a value is an instance whose class leaves pickling and state to Python."""
    cls = type(value)
    state = getattr(cls, "__getstate__", None)
    if isinstance(state, types.MethodDescriptorType) and state is not _PLAIN_STATE:
        return False  # laid out in C (a StringIO): its state is not in its attributes
    return (
        getattr(cls, "__reduce_ex__", None) is object.__reduce_ex__
        and getattr(cls, "__reduce__", None) is object.__reduce__
        and not isinstance(value, (type, types.ModuleType, types.FunctionType))
        and (hasattr(value, "__dict__") or hasattr(cls, "__slots__"))
        and "__getnewargs__" not in dir(cls)  # the slowest question
    )


# -- walking -------------------------------------------------------------------------------------


def walk(roots: Mapping[str, Any], enters: Callable[[Any], bool] | None = None) -> Iterator[Found]:
    """Yield the objects in values, each once and short paths first, without plain data.

    The walk opens containers, functions without an importable name, and instances that Python
    pickles by their attributes.  An instance of an installed package is opened only if no other
    such instance holds it.  A known client is never opened.

    Args:
        roots: the values, by their names.
        enters: returns whether to open an object that can be opened; by default all are opened.
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
        if cls not in _DATA and cls not in _PARTS and cls not in _ENTERED:
            is_theirs = is_foreign(cls) and not issubclass(cls, _SIMPLE)
            inner = (theirs or (path, value)) if is_theirs else None
        is_whole = theirs is not None and inner is theirs  # the second such object in a row
        is_open = _can_be_opened(value, cls, whole=is_whole) and (not enters or enters(value))
        yield Found(path, value, holder, theirs, is_open)
        if is_open:
            inside = _inside(value, cls)
            waiting.extend((f"{path}{step}", each, value, inner) for step, each in inside)


def _can_be_opened(value: Any, cls: Any, *, whole: bool) -> bool:
    if cls is types.FunctionType:
        return by_name(value, value.__module__) is None
    if cls in _DATA or cls in _ENTERED or cls in _PARTS:
        return True
    if whole or fields_of(cls) is not None or _is_handle(cls):
        return False
    try:
        return isinstance(value, _SIMPLE) or is_plain(value)
    except Exception:  # a user's __getattribute__ may raise
        return False


@functools.lru_cache(maxsize=1000)
def _is_handle(cls: type) -> bool:
    roots = {base.__module__.partition(".")[0] for base in cls.__mro__}
    return not roots.isdisjoint(_HANDLES) or cls.__module__.partition(".")[0] == "stepwise"


def _why_no_handle(value: Any) -> str:
    """Return why another object cannot replace an unrecordable one; empty if it can.

    A replacement works for objects that represent something outside the program, such as a client
    or a connection.
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
    """Yield the contents of an object, with the steps that lead there."""
    if cls in _PARTS:
        for name in _PARTS[cls]:
            yield f".{name}", getattr(value, name, None)
        return
    if cls in _ENTERED:
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
        for held in list(value):  # a set has no order that another process would share
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
        LookupError: the path leads nowhere.
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


class _Standing(NamedTuple):
    """An object that a call was given; instances are held weakly, as they might be twins.

    Args:
        holder: the id of the object that holds it.
        before: for an instance, the names of the attributes that were not ``None``; for a lock, an
            event or the like, its state.
    """

    reference: Callable[[], Any]
    path: str
    holder: int
    before: Any


class _GivenObjects:
    """The objects that a call was given, without plain data.

    Args:
        roots: its arguments and captured variables, by their names.
        globals: the globals of its module that it names.
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
        """Return an object's path at the beginning of the call, or ``None`` if it had no path."""
        node = self._node(value)
        return node.path if node is not None and _NOWHERE not in node.path else None

    def has(self, value: Any) -> bool:
        """Return whether the call was given an object, other than by a global alone."""
        node = self._node(value)
        return node is not None and root_of(node.path) in self._own

    @functools.cached_property
    def _large(self) -> frozenset[str]:
        """The globals that hold more objects than those whose identity is kept."""
        counts = Counter(root_of(each.path) for each in self._nodes.values())
        return frozenset(root for root, count in counts.items() if count > _FEW)

    def in_module(self, value: Any) -> str | None:
        """Return the path to an instance of the user's classes that a global alone holds.

        Return ``None`` as well if that global holds many objects.
        """
        node = self._node(value)
        root = root_of(node.path) if node is not None and _NOWHERE not in node.path else ""
        if node is None or not root or root in self._own or root in self._large:
            return None
        cls = type(value)
        if cls in _DATA or cls in copyreg.dispatch_table or is_foreign(cls):
            return None
        return node.path if is_plain(value) and place_of(value) is None else None

    def instances(self, names: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Yield the instances of the user's classes in variables, by path, if there are few."""
        found = [each for each in self._nodes.values() if root_of(each.path) in names]
        for each in found if len(found) <= _FEW else ():
            value = each.reference()
            is_own = type(each.before) is frozenset and not is_foreign(type(value))
            if is_own and is_plain(value) and _NOWHERE not in each.path:
                yield each.path, value

    def is_made_anew(self, holder: Any, attribute: str) -> bool:
        """Return whether the fresh instance of another call creates an attribute itself.

        That is so if the attribute was missing or ``None`` in the beginning, and for attributes of
        objects of installed packages.
        """
        node = self._node(holder)
        if node is None or not attribute:
            return False
        cls: Any = type(holder)
        return is_foreign(cls) or attribute not in (node.before or ())

    def is_as_it_was(self, value: Any, entered: int) -> bool:
        """Return whether a given lock, event or the like has its initial state."""
        node = self._node(value)
        return node is not None and is_as_it_was(value, node.before, entered)

    def way_to(self, value: Any) -> dict[str, Any]:
        """Return the objects that held a given object, directly or not, by their paths.

        The result is empty if a global holds the object: others may use it.
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
        """Return the object at a path, or ``None`` if there is none."""
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
    """Return whether values consist of plain data alone, examined in C level by level."""
    seen: set[int] = set()
    level = list(values)
    while level:
        inside = {id(each): each for each in level if type(each) not in _ATOMS}
        if not _DATA.issuperset(map(type, inside.values())):
            return False
        new = [each for here, each in inside.items() if here not in seen]
        seen.update(map(id, new))
        if len(seen) > _LARGE:
            return True  # large data holds no targets
        level = gc.get_referents(*new) if new else []
    return True


# -- surroundings ---------------------------------------------------------------------------------


_NATIVE = (list, dict, set, bytearray)
"""Types that are pickled without asking the reducers."""

COLLECTIONS = (*_NATIVE, deque)
"""Types of arguments whose contents are restored in place."""

_NOTHING: Mapping[str, Any] = {}


class Surroundings:
    """The objects that the variables of one frame may refer to.

    Args:
        cells: the cells of the frame, by the name of the variable; cells that its function closes
            over under ``.name``.
        arguments: mutable objects that the caller passed in, by name; objects that ``self`` holds
            under ``self.name``.
        namespace: the globals of the workflow's module.
        given: the objects that the call was given, at any depth; ``None`` if unknown.
        taken: given objects without a recordable value, by their paths: the call that resumes the
            run gives them.  Their initial holders are among the arguments.
        kept: attributes of arguments (``self.name``) that do not pickle, with the reason; they keep
            the value of the fresh object.
        stored: the names of the attributes that the function itself assigns.
        clients: returns the object that recreates clients of known packages.
        entered: how many times the open ``with`` blocks have entered a lock, by its id.
        references: references to values that are already stored.
        subjects: the instances whose calls the run knows, with their serial numbers.
        constants: dotted names in the function of texts, and of objects that only another module
            names.
        function: the function with these parameters.
        secret: the secrets of the call by name; they are not among the arguments.

    Attributes:
        classes: the classes of objects that were pickled.
        linked: containers that variables share with the module, by their paths, while they are
            loaded.
        today: the module's containers by their paths, likewise.
        circular: globals with instances that hold each other, which are stored by their values.
    """

    def __init__(
        self,
        cells: dict[str, types.CellType] | None = None,
        arguments: dict[str, Any] | None = None,
        namespace: Mapping[str, Any] | None = None,
        *,
        function: Callable[..., Any] | None = None,
        secret: Mapping[str, Any] | None = None,
    ) -> None:
        self.cells = {} if cells is None else cells
        self.arguments = {} if arguments is None else arguments
        self.namespace = {} if namespace is None else namespace
        self.given: _GivenObjects | None = None
        self.taken: dict[str, Any] = {}
        self.entered: Mapping[int, int] = _NONE_ENTERED
        self.clients: Callable[[], SdkClients] | None = None
        self.kept: dict[str, tuple[Any, str]] = {}
        self.stored: frozenset[str] = frozenset()
        self.references: References | None = None
        self.subjects: Any = None
        self.classes: set[type] = set()
        self.linked: dict[str, Any] = {}
        self.today: dict[str, Any] = {}
        self.circular: set[str] = set()
        self.function = function
        self.code: types.CodeType | None = None
        self.constants: Sequence[str] = ()
        self.secret = {} if secret is None else secret
        self._set_secrets_apart()

    def _set_secrets_apart(self) -> None:
        for name, value in self.secret.items():
            self.arguments.pop(name, None)
            if name.startswith("self."):
                self.kept[name] = value, "it is a secret"

    def holding(self, arguments: dict[str, Any]) -> Surroundings:
        """Return a copy with other arguments, which shares everything else."""
        other = copy.copy(self)
        other.arguments = arguments
        other._set_secrets_apart()
        return other

    @property
    def annotated(self) -> dict[str, Any]:
        """The annotated types of the parameters."""
        return parameter_types(self.function) if self.function is not None else {}

    @classmethod
    def of(
        cls,
        function: types.FunctionType,
        captured: Callable[[], Any] | None,
        bound: Mapping[str, Any],
        instance: object,
        secret: Mapping[str, Any],
    ) -> Surroundings:
        """Return the surroundings for a call of ``function``.

        Args:
            captured: closes over the variables of the frame that nested functions share.
            bound: the arguments by name, without ``self``.
            instance: ``self``.
            secret: the secrets of the call by name.
        """
        cells = _cells_of(captured) if captured is not None else {}
        cells.update({f".{name}": cell for name, cell in _cells_of(function).items()})
        look_for(function.__globals__)
        arguments = cls.mutable(bound, instance)
        # Of a lock only what the run did is restored: it may be entered again, or be shared.
        arguments = {n: each for n, each in arguments.items() if not is_synchronizer(each)}
        around = cls(cells, arguments, function.__globals__, secret=secret)
        around.code = function.__code__
        around.constants = _constants_of(function)
        roots = _roots(function, bound, instance, secret)
        around.given = _GivenObjects(roots, _globals_of(function))
        for path, value in around.given.instances({*bound, "self"}):
            if not any(map(path.startswith, secret)):
                around.arguments.setdefault(path, value)
        return around

    @classmethod
    def of_call(
        cls,
        bound: Mapping[str, Any],
        instance: object = None,
        function: Callable[..., Any] | None = None,
        secret: Mapping[str, Any] = _NOTHING,
    ) -> Surroundings:
        """Return the mutable arguments of a call of ``function`` that has these secrets."""
        return cls(arguments=cls.mutable(bound, instance), function=function, secret=secret)

    @staticmethod
    def mutable(bound: Mapping[str, Any], instance: object) -> dict[str, Any]:
        """Return the mutable objects that a call was given, by name."""
        arguments = {name: value for name, value in bound.items() if _is_mutable(value)}
        if instance is not None and _is_mutable(instance):
            arguments["self"] = instance
            for name, value in attributes(instance).items():
                if _is_mutable(value):
                    arguments[f"self.{name}"] = value
        return arguments

    def as_now(self, code: types.CodeType) -> types.CodeType:
        """Return the code of a function inside the workflow with its current lines."""
        inside = codes_within(self.code) if self.code is not None else ()
        equal = [each for each in inside if same_code(each, code)]
        equal.sort(key=lambda each: each.co_firstlineno != code.co_firstlineno)
        return equal[0] if equal else code

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yield the existing constants, by name."""
        for name in self.constants:
            value = self.at(name)
            if value is not None:
                yield name, value

    def at(self, dotted: str) -> Any:
        """Return the object that a dotted name of the module leads to, or ``None``."""
        name, _, attribute = dotted.partition(".")
        value = self.namespace.get(name)
        return value if not attribute else getattr(value, "__dict__", _NOTHING).get(attribute)

    def take(self, path: str, value: Any) -> None:
        """Leave an object to the call that resumes the run, which gives it.

        The objects through which this call was given the object become arguments, so that outside
        references to them stay valid.
        """
        assert self.given is not None
        self.arguments = {n: each for n, each in self.arguments.items() if each is not value}
        self.taken[path] = value
        self._add(self.given.way_to(value))

    def sets_apart(self, each: Found, met: Mapping[int, Found]) -> bool:
        """Set an object apart if the new call gives it, or creates it on first use.

        Return whether the object was set apart.

        Args:
            met: objects that hold it and others, by their ids.
        """
        given = self.given
        assert given is not None
        path = given.path_of(each.value)
        if path is not None:
            if not _why_no_handle(each.value):
                self.take(path, each.value)
                return True
            return False
        while id(each.holder) in met and given.path_of(each.holder) is None:
            each = met[id(each.holder)]  # its holder was created in the run as well
        if not given.is_made_anew(each.holder, each.attribute) or each.attribute in self.stored:
            return False  # or the function itself puts it there
        self.hold(each.holder)
        names = [name for name, value in self.arguments.items() if value is each.holder]
        self.kept.update((f"{name}.{each.attribute}", (each.value, "")) for name in names)
        return bool(names)

    def hold(self, value: Any) -> None:
        """Make a given object an argument, and the objects through which the call was given it."""
        assert self.given is not None
        path = self.given.path_of(value)
        self._add({**self.given.way_to(value), **({path: value} if path is not None else {})})

    def _add(self, way: Mapping[str, Any]) -> None:
        known = {*map(id, self.arguments.values()), *map(id, self.taken.values())}
        new = {n: each for n, each in way.items() if id(each) not in known and _is_mutable(each)}
        self.arguments = {**self.arguments, **new}

    def kinds(self) -> dict[str, str]:
        """Return the class names of the arguments and the taken objects, by name."""
        kinds = {name: _kind(value) for name, value in self.arguments.items()}
        if self.taken:
            kinds.update((name, _TAKEN + _kind(value)) for name, value in self.taken.items())
        return kinds

    def only(self, kinds: Mapping[str, str]) -> Surroundings:
        """Return a copy with the objects of these names and kinds, as far as the call gives them.

        They are looked up before any of them is changed.
        """
        found: dict[str, Any] = {}
        taken: dict[str, Any] = {}
        for name, kind in kinds.items():
            value = self.arguments.get(name)
            if value is None and self.given is not None:
                value = self.given.at(name)
            if value is not None and _kind(value) == kind.removeprefix(_TAKEN):
                (taken if kind.startswith(_TAKEN) else found)[name] = value
        other = self.holding(found)
        other.taken = taken
        return other


def class_of_kind(kind: str) -> str:
    """Return the full name of the class for a kind of :meth:`Surroundings.kinds`."""
    return kind.removeprefix(_TAKEN).replace(":", ".")


_NONE_ENTERED: Mapping[int, int] = {}
_TAKEN = "="  # before the kind of an object that the new call has to give


def _kind(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _cells_of(function: Any) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _roots(
    function: Any, bound: Mapping[str, Any], instance: object, secret: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the variables that a call of a function was given."""
    roots = {name: value for name, value in bound.items() if name not in secret}
    if instance is not None:
        roots["self"] = instance
    for name, cell in _cells_of(function).items():
        with contextlib.suppress(ValueError):  # the cell has no value yet
            roots.setdefault(name, cell.cell_contents)
    return roots


def _globals_of(function: Any, *, code: bool = False) -> dict[str, Any]:
    """Return the globals that a function names; modules, classes and functions only as ``code``."""
    namespace, names = function.__globals__, names_within(function.__code__)
    found = {name: namespace[name] for name in names if name in namespace}
    return {name: value for name, value in found.items() if code or not isinstance(value, _CODE)}


def _constants_of(function: Any) -> list[str]:
    """Return the names of the module's texts, and of imported modules' texts and containers.

    Only names in the function count, and a text only by a name in capitals, since others are
    variables.
    """
    found, linked = [], (str, *COLLECTIONS)
    for name, value in _globals_of(function, code=True).items():
        if type(value) is str and name.isupper():
            found.append(name)
        elif type(value) is types.ModuleType:
            held = vars(value)
            found += [
                f"{name}.{each}"
                for each in names_within(function.__code__)
                if type(held.get(each)) in linked
                and (each.isupper() or type(held[each]) is not str)
            ]
    return found


_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def _is_mutable(value: object) -> bool:
    return (type(value) in COLLECTIONS or is_plain(value)) and place_of(value) is None


# -- variables, out -------------------------------------------------------------------------------


_LINKED = frozenset(COLLECTIONS)
_LINKABLE = _LINKED | {str}
_newobj: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_LINK = "@module "
"""The beginning of the name of a module's container in a pickle."""
_MOST_LINKED = 1000


Culprits = dict[str, tuple[Any, str]]
"""Objects, with the reasons, by the paths to them."""


class UnpicklableError(Exception):
    """Objects that cannot be part of a checkpoint, by their paths, each with the reason."""

    def __init__(self, culprits: Culprits) -> None:
        super().__init__(", ".join(culprits))
        self.culprits = culprits


class _CircularError(Exception):
    """Instances of a global hold each other; the argument is the name of the global."""


class FrameReducers(Reducers):
    """The reduction of a frame's variables for a pickle.

    An argument is reduced to its name, the first time with its contents.  So on loading the
    argument is complete before dependent objects are made (an iterator over a list, say).

    Args:
        with_contents: false to reduce arguments to their names alone.
        linked: the module's containers that variables hold, by their paths.

    Attributes:
        numbered: the instances met whose calls the run knows, with their numbers.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        with_contents: bool = True,
        linked: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.around = around
        self.linked = {id(value): path for path, value in linked.items()}
        self.cells = {id(cell): name for name, cell in around.cells.items()}
        self.arguments: dict[int, str] = {}
        for name, value in around.arguments.items():
            self.arguments.setdefault(id(value), name)
        self.taken = {id(value): path for path, value in around.taken.items()}
        self.globals: dict[int, str] | None = None
        self.references = around.references
        # Not a generator expression: any() stops early, and a Ctrl-C would be lost in its close.
        native = not set(_NATIVE).isdisjoint(map(type, around.arguments.values()))
        self.identifies = native or bool(self.references) or bool(linked)
        self.secrets = preview.SecretReferences(around.secret) if around.secret else None
        self.identifies_all = self.secrets is not None
        self.keeps_links = self.references is not None  # else not a checkpoint of a frame
        self.with_contents = with_contents
        self.met: set[str] = set()
        self.subjects = around.subjects
        self.numbered: list[tuple[tuple[int, ...], Any]] = []

    def begin(self) -> None:
        self.met.clear()
        self.numbered.clear()
        if self.references is not None:
            self.references.begin()

    def identity(self, obj: Any) -> Any:
        if self.secrets is not None and (secret := self.secrets.of(obj)) is not None:
            return secret
        name = self.arguments.get(id(obj))
        if name is not None:
            if name not in self.met:
                self.note(obj)
            return name, _class_of(obj), self.content(name, obj)
        if id(obj) in self.linked:
            name = _LINK + self.linked[id(obj)]
            content = None if name in self.met else content_of(name, obj, self.around)
            self.met.add(name)
            return name, type(obj), content
        return self.references.identity(obj) if self.references is not None else None

    def arrays(self) -> Iterator[Any]:
        return self.references.arrays() if self.references is not None else iter(())

    def takes(self, buffer: pickle.PickleBuffer) -> bool:
        with memoryview(buffer) as view:
            one_piece = view.contiguous  # pickle itself rejects other buffers
        return one_piece and self.references is not None and self.references.takes(buffer.raw())

    def content(self, name: str, obj: Any) -> Any:
        if name in self.met or not self.with_contents:
            return None
        self.met.add(name)
        if type(obj) is list and self.references is not None:
            return self.references.content(obj)
        return content_of(name, obj, self.around)

    def note(self, obj: Any) -> None:
        """Remember an instance whose calls the run knows."""
        serials = self.subjects.serials(obj) if self.subjects is not None else ()
        if serials:
            self.numbered.append((serials, obj))

    def special(self, obj: Any) -> Any:
        cls = type(obj)
        self.around.classes.add(cls)
        self.note(obj)
        if cls is types.CellType:
            return self.cell(obj)
        if cls is types.FunctionType:
            return self.function(obj)
        name = self.arguments.get(id(obj))
        if name is not None:
            form: Any = _argument, (name, _class_of(obj)), self.content(name, obj)
            return (*form, None, None, _refill)
        if isinstance(obj, BaseException):
            from stepwise._checkpoints.exceptions import raised_form  # on use: few are variables

            return raised_form(obj)
        return self.resource(obj, cls)

    def reduce(self, obj: Any) -> Any:
        """See ``pickle.Pickler.reducer_override``."""
        form = super().reduce(obj)
        by_state = form is NotImplemented or (type(form) is tuple and form[0] is _newobj)
        return self.instance(obj, form) if by_state else form

    def instance(self, obj: Any, form: Any) -> Any:
        """Reduce an instance that a global of the module holds, with its path; leave others."""
        given = self.around.given
        path = given.in_module(obj) if given is not None and self.with_contents else None
        if path is None or root_of(path) in self.around.circular:
            return form
        if path in self.met:  # its own contents hold it
            raise _CircularError(root_of(path))
        self.met.add(path)
        form = obj.__reduce_ex__(PROTOCOL) if form is NotImplemented else form
        return _instance, (path, type(obj), _contents(form))

    def resource(self, obj: Any, cls: type) -> Any:
        """Reduce an object that is not pickled by its contents, or return ``NotImplemented``.

        Such objects are locks, objects that the new call passes, products of a factory, and
        unpicklable objects that a global names.  A client of an SDK is made again from its options.
        """
        path = self.taken.get(id(obj))
        if self.around.given is not None and is_synchronizer(obj):
            return self.synchronizer(obj, path)
        if path is not None:
            return _taken, (path, _name_of(cls))
        form: Any = made_by(obj)
        given = self.around.given
        is_given = given is not None and given.has(obj)
        if form is None and not is_given and not isinstance(obj, (type, types.ModuleType)):
            name = self.global_name(obj)
            if name is not None and not pickles(obj):
                form = _global, (name,)
        if form is None and (has_key(cls) or cls.__name__ == "MissingClient"):
            clients = self.around.clients
            is_made = clients is not None and (given is None or given.path_of(obj) is None)
            options = clients().options_of(obj) if clients is not None and is_made else None
            if options is not None:
                return _client, tuple(options)
            raise pickle.PicklingError(
                "it is not made of options and of a key that the environment gives, alone"
            )
        return NotImplemented if form is None else form

    def synchronizer(self, obj: Any, path: str | None) -> Any:
        """Reduce a lock, event or the like to its state.

        A lock that the caller passed stays the object of the new call.  The lock's state is
        restored only if the run changed it, since other code may share the lock.
        """
        around, entered = self.around, self.around.entered.get(id(obj), 0)
        assert around.given is not None
        path = path or around.given.path_of(obj)
        if path is None:
            return synchronizer_form(obj, entered)
        around.taken[path] = obj
        made = _taken, (path, _name_of(type(obj)))
        if around.given.is_as_it_was(obj, entered):
            return made
        return (*made, state_of(obj, entered), None, None, put_given_state)

    def cell(self, cell: types.CellType) -> Any:
        name = self.cells.get(id(cell))
        if name is not None:
            return _cell, (name,)
        try:
            content: tuple[Any, ...] = (cell.cell_contents,)
        except ValueError:
            content = ()
        # A state setter fills the cell: a function is often in the cell that it closes over.
        return types.CellType, (), content, None, None, _fill_cell

    def function(self, function: types.FunctionType) -> Any:
        """Reduce a function that has no name; it is loaded with the live globals of its module."""
        module = function.__module__
        if by_name(function, module) is not None:
            return NotImplemented
        holder = sys.modules.get(module)
        if holder is None or function.__globals__ is not holder.__dict__:
            return NotImplemented
        state = {
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__qualname__": function.__qualname__,
            "__doc__": function.__doc__,
            "__annotations__": _annotations(function),
            "__dict__": function.__dict__,
        }
        made = (function.__code__, module, function.__name__, function.__closure__)
        return _function, made, state, None, None, _set_attributes

    def global_name(self, obj: Any) -> str | None:
        if self.globals is None:
            namespace = self.around.namespace
            self.globals = {id(value): name for name, value in namespace.items()}
        return self.globals.get(id(obj))


def dump_few(values: Mapping[str, Any], around: Surroundings) -> bytes | None:
    """Pickle local variables that are few and plain, as in most checkpoints.

    Return ``None`` for other variables.  :func:`load_values` reads this pickle and that of
    :func:`dump_values` in the same way.
    """
    if around.arguments or around.secret:
        return None
    if not few(values.values()) or _linked_by(values, links := _links(values, around)):
        return None
    places = {name: _place(each) for name, each in values.items() if type(each) in ITERATORS}
    kept = {**values, **dict.fromkeys(places)} if places else values
    return pickle.dumps((kept, [], links, [], places), PROTOCOL)


def _place(iterator: Any) -> tuple[Any, ...]:
    """Return what an iterator iterates over, and how far it is.

    An iterator pickles as a call of ``iter`` by its name, which takes six times as long.
    """
    _, (iterated,), *place = iterator.__reduce__()
    parts: tuple[Any, ...] = (iterated,)
    if type(iterated) is range:  # likewise
        parts = iterated.start, iterated.stop, iterated.step
    return (*parts, place[0] if place else None)


def _iterator_at(*parts: Any) -> Any:
    """Return the iterator at a place that :func:`_place` returned."""
    *iterated, place = parts
    iterator: Any = iter(range(*iterated) if len(iterated) > 1 else iterated[0])
    if place is not None:
        iterator.__setstate__(place)
    return iterator


def dump_values(values: Mapping[str, Any], around: Surroundings) -> Data:
    """Pickle local variables, and the contents of the arguments.

    Raises:
        UnpicklableError: some variables do not pickle; names them, with the reasons.
    """
    while True:
        links = _links(values, around)
        reducers = FrameReducers(around, linked=_linked_by(values, links))
        # The numbered instances come last: the list is complete when pickle reaches it.
        whole = (dict(values), list(around.arguments.values()), links, reducers.numbered)
        try:
            return dump(whole, reducers)
        except MemoryError:
            raise
        except _CircularError as error:
            around.circular.add(*error.args)
        except Exception as error:
            found, others = (_without if around.given is None else _set_apart)(values, around)
            if found or not others:
                raise UnpicklableError(found or {"?": (None, error_text(error))}) from error


def dump_arguments(around: Surroundings) -> Data:
    """Return the contents of the arguments, as far as they can be recorded."""
    left = around
    while left.arguments:
        try:
            return dump_values({}, left)
        except UnpicklableError as error:
            kept = {n: v for n, v in left.arguments.items() if n not in error.culprits}
            if len(kept) == len(left.arguments):
                break
            left = left.holding(kept)
    return b""


def _without(values: Mapping[str, Any], around: Surroundings) -> tuple[Culprits, bool]:
    """Leave out attributes of arguments that do not pickle, if the call's objects are unknown.

    Returns:
        the variables that do not pickle, and whether there is less to pickle now.
    """
    contents = {n: content_of(n, value, around) for n, value in around.arguments.items()}
    collections = {n: each[2] if type(each) is tuple else each for n, each in contents.items()}
    found = {**_culprits(values, around), **_culprits(collections, around)}
    kept = _culprits(_attributes(contents), around)
    is_less = bool(kept.keys() - around.kept.keys())
    around.kept.update(kept)
    return found, is_less


def _set_apart(values: Mapping[str, Any], around: Surroundings) -> tuple[Culprits, bool]:
    """Set apart the unpicklable objects that the new call passes or creates anew.

    Returns:
        the objects that cannot be recorded, by their paths, and whether any object was set apart.
    """
    met: dict[int, Found] = {}
    waiting, is_any, is_new = list(_unpicklable(values, around, met)), False, True
    while is_new and waiting:
        is_new, others = False, []
        for each, _ in waiting:
            why = _reason(each.value, around)
            if why and around.sets_apart(each, met):
                is_any = is_new = True
            elif why:
                others.append((each, why))
        waiting = others
    found = {}
    for each, why in waiting:
        assert around.given is not None
        path = around.given.path_of(each.value)
        if path is not None:
            found[path] = each.value, _why_no_handle(each.value) or why
        else:
            place, value = each.theirs or (each.path, each.value)
            found[place] = value, why
    if not found and not is_any:
        contents = {n: content_of(n, value, around) for n, value in around.arguments.items()}
        found = {**_culprits(values, around), **_culprits(_attributes(contents), around)}
    return found, is_any


def _unpicklable(
    values: Mapping[str, Any], around: Surroundings, met: dict[int, Found]
) -> Iterator[tuple[Found, str]]:
    """Yield the objects among variables and arguments that do not pickle, with the reasons.

    Args:
        met: receives all objects that were examined, by their ids.
    """
    left_out = {id(each) for each in (*around.taken.values(), *around.secret.values())}
    left_out.update(id(value) for value, _ in around.kept.values())
    arguments = set(map(id, around.arguments.values()))

    def enters(value: Any) -> bool:
        if id(value) in left_out:
            return False
        own = getattr(type(value), "__getstate__", None)  # what this omits need not pickle
        is_own = isinstance(own, types.FunctionType) and id(value) not in arguments
        return not (is_own and not _reason(value, around))

    for each in walk({**around.arguments, **values}, enters):
        met[id(each.value)] = each
        if not each.is_open and id(each.value) not in left_out:
            why = _reason(each.value, around)
            if why:
                yield each, why


def _reason(value: Any, around: Surroundings) -> str:
    """Return why an object does not pickle; empty if the object does."""
    try:
        dump(value, FrameReducers(around, with_contents=False))
    except MemoryError:
        raise
    except Exception as error:
        return error_text(error) or type(error).__name__
    return ""


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class_of(argument: Any) -> Any:
    """Return the class from which loading makes an argument that the new call does not pass.

    Return ``None`` if the class cannot be found by name.
    """
    cls = type(argument)
    return cls if by_name(cls, cls.__module__) is not None else None


def content_of(name: str, value: Any, around: Surroundings) -> Any:
    """Return the contents of an argument as a separate value: for a collection, a copy.

    For an instance: the attributes, the names of attributes that keep the value of the fresh
    object, and the items if the instance is also a list or a dict.
    """
    if type(value) is deque:
        return deque(value, value.maxlen)
    if type(value) in COLLECTIONS:
        return type(value)(value)
    held = attributes(value)
    kept = [key for key in held if f"{name}.{key}" in around.kept]
    items: Any = None
    if isinstance(value, list):
        items = list.copy(value)
    elif isinstance(value, dict):
        items = dict.copy(value)
    return {key: item for key, item in held.items() if key not in kept}, tuple(kept), items


def _attributes(contents: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{name}.{key}": item
        for name, content in contents.items()
        if type(content) is tuple
        for key, item in content[0].items()
    }


def _links(values: Mapping[str, Any], around: Surroundings) -> dict[str, str]:
    """Return the variables that hold an object with a name in the module, and these names.

    Only containers and texts are linked.  :func:`load_values` uses today's object if it is equal.
    """
    kinds = set(map(type, values.values()))
    if not (kinds & _LINKED or (around.constants and str in kinds)):
        return {}
    names = {id(value): name for name, value in around.named()}
    held = {id(value) for value in values.values() if type(value) in _LINKED}
    if not held.isdisjoint(map(id, around.namespace.values())):
        names.update((id(value), name) for name, value in around.namespace.items())
    linked = {name: names[id(value)] for name, value in values.items() if id(value) in names}
    return {n: other for n, other in linked.items() if type(values[n]) in _LINKABLE}


def _containers(roots: Mapping[str, Any]) -> dict[str, Any]:
    """Return containers and the containers in them, by their paths."""
    found: dict[str, Any] = {}
    met: set[int] = set()
    waiting = [*roots.items()]
    for path, value in waiting:
        if type(value) not in _LINKED or id(value) in met or len(met) >= _MOST_LINKED:
            continue
        met.add(id(value))
        found[path] = value
        parts: Iterable[Any] = value.items() if type(value) is dict else ()
        parts = enumerate(value) if type(value) is list else parts
        waiting += [(f"{path}[{key!r}]", each) for key, each in parts if type(key) in (int, str)]
    return found


def _linked_by(values: Mapping[str, Any], links: Mapping[str, str]) -> dict[str, Any]:
    """Return the containers among linked variables, by their paths in the module."""
    return _containers({other: values[name] for name, other in links.items()}) if links else {}


def _culprits(values: Mapping[str, Any], around: Surroundings) -> Culprits:
    reasons = {name: _reason(value, around) for name, value in values.items()}
    return {name: (values[name], why) for name, why in reasons.items() if why}


# -- variables, in --------------------------------------------------------------------------------

restoring: ContextVar[Surroundings | None] = ContextVar("stepwise_restoring", default=None)
"""The surroundings of the frame whose variables are being loaded, for the functions below."""


class FrameUnpickler(Unpickler):
    """An unpickler that finds arguments, secrets, and values that are stored elsewhere."""

    reader: Reader | None = None

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        is_array = (module[:6], name) == ("numpy.", "_frombuffer")
        return functools.partial(_owning, found) if is_array else found

    def persistent_load(self, pid: Any) -> Any:
        """Return an argument with its contents, a secret, or a value from the reader."""
        if pid[0] == preview.REFERENCE:
            return self.secret(pid)
        if type(pid[0]) is not str:
            assert self.reader is not None
            return self.reader.load(pid)
        name, cls, content = pid
        if name.startswith(_LINK):
            return _linked(name.removeprefix(_LINK), cls, content)
        argument = _argument(name, cls)
        if content is not None:
            _refill(argument, content)
        return argument

    def secret(self, pid: Any) -> Any:
        """Return a secret of the call, or a text that contains a secret."""
        return preview.restored(pid, _around().secret)


def _owning(make: Callable[..., Any], *parts: Any) -> Any:
    """Make an array that owns its memory, as the pickled array did."""
    made = make(*parts)
    array = made.copy("A")
    array.flags.writeable = made.flags.writeable
    return array


def load_values(
    data: bytes,
    around: Surroundings,
    reader: Reader | None = None,
    unpickler: type[FrameUnpickler] = FrameUnpickler,
    *,
    named: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Load local variables for a live frame from verified bytes, and refill the arguments.

    Args:
        reader: loads the values that the variables refer to.
        named: returns the variables under the names that they have today.

    Raises:
        Exception: whatever unpickling or ``named`` raises; arguments and locks are as before then.
    """
    before = {name: content_of(name, value, around) for name, value in around.arguments.items()}
    held = [each for each in around.taken.values() if is_synchronizer(each)]
    states = [(each, attributes(each)) for each in held]
    inside = around.holding(dict(around.arguments))
    inside.linked, inside.today = {}, {}
    token = restoring.set(inside)
    try:
        buffers = reader.buffers() if reader is not None else None
        loading = unpickler(data, buffers)
        loading.reader = reader
        if reader is not None:
            reader.find = loading.find_class
        values, _, links, numbered, *places = loading.load()  # places only from dump_few()
        values.update((name, _iterator_at(*place)) for name, place in dict(*places).items())
        values = named(values)
    except BaseException:
        for name, content in before.items():
            _refill(around.arguments[name], content)
        for value, state in states:
            for name, held_then in state.items():
                setattr(value, name, held_then)
        raise
    finally:
        restoring.reset(token)
        if reader is not None:
            reader.find = None  # else a cycle would keep everything that was loaded
    for name, other in links.items():
        today = around.at(other) if other not in inside.linked else None
        if type(today) is type(values[name]) and _is_equal(today, values[name]):
            values[name] = today
    if around.subjects is not None:
        around.subjects.adopt(numbered)
    loaded: dict[str, Any] = values
    return loaded


def _around() -> Surroundings:
    around = restoring.get()
    assert around is not None
    return around


def _cell(name: str) -> types.CellType:
    return _around().cells[name]


def _argument(name: str, cls: Any) -> Any:
    """Return the caller's argument of that name, or a new instance if the caller passed none."""
    arguments = _around().arguments
    if name not in arguments and cls is not None:
        arguments[name] = cls.__new__(cls)
    return arguments[name]


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two containers are equal; false if their items cannot be compared."""
    try:
        return bool(one == other)
    except Exception:  # arrays in them, a container in itself
        return False


def _linked(path: str, cls: Any, content: Any) -> Any:
    """Return the module's container at a path if it has these contents, else one that has."""
    around = _around()
    if content is None:  # also within the container itself, before its contents are known
        return around.linked.setdefault(path, cls())
    if path in around.linked:
        _refill(around.linked[path], content)
        return around.linked[path]
    root = path.partition("[")[0]
    if root not in around.today:
        around.today.update({root: None, **_containers({root: around.at(root)})})
    today = around.today.get(path)
    around.linked[path] = today if type(today) is cls and _is_equal(today, content) else content
    return around.linked[path]


def _instance(path: str, cls: Any, contents: tuple[Any, ...]) -> Any:
    """Return the module's instance at a path if it has these contents, else one that has."""
    given = _around().given
    today = given.at(path) if given is not None else None
    if type(today) is cls:
        with contextlib.suppress(Exception):  # its class may run code of its own
            if _is_same(_contents(today.__reduce_ex__(PROTOCOL)), contents):
                return today
    made, (state, items, pairs) = cls.__new__(cls), contents
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        held, slots = state if type(state) is tuple else (state, None)
        for name, value in {**(held or {}), **(slots or {})}.items():
            object.__setattr__(made, name, value)
    for each in items:
        made.append(each)
    for key, value in pairs:
        made[key] = value
    return made


def _contents(form: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return the contents in a reduced form: the state, and the items if there are some."""
    state, items, pairs = (*form[2:], None, None, None)[:3]
    return state, [*(items or ())], [*(pairs or ())]


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are one object, or equal containers and constants of such."""
    cls = type(one)
    if one is other or cls is not type(other):
        return one is other
    is_python = cls.__module__.partition(".")[0] in sys.stdlib_module_names
    if issubclass(cls, tuple) or (is_python and issubclass(cls, (list, deque))):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if is_python and issubclass(cls, dict):
        return _is_same([*one], [*other]) and all(map(_is_same, one.values(), other.values()))
    if is_python and issubclass(cls, (set, frozenset)):
        return bool(one == other) and all(map(_is_constant, one))
    return _is_constant(one) and bool(one == other)


def _is_constant(value: Any) -> bool:
    is_python = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    return is_python and isinstance(value, Hashable)


def _taken(path: str, kind: str) -> Any:
    taken = _around().taken
    if path not in taken:
        raise LookupError(f"the call was given no {kind} at {path} now")
    return taken[path]


def _client(*options: Any) -> Any:
    clients = _around().clients
    assert clients is not None
    return clients().again(options)


def put_given_state(value: Any, state: dict[str, Any]) -> None:
    """Set a lock, event or the like of this call to the state that it had in the run."""
    state_of(value)  # raises if another thread or task uses it
    put_state(value, state)


def _global(name: str) -> Any:
    return _around().namespace[name]


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


if sys.version_info >= (3, 14):

    def _annotations(function: types.FunctionType) -> dict[str, Any]:
        """Return the annotations of a function, or their texts if one of them has no value."""
        try:
            return function.__annotations__  # evaluates them
        except NameError:
            import annotationlib  # on use: few annotations are for type checkers alone

            return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)

else:

    def _annotations(function: types.FunctionType) -> dict[str, Any]:
        return function.__annotations__


def _function(
    code: types.CodeType, module: str, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    code = _around().as_now(code)
    function = types.FunctionType(code, sys.modules[module].__dict__, name, None, closure)
    function.__module__ = module
    return function


def _set_attributes(function: types.FunctionType, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(function, name, value)


def _refill(live: Any, content: Any) -> None:
    """Restore the contents that :func:`content_of` took from a mutable object."""
    if type(live) in (list, bytearray):
        live[:] = content
    elif type(live) in (dict, set):
        live.clear()
        live.update(content)
    elif type(live) is deque:
        live.clear()
        live.extend(content)
    else:
        held, kept, items = content
        if isinstance(live, list):
            list.__setitem__(live, slice(None), items)
        elif isinstance(live, dict):
            dict.clear(live)
            dict.update(live, items)
        elif items:  # a stand-in for an instance whose class is missing
            held = {**held, "items": items}
        for name in attributes(live).keys() - held.keys() - set(kept):
            object.__delattr__(live, name)
        for name, value in held.items():
            object.__setattr__(live, name, value)


refill = _refill  # existing pickles name it


# -- graphs ---------------------------------------------------------------------------------------


class _GraphReducers(FrameReducers):
    """The reduction of a graph, in which a function names some of the objects."""

    def __init__(self, refer: Callable[[Any], str | None]) -> None:
        super().__init__(Surroundings())
        self.refer = refer
        self.identifies = True

    def identity(self, obj: Any) -> Any:
        name = self.refer(obj)
        return None if name is None else (name, None, None)


def dump_graph(graph: Any, refer: Callable[[Any], str | None]) -> Data:
    """Pickle an object and what it holds; named objects are replaced by their names.

    Args:
        refer: returns the name of an object, or ``None``.

    Raises:
        Exception: some object does not pickle.
    """
    return dump(graph, _GraphReducers(refer))


def load_graph(data: bytes, named: dict[str, Any], unpickler: type[FrameUnpickler]) -> Any:
    """Load what :func:`dump_graph` wrote, from verified bytes.

    Args:
        named: the objects by name.

    Raises:
        Exception: whatever unpickling raises.
    """
    token = restoring.set(Surroundings(arguments=named))
    try:
        return unpickler(data).load()
    finally:
        restoring.reset(token)
