"""Keys of calls for results that outlive the program: the code counts, as the values do.

Within a run, code that was edited since is reported.  A cache has nobody to report to, so a key
holds everything that decides about the result of a pure function: its arguments, its instance, its
captured variables, the code that it reaches, the variables of modules that this code reads, and the
code of each object, class and function among these values.  What cannot be told has no key.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

from stepwise._identity.clients import is_foreign, is_foreign_module
from stepwise._identity.following import Code, code_of
from stepwise._identity.identity import Lenient
from stepwise._values.digest import join, string
from stepwise._values.trees import ATOMS


class _Coded(Lenient):
    """An encoder of values with their code.

    Attributes:
        untold: why there is no key; empty if there is one.
    """

    grows = False

    def __init__(self, around: Sequence[object]) -> None:
        super().__init__(around, masking=False)
        self.list_tag = b"V"  # no list is digested as another encoder would
        self.exactly = True
        self.untold = ""
        self._told: dict[Code | type, list[bytes]] = {}

    def object(self, value: Any) -> bytes:
        """Encode an object with the code of its class."""
        encoded, cls = super().object(value), type(value)
        return join(b"V", [encoded, *self._methods(cls)])

    def class_(self, cls: type) -> bytes:
        """Encode a class with its code."""
        return join(b"V", [super().class_(cls), *self._methods(cls)])

    def code(self, function: types.FunctionType) -> bytes:
        """Encode a function with its code, captured variables and defaults."""
        encoded = super().code(function)
        if is_foreign_module(function.__module__ or ""):
            return encoded
        return join(b"V", [encoded, *self.told(code_of(function), function.__qualname__)])

    def told(self, code: Code | None, name: str) -> list[bytes]:
        """Return the encodings of code and of the variables that it reads."""
        if code is None:
            self.untold = self.untold or f"the code of {name} is not known"
            return []
        if code in self._told:
            return self._told[code]
        self._told[code] = [string(code.id)]  # for the values that hold objects with this code
        unknown = len(self.unknown)
        values = {f"{space.get('__name__')}.{name}": space.get(name) for name, space in code.values}
        for held, space, value, _ in code.held:
            if isinstance(value, type) and not is_foreign(value):
                values[f"{space.get('__name__')}.{held}"] = _constants(value)
        self._told[code] = [string(code.id), self.dict_(values)]
        del self.unknown[unknown:]  # a client in a module counts by its class
        return self._told[code]

    def _methods(self, cls: type) -> list[bytes]:
        if cls not in self._told:
            self._told[cls] = []  # for constants that hold objects of the class
            told: list[bytes] = []
            for base in cls.__mro__:
                if not is_foreign(base):
                    told += self.told(code_of(base), base.__qualname__)
                    told.append(self.dict_(_constants(base)))
            self._told[cls] = told
        return self._told[cls]


def _constants(cls: type) -> dict[str, Any]:
    """Return the data that are attributes of a class."""
    held = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
    return {name: value for name, value in held.items() if type(value) in (*ATOMS, *_DATA)}


_DATA = (list, tuple, dict, set, frozenset)


def key_of_values(
    code: Code | None, name: str, values: Mapping[str, Any], around: Sequence[object] = ()
) -> tuple[str, str]:
    """Return the key of a call and an empty text; or an empty key and why there is none.

    Args:
        code: the code of the function.
        name: the name of the function, for the reason.
        values: everything else that counts, by name.
        around: the instance that holds some of the values.
    """
    encoder = _Coded(around)
    told = encoder.told(code, name)
    encoded = join(b"V", [*told, encoder.whole_of(dict(values))])
    if encoder.unknown:
        cls = type(encoder.unknown[0]).__qualname__
        way = "name it in ignore=, or declare its fields with stepwise.identity()"
        return "", f"a {cls} among its arguments or captured values has no digest: {way}"
    return ("", encoder.untold) if encoder.untold else (encoded.hex(), "")
