"""The statement after a position, where a function resumes."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from stepwise._rewrite.points import TRIES, prefix_fingerprint
from stepwise._rewrite.source import FunctionNode, parsed, remove_docstring, walk

__all__ = ["following_line", "function_like", "functions_named"]

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def following_line(node: FunctionNode, position: str) -> int | None:
    """The line of the statement that is executed next; ``None`` if the function returns there.

    After the last statement of a loop's body that is the loop itself, which takes its next item.

    Args:
        position: ``after PATH`` or ``enter PATH``; see ``transform``.
    """
    kind, _, path = position.partition(" ")
    around: list[tuple[Any, str, int]] = []  # statement, its block, index in the block
    here: Any = node
    for part in path.split("."):
        block, _, index = part.partition("[")
        items = getattr(here, block, None)
        number = int(index[:-1]) if index else 0
        if not isinstance(items, list) or number >= len(items):
            return None
        around.append((here, block, number))
        here = items[number]
    if kind == "enter":
        return _line(here)
    for parent, block, index in reversed(around):
        items = getattr(parent, block)
        if block not in ("cases", "handlers") and index + 1 < len(items):
            return _line(items[index + 1])
        if isinstance(parent, _LOOPS) and block == "body":
            return _line(parent)
        if isinstance(parent, TRIES) and block != "finalbody":
            rest = [*(parent.orelse if block == "body" else ()), *parent.finalbody]  # type: ignore[attr-defined]
            if rest:
                return _line(rest[0])
    return None


def _line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def function_like(
    text: str, name: str, position: str, prefix: str, visited: Iterable[str]
) -> FunctionNode | None:
    """Return the function of that name in a file whose code before a position is unchanged.

    Args:
        prefix: the fingerprint of that code; see ``prefix_fingerprint``.
    """
    for node in functions_named(text, name):
        if prefix_fingerprint(node, position, visited) == prefix:
            return node
    return None


def functions_named(text: str, name: str = "") -> Iterator[FunctionNode]:
    """Yield the functions of that name in a file, or all of them, without their docstrings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and name in ("", node.name):
            remove_docstring(node)
            yield node
