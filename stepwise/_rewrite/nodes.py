"""The nodes that the rewrite adds to a function."""

from __future__ import annotations

import ast

from stepwise._rewrite.scope import FRAME, TARGET

__all__ = ["ask", "load", "reset", "store", "target", "unless_resuming", "when_resuming"]


def load(name: str) -> ast.expr:
    """The value of a variable."""
    return ast.Name(name, ast.Load())


def store(name: str, value: ast.expr) -> ast.stmt:
    """``name = value``."""
    return ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)


def ask(attribute: str, *arguments: ast.expr) -> ast.expr:
    """``@f.attribute(arguments)``."""
    function = ast.Attribute(load(FRAME), attribute, ast.Load())
    return ast.Call(func=function, args=list(arguments), keywords=[])


def target(operator: ast.cmpop, number: int) -> ast.expr:
    """``@t < number``."""
    return ast.Compare(load(TARGET), [operator], [ast.Constant(number)])


def when_resuming(then: ast.expr, otherwise: ast.expr) -> ast.expr:
    """``then if @t else otherwise``."""
    return ast.IfExp(test=load(TARGET), body=then, orelse=otherwise)


def unless_resuming(*body: ast.stmt) -> ast.stmt:
    """``if not @t: body``."""
    return ast.If(test=ast.UnaryOp(ast.Not(), load(TARGET)), body=list(body), orelse=[])


def reset() -> ast.stmt:
    """``@t = 0``."""
    return store(TARGET, ast.Constant(0))
