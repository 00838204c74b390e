"""The facts about a notebook cell: names read and bound, definitions, and a fingerprint."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from typing import Any

from stepwise._rewrite.source import code_digest, parsed
from stepwise._runtime.facts import NamedTuple

AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""The compiler's flag for ``await`` at the top level."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Cell(NamedTuple):
    """A parsed cell.

    Args:
        reads: names that the cell reads before it binds them, in order.
        binds: names that the cell binds, in order, loop variables last.
        defines: names that only ``def``, ``class`` and ``import`` statements bind.
        fingerprint: digest of the code; comments and layout do not count.
        awaits: the cell contains an ``await`` outside of its functions.
    """

    tree: ast.Module
    reads: tuple[str, ...]
    binds: tuple[str, ...]
    defines: frozenset[str]
    fingerprint: str
    awaits: bool

    def parts(self, tree: Any, *, quiet: bool) -> list[tuple[Any, str]]:
        """Return the parts to compile, each with its mode; ``quiet`` hides the last value."""
        body = tree.body
        if quiet or not body or not isinstance(body[-1], ast.Expr):
            return [(tree, "exec")]
        before = ast.Module(body=body[:-1], type_ignores=[])
        return [(before, "exec"), (ast.Interactive(body=body[-1:]), "single")]

    @property
    def definitions(self) -> Any:
        """The statements that define something, alone, as a module."""
        body: list[ast.stmt] = [e for e in self.tree.body if isinstance(e, _DEFINITIONS)]
        return ast.Module(body=body, type_ignores=[])


def parse_cell(source: str) -> Cell:
    """Parse a cell; ``source`` is Python, without magics.

    Raises:
        SyntaxError: the source is not valid Python.
    """
    tree = parsed(source)
    names = _BoundNames()
    names.all(tree.body)
    code = compile(tree, "<cell>", "exec", flags=AWAIT, dont_inherit=True)
    defined = {name for each in tree.body for name in _defined(each)}
    return Cell(
        tree,
        tuple(name for name in names.reads if name not in defined or name in names.at_once),
        tuple(sorted(names.binds, key=names.loops.__contains__)),
        frozenset(defined - names.assigned),
        code_digest(tree.body),
        bool(code.co_flags & inspect.CO_COROUTINE),
    )


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name.partition(".")[0] for each in node.names]
    return [node.name] if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else []


class _BoundNames(ast.NodeVisitor):
    """Visitor that walks the statements in execution order and collects the names they bind.

    A name bound in the body of a loop or a ``with`` counts as bound afterwards.  A name bound in
    only one branch of an ``if`` does not, so a later read of the name counts.
    """

    def __init__(self) -> None:
        self.reads: dict[str, None] = {}
        self.at_once: set[str] = set()  # the names among them that are read outside functions
        self.binds: dict[str, None] = {}
        self.assigned: set[str] = set()
        self.loops: set[str] = set()
        self._bound: set[str] = set()

    def all(self, nodes: Iterable[ast.AST | None]) -> None:
        """Visit the nodes in order; ``None`` is skipped."""
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _read(self, name: str, *, at_once: bool = True) -> None:
        if name not in self._bound:
            self.reads.setdefault(name)
            if at_once:
                self.at_once.add(name)

    def _bind(self, name: str, *, assigned: bool = True) -> None:
        self.binds.setdefault(name)
        self._bound.add(name)
        if assigned:
            self.assigned.add(name)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self._read(node.id)
            if isinstance(node.ctx, ast.Del):
                self.assigned.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self.all([node.value, node.target])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.all([node.annotation, node.value])
        if node.value is not None:
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.all([node.value, node.target])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        before = set(self.binds)
        self.visit(node.target)
        self.loops |= self.binds.keys() - before
        self.all([*node.body, *node.orelse])

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = set(self._bound)
        self.all(node.body)
        first, self._bound = self._bound, set(before)
        self.all(node.orelse)
        self._bound &= first

    def visit_match_case(self, node: ast.match_case) -> None:
        before = set(self._bound)
        self.all([node.pattern, node.guard, *node.body])
        self._bound = before

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._capture(node, node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._capture(node, node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._capture(node, node.rest)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.all([node.type])
        if node.name is not None:
            self._bound.add(node.name)  # bound until the end of the handler
        self.all(node.body)

    def _capture(self, node: ast.AST, name: str | None) -> None:
        self.generic_visit(node)
        if name is not None:
            self._bind(name)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name in _defined(node):
            self._bind(name, assigned=False)

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        self.all([*node.decorator_list, *arguments.defaults, *arguments.kw_defaults])
        for name in _free(node):
            self._read(name, at_once=False)
        self._bind(node.name, assigned=False)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.all([*node.args.defaults, *node.args.kw_defaults])
        for name in _free(node):
            self._read(name, at_once=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.all([*node.decorator_list, *node.bases, *node.keywords])
        for name in _free(node):
            self._read(name)
        self._bind(node.name, assigned=False)

    def _visit_comprehension(self, node: Any) -> None:
        for name in _free(node):
            self._read(name)
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self.visit(inner.target)

    visit_ListComp = visit_SetComp = _visit_comprehension  # noqa: N815
    visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815


def _free(scope: Any) -> dict[str, None]:
    """Return the names that a function, class or comprehension reads from enclosing scopes."""
    loads: dict[str, None] = {}
    inner: dict[str, None] = {}  # names of the nested scopes
    bound: set[str] = set()
    outer: set[str] = set()
    nodes: list[Any]
    if isinstance(scope, (*_FUNCTIONS, ast.Lambda)):
        bound = {each.arg for each in ast.walk(scope.args) if isinstance(each, ast.arg)}
        nodes = [*scope.body] if isinstance(scope.body, list) else [scope.body]
    elif isinstance(scope, ast.ClassDef):
        nodes = [*scope.body]
    else:
        nodes = [*ast.iter_child_nodes(scope)]
    for node in nodes:
        if isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)):
            inner.update(_free(node))
            bound.update(_defined(node) if isinstance(node, ast.stmt) else ())
            nodes += _around(node)
            continue
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            else:
                loads.setdefault(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outer.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update(_defined(node))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
        nodes += ast.iter_child_nodes(node)
    if not isinstance(scope, ast.ClassDef):  # nested scopes do not see names of a class body
        loads.update(inner)
        inner = {}
    return {**{name: None for name in loads if name not in bound - outer}, **inner}


def _around(node: Any) -> list[ast.AST]:
    """Return the parts of a nested scope that are evaluated outside of it."""
    arguments = getattr(node, "args", None)
    defaults = [*arguments.defaults, *arguments.kw_defaults] if arguments is not None else []
    outside = [*getattr(node, "decorator_list", ()), *getattr(node, "bases", ()), *defaults]
    return [each for each in outside if each is not None]
