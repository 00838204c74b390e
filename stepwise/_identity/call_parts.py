"""The parts that tell the calls of a workflow apart: arguments, captured variables, attributes.

The parts have the same names as the parts of steps (see ``identity``): ``q``, ``closure.model``,
``self.model`` and ``self.agent.persona``.  Defaults of parameters that were not given are included.
The run id is derived from the parts.  A record that knows the parts can say what differs; a part
that a record does not know does not count.

A captured number or string counts as it is at the call.  Values that the workflow or its steps may
change (a list, an object, a ``nonlocal`` variable) count as they were at the first call of the
function.  So a change made by one run does not make the next call another run.

A captured function counts by its module, its name, its defaults and its captures.  A value without
a digest counts by its class, in its place.  Times and random ids inside an object count by their
type.  A step defined beside the workflow is code, not a value.  It counts only by its captures, so
an edited workflow may call another step.

A body is part of no identity, but its fingerprint recognises a renamed step.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import inspect
import itertools
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from stepwise._identity import identity
from stepwise._identity.clients import field, fields_of, is_foreign
from stepwise._identity.held_parts import MISSING, Holder, leaves_of
from stepwise._identity.module_names import canonical_module
from stepwise._runtime.forks import cached
from stepwise._values import digest
from stepwise._values.digest import DECORATED, assigned_in, cell_content, shape_of
from stepwise._values.reducers import is_lock
from stepwise._values.trees import ATOMS, attributes

# -- captures -------------------------------------------------------------------------------------


_MOST = 1000  # values examined within one value


def captured_parts(
    function: Callable[..., Any], first_seen: dict[str, bytes]
) -> tuple[dict[str, bytes], set[str]]:
    """Encode the captured variables of a function, by name.

    Args:
        function: the function.
        first_seen: the encodings, at the first call, of variables that may change; filled here.

    Returns:
        the encodings, and the names of times and random ids.
    """
    cells = _cells(function)
    if not cells:
        return {}, set()
    rebound: set[int] | None = None
    parts: dict[str, bytes] = {}
    momentary = set()
    for name, cell in cells.items():
        value = cell.cell_contents
        if name in first_seen:
            parts[name] = first_seen[name]
        else:
            told = _Teller(function).tell(value, name)
            if told is None:
                continue
            parts[name] = told
            if type(value) in ATOMS and rebound is None:
                rebound = _rebound(function)
            if type(value) not in ATOMS or id(cell) in (rebound or ()):
                first_seen[name] = told
        if identity.is_momentary(value):
            momentary.add(name)
    return parts, momentary


def fixed_cells(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the captured variables that no code assigns to any more, with their values."""
    rebound = _rebound(function)
    for name, cell in _cells(function).items():
        if id(cell) not in rebound:
            yield name, cell.cell_contents


def own_name(value: Any, function: Callable[..., Any]) -> str:
    """Return the name of a class or function, without its module if ``function`` has the same."""
    module = canonical_module(getattr(value, "__module__", None) or "builtins")
    name = getattr(value, "__qualname__", None) or repr(value)
    return name if module == canonical_module(function.__module__) else f"{module}.{name}"


def _cells(function: Callable[..., Any]) -> dict[str, types.CellType]:
    """Return the captured variables that have a value."""
    found = identity.own_cells(function).items()
    return {name: cell for name, cell in found if cell_content(cell, MISSING) is not MISSING}


