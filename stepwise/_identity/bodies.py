"""A fingerprint of the body of a function, by which it is known again under another name."""

from __future__ import annotations

import dis
import hashlib
from types import CodeType
from typing import Any

from stepwise._runtime.messages import is_ours

__all__ = ["body_digest"]

_OWN = "@"  # takes the place of the function's own name, which no identifier equals


def body_digest(function: Any) -> str:
    """Return 8 characters for the code of a function; empty if the function has no code.

    Comments, layout and the function's own name do not count, annotations and defaults neither.
    The code is that which the interpreter executes, so that it is at hand without a source file;
    another version of Python gives another fingerprint.  Functions of installed packages have
    none: they call what they were given, which is another function each time.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    if "-packages" in code.co_filename or is_ours(code.co_filename):
        return ""
    shape = _shape(code, code.co_name, f"{getattr(function, '__qualname__', '')}.<locals>.")
    return hashlib.sha256(repr(shape).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def _shape(code: CodeType, own: str, inside: str) -> tuple[Any, ...]:
    """Return what two functions that do the same have in common, as plain data.

    Args:
        own: the name of the outermost function.
        inside: how qualified names of functions within it begin.
    """
    names = [
        [_OWN if each == own and _calls_itself(code, own) else each for each in held]
        for held in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    ]
    counts = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags
    constants = [_constant(each, own, inside) for each in code.co_consts]
    return code.co_code, getattr(code, "co_exceptiontable", b""), counts, names, constants


def _calls_itself(code: CodeType, own: str) -> bool:
    """Return whether a name means the function itself wherever its code has it.

    It does as a global or captured variable, and does not as an attribute: ``client.search()``.
    """
    used = {each.opname for each in dis.get_instructions(code) if each.argval == own}
    return all("GLOBAL" in each or "DEREF" in each or "CLOSURE" in each for each in used)


def _constant(value: Any, own: str, inside: str) -> Any:
    if isinstance(value, CodeType):
        return value.co_name, _shape(value, own, inside)
    if isinstance(value, str) and value.startswith(inside):  # Python 3.10 keeps such names here
        return _OWN, value.removeprefix(inside)
    if isinstance(value, frozenset):  # its order changes from process to process
        return "frozenset", sorted(repr(_constant(each, own, inside)) for each in value)
    if isinstance(value, tuple):
        return "tuple", [_constant(each, own, inside) for each in value]
    return repr(value)
