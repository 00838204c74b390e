"""Exceptions as data: the class by its name, arguments and attributes as tagged JSON.

Values that JSON cannot express carry a tag.  The tags represent types of the standard library and
enum members.  Enums are looked up in the modules that this process has imported.

An exception comes back with its class, or not at all: another class would match another ``except``.
The class is looked up in imported modules, and must be an exception class.  The builtin base makes
the object, so that no ``__init__``, ``__new__`` or ``__setattr__`` of a user's class is called.
Each exception is restored once when it is recorded.  If the restored exception differs, a summary
is recorded, with the reason.
"""

from __future__ import annotations

import base64
import builtins
import collections
import datetime as dt
import decimal
import enum
import json
import pathlib
import sys
import types
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from stepwise._runtime import messages
from stepwise._runtime.system_limits import ran_out
from stepwise._values.comparison import alike, held_twice
from stepwise._values.preview import NO_SECRETS, Secrets, error_text
from stepwise.errors import UnreadableValueError

# -- tagged json ----------------------------------------------------------------------------------


_TAG = "$"  # a dict with this key is written as pairs
_ATOMS = (str, int, float, bool, type(None))


class NotDataError(Exception):
    """A value, or a part of a value, is not data."""


def dump_tagged(value: Any) -> Any:
    """Return a value in a form that ``json`` can write, and that comes back the same.

    Raises:
        NotDataError: a part of the value is not data; the message says which.
    """
    try:
        written = _write(value)
        again = load_tagged(json.loads(json.dumps(written)))
    except RecursionError:
        raise NotDataError("it is nested too deeply, or contains itself") from None
    except ValueError as error:  # an int of many thousand digits, a broken text
        raise NotDataError(str(error)) from None
    if not alike(value, again):
        raise NotDataError(f"it would come back as {again!r:.80}")
    twice = held_twice(value)
    if twice is not None:
        raise NotDataError(f"it holds one and the same {type(twice).__qualname__} twice")
    return written


