"""The step from a rewritten syntax tree to a function that differs only in its code."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from stepwise._rewrite.frame import Rewritten, enter, visible
from stepwise._rewrite.source import FunctionNode, Source, capture, yields
from stepwise._rewrite.transform import (
    ASKS,
    ENTER,
    FRAME,
    LISTING,
    TARGET,
    VALUES,
    VISIBLE,
    announce,
    ask,
    complete,
    hoist,
    load,
    placed,
    store,
    transform,
)

_FUTURE_FLAGS = sum(getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
_FACTORY, _SELF = "@factory", "@self"


class UnsupportedError(Exception):
    """The function cannot be rewritten; the message says why."""


def rewrite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that runs like the original and can be resumed from a frame.

    Without a frame (see ``pending``) the copy behaves exactly like the original.  Results,
    exceptions, the lines of tracebacks and of trace functions, closures and ``inspect`` are the
    same.

    Args:
        function: a plain or coroutine function that was written in Python.

    Raises:
        UnsupportedError: the function cannot be rewritten; the message says why, and names the
            line.
    """
    if not isinstance(function, types.FunctionType):
        raise UnsupportedError(f"a {type(function).__name__} is not a Python function")
    return build(function, capture(function)).function


def build(
    function: Callable[..., Any],
    source: Source,
    enter: Callable[[], Any] = enter,
    *,
    debugged: bool = False,
) -> Rewritten:
    """Rewrite a function whose source was captured.

    Args:
        enter: called by the rewritten function on entry, for its frame.
        debugged: True if the function calls ``arrived`` and ``go`` of its frame; see
            :func:`.transform.announce`.

    Raises:
        UnsupportedError: the function cannot be rewritten; the message says why, and names the
            line.
    """
    if not isinstance(function, types.FunctionType):
        raise UnsupportedError(f"a {type(function).__name__} is not a Python function")
    original = function.__code__
    _refuse(original, source)
    plain, resumable = source.parse(), source.parse()
    if plain is None or resumable is None:
        if original.co_name == "<lambda>":
            raise UnsupportedError("a lambda cannot be entered in the middle; write it as a def")
        raise UnsupportedError("its source is not available; put it into a file")
    try:
        if not {*LISTING}.isdisjoint(original.co_names):
            _hide_names(plain)
            _hide_names(resumable)
        hoist(plain)
        facts = Rewritten(function, resumable)
        declarations, resumed = transform(resumable, facts)
        head: ast.AST = plain.body[0]
        if debugged:
            one_line = plain.body[0].lineno == resumable.lineno
            head = ast.copy_location(ast.Pass(), resumable)
            ast.increment_lineno(head, one_line)  # no line of a statement: see announce
            announce(resumed, head)
        alone = _alone(source, function)
        body = [*declarations, *_body(facts, plain, resumed, head, alone)]
        code = _compile(plain, body, function)
    except RecursionError as error:
        raise UnsupportedError("its statements or expressions are nested too deeply") from error
    _check_same(original, code, plain.body[0].lineno)
    cells = dict(zip(original.co_freevars, function.__closure__ or (), strict=True))
    cells |= {ENTER: types.CellType(enter), VISIBLE: types.CellType(visible)}
    rewritten = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    _dress(rewritten, function)
    facts.function = rewritten
    facts.variables = frozenset((*alone.co_varnames, *alone.co_cellvars, *original.co_freevars))
    return facts


def _dress(rewritten: types.FunctionType, function: types.FunctionType) -> None:
    rewritten.__kwdefaults__ = function.__kwdefaults__
    rewritten.__qualname__ = function.__qualname__
    rewritten.__module__ = function.__module__
    rewritten.__doc__ = function.__doc__
    rewritten.__dict__.update(function.__dict__)
    if sys.version_info >= (3, 12):
        rewritten.__type_params__ = function.__type_params__
    if sys.version_info >= (3, 14):
        rewritten.__annotate__ = function.__annotate__  # annotations must not be evaluated yet
    else:
        rewritten.__annotations__ = function.__annotations__


def _refuse(code: types.CodeType, source: Source) -> None:
    """Refuse lambdas, which have no statements, and generators, which Python itself suspends."""
    line = code.co_firstlineno
    if code.co_name == "<lambda>":
        raise UnsupportedError(f"it is a lambda (line {line}), which has no statements")
    kinds = {
        inspect.CO_GENERATOR: "a generator",
        inspect.CO_ASYNC_GENERATOR: "an asynchronous generator",
    }
    for flag, kind in kinds.items():
        if code.co_flags & flag:
            node = source.node()
            line = min(yields(node), default=line) if node is not None else line
            raise UnsupportedError(f"it is {kind} (yield at line {line})")


