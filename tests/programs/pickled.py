"""Classes and a function whose values tests record."""

import dataclasses

import pydantic


@dataclasses.dataclass
class Point:
    x: object
    y: object = 0


@dataclasses.dataclass(slots=True)
class Account:
    user: object
    password: object = dataclasses.field(default="secret", repr=False)


class Model(pydantic.BaseModel):
    x: int


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def double(value):
    return value * 2
