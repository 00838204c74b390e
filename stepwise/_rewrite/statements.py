"""The calls of a statement, which decide whether a step may follow; variables made by one call.

The names are only read off the text: their values are known when the statement is about to run.
Calls made by operators, properties, iteration and context managers are not counted.

A variable that is bound once, by a call, can be made again by repeating that statement.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator

from stepwise._rewrite.source import TRIES, FunctionNode, children, opens, walk
from stepwise._runtime.facts import NamedTuple

_LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Constant, ast.JoinedStr)


class Ahead(NamedTuple):
    """The code that is executed between a point and the next one.

    Args:
        called: the dotted names that are called.
        used: the other dotted names that are read.
        unknown: something is called that has no name.
        generates: the code contains a generator expression.
        ends: nothing is called from here to the end of the function.
        escapes: an exception leads to a handler that calls something.
        inner: the same facts about the body of a loop or ``with`` statement.  The body may have no
            points, depending on the iterable or the context manager.
        key: identifies that loop or ``with`` statement: the hidden iterator of the loop, or the
            number of the ``with``.
        iterable: the dotted name of the iterable of a loop, empty if the iterable is certainly
            plain data.
    """

    called: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    unknown: bool = False
    generates: bool = False
    ends: bool = False
    escapes: bool = False
    inner: Ahead | None = None
    key: str | int = ""
    iterable: str | None = None

    def __or__(self, other: object) -> Ahead:
        if not isinstance(other, Ahead):
            return NotImplemented
        return self._replace(
            called=self.called | other.called,
            used=self.used | other.used,
            unknown=self.unknown or other.unknown,
            generates=self.generates or other.generates,
            ends=self.ends or other.ends,
        )

    @property
    def opens(self) -> bool:
        """True if something named ``open`` is called."""
        return any(_is_open(name) for name in self.called)

    @property
    def matters(self) -> bool:
        """True if any field is set, so that the code ahead needs examining."""
        names = bool(self.called or self.used)
        flags = self.unknown or self.generates or self.ends or self.escapes
        return names or flags or self.inner is not None


def ahead_of(stmts: list[ast.stmt], key: str | int = "") -> Ahead | None:
    """Describe the code between statements and the next point; return ``None`` if none matters.

    Args:
        stmts: a single statement, or several that contain no call.
        key: identifies a loop or ``with`` statement.
    """
    ahead = _opened(stmts[0], key) if opens(stmts[0]) else _of(stmts)
    if isinstance(stmts[-1], ast.Return):
        ahead = ahead._replace(ends=True)
    return ahead if ahead.matters else None


def each_pass(stmt: ast.stmt, iterator: str = "") -> Ahead | None:
    """Describe the calls that a loop makes before another pass.

    Args:
        iterator: the hidden name of the loop's iterator.
    """
    if isinstance(stmt, ast.While):
        ahead = _of([stmt.test])
        return ahead if ahead.matters else None
    if isinstance(stmt, ast.AsyncFor):
        return Ahead(unknown=True)
    return Ahead(called=frozenset([iterator]))


_HEADS = (
    *(ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.Load),
    *(ast.Subscript, ast.Slice, ast.UnaryOp, ast.USub),
)
_RECORDED = frozenset(
    (
        *("enumerate", "items", "keys", "len", "list", "range", "reversed", "sorted", "split"),
        *("splitlines", "tuple", "values", "zip"),
    )
)
"""Functions and methods whose results, over plain data, have iterators that pickle."""


def head_of(iterable: ast.expr) -> Ahead | None:
    """Describe the iterable of a loop, if it consists only of calls, names and constants.

    Return ``None`` for any other iterable, and for one that calls ``open`` more than once.
    """
    if not isinstance(iterable, ast.Call):
        return None
    called = [_dotted(each.func) for each in walk(iterable) if isinstance(each, ast.Call)]
    if sum(_is_open(name or "") for name in called) > 1:
        return None
    for each in walk(iterable):
        stars = isinstance(each, ast.keyword) and each.arg is None
        item = isinstance(each, ast.Subscript) and not isinstance(each.slice, ast.Slice)
        if stars or item or not isinstance(each, _HEADS):
            return None
    ahead = _of([iterable])
    recorded = all(name.rpartition(".")[2] in _RECORDED for name in ahead.called)
    return None if ahead.unknown or recorded else ahead


def _is_open(name: str) -> bool:
    return name.rpartition(".")[2] == "open"


def mentions(function: ast.AST) -> Counter[str]:
    """Count how often a function mentions each name; empty if the function may look up any name."""
    found: Counter[str] = Counter()
    for node in walk(function):
        if isinstance(node, ast.Name):
            found[node.id] += 1
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
    return Counter() if found.keys() & {"locals", "vars", "eval", "exec"} else found


def loop_over_file(node: ast.With | ast.AsyncWith, mentioned: Counter[str]) -> ast.For | None:
    """Return the loop over the file of a ``with ... as file``, if nothing else mentions the file.

    Args:
        mentioned: how often the function mentions each name.
    """
    opening, name = node.items[0].context_expr, node.items[0].optional_vars
    if isinstance(node, ast.AsyncWith) or len(node.items) > 1 or not isinstance(name, ast.Name):
        return None
    if not isinstance(opening, ast.Call) or not _is_open(_dotted(opening.func) or ""):
        return None
    loops = [each for each in node.body if isinstance(each, ast.For)]
    reading = (each for each in loops if mentions(each.iter)[name.id])
    return next(reading, None) if mentioned[name.id] == 2 else None


def with_file(iterable: ast.expr, name: str, opening: ast.expr) -> ast.expr:
    """Return a copy of the iterable of a loop, with the file opened inside it.

    Args:
        name: the variable in the iterable that holds the file.
        opening: the expression that opens the file.
    """

    class Opening(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return copy.deepcopy(opening) if node.id == name else node

    made: ast.expr = Opening().visit(copy.deepcopy(iterable))
    return made


def _opened(stmt: ast.stmt, key: str | int) -> Ahead:
    """Describe a statement that contains points, up to the first of them."""
    if isinstance(stmt, (ast.If, ast.While)):
        return _of([stmt.test])
    if isinstance(stmt, (ast.For, ast.AsyncFor)):
        head, inner = _of([stmt.iter]), _of(stmt.body)
        plain = isinstance(stmt.iter, _LITERALS) or head.called == {"range"}
        iterable = "" if plain else _dotted(stmt.iter)
        return head._replace(
            inner=inner if inner.matters else None,
            key=key,
            iterable=iterable,
            unknown=head.unknown or isinstance(stmt, ast.AsyncFor),
        )
    if isinstance(stmt, (ast.With, ast.AsyncWith)):
        head, inner = _of(item.context_expr for item in stmt.items), _of(stmt.body)
        return head._replace(inner=inner if inner.matters else None, key=key)
    if isinstance(stmt, ast.Match):
        guards = [case.guard for case in stmt.cases if case.guard is not None]
        return _of([stmt.subject, *guards])
    assert isinstance(stmt, TRIES)
    # A handler has no points, and there is no point between a statement and the first of its body.
    ahead = _of([*stmt.handlers, *stmt.finalbody])  # type: ignore[attr-defined]
    first = ahead_of(stmt.body[:1], key)  # type: ignore[attr-defined]
    return first | ahead if first is not None else ahead


def _of(nodes: Iterable[ast.AST]) -> Ahead:
    found = _NamesAhead()
    for node in nodes:
        found.visit(node)
    unknown = found.unknown or not found.bound.isdisjoint(
        name.partition(".")[0] for name in found.called
    )
    return Ahead(frozenset(found.called), frozenset(found.used), unknown, found.generates)


def _dotted(node: ast.AST) -> str | None:
    """Return the dotted name ``a.b.c``, or ``None`` for any other node."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(names)])