def _alone(source: Source, function: types.FunctionType) -> types.CodeType:
    """Return code of the function in which only the function's own variables are local.

    Since Python 3.12 (PEP 709) the variables of comprehensions count as locals.  Assigning to them
    would hide the globals and free variables of the same names.
    """
    node = source.parse() if sys.version_info >= (3, 12) else None
    if node is None or not _part_comprehensions(node):
        return function.__code__
    return _compile(node, node.body, function)


def _body(
    facts: Rewritten,
    plain: FunctionNode,
    resumed: list[ast.stmt],
    head: ast.AST,
    code: types.CodeType,
) -> list[ast.stmt]:
    """Return a body that holds the plain body and the resumable body side by side.

    Args:
        head: the node whose line the added statements take.
        code: the code whose local variables are the function's own.
    """
    names = list(dict.fromkeys((*code.co_varnames, *code.co_cellvars)))
    frame = load(FRAME)
    captured = [_captured(code.co_cellvars)] if code.co_cellvars else []
    begin = ask("begin", ast.Constant(len(facts.points)), *captured)
    arguments = set(names[: code.co_argcount + code.co_kwonlyargcount + _stars(code)])
    restore: list[ast.stmt] = [
        store(VALUES, ast.Attribute(frame, "values", ast.Load())),
        *(_restore(name, name in arguments) for name in [*names, *facts.loops]),
        store(VALUES, ast.Constant(None)),
        *(
            ast.If(ask("remakes", ast.Constant(name)), [copy.deepcopy(each.statement)], [])
            for name, each in facts.made.items()
        ),
    ]
    resumable: list[ast.stmt] = [
        store(TARGET, begin),
        store(ASKS, ast.Attribute(frame, "asks", ast.Load())),
        ast.If(test=load(TARGET), body=restore, orelse=[]),
        *resumed,
    ]
    is_plain = ast.Compare(frame, [ast.Is()], [ast.Constant(None)])
    choose: list[ast.stmt] = [
        store(FRAME, ast.Call(load(ENTER), [], [])),
        ast.If(test=is_plain, body=plain.body, orelse=resumable),
    ]
    return placed(choose, head)


def _stars(code: types.CodeType) -> int:
    return bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs


