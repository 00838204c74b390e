"""Variables that are bound once, by a call, and can be made again by repeating that statement."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from stepwise._rewrite.source import FunctionNode, children, walk
from stepwise._runtime.facts import NamedTuple

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PARTS = (ast.Name, ast.Constant, ast.keyword, ast.Load)


class Made(NamedTuple):
    """A variable that one statement of the function binds: ``client = Class(name, key=name)``.

    Args:
        statement: a plain assignment, outside of any loop.
        called: a dotted name.
        read: the names among the arguments, of which the function binds each at most once.
    """

    statement: ast.Assign
    called: str
    read: frozenset[str]


def made_by_calls(node: FunctionNode) -> dict[str, Made]:
    """Return the variables of a function that could be made again, by name."""
    bound = Counter(name for each in walk(node) for name in _binds(each))
    changed = {
        each.value.id
        for each in walk(node)
        if isinstance(each, (ast.Attribute, ast.Subscript))
        and isinstance(each.value, ast.Name)
        and not isinstance(each.ctx, ast.Load)
    }
    found = {}
    for statement in _outside_of_loops(node):
        made = _made(statement)
        if made is not None and all(bound[name] < 2 for name in (*made[1].read, made[0])):
            found[made[0]] = made[1]
    return {name: made for name, made in found.items() if name not in changed}


def _made(node: ast.AST) -> tuple[str, Made] | None:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    call = getattr(node, "value", None)
    if len(targets) != 1 or not isinstance(targets[0], ast.Name) or not isinstance(call, ast.Call):
        return None
    arguments = [each for part in (*call.args, *call.keywords) for each in walk(part)]
    stars = any(isinstance(each, ast.keyword) and each.arg is None for each in arguments)
    called: ast.expr = call.func
    while isinstance(called, ast.Attribute):
        called = called.value
    if stars or not isinstance(called, ast.Name) or not {*map(type, arguments)} <= {*_PARTS}:
        return None
    read = frozenset(each.id for each in (*arguments, called) if isinstance(each, ast.Name))
    statement = ast.copy_location(ast.Assign([targets[0]], call), node)
    return targets[0].id, Made(statement, ast.unparse(call.func), read)


def _outside_of_loops(parent: ast.AST) -> Iterator[ast.AST]:
    for node in children(parent):
        if not isinstance(node, (*_LOOPS, *_SCOPES)):
            yield node
            yield from _outside_of_loops(node)


def _binds(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds or declares, including those in inner scopes."""
    if isinstance(node, ast.Name):
        yield from () if isinstance(node.ctx, ast.Load) else (node.id,)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from (*node.names, *node.names)
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.arg):
        yield node.arg
    else:  # handlers, patterns, definitions
        names = (getattr(node, field, None) for field in ("name", "rest"))
        yield from (name for name in names if isinstance(name, str))
