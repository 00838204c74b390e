"""Detection of decorators that pass their arguments on unchanged."""

from __future__ import annotations

import ast
import functools
import types
from typing import Any

from stepwise._rewrite.source import FunctionNode, capture, walk
from stepwise._values.digest import cell_content

_READING = {"copy", "get", "items", "keys", "values"}


def filled_in(function: Any) -> Any:
    """Return the function whose parameters a call of ``function`` fills in.

    ``functools.wraps`` makes every wrapper show the parameters of the wrapped function.  They are
    the parameters of the call only if the wrapper passes on everything it receives, and nothing
    else.
    """
    if isinstance(function, functools.partial):
        inner = filled_in(function.func)
        changed = inner is not function.func
        return (
            functools.partial(inner, *function.args, **function.keywords) if changed else function
        )
    if isinstance(function, types.MethodType):
        return types.MethodType(filled_in(function.__func__), function.__self__)
    inner = getattr(function, "__wrapped__", None)
    if inner is None or hasattr(function, "__signature__") or not _hands_on(function, inner):
        return function
    return filled_in(inner)


def _hands_on(wrapper: Any, wrapped: Any) -> bool:
    """Return whether a wrapper calls with exactly its own arguments; False without its source."""
    bound = not isinstance(wrapper, types.FunctionType)
    if bound:
        given = "__wrapped__" in getattr(wrapper, "__dict__", ())  # by functools.update_wrapper
        wrapper = getattr(type(wrapper), "__call__", None)  # noqa: B004
        if not given or not isinstance(wrapper, types.FunctionType):
            return True  # functools.cache, wrapt: their signature is right
    node = capture(wrapper).node()
    cells = zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True)
    names = {name for name, cell in cells if cell_content(cell) is wrapped}
    return node is not None and _spreads_all(node, names, skip=int(bound))


def _spreads_all(node: FunctionNode, wrapped: set[str], *, skip: int) -> bool:
    """Return whether each call with ``*args`` or ``**kwargs`` gets all parameters, in order.

    Args:
        wrapped: names of the wrapped function, which may come first (``retry(f, *args)``).
        skip: 1 for a method, whose instance is not passed on.
    """
    given = node.args
    rest = given.vararg.arg if given.vararg else ""
    more = given.kwarg.arg if given.kwarg else ""
    by_place = [each.arg for each in (*given.posonlyargs, *given.args)][skip:]
    by_place += [f"*{rest}"] if rest else []
    by_name: dict[str | None, str] = {each.arg: each.arg for each in given.kwonlyargs}
    by_name |= {None: more} if more else {}
    found = False
    for each in walk(node):
        if isinstance(each, ast.Call):
            args = [ast.unparse(arg) for arg in each.args]
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in each.keywords}
            spread = [ast.unparse(keyword.value) for keyword in each.keywords if not keyword.arg]
            if not (rest and f"*{rest}" in args) and not (more and more in spread):
                continue
            found = True
            args = args[1:] if not wrapped.isdisjoint(args[:1]) else args
            if args != by_place or named != by_name or len(spread) > 1:
                return False
        elif isinstance(each, ast.Name):
            if not isinstance(each.ctx, ast.Load) and each.id in {*by_place, *by_name, rest, more}:
                return False
        elif _changes(each, more):
            return False
    return found


def _changes(node: ast.AST, name: str) -> bool:
    """Return whether a node may change the dictionary of that name."""
    held = getattr(node, "value", None)
    if not isinstance(held, ast.Name) or held.id != name:
        return False
    if isinstance(node, ast.Attribute):
        return node.attr not in _READING
    return isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