def _captured(names: tuple[str, ...]) -> ast.expr:
    """Return ``lambda: (a, b)``, never called, whose closure holds the cells of the frame."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    variables: list[ast.expr] = [load(name) for name in names]
    return ast.Lambda(nothing, ast.Tuple(variables, ast.Load()))


def _restore(name: str, is_argument: bool) -> ast.stmt:
    """Return ``if "x" in @v: x = @v["x"]``; an argument that has no value is unbound."""
    values = load(VALUES)
    there = ast.Compare(ast.Constant(name), [ast.In()], [values])
    value = ast.Subscript(values, ast.Constant(name), ast.Load())
    unbind: list[ast.stmt] = [ast.Delete([ast.Name(name, ast.Del())])] if is_argument else []
    return ast.If(test=there, body=[store(name, value)], orelse=unbind)


# -- hidden names, and the variables of comprehensions ---------------------------------------------


class _HideNames(ast.NodeTransformer):
    """Rewriter of ``locals()`` to ``@visible(locals, locals())``, without the hidden names."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = node.func
        if not isinstance(name, ast.Name) or name.id not in LISTING or node.args or node.keywords:
            return node
        call = ast.Call(load(VISIBLE), [name, node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _leave(self, node: ast.AST) -> ast.AST:
        return node  # a separate scope, which has no hidden names

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave  # noqa: N815


def _hide_names(node: FunctionNode) -> None:
    """Keep the hidden names out of the results of ``locals()``, ``vars()`` and ``dir()``."""
    hide = _HideNames()
    node.body = [hide.visit(stmt) for stmt in node.body]


class _Comprehensions(ast.NodeTransformer):
    """Turner of comprehensions into generator expressions, which are scopes in every version."""

    found = False

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.expr:
        return self._part(node, node.elt)

    visit_SetComp = visit_ListComp  # noqa: N815

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        return self._part(
            node, ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node)
        )

    def _part(self, node: ast.ListComp | ast.SetComp | ast.DictComp, element: ast.expr) -> ast.expr:
        self.found = True
        made = ast.GeneratorExp(element, node.generators)
        return self.generic_visit(ast.copy_location(made, node))  # type: ignore[return-value]


def _part_comprehensions(node: FunctionNode) -> bool:
    """Give each comprehension in a function its own scope; return whether there is one."""
    part = _Comprehensions()
    part.visit(node)
    return part.found


# -- compiling -----------------------------------------------------------------------------------


def _compile(
    node: FunctionNode, body: list[ast.stmt], function: types.FunctionType
) -> types.CodeType:
    """Compile the function inside scopes like its original ones, which are never executed.

    An enclosing function provides the free variables, and an enclosing class makes the compiler
    mangle private names.  The function is compiled under a meaningless name, since its own name may
    also name a global or a free variable.
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
    inner.name, inner.args, inner.body = _SELF, arguments, body
    inner.decorator_list, inner.returns, inner.type_params = decorators, None, []
    around: list[ast.stmt] = [ast.copy_location(inner, node)]
    scope = f"{_FACTORY}.<locals>."
    qualname = getattr(original, "co_qualname", function.__qualname__)
    owner = _owner(qualname)
    if owner is not None:
        shell: Any = ast.ClassDef.__new__(ast.ClassDef)
        shell.name, shell.body = owner, around
        shell.bases, shell.keywords, shell.decorator_list, shell.type_params = [], [], [], []
        around = [shell]
        if owner not in original.co_freevars:
            around.insert(0, ast.Global([owner]))
            scope = ""
        scope += f"{owner}."
    free = [name for name in original.co_freevars if name[0] != "@"]
    parameters = [ast.arg(name) for name in (*free, ENTER, VISIBLE)]
    factory: Any = ast.FunctionDef.__new__(ast.FunctionDef)
    factory.name, factory.body, factory.decorator_list = _FACTORY, around, []
    factory.args = ast.arguments([], parameters, None, [], [], None, [])
    factory.returns, factory.type_params = None, []
    module = ast.Module([factory], [])
    complete(module)
    flags = original.co_flags & _FUTURE_FLAGS
    pytest = function.__globals__.get("@pytest_ar")  # in a module whose assertions it rewrote
    try:
        with warnings.catch_warnings():  # compiling the original has shown the warnings already
            warnings.simplefilter("ignore")
            if pytest is not None:
                pytest.rewrite_asserts(module, b"", original.co_filename)
            outer = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UnsupportedError(f"its rewritten form does not compile: {error}") from error
    code = next(code for code in codes_within(outer) if code.co_name == _SELF)
    return _renamed(code, scope + _SELF, qualname).replace(co_name=original.co_name)


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """Restore the qualified names that a function and the functions inside it would have had."""

    def named(constant: Any) -> Any:
        if isinstance(constant, types.CodeType):
            return _renamed(constant, old, new)
        if isinstance(constant, str) and constant.startswith(f"{old}."):
            return new + constant.removeprefix(old)
        return constant

    code = code.replace(co_consts=tuple(named(constant) for constant in code.co_consts))
    if sys.version_info >= (3, 11) and f"{code.co_qualname}.".startswith(f"{old}."):
        code = code.replace(co_qualname=new + code.co_qualname.removeprefix(old))
    return code  # else a name in the code is declared ``global``, and must not be mangled


def _bare(argument: ast.arg) -> ast.arg:
    return ast.copy_location(ast.arg(argument.arg), argument)


def _owner(qualname: str) -> str | None:
    """Return the innermost class whose body contains the function, at any depth."""
    names = qualname.split(".")
    owners = [name for name, after in itertools.pairwise(names) if after != "<locals>"]
    classes = [name for name in owners if name != "<locals>"]
    return classes[-1] if classes else None


def codes_within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code objects of functions and classes defined inside another, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_within(constant)


@functools.lru_cache(256)
def names_within(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in some code, and in the code of functions and classes inside it."""
    names = (name for each in (code, *codes_within(code)) for name in each.co_names)
    return (*dict.fromkeys(names),)


def _check_same(original: types.CodeType, code: types.CodeType, first: int) -> None:
    """Raise ``UnsupportedError`` if the source may belong to another version of the file.

    Args:
        first: the first line of the body after the docstring; with ``-OO`` the original code has a
            line for the docstring, too.
    """

    def shape(code: types.CodeType) -> tuple[Any, ...]:
        count = code.co_argcount + code.co_kwonlyargcount + _stars(code)
        kinds = code.co_flags & 0x8C  # *args, **kwargs, coroutine
        free = [name for name in code.co_freevars if name[0] != "@"]
        return code.co_varnames[:count], code.co_argcount, code.co_posonlyargcount, kinds, free

    same = shape(original) == shape(code) and original.co_firstlineno == code.co_firstlineno
    cells = {*original.co_cellvars} <= {*code.co_cellvars}
    lines = {line for line in _lines(original) if line >= first}
    if not (same and cells and lines <= _lines(code)):
        raise UnsupportedError("its source does not match its code")


def _lines(code: types.CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}
