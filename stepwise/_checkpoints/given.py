"""The targets of a frame's references: the objects that a call was given, cells, globals.

The module notes the objects that a call was given, and their paths when the call began.

A client or a connection has no value that a checkpoint could hold.  If the call was given one, at
any depth (``self.agents[0].client``), the call that resumes the run is given one, too: the
checkpoint names the path.  Paths are noted as the call begins, before anything is moved, so that no
path leads to the client of another agent.

Other targets are cells, arguments, globals and stored values.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepwise._checkpoints.references import References
from stepwise._identity.call_parts import same_code
from stepwise._identity.clients import fields_of, is_foreign
from stepwise._rewrite.build import codes_within, names_within
from stepwise._runtime.facts import NamedTuple
from stepwise._values.data import parameter_types
from stepwise._values.reducers import is_as_it_was, is_synchronizer, snapshot
from stepwise._values.trees import attributes, by_name, look_for, place_of

if TYPE_CHECKING:
    from stepwise._checkpoints.resources import SdkClients


# -- given ----------------------------------------------------------------------------------------


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
_ITERATORS = frozenset((*(type(iter(each)) for each in _ITERABLES), enumerate, reversed, zip))
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
        if cls not in _DATA and cls not in _PARTS and cls not in _ITERATORS:
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
    if cls in _DATA or cls in _ITERATORS or cls in _PARTS:
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


def why_no_handle(value: Any) -> str:
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


class GivenObjects:
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


NATIVE = (list, dict, set, bytearray)
"""Types that are pickled without asking the reducers."""

COLLECTIONS = (*NATIVE, deque)
"""Types of arguments whose contents are restored in place."""


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
        self.given: GivenObjects | None = None
        self.taken: dict[str, Any] = {}
        self.entered: Mapping[int, int] = _NONE_ENTERED
        self.clients: Callable[[], SdkClients] | None = None
        self.kept: dict[str, tuple[Any, str]] = {}
        self.stored: frozenset[str] = frozenset()
        self.references: References | None = None
        self.subjects: Any = None
        self.classes: set[type] = set()
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
        around.given = GivenObjects(roots, _globals_of(function))
        for path, value in around.given.instances({*bound, "self"}):
            if not any(map(path.startswith, secret)):
                around.arguments.setdefault(path, value)
        return around

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
            if not why_no_handle(each.value):
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
_NOTHING: Mapping[str, Any] = {}
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