def _write(value: Any) -> Any:
    cls = type(value)
    if cls in _ATOMS:
        return value
    if cls is list:
        return [_write(item) for item in value]
    if cls is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: _write(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        name = value.name
        if name is None or imported(cls.__module__, cls.__qualname__) is not cls:
            raise NotDataError(f"{value!r} is not a member of an enum that its module names")
        return {_TAG: "enum", "of": [cls.__module__, cls.__qualname__], "is": name}
    form = _FORMS.get(cls)
    if form is None:
        raise NotDataError(f"{value!r:.60} is a {cls.__module__}.{cls.__qualname__}")
    return {_TAG: form[0], "is": _write(form[1](value))}


def load_tagged(written: Any) -> Any:
    """Return the value that :func:`dump_tagged` wrote.

    Raises:
        LookupError: an enum is missing, or no longer has the member.
    """
    if isinstance(written, list):
        return [load_tagged(item) for item in written]
    if not isinstance(written, dict):
        return written
    tag = written.get(_TAG)
    if tag is None:
        return {key: load_tagged(item) for key, item in written.items()}
    if tag == "enum":
        cls = imported(*written["of"])
        if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
            raise LookupError(f"there is no enum {'.'.join(written['of'])}")
        return cls.__members__[written["is"]]
    return _LOADERS[tag](load_tagged(written["is"]))


def imported(module: str, name: str) -> Any:
    """Return the object with a dotted name in an imported module, or ``None``.

    Only the namespaces of the module and of its classes are read, since a module's ``__getattr__``
    and descriptors may execute anything.
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        namespace = getattr(found, "__dict__", None)
        if namespace is None or part not in namespace:
            return None
        found = namespace[part]
    return found


def _written_time(value: Any) -> list[Any]:
    zone = value.tzinfo
    if zone is not None and type(zone) is not dt.timezone:
        raise NotDataError(f"{value!r:.80} has a time zone of type {type(zone).__qualname__}")
    return [value.isoformat(), value.fold]


def _read_time(cls: Any, text: str, fold: int) -> Any:
    return cls.fromisoformat(text).replace(fold=fold)


def _pairs(value: Any) -> list[Any]:
    return [[key, item] for key, item in value.items()]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_FACTORIES: tuple[Any, ...] = (None, list, dict, set, tuple, str, int, float, bool)


def _factory(value: collections.defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if not any(factory is each for each in _FACTORIES):
        raise NotDataError(f"the default_factory of a defaultdict is {factory!r:.60}")
    return [factory.__name__ if isinstance(factory, type) else None, _pairs(value)]


def _defaultdict(parts: list[Any]) -> Any:
    name, items = parts
    found = {each.__name__: each for each in _FACTORIES if each}
    return collections.defaultdict(found[name] if name is not None else None, items)


_Form = tuple[str, Callable[[Any], Any], Callable[[Any], Any]]
_FORMS: dict[type, _Form] = {
    tuple: ("tuple", list, tuple),
    dict: ("dict", _pairs, dict),
    set: ("set", list, set),
    frozenset: ("frozenset", list, frozenset),
    bytes: ("bytes", _base64, base64.b64decode),
    bytearray: ("bytearray", _base64, lambda text: bytearray(base64.b64decode(text))),
    complex: ("complex", lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    dt.datetime: ("datetime", _written_time, lambda parts: _read_time(dt.datetime, *parts)),
    dt.time: ("time", _written_time, lambda parts: _read_time(dt.time, *parts)),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        "timedelta",
        lambda t: [t.days, t.seconds, t.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    type(pathlib.Path()): ("path", str, pathlib.Path),
    collections.deque: (
        "deque",
        lambda q: [list(q), q.maxlen],
        lambda parts: collections.deque(*parts),
    ),
    collections.OrderedDict: ("ordered", _pairs, collections.OrderedDict),
    collections.Counter: ("counter", _pairs, lambda pairs: collections.Counter(dict(pairs))),
    collections.defaultdict: ("defaultdict", _factory, _defaultdict),
}
_LOADERS = {tag: load for tag, _, load in _FORMS.values()}


# -- exception data -------------------------------------------------------------------------------


_ERROR = "error"  # the tag of an exception in the arguments or attributes of another exception
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_LINKED = {"__cause__", "__context__", "__suppress_context__", "__traceback__"}
# ``obj``: the object that lacks an attribute; Python sets it for the hint "did you mean".
_NOT_FIELDS = frozenset({"__dict__", "__weakref__", "args", "obj", *_LINKED})
_is_first = messages.Once()
_OF_GROUPS = frozenset({"message", "exceptions"})


def encode_raised(
    error: BaseException,
    traceback: Callable[[BaseException], str],
    then: str = "",
    secrets: Secrets = NO_SECRETS,
) -> bytes:
    """Encode an exception with the exceptions linked to it.

    Args:
        traceback: returns the text of the traceback of one exception.
        then: the consequence if the exception cannot be restored, for a notice; empty for none.
        secrets: masked in the exception's text and data, like anything that looks like a
            credential.
    """
    chain, index = messages.linked_to(error, _held)
    texts = [traceback(each) for each in chain]
    facts = [_facts(each, index, text) for each, text in zip(chain, texts, strict=True)]
    _verify(chain, facts)
    why = facts[0]["why"]
    for each, text, fact in zip(chain, texts, facts, strict=True):
        fact.update(_facts(each, index, text, secrets), why=secrets.cleaned_text(fact["why"]))
    if why and then and _is_first((type(error), then)):
        # Not a warning: a warning turned into an error would match another ``except``.
        messages.notice(
            f"the {type(error).__qualname__} that was raised cannot be recorded as data "
            f"(codec='json'): {why}. {then}. Raise an exception of a class that a module holds, "
            "whose arguments and attributes are plain data"
        )
    return json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_raised(data: bytes, *, whole: bool) -> BaseException:
    """Load an exception that :func:`encode_raised` encoded, from verified bytes.

    Args:
        whole: refuse a ``StepFailedError`` as a substitute.

    Raises:
        UnreadableValueError: the exception cannot be restored.
    """
    facts = json.loads(data)
    revived = _Revived(facts)
    if whole:
        revived.of(0)
    made = [revived.of_or_summary(number) for number in range(len(facts))]
    messages.link(made, facts)
    return made[0]


# -- out -----------------------------------------------------------------------------------------


def _held(error: BaseException) -> list[BaseException]:
    """Return the members of a group, and the exceptions among arguments and attributes."""
    held = [*error.args, *vars(error).values(), *messages.members(error)]
    return [each for each in held if isinstance(each, BaseException)]


def _facts(
    error: BaseException,
    index: Mapping[int, int],
    traceback: str,
    secrets: Secrets | None = None,
) -> dict[str, Any]:
    cls, inside = type(error), messages.members(error)
    cleaned: Callable[[Any], Any] = (lambda it: it) if secrets is None else secrets.cleaned
    facts: dict[str, Any] = {
        **messages.link_facts(error, index),
        "module": cls.__module__,
        "message": cleaned(error_text(error)),
        "traceback": traceback,
        "why": "",
    }

    def written(what: str, value: Any) -> Any:
        if isinstance(value, BaseException):
            return {"$": _ERROR, "is": index[id(value)]}
        try:
            return dump_tagged(cleaned(value))
        except NotDataError as problem:
            raise NotDataError(f"{what}: {problem}") from None

    if imported(cls.__module__, cls.__qualname__) is not cls:
        facts["why"] = f"no module holds its class under the name {cls.__qualname__}"
        return facts
    try:
        arguments = (error.args[0],) if inside else error.args
        facts["args"] = [written(f"args[{n}]", each) for n, each in enumerate(arguments)]
        facts["state"] = {n: written(f"its {n}", each) for n, each in vars(error).items()}
        facts["fields"] = {
            name: written(f"its {name}", held)
            for name, field in _fields(cls).items()
            if (held := _value(field, error)) is not None
        }
    except NotDataError as problem:
        facts["why"] = str(problem)
    return facts


def _fields(cls: type) -> dict[str, Any]:
    """Return the attributes that are stored outside of ``__dict__``: slots, and builtin fields."""
    group = getattr(builtins, "BaseExceptionGroup", ())
    skipped = _NOT_FIELDS | _OF_GROUPS if group and issubclass(cls, group) else _NOT_FIELDS
    return {
        name: held
        for base in reversed(cls.__mro__[:-1])
        for name, held in vars(base).items()
        if type(held) in _FIELDS and name not in skipped
    }


def _value(field: Any, error: BaseException) -> Any:
    try:
        return field.__get__(error)
    except (AttributeError, TypeError):  # it was not set
        return None


def _verify(chain: list[BaseException], facts: list[dict[str, Any]]) -> None:
    """Restore each exception once; note the reason if the result is different."""
    written = json.loads(json.dumps(facts))
    for number, (error, fact) in enumerate(zip(chain, facts, strict=True)):
        if fact["why"]:
            continue
        try:
            if not _same(error, _Revived(written).of(number)):
                fact["why"] = "made again, it is another"
        except MemoryError as problem:
            raise ran_out(
                f"the {type(error).__name__} that was raised was recorded", problem
            ) from None
        except Exception as problem:  # from a text of its class, or an ``==``
            fact["why"] = str(problem.__cause__ or problem) or type(problem).__name__


def _same(one: BaseException, other: BaseException) -> bool:
    if type(one) is not type(other) or error_text(one) != error_text(other):
        return False
    fields = _fields(type(one)).values()
    parts = messages.members(one) or one.args, messages.members(other) or other.args
    return (
        len(parts[0]) == len(parts[1])
        and all(map(_same_part, *parts))
        and vars(one).keys() == vars(other).keys()
        and all(_same_part(held, vars(other)[name]) for name, held in vars(one).items())
        and all(_same_part(_value(each, one), _value(each, other)) for each in fields)
    )


def _same_part(one: Any, other: Any) -> bool:
    if isinstance(one, BaseException):
        return isinstance(other, BaseException) and _same(one, other)
    return alike(one, other)


# -- in ------------------------------------------------------------------------------------------


class _Revived:
    """The restored exceptions of one record, each made once."""

    def __init__(self, facts: list[dict[str, Any]]) -> None:
        self._facts = facts
        self._made: dict[int, BaseException | None] = {}

    def of_or_summary(self, number: int) -> BaseException:
        """Return an exception, or a summary of it."""
        try:
            return self.of(number)
        except UnreadableValueError:
            made = self._made[number] = messages.summary_of(self._facts[number])
            return made

    def of(self, number: int) -> BaseException:
        """Return an exception without its links.

        Raises:
            UnreadableValueError: the exception cannot be restored.
        """
        if number in self._made:
            made = self._made[number]
            if made is None:
                raise UnreadableValueError("it contains itself")
            return made
        facts = self._facts[number]
        name = f"{facts['module']}.{facts['type']}".removeprefix("builtins.")
        if facts["why"]:
            raise UnreadableValueError(
                f"the {name} that it raised could not be recorded as data: {facts['why']}"
            )
        self._made[number] = None
        try:
            made = self._make(facts, name)
        except (UnreadableValueError, MemoryError):
            del self._made[number]
            raise
        except Exception as problem:
            del self._made[number]
            raise UnreadableValueError(
                f"the {name} that it raised cannot be made again: "
                f"{type(problem).__name__}: {error_text(problem)}"
            ) from problem
        self._made[number] = made
        return made

    def _make(self, facts: dict[str, Any], name: str) -> BaseException:
        cls = imported(facts["module"], facts["type"])
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise UnreadableValueError(
                f"it raised {name}, and no module that this program has imported holds an "
                "exception class of that name. Import it where the workflow is defined"
            )
        arguments = [self._part(each) for each in facts["args"]]
        if facts["members"]:
            arguments = [*arguments, [self.of(each) for each in facts["members"]]]
        base: Any = _builtin_base(cls)
        error: BaseException = base.__new__(cls, *arguments)
        base.__init__(error, *arguments)
        error.__dict__.update({n: self._part(each) for n, each in facts["state"].items()})
        fields = _fields(cls)
        for field, written in facts["fields"].items():
            value = self._part(written)
            if not _same_part(value, _value(fields[field], error)):
                fields[field].__set__(error, value)
        return error

    def _part(self, written: Any) -> Any:
        if isinstance(written, dict) and written.get("$") == _ERROR:
            return self.of(written["is"])
        return load_tagged(written)


def _builtin_base(cls: type) -> type:
    """Return the builtin class that determines the layout of an exception class."""
    base: Any = cls
    while getattr(builtins, base.__name__, None) is not base:
        base = base.__base__
    return cast("type", base)
