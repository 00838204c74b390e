"""Public names for classes that are defined in private modules.

Imports nothing of ours.
"""

from __future__ import annotations

import inspect
from typing import ForwardRef, TypeVar

__all__ = ["public"]

C = TypeVar("C", bound=type)


def public(cls: C, package: str = "stepwise") -> C:
    """Give a class the name that tracebacks, pickles and users see.

    Its annotations are texts, which ``typing.get_type_hints`` reads where the class says that it is
    from: each remembers the module in which it means something.
    """
    defined, cls.__module__ = cls.__module__, package
    texts = inspect.get_annotations(cls)
    if texts:
        cls.__annotations__ = {
            name: ForwardRef(text, module=defined, is_class=True) if isinstance(text, str) else text
            for name, text in texts.items()
        }
    return cls
