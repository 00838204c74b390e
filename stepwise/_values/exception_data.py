"""Exceptions as data: the class by its name, arguments and attributes as tagged JSON.

An exception comes back with its class, or not at all: another class would take another ``except``.
The class is looked up in modules that are imported already, and must be an exception class.  The
builtin base makes the object, so that no ``__init__``, ``__new__`` or ``__setattr__`` of a user's
class is called.  Each exception is made again when it is recorded; what differs then is recorded as
a summary, with the reason.
"""

from __future__ import annotations

import builtins
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from stepwise._runtime.limits import ran_out
from stepwise._runtime.messages import Once, notice
from stepwise._runtime.tracebacks import linked_to, members
from stepwise._values.comparison import alike
from stepwise._values.preview import error_text
from stepwise._values.secrets import NO_SECRETS, Secrets
from stepwise._values.tagged_json import NotDataError, dump_tagged, imported, load_tagged
from stepwise.errors import StepFailedError, UnreadableValueError

__all__ = ["decode_raised", "encode_raised"]

_ERROR = "error"  # the tag of an exception among the arguments or attributes of another
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_LINKED = {"__cause__", "__context__", "__suppress_context__", "__traceback__"}
# ``obj``: Python sets it for its hint "did you mean", to whatever lacks an attribute.
_NOT_FIELDS = frozenset({"__dict__", "__weakref__", "args", "obj", *_LINKED})
_is_first = Once()
_OF_GROUPS = frozenset({"message", "exceptions"})


def encode_raised(
    error: BaseException,
    traceback: Callable[[BaseException], str],
    then: str = "",
    secrets: Secrets = NO_SECRETS,
) -> bytes:
    """Encode an exception with the exceptions it is linked to.

    Args:
        traceback: gives the text of the traceback of one exception.
        then: what follows where it cannot come back as it is, for a notice; empty for none.
        secrets: are masked in what it says and holds.
    """
    chain, index = linked_to(error, _held)
    texts = [traceback(each) for each in chain]
    facts = [_facts(each, index, text) for each, text in zip(chain, texts, strict=True)]
    _verify(chain, facts)
    why = facts[0]["why"]
    if secrets:
        for each, text, fact in zip(chain, texts, facts, strict=True):
            fact.update(_facts(each, index, text, secrets), why=secrets.mask(fact["why"]))
    if why and then and _is_first((type(error), then)):
        # Not a warning: turned into an error, it would take another ``except``.
        notice(
            f"the {type(error).__qualname__} that was raised cannot be recorded as data "
            f"(codec='json'): {why}. {then}. Raise an exception of a class that a module holds, "
            "whose arguments and attributes are plain data"
        )
    return json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_raised(data: bytes, *, whole: bool) -> BaseException:
    """Load what :func:`encode_raised` made, from verified bytes.

    Args:
        whole: only as what was raised; else ``StepFailedError`` may stand for it.

    Raises:
        UnreadableValueError: it cannot come back as what was raised.
    """
    facts = json.loads(data)
    if isinstance(facts, dict):
        return _of_first_format(facts, whole=whole)
    revived = _Revived(facts)
    if whole:
        return revived.of(0)
    return revived.of_or_summary(0)


# -- out -----------------------------------------------------------------------------------------


def _held(error: BaseException) -> list[BaseException]:
    """The members of a group, and the exceptions that are arguments or attributes."""
    held = [*error.args, *vars(error).values(), *members(error)]
    return [each for each in held if isinstance(each, BaseException)]


def _facts(
    error: BaseException,
    index: Mapping[int, int],
    traceback: str,
    secrets: Secrets = NO_SECRETS,
) -> dict[str, Any]:
    cls, inside = type(error), members(error)
    facts: dict[str, Any] = {
        "module": cls.__module__,
        "type": cls.__qualname__,
        "message": secrets.mask(error_text(error)),
        "traceback": traceback,
        "why": "",
        "cause": index.get(id(error.__cause__)),
        "context": index.get(id(error.__context__)),
        "suppress": error.__suppress_context__,
        "members": [index[id(each)] for each in inside],
    }

    def written(what: str, value: Any) -> Any:
        if isinstance(value, BaseException):
            return {"$": _ERROR, "is": index[id(value)]}
        try:
            return dump_tagged(secrets.masked(value))
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
    """Return the attributes with a place of their own in an exception: slots, builtins'."""
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
    """Make each exception again; say why of those that come back as something else."""
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
    parts = members(one) or one.args, members(other) or other.args
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
    """The exceptions of one record, each made once."""

    def __init__(self, facts: list[dict[str, Any]]) -> None:
        self._facts = facts
        self._made: dict[int, BaseException | None] = {}

    def of(self, number: int) -> BaseException:
        """Return the exception with its links.

        Raises:
            UnreadableValueError: it cannot come back as what was raised.
        """
        error = self._bare(number)
        self._link()
        return error

    def of_or_summary(self, number: int) -> BaseException:
        """Return the exception, or a summary of it, with its links."""
        error = self._bare_or_summary(number)
        self._link()
        return error

    def _bare_or_summary(self, number: int) -> BaseException:
        try:
            return self._bare(number)
        except UnreadableValueError:
            made = self._made[number] = _summary(self._facts[number])
            return made

    def _link(self) -> None:
        """Set the causes and contexts of all that was made, which makes these in their turn."""
        linked: set[int] = set()
        while waiting := self._made.keys() - linked:
            for number in waiting:
                linked.add(number)
                error, facts = self._made[number], self._facts[number]
                links = {
                    f"__{name}__": self._bare_or_summary(facts[name])
                    for name in ("cause", "context")
                    if facts[name] is not None
                }
                for name, value in {**links, "__suppress_context__": facts["suppress"]}.items():
                    BaseException.__setattr__(cast("BaseException", error), name, value)

    def _bare(self, number: int) -> BaseException:
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
            arguments = [*arguments, [self._bare(each) for each in facts["members"]]]
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
            return self._bare(written["is"])
        return load_tagged(written)


def _builtin_base(cls: type) -> type:
    """The builtin class that lays out the exceptions of a class."""
    base: Any = cls
    while getattr(builtins, base.__name__, None) is not base:
        base = base.__base__
    return cast("type", base)


def _summary(facts: Mapping[str, Any]) -> StepFailedError:
    return StepFailedError(
        f"{facts['type']}: {facts['message']}",
        type_name=facts["type"],
        traceback_text=facts["traceback"],
    )


def _of_first_format(facts: dict[str, Any], *, whole: bool) -> BaseException:
    """An exception as it was recorded at first: a builtin one, or a summary."""
    cls, arguments = getattr(builtins, facts["type"], None), facts["args"]
    if arguments is not None and isinstance(cls, type) and issubclass(cls, BaseException):
        return cls(*arguments)
    if whole:
        raise UnreadableValueError(f"the {facts['type']} that it raised was recorded as a summary")
    return _summary(facts)
