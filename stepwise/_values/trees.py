"""Contents of objects: sentinels, instances, trees of data, and whether these are unchanged.

A *sentinel* is an object that a module or class holds under a name, and that only means itself:
``UNSET = object()``, ``dataclasses.MISSING``, an SDK's ``NOT_GIVEN``.  Programs compare a sentinel
with ``is``, so its name is stored.  Loading returns the object of that name if its class and
attributes are the same, else a copy.  So a small object that a module holds as state also comes
back as it was.  A text in an attribute may be a sentinel as well (``argparse.SUPPRESS``), if a
module of the instance's classes holds this very text as a constant.  Objects that the interpreter
has only once are never stored by value: ``os.environ``, with its API keys, the namespaces of
modules, ``sys.modules``.

An *instance* is fully known if its class was made by a class statement, is found by its name and
leaves its state to Python.  The state is the attributes in ``__dict__`` and in slots.  A
``__getstate__`` of the class must return the very objects that the instance holds, as in
dataclasses, attrs classes and pydantic's models.  A *constant* never changes: a member of an
enumeration, a moment, a path.

A *tree* is made of lists, dicts, tuples, sets and atoms of the exact builtin types (*plain data*),
of instances and of constants.  The *nodes* of a tree can be referred to from outside: containers,
instances and large leaves.  Nodes are numbered in the order of one walk: plain data that was
pickled and loaded again has the same nodes in the same order.  Classes may change what is loaded.
In a tree with classes, the number of a node is its place among the objects of the pickle.

A *watch* tells whether mutable objects still hold the very same objects under the same names in
the same order.  The watch proves this, without sampling: it compares every slot by identity, so an
equal value of another type does not pass.  A look is a few calls in C for some hundred objects,
whose contents fit a processor's cache (see :class:`Contents`).
An array that owns its memory is compared by a hash of its bytes, which is made anew at each look.
A view is compared by its form, and in a tree together with the array that owns its memory.

Rejected, with their costs here:

=============================================  ====================================================
``==`` of two lists                            0.4 ns an item, ``is`` takes 10; but ``1 == True``,
                                               and a copy equals its list
addresses of the items, read by ctypes         0.4 ns, but that reads the interpreter's own memory
SHA-256, BLAKE2b of an array of 4 KB           2.3 us, 3.1 us; the hash of ``bytes`` takes 0.8
CRC-32 of it                                   0.7 us, and one change in four billion is not seen
XXH3 (an extra) of it                          0.1 us: with 1,500 arrays, a quarter of a step less
iteration over the values of dicts             20,000 with texts of 1 KB: 540 ns each, while the
                                               collector and the keys take 200; 5,000: 165, 105
``==`` of a dict and its copy                  25 ns; but again ``1 == True``, and the order of keys
                                               does not count
the types of all items, then ``==``            as long as ``is``
a pickler that has all leaves in its memo      as long as ``is``
one look for a checkpoint and the next call    the arguments in between may run any code
one look for a call's digest and its body      a key function or a wait in between may, too
a hash of each view's bytes                    each byte of a matrix is hashed twice
=============================================  ====================================================
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import gc
import importlib
import struct
import sys
import types
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse, islice
from operator import attrgetter, is_
from typing import Any

from stepwise._runtime.facts import NamedTuple

# -- sentinels ------------------------------------------------------------------------------------


PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of the values that plain data consists of."""

HEAP_TYPE = 1 << 9
"""The flag of classes made by a class statement (Py_TPFLAGS_HEAPTYPE): instances refer to them."""

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

_MOST = 4  # attributes
_WITH_STATE = 3  # the length of a reduced form with a state
_OWN_WAYS = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")

_homes: dict[type, list[str]] = {}
"""Modules that hold sentinels of a class, other than the module of the class."""

_looked_at: dict[str, int] = {}
"""Modules that were examined, and how many names they had."""

_names: dict[str, tuple[int, dict[int, str]]] = {}
"""The names in a module by the ids of the named objects, and how many names there were."""

_in_classes: dict[int, tuple[object, str, str]] = {}
"""Sentinels that classes hold (``class Config: UNSET = object()``), with module and dotted name."""

_bare: dict[int, tuple[object, tuple[str, str] | None]] = {}
"""Instances of ``object`` that were searched for in all modules, and where they were found."""


def found_at(module: str, name: str) -> Any:
    """Return the object that a dotted name in an imported module denotes, or ``None``."""
    found: Any = sys.modules.get(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part, None)
    return found


