"""The scope of a rewritten function: its declarations and its hidden variables.

Hidden names begin with ``@``, which no identifier does.  So they cannot clash, and private names'
mangling leaves them alone.  Apart from loop numbers, hidden names consist of characters that no
identifier holds, so that no ``NameError`` suggests them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from stepwise._rewrite.source import FunctionNode, children, walk

ENTER, VISIBLE = "@(", "@)"  # functions of this package, in cells
# Local variables.
FRAME, TARGET, VALUES, CHOICE, ASKS = "@[]", "@>", "@{}", "@|", "@?"
# Prefixes before a number: the hidden variables of loops.
_ITERATOR, _ITEM = "@::", "@=="
LISTING = ("locals", "vars", "dir")


def iterator_name(number: int) -> str:
    """Return the name of the hidden variable that holds the iterator of a loop."""
    return f"{_ITERATOR}{number}"


def item_name(number: int) -> str:
    """Return the name of the hidden variable that holds the item a loop has taken."""
    return f"{_ITEM}{number}"


def placed(nodes: Sequence[ast.stmt], like: ast.AST) -> list[ast.stmt]:
    """Give new statements the place of an old node; ``complete`` places the nodes inside them."""
    for node in nodes:
        if not hasattr(node, "lineno"):  # the user's nodes keep their own place
            _put(node, like)
    return list(nodes)


def complete(root: ast.AST) -> None:
    """Give each node without a place the place of the statement around it."""
    start = ast.Pass(lineno=1, col_offset=0)
    todo: list[tuple[Any, ast.AST]] = [(root, start)]
    for node, around in todo:
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            _put(node, around)
        inside = node if isinstance(node, ast.stmt) else around
        todo += [(each, inside) for each in children(node)]


def _put(node: Any, like: Any) -> None:
    """Place a node where another one begins."""
    node.lineno = node.end_lineno = like.lineno
    node.col_offset = node.end_col_offset = like.col_offset


def hoist(node: FunctionNode) -> list[ast.stmt]:
    """Take ``global`` and ``nonlocal`` out of a function; they apply to the whole function anyway.

    The ``pass`` that replaces a declaration takes the line of a neighbour, so that tracers do not
    see an extra line.
    """
    found: list[ast.stmt] = []
    for block in _blocks(node):
        for index in reversed(range(len(block))):
            stmt = block[index]
            if isinstance(stmt, (ast.Global, ast.Nonlocal)):
                found.append(stmt)
                near = block[index + 1 : index + 2] or block[max(index - 1, 0) : index] or [stmt]
                block[index] = placed([ast.Pass()], near[0])[0]
    return found


def released(node: FunctionNode) -> set[str]:
    """Return the names that ``with`` statements bind and no code outside of them mentions."""
    bound: set[str] = set()
    mentioned: set[str] = set()

    def look(node: ast.AST, around: frozenset[str]) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            mentioned.update({node.id} - around)
        inside = around
        if isinstance(node, (ast.With, ast.AsyncWith)):
            targets = [item.optional_vars for item in node.items if item.optional_vars]
            names = {n.id for each in targets for n in walk(each) if isinstance(n, ast.Name)}
            bound.update(names)
            inside = around | names
        for child in children(node):
            look(child, around if isinstance(child, ast.withitem) else inside)

    look(node, frozenset())
    return bound - mentioned


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a function at any depth, except blocks of scopes inside the function."""
    for _, value in ast.iter_fields(node):
        if not isinstance(value, list) or not value:
            continue
        if isinstance(value[0], ast.stmt):
            yield value
        for each in value:
            if isinstance(each, (ast.stmt, ast.excepthandler, ast.match_case)) and not isinstance(
                each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            ):
                yield from _blocks(each)


class _HideNames(ast.NodeTransformer):
    """Rewriter of ``locals()`` to ``@visible(locals, locals())``, without the hidden names."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = node.func
        if not isinstance(name, ast.Name) or name.id not in LISTING or node.args or node.keywords:
            return node
        call = ast.Call(ast.Name(VISIBLE, ast.Load()), [name, node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def _leave(self, node: ast.AST) -> ast.AST:
        return node  # a separate scope, which has no hidden names

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave  # noqa: N815


def hide_names(node: FunctionNode) -> None:
    """Keep the hidden names out of the results of ``locals()``, ``vars()`` and ``dir()``."""
    hide = _HideNames()
    node.body = [hide.visit(stmt) for stmt in node.body]


def attributes_stored(node: FunctionNode) -> frozenset[str]:
    """Return the attributes of variables that a function assigns, as ``self.name``."""
    return frozenset(
        f"{each.value.id}.{each.attr}"
        for each in walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
    )


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


def part_comprehensions(node: FunctionNode) -> bool:
    """Give each comprehension in a function its own scope; return whether there is one."""
    part = _Comprehensions()
    part.visit(node)
    return part.found
