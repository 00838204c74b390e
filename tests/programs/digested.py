"""Classes and functions whose values tests digest."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import attrs
import pydantic


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0
    note: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Pair(NamedTuple):
    left: Any
    right: Any


@attrs.define
class Attrs:
    x: Any
    note: Any = attrs.field(default=None, eq=False)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)

    x: Any = None
    _secret: Any = pydantic.PrivateAttr(default=None)

    @functools.cached_property
    def slow(self) -> str:
        return f"computed from {self.x}"


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def ask(self):
        return "asked"


class WithSlots:
    __slots__ = ("x", "y")

    def __init__(self, x):
        self.x = x


def closure(value):
    def inner():
        return value

    return inner


def local_class():
    class Inner:
        pass

    return Inner