class _Teller:
    """Encoder of one captured value; it stops at functions that capture each other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._of = function
        self._met: dict[int, Any] = {id(function): function}

    def tell(self, value: Any, variable: str = "") -> bytes | None:
        """Return the encoding of a value, or ``None`` for code beside the function.

        Args:
            value: the value.
            variable: the variable that holds the value; empty if the value is part of another.
        """
        cls = type(value)  # not isinstance: the __class__ of a proxy may raise
        if issubclass(cls, type):
            return self._class(value, variable)
        if issubclass(cls, functools.partial):
            keywords = sorted(value.keywords.items())
            parts = [value.func, *value.args, *(part for pair in keywords for part in pair)]
            return self._join("partial", parts)
        if cls is types.MethodType:
            return self._join("method", [value.__func__, value.__self__])
        function = plain_function(value)
        if function is not None:
            return self._function(function, variable)
        return digest.encode(value) if cls in ATOMS else identity.lenient(value, masking=True)[0]

    def _class(self, value: Any, variable: str) -> bytes | None:
        name, content = own_name(value, self._of), identity.class_digest(value)
        if content:
            return digest.encode(("class", name, content))
        return None if self._is_beside(value, variable) else digest.encode(("class", name))

    def _is_beside(self, value: Any, variable: str) -> bool:
        """Return whether an enclosing function defines the value under that name."""
        scope = value.__qualname__.removesuffix(variable)
        return (
            value.__name__ == variable
            and value.__module__ == self._of.__module__
            and scope.endswith("<locals>.")
            and self._of.__qualname__.startswith(scope)
        )

    def _join(self, kind: str, values: list[Any]) -> bytes:
        return digest.encode((kind, *[self.tell(value) for value in values]))

    def _function(self, function: types.FunctionType, variable: str) -> bytes | None:
        beside = self._is_beside(function, variable)
        if id(function) in self._met:
            return None if beside else digest.encode(("met", own_name(function, self._of)))
        self._met[id(function)] = function
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        told = [self.tell(value) for value in defaults]
        told += [self.tell(cell.cell_contents, each) for each, cell in _cells(function).items()]
        held = [each for each in told if each is not None]
        if beside and not held:
            return None
        return digest.encode(("function", own_name(function, self._of), *held))


def plain_function(value: Any) -> types.FunctionType | None:
    """Return the function inside a step, a workflow or a method, or a plain function itself."""
    while True:
        if type(value) is types.MethodType:
            value = value.__func__
        elif type(value) is types.FunctionType and DECORATED in vars(value):
            value = vars(value)["__wrapped__"]
        elif hasattr(type(value), "run_id_for"):
            value = value.__wrapped__
            value = getattr(value, "__func__", value)  # a class method
        else:
            return value if type(value) is types.FunctionType else None


# -- what a value holds --------------------------------------------------------------------------


def within(name: str, value: Any, *, objects: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield a value and everything it holds, by path: ``ask.client`` of a captured step ``ask``.

    Functions, methods and partials hold their captures, defaults and arguments.

    Args:
        name: the path of the value.
        value: the value.
        objects: also look into containers and objects of the user's own classes, which a run may
            change.
    """
    waiting: list[tuple[str, Any, frozenset[int]]] = [(name, value, frozenset())]
    for _ in range(_MOST):
        if not waiting:
            return
        path, each, outer = waiting.pop()
        yield path, each
        if id(each) in outer:
            continue
        around = outer | {id(each)}
        held = _held_by_function(each) or (_held_by_object(each) if objects else {})
        waiting += [(f"{path}.{key}", inner, around) for key, inner in reversed(held.items())]


def _held_by_function(value: Any) -> dict[str, Any]:
    """Return the values that a function, a method or a partial holds, by name."""
    if type(value) is types.MethodType:
        return {"__self__": value.__self__, **_held_by_function(value.__func__)}
    if issubclass(type(value), functools.partial):
        arguments = {str(number): each for number, each in enumerate(value.args, 1)}
        return {"func": value.func, **arguments, **value.keywords}
    function = plain_function(value)
    if function is None:
        return {}
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    named = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    return {**dict(named), **(function.__kwdefaults__ or {}), **dict(fixed_cells(function))}


def _held_by_object(value: Any) -> dict[str, Any]:
    """Return the items of a container, or the attributes of an object that is no client."""
    cls: Any = type(value)
    if issubclass(cls, dict):
        first = itertools.islice(value.items(), _MOST)
        return {str(key): each for key, each in first if type(key) in ATOMS}
    if issubclass(cls, (list, tuple)):
        return {str(number): each for number, each in enumerate(value[:_MOST])}
    if cls in ATOMS or issubclass(cls, type) or is_foreign(cls) or fields_of(cls) is not None:
        return {}
    return attributes(value)


# -- nonlocal ------------------------------------------------------------------------------------


def _rebound(function: Callable[..., Any]) -> set[int]:
    """Return the ids of the cells that a function, or a function it captured, assigns to."""
    found, met, waiting = set[int](), set[int](), [function]
    while waiting:
        each = waiting.pop()
        if id(each) in met:
            continue
        met.add(id(each))
        assigned = assigned_in(each.__code__)
        for name, cell in _cells(each).items():
            if name in assigned:
                found.add(id(cell))
            inner = plain_function(cell.cell_contents)
            if inner is not None:
                waiting.append(inner)
    return found


# -- the body -------------------------------------------------------------------------------------


