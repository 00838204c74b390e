"""Edits that take effect while a program runs: IPython's ``%autoreload``.

It replaces the code of functions in place, or hands what a module defined before to rules that
bring it up to date.  A function of a class is compiled inside a class of no meaning.
Imports nothing of ours.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["code_in_file", "keep_up_to_date", "name_truly"]

_CLASS = "__autoreload_class__."
_PATCHER = "IPython.extensions.deduperreload"


def name_truly(function: Any) -> None:
    """Give a method that is compiled anew the name of its class, which is part of its identity."""
    if not getattr(function, "__qualname__", "").startswith(_CLASS):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PATCHER):
            prefixes = frame.f_locals.get("prefixes")
            if prefixes:
                function.__qualname__ = ".".join((*prefixes, function.__name__))
                return
        frame = frame.f_back


def keep_up_to_date(kind: type, update: Callable[[Any, Any], None]) -> None:
    """Let the reloader, if any, update old objects of a class from the new ones."""
    reloader = sys.modules.get("IPython.extensions.autoreload")
    rules: list[Any] | None = getattr(reloader, "UPDATE_RULES", None)
    if rules is not None and all(rule[1] is not update for rule in rules):
        rules.append((lambda old, new: isinstance(old, kind) and isinstance(new, kind), update))


def code_in_file(function: Callable[..., Any]) -> CodeType | None:
    """The code of a function as its file has it now; ``None`` if the function's own is another.

    What the reloader compiles has line numbers of no file.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    try:
        found = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    for name in function.__qualname__.split("."):
        inner = [
            each for each in found.co_consts if isinstance(each, CodeType) and each.co_name == name
        ]
        if not inner:
            return None
        found = inner[-1]
    return found if _shape(found) == _shape(code) else None


def _shape(code: CodeType) -> tuple[Any, ...]:
    """All but lines and names of the classes around."""
    constants = tuple(
        _shape(each) if isinstance(each, CodeType) else (type(each), each)
        for each in code.co_consts
        if not (isinstance(each, str) and each.startswith(_CLASS))
    )
    counts = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_name, code.co_code, counts, names, constants
