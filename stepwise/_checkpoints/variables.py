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
- objects that a ``@stepwise.resource`` factory made: the factory is called again;
- the secrets of the call, also inside texts: the call that resumes the run passes them again;
- values that the journal or a chunk already holds (see ``references``).

Bytes are loaded only after their envelope was verified.

:func:`dump_graph` and :func:`load_graph` do the same for any object, and replace named objects by
their names.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from stepwise._checkpoints.given import (
    COLLECTIONS,
    NATIVE,
    Found,
    Surroundings,
    walk,
    why_no_handle,
)
from stepwise._checkpoints.references import Reader
from stepwise._checkpoints.resources import made_by
from stepwise._identity.clients import has_key
from stepwise._values import preview
from stepwise._values.codec import PROTOCOL, Reducers, dump, pickles
from stepwise._values.preview import error_text
from stepwise._values.reducers import is_synchronizer, put_state, state_of, synchronizer_form
from stepwise._values.trees import ITERATORS, attributes, by_name, few
from stepwise._values.unpickling import Data, Unpickler

# -- variables ------------------------------------------------------------------------------------


_LINKED = frozenset(COLLECTIONS)
_LINKABLE = _LINKED | {str}


Culprits = dict[str, tuple[Any, str]]
"""Objects, with the reasons, by the paths to them."""


class UnpicklableError(Exception):
    """Objects that cannot be part of a checkpoint, by their paths, each with the reason."""

    def __init__(self, culprits: Culprits) -> None:
        super().__init__(", ".join(culprits))
        self.culprits = culprits


# -- out -----------------------------------------------------------------------------------------


class FrameReducers(Reducers):
    """The reduction of a frame's variables for a pickle.

    An argument is reduced to its name, the first time with its contents.  So on loading the
    argument is complete before dependent objects are made (an iterator over a list, say).

    Args:
        with_contents: false to reduce arguments to their names alone.

    Attributes:
        numbered: the instances met whose calls the run knows, with their numbers.
    """

    def __init__(self, around: Surroundings, *, with_contents: bool = True) -> None:
        self.around = around
        self.cells = {id(cell): name for name, cell in around.cells.items()}
        self.arguments: dict[int, str] = {}
        for name, value in around.arguments.items():
            self.arguments.setdefault(id(value), name)
        self.taken = {id(value): path for path, value in around.taken.items()}
        self.globals: dict[int, str] | None = None
        self.references = around.references
        # Not a generator expression: any() stops early, and a Ctrl-C would be lost in its close.
        native = not set(NATIVE).isdisjoint(map(type, around.arguments.values()))
        self.identifies = native or bool(self.references)
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
    if not few(values.values()):
        return None
    places = {name: _place(each) for name, each in values.items() if type(each) in ITERATORS}
    kept = {**values, **dict.fromkeys(places)} if places else values
    return pickle.dumps((kept, [], _links(values, around), [], places), PROTOCOL)


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
        links, reducers = _links(values, around), FrameReducers(around)
        # The numbered instances come last: the list is complete when pickle reaches it.
        whole = (dict(values), list(around.arguments.values()), links, reducers.numbered)
        try:
            return dump(whole, reducers)
        except MemoryError:
            raise
        except Exception as error:
            found, others = (_without if around.given is None else _set_apart)(values, around)
            if found or not others:
                raise UnpicklableError(found or {"?": (None, error_text(error))}) from error


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
            found[path] = each.value, why_no_handle(each.value) or why
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


def _culprits(values: Mapping[str, Any], around: Surroundings) -> Culprits:
    reasons = {name: _reason(value, around) for name, value in values.items()}
    return {name: (values[name], why) for name, why in reasons.items() if why}


# -- in ------------------------------------------------------------------------------------------

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
    token = restoring.set(around.holding(dict(around.arguments)))
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
        today = around.at(other)
        if type(today) is type(values[name]) and today == values[name]:
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