def shape_digest(function: Any) -> str:
    """Return 8 characters for the code that the interpreter executes for a function.

    Comments, layout, annotations, defaults and the function's own name do not count.  Another
    version of Python gives another digest.
    """
    code = function.__code__
    shape = shape_of(code, code.co_name, f"{getattr(function, '__qualname__', '')}.<locals>.")
    return hashlib.sha256(repr(shape).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def same_code(one: types.CodeType, other: types.CodeType) -> bool:
    """Return whether two code objects do the same, wherever they are in their files."""
    return one.co_name == other.co_name and shape_of(one, "", "@") == shape_of(other, "", "@")


# -- call parts -----------------------------------------------------------------------------------


_GROWS = (list, dict, set, bytearray, collections.deque)
_NOTHING = frozenset[str]()


class Parts:
    """The identity of a call, part by part.

    Attributes:
        recorded: a short digest of each part, by name.
        given: parts that count as different if a record does not know them.
    """

    recorded: Mapping[str, str]
    given: frozenset[str] = frozenset()

    def __init__(self) -> None:
        # The empty sets are shared, since a suspended run of a server keeps its parts.
        self._momentary = _NOTHING  # times and UUIDs: they express a preference, and never exclude
        self._growing = _NOTHING

    def differing(
        self, other: Mapping[str, str] | None, *, momentary: bool = False, growing: bool = True
    ) -> list[str]:
        """Name the parts in which a recorded call differs from this one.

        Args:
            other: the parts of the recorded call; ``None`` if unknown.
            momentary: also compare times and UUIDs.
            growing: also compare containers that an instance holds.
        """
        if other is None:
            return []
        mine = self.recorded
        return [
            name
            for name, short in mine.items()
            if (other[name] != short if name in other else name in self.given)
            and (momentary or name not in self._momentary)
            and (growing or name not in self._growing)
        ]

    def left_out_by(self, differing: Sequence[str]) -> str:
        """Return the option that leaves these parts out; empty if no option does."""
        return "@workflow(ignore=...)"


class CallParts(Parts):
    """The parts of one call of a workflow.

    Args:
        parameters: the parameters of the workflow.
        function: the plain function.
        first_seen: the encodings of captured variables at the first call; filled here.
        bound: the arguments by parameter name, without ``self``.
        call: the arguments as they were passed.
        instance: the object or class that a method is bound to.

    Raises:
        DigestError: an argument cannot be part of an identity.
    """

    def __init__(
        self,
        parameters: identity.Parameters,
        function: Callable[..., Any],
        first_seen: dict[str, bytes],
        bound: Mapping[str, Any],
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        instance: Any,
    ) -> None:
        super().__init__()
        self._parameters = parameters
        self._function = function
        self._instance = instance
        self.computed = parameters.is_computed
        self._encoded: dict[str, bytes] = {}
        self._defaulted: list[str] = []
        self._captured: dict[str, bytes] = {}
        self._held: dict[str, bytes] = {}
        self._by_class: list[str] = []
        if not self.computed:
            self._encoded, self._defaulted, unknown = parameters.in_force(bound)
            self._by_class += [f"{name}=" for name in unknown]
            self.given = frozenset(self._encoded.keys() - set(self._defaulted))
            captured, momentary = captured_parts(function, first_seen)
            self._captured = {f"closure.{name}": encoded for name, encoded in captured.items()}
            self._momentary |= {f"closure.{name}" for name in momentary}
        if instance is not None and not isinstance(instance, type):
            self._look_at(parameters, instance)
        self.arguments = parameters.digest(bound, call) if self.computed else self._of_arguments()
        self.instance = self._of_instance()

    def _look_at(self, parameters: identity.Parameters, instance: object) -> None:
        holder = Holder("", self._function, parameters, instance)
        values, leaves = holder.values(), holder.leaves
        numbering = digest.Numbering()
        # Sorted, since an earlier start may have assigned the attributes in another order.
        for part, value in sorted(values.items()):
            node = leaves.nodes.get(part)
            if part.startswith("closure."):
                continue  # the value at the function's first call counts
            if node is not None:
                self._held[part] = node.encode()
            else:
                self._held[part], unknown = identity.lenient(value, holder.around(part), numbering)
                if not all(map(is_lock, unknown)):
                    self._by_class.append(identity.attribute_path(part))
            if identity.is_momentary(value):
                self._momentary |= {part}
            elif issubclass(type(value), _GROWS):
                self._growing |= {part}

    def by_class(self) -> list[str]:
        """Name the arguments (``client=``) and attributes that hold a value without a digest.

        Locks do not count as such values.
        """
        return self._by_class

    # -- what ids are made of --------------------------------------------------------------------

    def _of_arguments(self, *, kept: frozenset[str] = frozenset()) -> str:
        """Digest the arguments without those at their default, except the ``kept`` ones."""
        out = set(self._defaulted) - kept
        return self._parameters.combined({n: e for n, e in self._encoded.items() if n not in out})

    def _of_instance(self, module: str | None = None) -> str:
        """Digest the instance, or return an empty text if there is none.

        Args:
            module: the module to assume for the instance's class.
        """
        if self._instance is None:
            return ""
        cls = _class(self._instance)
        counted: list[bytes | str] = [digest.class_name(cls)]
        if module is not None:
            counted = [f"{module}.{cls.__qualname__}"]
        for part, encoded in sorted(self._held.items()):
            counted += part, encoded
        return digest.combine(*counted)

    def _extras(self) -> dict[str, bytes]:
        """Return the parts that count beside the arguments and the instance."""
        counted = {n: held for n, held in self._captured.items() if n not in self._momentary}
        content = self._instance is not None and identity.class_digest(_class(self._instance))
        if content and not self.computed:
            counted[identity.CLASS] = content.encode()
        return counted

    def digests(self, module: str | None = None) -> Iterator[tuple[str, ...]]:
        """Yield the possible bases of a run id, beginning with the basis of a new run.

        The other bases belong to runs that began when the workflow had fewer parameters with a
        default, or one captured variable less.

        Args:
            module: the module to assume for the instance's class.
        """
        if self.computed:
            yield self.arguments, ""
            return
        instance, extras = self._of_instance(module), self._extras()
        for kept in self._kept():
            arguments = self._of_arguments(kept=kept) if kept else self.arguments
            yield arguments, instance, *_combined(extras)
        first = self._of_arguments(kept=frozenset(self._defaulted))
        for name in extras:
            fewer = {each: held for each, held in extras.items() if each != name}
            yield first, instance, *_combined(fewer)

    def _kept(self) -> Iterator[frozenset[str]]:
        """Yield the sets of defaulted parameters that a run may know, the full set first."""
        names = self._defaulted
        for count in range(len(names), -1, -1):
            yield frozenset(names[:count])
        for name in names[:-1]:
            yield frozenset(names) - {name}

    def base(self, name: str, label: str, module: str | None = None) -> str:
        """Return the id of a new run of a workflow of that name; see :meth:`digests`."""
        return identity.derived_id(name, label, *next(self.digests(module)))

    def bases(self, name: str, label: str) -> list[str]:
        """Return the run ids made from :meth:`digests`, for a workflow of that name."""
        ids = [identity.derived_id(name, label, *digests) for digests in self.digests()]
        return list(dict.fromkeys(ids))

    def of_instance_of(self, module: str) -> bool:
        """Return whether the instance's class is defined in a module of this name."""
        return self._instance is not None and _class(self._instance).__module__ == module

    def of_child(self) -> list[str]:
        """Return the digests of a call of a child workflow; see :meth:`digests` for their order."""
        found = []
        for arguments, instance, *extra in self.digests():
            told = [arguments, instance] if instance else [arguments]
            found.append(digest.combine(*told, *extra) if told[1:] or extra else arguments)
        return list(dict.fromkeys(found))

    # -- records ---------------------------------------------------------------------------------

    @cached
    def recorded(self) -> dict[str, str]:  # type: ignore[override]
        """A short digest of each part, by name."""
        if self.computed:
            return {identity.KEY: _short_digest(self.arguments.encode())}
        parts = {**self._encoded, **self._captured, **self._held}
        if self._instance is not None:
            cls = _class(self._instance)
            parts[identity.CLASS] = (
                own_name(cls, self._function) + identity.class_digest(cls)
            ).encode()
        return {name: _short_digest(encoded) for name, encoded in parts.items()}

    @property
    def is_certain(self) -> bool:
        """True if equal runs have equal ids, since every part can exclude a run."""
        return not (self._momentary or self._defaulted or self._captured)


# -- given functions ---------------------------------------------------------------------------

# By type, not isinstance: the __class__ of a proxy may raise.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_assigned: set[tuple[str, str]] = set()  # a class, and an attribute that a run assigned


class HeldParts(Parts):
    """The values that given functions hold: the nodes of a graph, or an agent function.

    ``of:node 'ask':model`` is a captured variable, default or attribute ``model`` of the function
    of the node ``ask``.  The function may be a bound method, a partial or a callable object.
    ``of:node 'ask':agents[0].persona`` is an attribute of an object of the user's own class inside.

    Only strings, numbers and the like, functions with their captures, classes, and the fields of
    clients count.  Changes that a call makes inside an object (a list, an agent's history) must not
    make the next run another run.  The same goes for assigned attributes and captured variables.

    Args:
        functions: the functions that the run calls, by their names in messages.
        ignore: names of held values that do not count.
    """

    def __init__(self, functions: Mapping[str, Any], ignore: Collection[str]) -> None:
        super().__init__()
        self._functions, self._ignored = functions, ignore
        self._values = {name: value for name, value, _ in self._held()}
        self.recorded = {name: _short_digest(value) for name, value in self._values.items()}

    def digests(self) -> list[str]:
        """Return the digests that an id needs beside the arguments; none if there are no parts."""
        told = [part for pair in sorted(self.recorded.items()) for part in pair]
        return [digest.combine(*told)] if told else []

    def left_out_by(self, differing: Sequence[str]) -> str:
        """Return the option that leaves these parts out; empty if there are none."""
        names = [name.rpartition(":")[2] for name in differing]
        return f"ignore={names!r}" if names else ""

    def note_assigned(self) -> None:
        """Mark attributes that the ended run assigned as state from now on."""
        for name, value, attribute in list(self._held()):
            if attribute is not None and self._values.get(name) != value:
                _assigned.add(attribute)

    def _held(self) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        """Yield each part's name and encoded value; for an attribute, also its class and name."""
        known: dict[int, list[tuple[str, bytes, tuple[str, str] | None]]] = {}
        for where, function in self._functions.items():
            held = known.get(id(function))  # many nodes may have one function
            if held is None:
                held = known[id(function)] = [*self._held_by(function)]
            for path, encoded, attribute in held:
                yield f"{identity.HELD}{where}:{path}", encoded, attribute

    def _held_by(self, function: Any) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        for name, value, cls in _values_of(function):
            attribute = (own_name(cls, function), name) if cls is not None else None
            if name in self._ignored or attribute in _assigned or identity.is_momentary(value):
                continue
            for path, each in within(name, value, objects=False):
                yield from self._fixed(path, each, attribute, function)
                leaves = leaves_of({path: each}, None)
                for inner, place in leaves.places.items():
                    if not place.is_item:  # a list may grow
                        own = own_name(type(place.around[-1]), function), place.key
                        yield from self._fixed(inner, leaves.values[inner], own, function)
            for path, encoded in _clients_within(name, value):
                if path not in self._ignored:
                    yield path, encoded, attribute

    def _fixed(
        self, path: str, value: Any, attribute: tuple[str, str] | None, function: Any
    ) -> Iterator[tuple[str, bytes, tuple[str, str] | None]]:
        """Encode a value if it is a string, a number, a function or a class."""
        if path in self._ignored or attribute in _assigned or identity.is_momentary(value):
            return
        if type(value) in ATOMS:
            yield path, digest.encode(value), attribute
        elif issubclass(type(value), _NAMED):
            named = own_name(value, plain_function(function) or value)
            yield path, digest.encode(("named", named)), attribute


def _values_of(function: Any) -> Iterator[tuple[str, Any, type | None]]:
    """Yield the values that a function holds, by name; with the class for instance attributes."""
    if isinstance(function, functools.partial):
        yield from ((f"argument {n}", value, None) for n, value in enumerate(function.args, 1))
        yield from ((name, value, None) for name, value in function.keywords.items())
        yield from _values_of(function.func)
        return
    instance = function.__self__ if isinstance(function, types.MethodType) else function
    plain = plain_function(function)
    if plain is not None:
        yield from ((name, value, None) for name, value in fixed_cells(plain))
        defaults = inspect.signature(plain).parameters.values()
        yield from ((p.name, p.default, None) for p in defaults if p.default is not p.empty)
    if plain is None or instance is not function:
        held = attributes(instance).items()
        yield from ((name, value, type(instance)) for name, value in held)


# -- digests -------------------------------------------------------------------------------------


def _combined(extras: Mapping[str, bytes]) -> list[str]:
    parts = [digest.framed(part) for pair in sorted(extras.items()) for part in pair]
    return [digest.combined(parts)] if parts else []


def _clients_within(where: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """Encode the fields that distinguish the clients that a value is or holds, by path."""
    for path, each in within(where, value):
        cls: Any = type(each)
        for name in fields_of(cls) or ():
            yield f"{path}.{name}", digest.encode(field(each, name))


def _class(instance: Any) -> Any:
    """Return the class of an instance; for a class method, the class itself is the instance."""
    return instance if isinstance(instance, type) else type(instance)


def _short_digest(encoded: bytes) -> str:
    """Return the digest of a part as a record keeps it: 16 hexadecimal digits."""
    return hashlib.sha256(encoded).hexdigest()[:16]
