"""Messages of every make, the changes that programs make to them, and a description to compare."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import uuid
from typing import Any

import attrs
import numpy  # noqa: ICN001
import pydantic

AT = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)


class Role(enum.Enum):
    USER = "user"
    MODEL = "model"


@dataclasses.dataclass
class Plain:
    role: Any
    content: Any
    tools: list[Any] = dataclasses.field(default_factory=list)
    tags: Any = dataclasses.field(default_factory=set)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Derived(Plain):
    extra: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    role: Any
    content: Any
    tools: list[Any] = dataclasses.field(default_factory=list)
    tags: Any = dataclasses.field(default_factory=set)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    role: Any
    content: Any
    tools: list[Any] = dataclasses.field(default_factory=list)
    tags: Any = dataclasses.field(default_factory=set)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


class SlotsAndDict(Slotted):
    pass


class OwnState:
    """Pickles itself, as models of pydantic do, and keeps part of its state in slots."""

    __slots__ = ("__dict__", "given", "private")

    def __init__(self, role, content, tools, tags, more):
        self.role, self.content, self.tools, self.more = role, content, tools, more
        self.given, self.private = tags, {"parts": [1]}

    @property
    def tags(self):
        return self.given

    def __getstate__(self):
        return {"held": self.__dict__, "given": self.given, "private": copy.copy(self.private)}

    def __setstate__(self, state):
        object.__setattr__(self, "__dict__", state["held"])
        self.given, self.private = state["given"], state["private"]


class Forgetful(OwnState):
    """Comes back with more attributes than were pickled."""

    def __setstate__(self, state):
        super().__setstate__(state)
        self.found = {"again": [True]}


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    role: Any
    content: Any
    tools: list[Any]
    tags: Any
    more: dict[str, Any]
    _private: list[Any] = pydantic.PrivateAttr(default_factory=list)

    def __init__(self, role, content, tools, tags, more):
        super().__init__(role=role, content=content, tools=tools, tags=tags, more=more)


@attrs.define
class Attrs:
    role: Any
    content: Any
    tools: list[Any]
    tags: Any
    more: dict[str, Any]


class Equal(str):
    """Equal to a string, and of another type."""

    __slots__ = ()


CLASSES = (Plain, Derived, Slotted, Frozen, SlotsAndDict, OwnState, Forgetful, Model, Attrs)
KINDS = {each.__name__: each for each in (dict, *CLASSES, numpy.ndarray)}
FAMILIES = {
    "data": ["dict"],
    "objects": [each.__name__ for each in CLASSES],
    "arrays": ["ndarray", "row"],
}


def message(kind, n, size=200):
    """Return a message of a kind; two calls return equal ones.

    Args:
        size: of its content, in words.
    """
    content = f"{n:02} " * size
    if kind == "ndarray":
        return numpy.full(size, n, "float64")
    if kind == "row":  # a view
        return numpy.full((3, size), n, "float64")[1]
    if kind == "dict":
        return {"role": "user", "content": content, "tools": [{"id": n}], "more": {"n": n}}
    more = {"at": AT + dt.timedelta(n), "id": uuid.UUID(int=n), "cost": decimal.Decimal(n), "n": n}
    more["file"] = pathlib.Path("a") / str(n)
    return KINDS[kind](Role.USER if n % 2 else Role.MODEL, content, [{"id": n}], {"a", n}, more)


# -- changes -------------------------------------------------------------------------------------


def get(each, name):
    return each.get(name) if type(each) is dict else getattr(each, name, None)


def put(each, name, value):
    if type(each) is dict:
        each[name] = value
    else:
        object.__setattr__(each, name, value)


def names_of(each):
    """Return the dict that holds the names of a message, or an empty one."""
    return each if type(each) is dict else getattr(each, "__dict__", {})


def turned(each):
    """Put the first name of a dict behind the last."""
    if each:
        first = next(iter(each))
        each[first] = each.pop(first)


def exchange(each):
    one, other = get(each, "content"), get(each, "role")
    put(each, "content", other)
    put(each, "role", one)


def rename(each):
    """Remove an attribute, and give its value to another one."""
    if "content" in names_of(each):
        names_of(each)["other"] = names_of(each).pop("content")
    elif type(each) is OwnState:
        each.given, each.private = each.private, each.given


def other_class(each):
    if type(each) in (Plain, Derived):
        each.__class__ = Derived if type(each) is Plain else Plain


def other_dict(each, **more):
    if type(each) is not dict and hasattr(each, "__dict__"):
        put(each, "__dict__", dict(each.__dict__, **more))


CHANGES = {
    "content": lambda each: put(each, "content", "new"),
    "equal": lambda each: put(each, "content", Equal(get(each, "content"))),
    "constant": lambda each: put(each, "role", Role.MODEL),
    "moment": lambda each: get(each, "more").update(at=AT),
    "type": lambda each: get(each, "more").update(n=bool(get(each, "more").get("n"))),
    "sign": lambda each: get(each, "more").update(n=-0.0 if get(each, "more")["n"] == 0 else 0.0),
    "order": lambda each: turned(names_of(each)),
    "inner order": lambda each: turned(get(each, "more")),
    "attribute": lambda each: "role" in names_of(each) and put(each, "added", [1]),
    "gone": lambda each: names_of(each).pop("content", None),
    "rename": rename,
    "exchange": exchange,
    "replace": lambda each: other_dict(each, new=1),
    "same": other_dict,
    "class": other_class,
    "slot": lambda each: put(each, "tools", list(get(each, "tools"))),
    "copies": lambda each: put(each, "tools", [copy.copy(t) for t in get(each, "tools")]),
    "deep": lambda each: get(each, "tools").append({"id": 2}),
    "inner": lambda each: [t.update(id=True) for t in get(each, "tools") if type(t) is dict],
    "set": lambda each: isinstance(get(each, "tags"), set) and get(each, "tags").add("new"),
    "fields": lambda each: isinstance(get(each, "tags"), set) and get(each, "tags").discard("a"),
    "itself": lambda each: get(each, "tools").append(each),
    "unknown": lambda each: get(each, "tools").append(bytearray(b"x")),
    "private": lambda each: (getattr(each, "private", None) or {}).update(secret=[2]),
}
LISTS = ["append", "many", "alias", "again", "delete", "cut", "turn", "drop", "copy", "hand"]
OPERATIONS = {
    "data": [*LISTS, "odd", "inside", "clear", *["change", "think"] * 8],
    "objects": [*LISTS, "holder", "parts", "parent", *["change", "think"] * 7],
    "arrays": [*LISTS, "think", "equal", "view", "fix", *["write", "append"] * 3],
}


def change(operation, at, how, kind, messages, others, held=()):
    """Do one thing to the messages that is not a step.

    Args:
        held: further objects that the program holds.
    """
    each = messages[at % len(messages)] if messages else None
    if operation in ("append", "many"):
        sizes = range(10, 10 + 30 * at, 30) if operation == "many" else [10 + 80 * at]
        messages += [message(kind, at, size) for size in sizes]
    elif operation == "odd":
        messages.append([Equal("x"), {at}, bytearray(b"x")])
    elif operation == "holder":
        messages.append({"role": "user", "of": messages[-1:], "n": at})
    elif operation == "alias" and messages:
        others.append(each)
    elif operation == "again":
        messages.extend(messages[:at])
    elif operation == "inside":
        others.append({"all": messages, "some": messages[at:]})
    elif operation == "parts" and type(each) in CLASSES:
        others.append([each.tools, each.tags, each.more])
    elif operation == "parent" and messages and type(messages[-1]) in CLASSES:
        messages[-1].more["parent"] = each
    elif operation == "delete":
        del messages[at : at + 1]
    elif operation == "cut":
        del messages[:at]
    elif operation == "turn":
        messages.reverse()
    elif operation == "clear":
        messages.clear()
    elif operation == "drop":
        others.clear()
    elif operation == "change" and (
        type(each) in CLASSES or (type(each) is dict and "more" in each)
    ):
        CHANGES[how](each)
    elif type(each) is numpy.ndarray:
        change_array(operation, at, each, messages, [*messages, *others, *held])


def change_array(operation, at, array, messages, every):
    if operation == "write" and array.flags.writeable:
        array[at % len(array)] += 1
    elif operation == "equal":
        messages.append(array.copy())
    elif operation == "view":
        messages.append(array[: 1 + len(array) // 2])
    elif operation == "fix" and all(
        each is array or not numpy.shares_memory(array, each)
        for each in every
        if type(each) is numpy.ndarray
    ):
        array.flags.writeable = False  # a view that could still be written would come back fixed


# -- descriptions --------------------------------------------------------------------------------


def held(value):
    """Return what an instance holds, by name."""
    slots = [n for c in type(value).__mro__ for n in vars(c).get("__slots__", ())]
    named = {n: getattr(value, n) for n in slots if n[:2] != "__" and hasattr(value, n)}
    if isinstance(value, pydantic.BaseModel):
        named["extra"], named["private"] = value.model_extra, value.__pydantic_private__
        named["set"] = value.model_fields_set
    named.update(getattr(value, "__dict__", {}))
    return {name: each for name, each in named.items() if name != "found"}  # see Forgetful


def described(value, met=None):
    """Return a value with its types, its order, and what is shared in it."""
    met = {} if met is None else met
    cls = type(value)
    if cls in (list, dict, set, numpy.ndarray, *CLASSES):
        if id(value) in met:
            return f"#{met[id(value)][0]}"
        met[id(value)] = len(met), value
    if cls is numpy.ndarray:
        arrays = [each for _, each in met.values() if type(each) is numpy.ndarray]
        shared = [numpy.shares_memory(value, each) for each in arrays]
        return ["array", value.tolist(), value.flags.writeable, value.flags.f_contiguous, shared]
    if cls in (list, tuple):
        return [cls.__name__, *(described(each, met) for each in value)]
    if cls is dict or cls in CLASSES:
        named = value if cls is dict else held(value)
        return [cls.__name__, *((repr(n), described(each, met)) for n, each in named.items())]
    if isinstance(value, set):
        return ["set", *sorted(map(repr, value))]
    return f"{cls.__name__} {value!r}"