class _NamesAhead(ast.NodeVisitor):
    """Collector of called and used names; a lambda's calls count, as its receiver may call it."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.used: set[str] = set()
        self.bound: set[str] = set()
        self.unknown = self.generates = False

    def visit_Call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        if name is not None:
            self.called.add(name)
        elif not (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, (ast.Constant, ast.JoinedStr))
        ):
            self.unknown = True
            self.visit(node.func)
        for each in (*node.args, *node.keywords):
            # A callee that receives a generator usually exhausts it.
            (self.generic_visit if isinstance(each, ast.GeneratorExp) else self.visit)(each)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self.generates = True
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = _dotted(node)
        if name is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self.used.add(name)

    def visit_Name(self, node: ast.Name) -> None:
        (self.used if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_Await(self, node: ast.Await) -> None:
        self.unknown = self.unknown or not isinstance(node.value, ast.Call)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set | ast.SetComp) -> None:
        self.used.add("set")  # its order differs between processes
        self.generic_visit(node)

    visit_SetComp = visit_Set  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.unknown = self.unknown or bool(node.is_async)
        self.generic_visit(node)

    def _unknown(self, node: ast.AST) -> None:
        self.unknown = True
        self.generic_visit(node)

    visit_AsyncFor = visit_AsyncWith = visit_Yield = visit_YieldFrom = _unknown  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in (*node.args.defaults, *node.args.kw_defaults):
            if each is not None:
                self.visit(each)
        for decorator in node.decorator_list:  # called, without a call expression
            name = _dotted(decorator)
            if name is None:
                self.visit(decorator)
                self.unknown = True
            else:
                self.called.add(name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.unknown = self.unknown or bool(node.decorator_list or node.keywords)
        self.generic_visit(node)


# -- variables that are bound by one call ----------------------------------------------------------


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