def look_for(namespace: Mapping[str, Any]) -> None:
    """Register the sentinels of a module and of the modules that it imports.

    The class of a sentinel may be from yet another module, so the class alone does not find it.
    """
    for name in (str(namespace.get("__name__")), *_imported(namespace)):
        module = sys.modules.get(name)
        if module is None or _looked_at.get(name) == len(vars(module)):
            continue
        _looked_at[name] = len(vars(module))
        for value in list(vars(module).values()):
            cls = type(value)
            if issubclass(cls, type) and value.__flags__ & HEAP_TYPE:  # isinstance asks proxies
                _look_into(value)
            elif cls.__flags__ & HEAP_TYPE and not issubclass(cls, types.ModuleType):
                homes = _homes.setdefault(cls, [])
                if cls.__module__ != name and name not in homes:
                    homes.append(name)


def _look_into(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        made = type(value)
        if issubclass(made, type) and value.__qualname__ == f"{cls.__qualname__}.{name}":
            _look_into(value)
        elif made is object or (made.__flags__ & HEAP_TYPE and not issubclass(made, type)):
            _in_classes[id(value)] = value, cls.__module__, f"{cls.__qualname__}.{name}"


def _imported(namespace: Mapping[str, Any]) -> list[str]:
    names = {value.__name__ for value in namespace.values() if type(value) is types.ModuleType}
    return [n for n in names if n.partition(".")[0] not in sys.stdlib_module_names]


def held_as(value: Any) -> tuple[str, str] | None:
    """Return the module that holds a sentinel, and the name there; ``None`` for other values."""
    cls = type(value)
    if cls is object:
        return _held_bare(value)
    if cls.__module__ == "builtins" or not cls.__flags__ & HEAP_TYPE:
        return None
    # Without a name, loading would copy the class: a lock's, say.
    if found_at(cls.__module__, cls.__qualname__) is not cls:
        return None
    for module in (cls.__module__, *_homes.get(cls, ())):
        name = _name_in(module, value)
        if name is not None:
            known = _is_single(module, cls) or _state_of(value) is not None
            return (module, name) if known else None
    place = _in_class(value)
    return place if place is not None and _state_of(value) is not None else None


def _is_single(module: str, cls: type) -> bool:
    return cls.__module__ == module and module.partition(".")[0] in sys.stdlib_module_names


def place_of(value: Any) -> tuple[str, str] | None:
    """Return the module and the name of an object that the interpreter has only once.

    Return ``None`` for other values.
    """
    cls = type(value)
    if cls is dict:
        return place_of_dict(value)
    if not cls.__flags__ & HEAP_TYPE or not _is_single(cls.__module__, cls):
        return None
    return held_as(value)


def place_of_dict(value: dict[Any, Any]) -> tuple[str, str] | None:
    """Return the module and the name of a dict that is a module's namespace or ``sys.modules``.

    Return ``None`` for other dicts.
    """
    if value is sys.modules:
        return "sys", "modules"
    name = value.get("__name__")
    if type(name) is str and getattr(sys.modules.get(name), "__dict__", None) is value:
        return name, "__dict__"
    return None


def _held_bare(value: object) -> tuple[str, str] | None:
    known = _bare.get(id(value))
    if known is not None and known[0] is value:
        return known[1]
    if (place := _in_class(value)) is not None:
        return place
    for module in list(sys.modules):
        name = _name_in(module, value)
        if name is not None:
            place = module, name
            break
    if len(_bare) > 1000:  # a program that creates them again and again
        _bare.clear()
    _bare[id(value)] = value, place
    return place


def _in_class(value: object) -> tuple[str, str] | None:
    found = _in_classes.get(id(value))
    if found is None or found[0] is not value or found_at(*found[1:]) is not value:
        return None
    return found[1:]


def _name_in(module: str, value: object) -> str | None:
    held = getattr(sys.modules.get(module), "__dict__", None)
    if type(held) is not dict:
        return None
    size, names = _names.get(module, (-1, {}))
    if size != len(held):
        names = {id(each): name for name, each in list(held.items())}
        _names[module] = len(held), names
    name = names.get(id(value))
    return name if name is not None and held.get(name) is value else None


def _state_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object; ``None`` if there are many, or some are not atoms.

    Return ``None`` as well if the class decides how its objects are pickled.
    """
    cls: Any = type(value)
    own = cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__
    if own or any(getattr(cls, n, None) is not getattr(object, n, None) for n in _OWN_WAYS):
        return None
    slots = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    state = dict(getattr(value, "__dict__", ()))
    state.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    small = len(state) <= _MOST and PLAIN.issuperset(map(type, state.values()))
    return state if small else None


def form_of(value: Any) -> Any:
    """Return the reduced form of a sentinel, or ``NotImplemented`` for other values.

    An instance with constants of its modules as attributes has a reduced form as well.
    """
    held = held_as(value)
    if held is None:
        return _with_texts(value)
    if type(value) is object:
        return _sentinel, (*held, object, {})
    if _is_single(held[0], type(value)):
        return held_at, held
    return _sentinel, (*held, type(value), _state_of(value))


def held_at(module: str, name: str) -> Any:
    """Import a module and return its object of this name.

    Raises:
        LookupError: the module has no such name now.
    """
    importlib.import_module(module)
    found = found_at(module, name)
    if found is None:
        raise LookupError(f"{module} has no {name} now")
    return found


class _Text:
    """A stand-in for a constant text, which pickles the name of the constant with the text."""

    def __init__(self, module: str, name: str, text: str) -> None:
        self._parts = module, name, text

    def __reduce__(self) -> Any:
        return _sentinel_text, self._parts


def _sentinel_text(module: str, name: str, text: str) -> str:
    try:
        importlib.import_module(module)
        today = found_at(module, name)
    except Exception:  # the module is gone, or its code raises
        return text
    return today if type(today) is str and today == text else text


def _with_texts(value: Any) -> Any:
    """Return the reduced form of an instance that has constants of its modules as attributes."""
    cls: Any = type(value)
    modules = _modules_of(cls)
    texts = {}
    for text in _held_by(value) if modules else ():
        for module in modules if type(text) is str else ():
            name = _name_in(module, text)
            if name is not None and name.isupper():
                texts[id(text)] = _Text(module, name, text)
    if not texts:
        return NotImplemented
    form = value.__reduce_ex__(4)
    if not isinstance(form, tuple) or len(form) < _WITH_STATE or type(form[2]) is not dict:
        return NotImplemented
    state = {key: texts.get(id(each), each) for key, each in form[2].items()}
    return (*form[:2], state, *form[3:])


@functools.lru_cache(maxsize=1000)
def _modules_of(cls: Any) -> tuple[str, ...]:
    """Return the modules of a class and its bases; empty if the class pickles in its own way."""
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls in copyreg.dispatch_table:
        return ()
    return tuple({each.__module__: None for each in cls.__mro__ if each.__flags__ & HEAP_TYPE})


def _held_by(value: Any) -> list[Any]:
    try:  # the target of a proxy is not touched
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []


def _sentinel(module: str, name: str, cls: Any, state: dict[str, Any]) -> Any:
    """Return today's object of this name, or a copy of the stored object if they differ."""
    try:
        importlib.import_module(module)
        today = found_at(module, name)
    except Exception:  # the module is gone, or its code raises anything
        today = None
    if type(today) is cls and _same(state, {} if cls is object else _state_of(today)):
        return today
    copy = cls.__new__(cls)
    for attribute, value in state.items():
        object.__setattr__(copy, attribute, value)
    return copy


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    if other is None or one.keys() != other.keys():
        return False
    return all(type(one[key]) is type(other[key]) and one[key] == other[key] for key in one)


# -- instances ------------------------------------------------------------------------------------


_POINTER = struct.calcsize("P")
_PROTOCOL = 4
_FRESH = (dict, list, tuple)  # types that a ``__getstate__`` creates
_NAMES = frozenset({str})
_PATHS = ("PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
_LEFT_TO_PYTHON = ("__reduce_ex__", "__reduce__", "__getattribute__")
_OWN_ARGUMENTS = ("__getnewargs__", "__getnewargs_ex__")
_CONSTANTS = {
    "builtins.complex",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
    "uuid.UUID",
    "zoneinfo.ZoneInfo",
    *(f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in _PATHS),
    *(f"numpy.{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)),
    *(f"numpy.{name}64" for name in ("complex", "datetime", "timedelta")),
    *(f"numpy.{name}" for name in ("bool", "bool_", "complex128", "str_", "bytes_")),
}


NOT_STATE = frozenset({"__pydantic_fields_set__"})
"""Attributes that list the fields which were passed; ``==`` ignores them."""

ATOMS = frozenset({str, int, float, bool, bytes, complex, type(None)})
"""Types whose values hold nothing and never change."""


def reference(obj: Any, gone: Callable[[Any], object] | None = None) -> Callable[[], Any]:
    """Return a weak reference to an object, or a strong one if the type allows no weak ones.

    Args:
        gone: called when the object is gone.
    """
    try:
        return weakref.ref(obj, gone)
    except TypeError:  # a list or a dict
        return lambda: obj


def by_name(value: Any, module: str = "__main__") -> str | None:
    """Return the dotted name by which a module holds this very class or function, or ``None``."""
    name = getattr(value, "__qualname__", None)
    if getattr(value, "__module__", None) != module or not isinstance(name, str):
        return None
    try:
        return name if attrgetter(name)(sys.modules[module]) is value else None
    except (AttributeError, KeyError):
        return None


class Kind:
    """The knowledge about instances of one class.

    Attributes:
        constant: true if the instances never change, and equal instances are interchangeable.
    """

    constant = True

    def size(self, value: Any) -> int:
        """Return about how many bytes an instance takes, without the objects that it holds."""
        return 0

    def parts(self, value: Any) -> Sequence[Any] | None:
        """Return the objects that an instance holds; ``None`` if they are not fully known."""
        zone = getattr(value, "tzinfo", None)  # its class may be the user's
        return () if zone is None else (zone,)


def kind_of(cls: Any, *, arrays: bool = False) -> Kind | None:
    """Return the kind of a class's objects, or ``None`` if no tree can hold these objects."""
    if is_array(cls):
        return _Array() if arrays else None
    if by_name(cls, cls.__module__) is None:
        return None
    if issubclass(cls, enum.Enum):
        return _Member()
    if is_constant(cls):
        return Kind()
    # We pickle some classes of the standard library in our own way (see ``reducers``).
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names or not pickled_by_state(cls):
        return None
    slots = _slots_of(cls)
    return None if slots is None else _Instance(slots, has_dict=cls.__dictoffset__ != 0)


def is_constant(cls: type) -> bool:
    """Return whether the objects of a class never change: moments, paths and the like."""
    return f"{cls.__module__}.{cls.__qualname__}" in _CONSTANTS


def is_array(cls: Any) -> bool:
    """Return whether a class is ``numpy.ndarray``."""
    return bool(cls.__module__ == "numpy" and cls.__name__ == "ndarray")


def is_view(value: Any) -> bool:
    """Return whether a value is an array whose memory belongs to another array."""
    return is_array(type(value)) and is_array(type(value.base))


class _Array(Kind):
    """The kind of arrays that own their memory, and of views, which hold the array that owns it.

    A watch compares owners by a hash of their bytes, and views by their form alone.
    """

    constant = False

    def size(self, value: Any) -> int:
        size: int = 64 if is_view(value) else value.nbytes
        return size

    def parts(self, value: Any) -> Sequence[Any] | None:
        if is_view(value):  # the view of an array that is fixed comes back fixed
            owner, fits = value.base, value.nbytes > 0 and value.dtype.names is None
            fits = fits and owner.nbytes <= _LARGE_OWNER
            return (owner,) if fits and value.flags.writeable <= owner.flags.writeable else None
        # numpy loads some arrays into the bytes of their pickle; nothing else uses these bytes.
        alone = value.base is None or (type(value.base) is bytes and value.flags.writeable)
        is_whole = alone and value.flags.forc and value.nbytes > 0
        kind = value.dtype
        is_flat = all(kind[name].base.names is None for name in kind.names or ())
        return () if is_whole and is_flat and not kind.hasobject and kind.kind != "T" else None


_LARGE_OWNER = 1 << 20  # bytes: a row of a larger array is stored without that array
_PIECE = 1 << 16  # bytes that are copied and hashed at a time: they fit a processor's cache


_form = attrgetter("shape", "strides", "dtype", "flags.writeable")


def _content(array: Any) -> tuple[object, ...]:
    """Return the facts that differ once an array has changed: its form, and a hash of its bytes.

    The hash is Python's hash of ``bytes``: SipHash of 64 bits with a key of this process.  It takes
    a third of the time of SHA-256, and nothing stored depends on the hash.
    """
    if array.nbytes <= _PIECE:
        hashed = hash(array.tobytes("A"))
    else:
        flat = memoryview(array.ravel("K").view("B"))
        pieces = (bytes(flat[at : at + _PIECE]) for at in range(0, len(flat), _PIECE))
        hashed = hash((*map(hash, pieces),))
    kind = array.dtype
    return hashed, array.shape, array.strides, kind, kind.names, array.flags.writeable


class _Member(Kind):
    def parts(self, value: Any) -> Sequence[Any] | None:
        return () if type(value).__members__.get(value.name) is value else None


class _Instance(Kind):
    constant = False

    def __init__(self, slots: list[Any], *, has_dict: bool) -> None:
        self._slots = slots
        self._has_dict = has_dict

    def parts(self, value: Any) -> Sequence[Any] | None:
        if form_of(value) is not NotImplemented:
            return None  # a sentinel, compared with ``is``: stored by its name in its module
        try:
            inside = [slot.__get__(value) for slot in self._slots]
        except AttributeError:  # the objects that it refers to do not show which slots are set
            return None
        referents = gc.get_referents(value)
        if type(value) not in referents[-1:] or not _ids(inside) <= _ids(referents):
            return None  # another Python, in which a watch would not see the slots
        if self._has_dict:
            attributes = vars(value)
            if not _NAMES.issuperset(map(type, attributes)):
                return None
            inside += attributes.values()
        return inside if _is_whole_state(value, inside) else None


def _ids(values: Sequence[Any]) -> set[int]:
    return set(map(id, values))


def _is_whole_state(value: Any, inside: Sequence[Any]) -> bool:
    """Return whether the pickled state of an instance consists of exactly these objects."""
    held = _ids(inside)
    for each in inside:
        if type(each) is dict:  # attributes that a class keeps in one of its slots
            held.update(map(id, each.values()))
    try:
        make, _, state, *_ = value.__reduce_ex__(_PROTOCOL)
    except Exception:  # the class's own ``__getstate__`` may raise
        return False
    if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return False
    waiting = [state]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in held:
            continue
        if type(each) not in _FRESH:
            return False
        if type(each) is dict and not _NAMES.issuperset(map(type, each)):
            return False
        held.add(id(each))
        waiting += each.values() if type(each) is dict else each
    return True


def pickled_by_state(cls: type) -> bool:
    """Return whether instances are pickled as a new object that receives its state."""
    return (
        all(getattr(cls, name) is getattr(object, name) for name in _LEFT_TO_PYTHON)
        and not any(hasattr(cls, name) for name in _OWN_ARGUMENTS)
        and cls not in copyreg.dispatch_table
    )


@functools.lru_cache(maxsize=1000)
def _slots_of(cls: type) -> list[Any] | None:
    """Return the slots of a class; ``None`` if its instances hold more than slots and a dict."""
    bases = reversed(cls.__mro__[:-1])
    held = [pair for base in bases for pair in vars(base).items()]
    names = dict(held)  # the last class with a name wins
    slots = [each for each in held if type(each[1]) is types.MemberDescriptorType]
    if (
        not cls.__flags__ & HEAP_TYPE
        or own_layout(cls) is not object
        or type(names.get("__dict__", _DICT)) is not type(_DICT)
        or any(names[name] is not slot for name, slot in slots)
    ):
        return None
    return [slot for _, slot in slots]


class _Example:
    pass


_DICT = vars(_Example)["__dict__"]


# -- attributes ----------------------------------------------------------------------------------

_NO_ATTRIBUTES: Mapping[str, Any] = {}


def attributes(instance: object) -> dict[str, Any]:
    """Return the attributes of an instance, from ``__dict__`` and from slots."""
    cls: Any = type(instance)
    return {**getattr(instance, "__dict__", _NO_ATTRIBUTES), **slot_values(instance, slots_in(cls))}


def slot_values(instance: object, slots: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of the slots of an instance that are set, by name."""
    held = {}
    for name, slot in slots:
        try:
            held[name] = slot.__get__(instance)
        except AttributeError:
            continue
    return held


def dict_of(instance: object) -> dict[str, Any]:
    """Return the very ``__dict__`` of an instance, without calling code of its class."""
    found: dict[str, Any] = object.__getattribute__(instance, "__dict__")
    return found


def held_by(instance: object) -> dict[str, Any]:
    """Return the attributes of an instance, in slots first, without calling code of its class."""
    cls: Any = type(instance)
    held = slot_values(instance, slots_in(cls))
    with contextlib.suppress(AttributeError):  # the class has slots only
        held |= dict_of(instance)
    return held


_OFFSETS = {"__dictoffset__", "__vectorcalloffset__", "__weaklistoffset__"}
"""Members by which a class written in C declares its layout: addresses, not state."""


@functools.lru_cache(maxsize=4096)
def slots_in(cls: type) -> tuple[tuple[str, Any], ...]:
    """Return the slots of a class and its bases, by name, as the descriptors that read them."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        found.update(
            (name, each)
            for name, each in vars(base).items()
            if type(each) is types.MemberDescriptorType and base.__flags__ & HEAP_TYPE
            if name not in _OFFSETS
        )
    return tuple(found.items())


def own_layout(cls: Any) -> type | None:
    """Return the builtin class to which a class adds nothing but slots and a ``__dict__``.

    Returns:
        ``object`` for most classes; ``None`` if a class in between has C fields, which cannot be
        examined.
    """
    # Many classes in C are heap types, too (``deque`` from Python 3.12), but cannot be changed.
    while cls.__flags__ & (HEAP_TYPE | _IMMUTABLE_TYPE) == HEAP_TYPE:
        base = cls.__base__
        slots = sum(
            type(each) is types.MemberDescriptorType and each.__objclass__ is cls
            for each in vars(cls).values()
        )
        pointers = slots + sum(
            getattr(cls, offset) > 0 and getattr(base, offset) <= 0
            for offset in ("__dictoffset__", "__weakrefoffset__")
        )
        fixed = not cls.__itemsize__  # else its size says nothing: a tuple, an int
        if fixed and cls.__basicsize__ != base.__basicsize__ + _POINTER * pointers:
            return None
        cls = base
    found: type = cls
    return found


# -- trees ----------------------------------------------------------------------------------------


LARGE_LEAF = 512  # characters or bytes: a reference takes a tenth of that
_LEAVES = frozenset({str, bytes})
NUMBERS = frozenset({int, float, bool, type(None)})
_NOTHING: frozenset[int] = frozenset()


class Tree(NamedTuple):
    """A tree of data and its nodes.

    The root is the first node, if the root is a node.  ``size`` is about how many bytes the tree
    takes.  ``numbers`` has the number of each node.  ``refers`` is true if the tree holds nodes of
    other trees.  ``classes`` are the classes of the objects that are not plain data.
    """

    root: Any
    nodes: Sequence[Any] = ()
    size: int = 0
    refers: bool = False
    numbers: Sequence[int] = ()
    classes: Collection[type] = ()

    @property
    def arrays(self) -> bool:
        """True if arrays are in the tree."""
        return any(map(is_array, self.classes))

    def numbered(self, places: Mapping[int, int]) -> Tree:
        """Return the tree with its nodes numbered by their places in a pickle; -1 for none.

        Args:
            places: the places in the pickle, by the ids of the objects.
        """
        return self._replace(numbers=[places.get(id(node), -1) for node in self.nodes])


def walk(
    root: Any,
    known: Container[int] = _NOTHING,
    refused: Container[int] = _NOTHING,
    most: int = 1_000_000,
    *,
    arrays: bool = False,
) -> Tree | None:
    """Return the tree at ``root``, or ``None`` if the data is not a tree.

    Args:
        known: ids of objects that are nodes of other trees; the walk does not enter them.
        refused: ids of objects that must not be in the tree.
        most: the largest number of objects in the tree.
        arrays: whether the tree may hold numpy's arrays; each look reads all of their bytes.
    """
    nodes: list[Any] = []
    met: set[int] = set()
    kinds: dict[type, Kind | None] = {}
    waiting, size, left, refers = [root], 0, most, False
    while waiting:
        value = waiting.pop()
        cls = type(value)
        if cls in NUMBERS:
            size += 8
            continue
        if cls in _LEAVES and len(value) < LARGE_LEAF:
            size += len(value) + 4
            continue
        here = id(value)
        if here in known:
            refers = True
            continue
        if cls in _LEAVES:
            size += len(value)
            nodes.append(value)
            continue
        if here in met:
            continue
        inside = None if here in refused else _inside(value, cls, kinds, arrays)
        if inside is None:
            return None
        if cls in _UNCHANGING and not value:
            continue  # an empty tuple or frozenset is a singleton
        met.add(here)
        left -= len(inside) + 1
        if left < 0:
            return None
        size += 8 if cls is list or cls is tuple else 8 + 8 * len(inside)  # a key is short
        kind = kinds.get(cls)
        if kind is None or not kind.constant:
            nodes.append(value)
        size += 0 if kind is None else kind.size(value)
        if PLAIN.issuperset(map(type, inside)):  # the usual case: the same sums in fewer turns
            sizes = [len(each) if type(each) in _LEAVES else 4 for each in inside]
            if max(sizes, default=0) < LARGE_LEAF:
                size += sum(sizes) + 4 * len(sizes)
                continue
        waiting.extend(inside)
    return Tree(root, (*nodes,), size, refers, range(len(nodes)), (*kinds,))


def _inside(
    value: Any, cls: type, kinds: dict[type, Kind | None], arrays: bool
) -> Collection[Any] | None:
    """Return the objects that a value holds, or ``None`` if it cannot be in a tree."""
    if cls is list or cls is tuple:
        contents: Collection[Any] = value
        return contents
    if cls is dict:
        return value.values() if PLAIN.issuperset(map(type, value)) else None
    if cls in _SETS:  # a set must hold no nodes: a loaded set has another order
        small = PLAIN.issuperset(map(type, value))
        large = any(type(each) in _LEAVES and len(each) >= LARGE_LEAF for each in value)
        return value if small and not large else None
    if cls not in kinds:
        kinds[cls] = kind_of(cls, arrays=arrays)
    kind = kinds[cls]
    return kind.parts(value) if kind is not None else None


_CONTAINERS = frozenset({list, dict, tuple})
_SETS = frozenset({set, frozenset})
_SIZED = frozenset({list, dict, set})
_UNCHANGING = frozenset({tuple, frozenset})
_IMMUTABLE = _UNCHANGING | _LEAVES
_FEW = 40  # objects
_LITTLE = 2048  # characters or bytes in all of them
_ITERABLES: tuple[Iterable[Any], ...] = (range(0), [], (), "")
ITERATORS = frozenset(type(iter(each)) for each in _ITERABLES)
_BACKWARDS: type = type(reversed([]))
SHRINKING = frozenset({type(iter([])), type(iter(bytearray())), _BACKWARDS})
"""Iterators over objects that can become shorter during the iteration."""


def few(values: Collection[Any]) -> bool:
    """Return whether these are few small objects of plain data, or iterators over such objects.

    Each iterator is one of the values, and nothing else holds it.

    Any pickler handles such objects, and none of them is worth a reference.
    """
    waiting: list[Collection[Any]] = [values]
    met: set[int] = set()
    size = 0
    left = _FEW
    while waiting:
        inside = waiting.pop()
        left -= len(inside)
        if left < 0:
            return False
        for value in inside:
            cls = type(value)
            if cls in NUMBERS:
                continue
            if cls in _LEAVES:
                size += len(value)
            elif cls in ITERATORS and (inside is not values or id(value) in met):
                return False
            elif id(value) not in met:
                met.add(id(value))
                held = _held_in(value, cls)
                if held is None:
                    return False
                waiting.append(held)
        if size > _LITTLE:
            return False
    return True


def _held_in(value: Any, cls: type) -> Collection[Any] | None:
    """Return the objects that plain data holds; ``None`` for other values and for large dicts."""
    if cls is dict:
        return [*value, *value.values()] if len(value) <= _FEW else None
    if cls in _CONTAINERS:
        held: Collection[Any] = value
        return held
    if cls is range or (cls in ITERATORS and not is_overtaken(value)):
        return gc.get_referents(value)
    return None


def is_overtaken(iterator: Any) -> bool:
    """Return whether a list is now shorter than the position of an iterator over it.

    Pickled as usual, the iterator would be restored at the end of the list, and would yield items
    that are appended later.
    """
    if type(iterator) not in SHRINKING:
        return False
    _, (iterated,), *place = iterator.__reduce__()  # without a place, the iterator has ended
    return bool(place) and place[0] > len(iterated) - (type(iterator) is _BACKWARDS)


def changes(node: Any) -> bool:
    """Return whether a node can be changed in place."""
    return type(node) not in _IMMUTABLE


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two lists hold the very same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def starts_with(objects: Sequence[Any], first: Sequence[Any]) -> bool:
    """Return whether a list begins with the very objects of another list."""
    return len(first) <= len(objects) and all(map(is_, objects, first))


BLOCK = 512
"""Containers that are compared together: what they hold fits a processor's cache."""


class Contents:
    """The contents of lists, sets and dicts: a copy by reference, and whether they still hold it.

    If all keys of the dicts are texts, the garbage collector shows the values, and these alone.  It
    reads all dicts in one loop in C, so that the processor fetches many of them from memory at a
    time.  An iteration waits for one dict after the other.  The keys are in the cache by then.
    """

    __slots__ = ("counts", "dicts", "items", "keys", "lists", "shown", "sizes", "values")

    def __init__(self) -> None:
        self.lists: list[Any] = []  # and sets
        self.counts: list[int] = []
        self.items: list[Any] = []
        self.dicts: list[dict[Any, Any]] = []
        self.sizes: list[int] = []
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.shown = True  # whether the collector shows the values alone, in their order

    def add(self, lists: Sequence[Any], dicts: Sequence[dict[Any, Any]]) -> None:
        """Copy the contents of more containers by reference."""
        self.lists += lists
        self.counts += map(len, lists)
        self.items += chain.from_iterable(lists)
        values = [*chain.from_iterable(map(dict.values, dicts))]
        self.dicts += dicts
        self.sizes += map(len, dicts)
        self.keys += chain.from_iterable(dicts)
        self.values += values
        self.shown = self.shown and same(gc.get_referents(*dicts), values)

    def extend(self, other: Contents) -> None:
        """Append a copy of other contents."""
        for name in _COPIED:
            getattr(self, name).extend(getattr(other, name))
        self.shown = self.shown and other.shown

    def __len__(self) -> int:
        return len(self.lists) + len(self.dicts)

    def holds(self) -> bool:
        """Return whether nothing has changed.

        Raises:
            RuntimeError: another thread is changing a dict.
        """
        lists, dicts = self.lists, self.dicts
        return (
            [*map(len, lists)] == self.counts
            and all(map(is_, chain.from_iterable(lists), self.items))
            and [*map(len, dicts)] == self.sizes
            and (self._shows_the_same() if self.shown else self._is_the_same())
        )

    def _shows_the_same(self) -> bool:
        # Keys that the collector does not show are exact texts, which are equal or not.
        shown = gc.get_referents(*self.dicts)
        return same(shown, self.values) and [*chain.from_iterable(self.dicts)] == self.keys

    def _is_the_same(self) -> bool:
        values = [*chain.from_iterable(map(dict.values, self.dicts))]
        return same(values, self.values) and same([*chain.from_iterable(self.dicts)], self.keys)

    def changed(self) -> list[Any]:
        """Return the containers that have changed."""
        found = [each for each, before in self.of_lists() if not same([*each], before)]
        for each, keys, values in self.of_dicts():
            if not (same([*each], keys) and same([*each.values()], values)):
                found.append(each)
        return found

    def of_lists(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield the lists and sets, each with the items that were copied."""
        at = 0
        for each, count in zip(self.lists, self.counts, strict=True):
            yield each, self.items[at : at + count]
            at += count

    def of_dicts(self) -> Iterator[tuple[dict[Any, Any], list[Any], list[Any]]]:
        """Yield the dicts, each with the keys and the values that were copied."""
        at = 0
        for each, size in zip(self.dicts, self.sizes, strict=True):
            yield each, self.keys[at : at + size], self.values[at : at + size]
            at += size


_COPIED = ("lists", "counts", "items", "dicts", "sizes", "keys", "values")


class Watch:
    """A snapshot of mutable objects: lengths, keys and the objects in each slot.

    A container is compared with a copy of its contents.  The garbage collector shows the objects in
    the slots of an instance, all of which are set, and at the end the class.  The ``__dict__`` of
    an instance, which Python 3.13 does not show, is compared as a dict.  An array is compared by a
    hash of its bytes, a view by the array under it and its form.
    """

    def __init__(self, nodes: Iterable[Any] = ()) -> None:
        mutable = [each for each in nodes if changes(each)]
        try:
            self._look_at(mutable)
        except RuntimeError:  # another thread is changing a dict
            self._look_at([])
            self._break()

    def _look_at(self, mutable: list[Any]) -> None:
        sized = [each for each in mutable if type(each) in _SIZED]
        others = [] if len(sized) == len(mutable) else [e for e in mutable if type(e) not in _SIZED]
        arrays = [each for each in others if is_array(type(each))]
        self._arrays = [*filterfalse(is_view, arrays)]
        self._contents = [*map(_content, self._arrays)]
        self._views = [(each, each.base, _form(each)) for each in filter(is_view, arrays)]
        self._others = [each for each in others if not is_array(type(each))]
        self._owners = [each for each in self._others if type(each).__dictoffset__]
        self._attributes = [*map(vars, self._owners)]
        self._shown = gc.get_referents(*self._others)  # the dicts exist by now
        self._counts = [len(gc.get_referents(each)) for each in self._others]
        self._blocks: list[Contents] = []
        sized += self._attributes
        for at in range(0, len(sized), BLOCK):
            block, some = Contents(), sized[at : at + BLOCK]
            dicts = [each for each in some if type(each) is dict]
            block.add([each for each in some if type(each) is not dict], dicts)
            self._blocks.append(block)

    def extend(self, other: Watch) -> None:
        """Watch the objects of another watch as well."""
        for name in vars(self).keys() - {"_blocks"}:
            getattr(self, name).extend(getattr(other, name))
        for each in other._blocks:
            if not self._blocks or len(self._blocks[-1]) + len(each) > BLOCK:
                self._blocks.append(Contents())
            self._blocks[-1].extend(each)

    @property
    def count(self) -> int:
        """The number of watched objects."""
        objects = len(self._others) + len(self._arrays) + len(self._views)
        return objects + sum(map(len, self._blocks))

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        try:
            return (
                self._shows_the_same()
                and all(map(Contents.holds, self._blocks))
                and not self._changed_views()
                and [*map(_content, self._arrays)] == self._contents
            )
        except RuntimeError:  # another thread is changing a dict
            return False

    def _shows_the_same(self) -> bool:
        return not self._others or (
            same(gc.get_referents(*self._others), self._shown)
            and same([*map(vars, self._owners)], self._attributes)
        )

    def _changed_views(self) -> list[Any]:
        return [v for v, base, form in self._views if v.base is not base or _form(v) != form]

    def changed(self) -> set[int]:
        """Return the ids of the changed objects; of all objects if the changed ones are unknown."""
        found = set[int]()
        try:
            for block in self._blocks:
                found.update(map(id, block.changed()))
            shown = iter(self._shown)
            for each, count in zip(self._others, self._counts, strict=True):
                if not same(gc.get_referents(each), [*islice(shown, count)]):
                    found.add(id(each))
            for each, attributes in zip(self._owners, self._attributes, strict=True):
                if vars(each) is not attributes or id(attributes) in found:
                    found.add(id(each))
            arrays = zip(self._arrays, self._contents, strict=True)
            found.update(id(each) for each, content in arrays if _content(each) != content)
            found.update(map(id, self._changed_views()))
        except (RuntimeError, ValueError):  # another thread is changing a dict; a broken watch
            held = chain.from_iterable((*each.lists, *each.dicts) for each in self._blocks)
            views = [each for each, _, _ in self._views]
            found.update(map(id, chain(held, self._others, self._arrays, views)))
        return found

    @classmethod
    def of_classes(cls, classes: Iterable[type]) -> Watch:
        """Return a watch over the definitions of classes and their bases."""
        every = {base for each in classes for base in each.__mro__[:-1]}
        return cls(chain.from_iterable(gc.get_referents(vars(base)) for base in every))

    @classmethod
    def broken(cls) -> Watch:
        """Return a watch that never holds."""
        watch = cls()
        watch._break()
        return watch

    def _break(self) -> None:
        self._blocks.append(Contents())
        self._blocks[-1].counts.append(-1)  # never equal to a length
