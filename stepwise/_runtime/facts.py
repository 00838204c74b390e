"""Classes of facts: named tuples that are cheap to import, and public names of classes.

``typing.NamedTuple`` compiles every annotation, since ``from __future__ import annotations`` turns
annotations into texts, and ``collections.namedtuple`` compiles a ``__new__``.  That takes 1.35
million instructions for a class of eight fields, and 85 such classes were an eighth of a resume.
Here a class takes its ``__new__`` from a function that was compiled with this module, and keeps its
annotations as texts: 0.1 million.  Otherwise the class is what ``typing.NamedTuple`` makes (a test
compares them): a subclass of ``tuple`` with ``_fields``, ``_replace``, ``_asdict``, defaults, and a
real signature.

The module also gives public names to classes that are defined in private modules.

The module imports nothing of ours.
"""

from __future__ import annotations

import inspect
from collections import _tuplegetter  # type: ignore[attr-defined]
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, ForwardRef, TypeVar

# -- facts ----------------------------------------------------------------------------------------


_make = tuple.__new__
_TEMPLATES = (
    lambda _cls: _make(_cls, ()),
    lambda _cls, a: _make(_cls, (a,)),
    lambda _cls, a, b: _make(_cls, (a, b)),
    lambda _cls, a, b, c: _make(_cls, (a, b, c)),
    lambda _cls, a, b, c, d: _make(_cls, (a, b, c, d)),
    lambda _cls, a, b, c, d, e: _make(_cls, (a, b, c, d, e)),
    lambda _cls, a, b, c, d, e, f: _make(_cls, (a, b, c, d, e, f)),
    lambda _cls, a, b, c, d, e, f, g: _make(_cls, (a, b, c, d, e, f, g)),
    lambda _cls, a, b, c, d, e, f, g, h: _make(_cls, (a, b, c, d, e, f, g, h)),
    lambda _cls, a, b, c, d, e, f, g, h, i: _make(_cls, (a, b, c, d, e, f, g, h, i)),
    lambda _cls, a, b, c, d, e, f, g, h, i, j: _make(_cls, (a, b, c, d, e, f, g, h, i, j)),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _make(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m)
    ),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)
    ),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o)
    ),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p)
    ),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q)
    ),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r)
    ),
    lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s: _make(
        _cls, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s)
    ),
)
"""The ``__new__`` of classes by their number of fields, except for the names of the fields."""

_MOST_FIELDS = 40
_GETTERS = [_tuplegetter(n, f"Alias for field number {n}") for n in range(_MOST_FIELDS)]
"""The descriptors of fields, shared by all classes."""


def _constructor(name: str, fields: dict[str, Any], defaults: tuple[Any, ...]) -> FunctionType:
    if len(fields) < len(_TEMPLATES):
        template = _TEMPLATES[len(fields)]
    else:  # rare enough to compile
        names = ", ".join(fields)
        template = eval(f"lambda _cls, {names}: _make(_cls, ({names},))", globals())  # noqa: S307
    # As in collections.namedtuple(), the code belongs to no file.
    code = template.__code__.replace(
        co_varnames=("_cls", *fields), co_name="__new__", co_filename=f"<{name}>"
    )
    made = FunctionType(code, globals(), "__new__", defaults)
    made.__qualname__ = f"{name}.__new__"  # the error of a wrong call shows this name
    made.__annotations__ = fields
    return made


def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)])
    return f"{type(self).__name__}({shown})"


def _of(cls: Any, iterable: Any) -> Any:
    found = _make(cls, iterable)
    if len(found) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(found)}")
    return found


def _replace(self: Any, /, **changes: Any) -> Any:
    found = self._make(map(changes.pop, self._fields, self))
    if changes:
        raise TypeError(f"Got unexpected field names: {list(changes)!r}")
    return found


def _asdict(self: Any) -> dict[str, Any]:
    return dict(zip(self._fields, self, strict=True))


def _arguments(self: Any) -> tuple[Any, ...]:
    return tuple(self)


_METHODS = {
    "__slots__": (),
    "__repr__": _repr,
    "__getnewargs__": _arguments,
    "_make": classmethod(_of),
    "_replace": _replace,
    "__replace__": _replace,  # for copy.replace
    "_asdict": _asdict,
}


class _Maker(type):
    """A metaclass that makes each subclass a plain subclass of ``tuple``."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(mcs, name, bases, namespace)
        types = namespace.get("__annotations__", {})
        fields = tuple(types)
        given = {each: namespace[each] for each in fields if each in namespace}
        if [*given] != [*fields[len(fields) - len(given) :]]:
            raise TypeError(f"{name}: a field without a default follows one with a default")
        return type(
            name,
            (tuple,),
            {
                "__new__": _constructor(name, types, tuple(given.values())),
                **_METHODS,
                **namespace,
                **dict(zip(fields, _GETTERS[: len(fields)], strict=True)),
                "_fields": fields,
                "_field_defaults": given,
                "__match_args__": fields,
            },
        )


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class NamedTuple(metaclass=_Maker):
        """The base class of named tuples."""


class PlainFacts:
    """A dataclass of facts that JSON can hold, but for private ones."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data, for JSON."""
        names = (name for name in self.__dataclass_fields__ if name[0] != "_")
        return {name: getattr(self, name) for name in names}


# -- public names ---------------------------------------------------------------------------------


C = TypeVar("C", bound=type)


def public(cls: C, package: str = "stepwise") -> C:
    """Give a class the name that tracebacks, pickles and users see.

    Its annotations are texts, which ``typing.get_type_hints`` evaluates in the module that the
    class names: so each annotation becomes a reference that remembers its defining module.
    """
    defined, cls.__module__ = cls.__module__, package
    texts = inspect.get_annotations(cls)
    if texts:
        cls.__annotations__ = {
            name: ForwardRef(text, module=defined, is_class=True) if isinstance(text, str) else text
            for name, text in texts.items()
        }
    return cls
