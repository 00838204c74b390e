"""From a rewritten syntax tree to a function that is the original in all but its code.

Imports: source, transform, frame.
"""

from __future__ import annotations
import __future__

import ast
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stepwise.rewrite.frame import enter
from stepwise.rewrite.source import FunctionNode, Source, capture
from stepwise.rewrite.transform import (
    ENTER,
    FRAME,
    TARGET,
    VALUES,
    Point,
    Transformed,
    With,
    placed,
    transform,
)

__all__ = ["Rewritten", "UnsupportedError", "build", "rewrite"]

_FUTURE_FLAGS = sum(getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
_FACTORY = "@factory"


class UnsupportedError(Exception):
    """This function cannot be rewritten; the message says why."""


@dataclass(frozen=True)
class Rewritten:
    """A function that can be entered at its points, and what is known of them."""

    function: Callable[..., Any]
    points: dict[int, Point]
    blocks: list[str]
    withs: list[With]
    loops: dict[str, int]

    def number(self, position: str) -> int | None:
        """The point at a structural position."""
        return next((n for n, point in self.points.items() if point.position == position), None)


def rewrite(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of ``function`` that runs as the original, and can be resumed where a frame says.

    Raises:
        UnsupportedError: it cannot be rewritten; says why.
    """
    return build(function, capture(function)).function


def build(
    function: Callable[..., Any], source: Source, enter: Callable[[], Any] = enter
) -> Rewritten:
    """Rewrite a function whose source was captured.

    Args:
        enter: what the function asks for its frame when it is entered.

    Raises:
        UnsupportedError: it cannot be rewritten; says why.
    """
    node = source.node()
    if node is None or not isinstance(function, types.FunctionType):
        raise UnsupportedError("its source is not to be had")
    original = function.__code__
    changed = transform(node)
    names = list(dict.fromkeys((*original.co_varnames, *original.co_cellvars)))
    body = _body(changed, node, original, names)
    code = _compile(node, body, function)
    _check_same(original, code)
    cells = dict(zip(original.co_freevars, function.__closure__ or (), strict=True))
    cells[ENTER] = types.CellType(enter)
    rewritten = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    rewritten.__kwdefaults__ = function.__kwdefaults__
    rewritten.__qualname__ = function.__qualname__
    rewritten.__module__ = function.__module__
    rewritten.__doc__ = function.__doc__
    rewritten.__annotations__ = function.__annotations__
    rewritten.__dict__.update(function.__dict__)
    if sys.version_info >= (3, 12):
        rewritten.__type_params__ = function.__type_params__
    return Rewritten(rewritten, changed.points, changed.blocks, changed.withs, changed.loops)


def _body(
    changed: Transformed, node: FunctionNode, code: types.CodeType, names: list[str]
) -> list[ast.stmt]:
    """The plain body and the one that can be resumed, one beside the other."""
    frame = ast.Name(FRAME, ast.Load())
    captured = [_captured(code.co_cellvars)] if code.co_cellvars else []
    begin = ast.Call(ast.Attribute(frame, "begin", ast.Load()), captured, [])
    arguments = set(names[: code.co_argcount + code.co_kwonlyargcount + _stars(code)])
    restore: list[ast.stmt] = [
        _assign(VALUES, ast.Attribute(frame, "values", ast.Load())),
        *(_restore(name, name in arguments) for name in [*names, *changed.loops]),
        _assign(VALUES, ast.Constant(None)),
    ]
    resumable: list[ast.stmt] = [
        _assign(TARGET, begin),
        ast.If(test=ast.Name(TARGET, ast.Load()), body=restore, orelse=[]),
        *changed.body,
    ]
    is_plain = ast.Compare(frame, [ast.Is()], [ast.Constant(None)])
    return [
        *changed.declarations,
        *placed(
            [
                _assign(FRAME, ast.Call(ast.Name(ENTER, ast.Load()), [], [])),
                ast.If(test=is_plain, body=changed.original, orelse=resumable),
            ],
            node,
        ),
    ]


def _stars(code: types.CodeType) -> int:
    return bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _captured(names: tuple[str, ...]) -> ast.expr:
    """``lambda: (a, b)``: never called, its closure holds the cells of the frame."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    variables: list[ast.expr] = [ast.Name(name, ast.Load()) for name in names]
    return ast.Lambda(nothing, ast.Tuple(variables, ast.Load()))


def _restore(name: str, is_argument: bool) -> ast.stmt:
    """``if "x" in @v: x = @v["x"]``, and unbind an argument that is not there."""
    values = ast.Name(VALUES, ast.Load())
    there = ast.Compare(ast.Constant(name), [ast.In()], [values])
    value = ast.Subscript(values, ast.Constant(name), ast.Load())
    unbind: list[ast.stmt] = [ast.Delete([ast.Name(name, ast.Del())])] if is_argument else []
    return ast.If(test=there, body=[_assign(name, value)], orelse=unbind)


# -- compiling -----------------------------------------------------------------------------------


def _compile(
    node: FunctionNode, body: list[ast.stmt], function: types.FunctionType
) -> types.CodeType:
    """Compile the function inside scopes like those it was defined in, which are never executed.

    The free variables are those of a function around it; a class around it makes the compiler
    mangle private names.
    """
    original = function.__code__
    arguments = ast.arguments(
        posonlyargs=[_bare(arg) for arg in node.args.posonlyargs],
        args=[_bare(arg) for arg in node.args.args],
        vararg=_bare(node.args.vararg) if node.args.vararg else None,
        kwonlyargs=[_bare(arg) for arg in node.args.kwonlyargs],
        kw_defaults=[None] * len(node.args.kwonlyargs),
        kwarg=_bare(node.args.kwarg) if node.args.kwarg else None,
        defaults=[],
    )
    # Decorators are kept, as constants: the first one's line is the first line of the code.
    decorators = [ast.copy_location(ast.Constant(None), each) for each in node.decorator_list]
    inner: Any = type(node).__new__(type(node))
    inner.name, inner.args, inner.body = node.name, arguments, body
    inner.decorator_list, inner.returns, inner.type_params = decorators, None, []
    around: list[ast.stmt] = [ast.copy_location(inner, node)]
    owner = _owner(original, function)
    if owner is not None:
        shell: Any = ast.ClassDef.__new__(ast.ClassDef)
        shell.name, shell.body = owner, around
        shell.bases, shell.keywords, shell.decorator_list, shell.type_params = [], [], [], []
        around = [shell]
        if owner not in original.co_freevars:
            around.insert(0, ast.Global([owner]))
    parameters = [ast.arg(name) for name in (*original.co_freevars, ENTER)]
    factory: Any = ast.FunctionDef.__new__(ast.FunctionDef)
    factory.name, factory.body, factory.decorator_list = _FACTORY, around, []
    factory.args = ast.arguments([], parameters, None, [], [], None, [])
    factory.returns, factory.type_params = None, []
    module = ast.fix_missing_locations(ast.Module([factory], []))
    flags = original.co_flags & _FUTURE_FLAGS
    try:
        outer = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnsupportedError(f"its rewritten form does not compile: {error}") from error
    code = _find(outer, original)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=original.co_qualname)
    return code


def _bare(argument: ast.arg) -> ast.arg:
    return ast.copy_location(ast.arg(argument.arg), argument)


def _owner(code: types.CodeType, function: types.FunctionType) -> str | None:
    """The class in whose body the function is written, directly or further out."""
    names = getattr(code, "co_qualname", function.__qualname__).split(".")
    owners = [name for name, after in itertools.pairwise(names) if after != "<locals>"]
    classes = [name for name in owners if name != "<locals>"]
    return classes[-1] if classes else None


def _find(outer: types.CodeType, original: types.CodeType) -> types.CodeType:
    for code in _codes(outer):
        if code.co_name == original.co_name and code.co_firstlineno == original.co_firstlineno:
            return code
    raise UnsupportedError("its source does not match its code")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _check_same(original: types.CodeType, code: types.CodeType) -> None:
    """The source may be that of another version of the file: then rewrite nothing."""

    def shape(code: types.CodeType) -> tuple[Any, ...]:
        count = code.co_argcount + code.co_kwonlyargcount + _stars(code)
        kinds = code.co_flags & 0x2AC  # *args, **kwargs, generator, coroutine, async generator
        free = tuple(name for name in code.co_freevars if name != ENTER)
        return code.co_varnames[:count], code.co_argcount, code.co_posonlyargcount, kinds, free

    if shape(original) != shape(code) or not set(original.co_cellvars) <= set(code.co_cellvars):
        raise UnsupportedError("its source does not match its code")
