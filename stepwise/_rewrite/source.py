"""The source of a function, taken when the function's decorator runs.

Later is too late: a notebook cell may be edited, or a file saved, while the program runs.  This
module imports nothing else of stepwise.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import tokenize
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Union

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Definition = Any
"""A node that defines something: a function, a lambda, a class, an assignment."""

_LOOKS = 4  # attempts to find the end of a definition
_TRIES = 20  # attempts to parse a text while other threads parse


class Source:
    """The file and lines of a function's definition, as they were at decoration."""

    def __init__(self, filename: str, name: str, first_line: int, lines: list[str]) -> None:
        self.filename = filename
        self.name = name
        self.first_line = first_line
        self.lines = lines
        self._node: FunctionNode | None = None
        self._block = ""

    def node(self) -> FunctionNode | None:
        """Return the syntax tree with the line numbers of the file; ``None`` without source.

        The tree is shared and must not be changed; ``parse`` returns a fresh tree.
        """
        if self._node is None:
            self._node = self.parse()
        return self._node

    def parse(self) -> FunctionNode | None:
        """Return a fresh syntax tree, which the caller may change; ``None`` without source."""
        try:
            with warnings.catch_warnings():  # compiling the code has shown the warnings already
                warnings.simplefilter("ignore")
                if self._block:
                    module = _parsed_block(self._block)
                else:
                    self._block, module = _block(self.lines[self.first_line - 1 :])
            indented = self._block[0].isspace()
        except (SyntaxError, IndexError, tokenize.TokenError, RecursionError):
            return None
        for node in ast.walk(module):
            if isinstance(node, FUNCTIONS) and node.name == self.name:
                above = self.first_line - (2 if indented else 1)
                for each in walk(node):
                    if "lineno" in each._attributes:
                        each.lineno, each.end_lineno = each.lineno + above, each.end_lineno + above
                remove_docstring(node)
                return node
        return None

    @functools.cached_property
    def words(self) -> set[str]:
        """The names and texts that the whole file mentions, outside of comments."""
        nodes = list[ast.AST]()
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            nodes += ast.walk(parsed("".join(self.lines)))
        fields = ("id", "attr", "name", "value")
        found = (getattr(each, field, None) for each in nodes for field in fields)
        return {each for each in found if isinstance(each, str)}

    def functions(self) -> Iterator[tuple[str, FunctionNode]]:
        """Yield the functions of the whole file, each with its qualified name."""
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            yield from _functions_in(parsed("".join(self.lines)), "")


def _functions_in(node: ast.AST, around: str) -> Iterator[tuple[str, FunctionNode]]:
    for each in children(node):
        if isinstance(each, FUNCTIONS):
            yield around + each.name, each
            yield from _functions_in(each, f"{around}{each.name}.<locals>.")
        else:
            inside = f"{around}{each.name}." if isinstance(each, ast.ClassDef) else around
            yield from _functions_in(each, inside)


def decorators_of(node: FunctionNode) -> dict[str, str]:
    """Return the decorators of a function, each with the name that it gives the function."""
    found = {}
    for each in node.decorator_list:
        given = each.keywords if isinstance(each, ast.Call) else []
        names = [n.value.value for n in given if n.arg == "name" and type(n.value) is ast.Constant]
        found[ast.unparse(each.func if isinstance(each, ast.Call) else each)] = str(*names)
    return found


def children(node: ast.AST) -> list[Any]:
    """Return a list of ``ast.iter_child_nodes``, whose generators are too slow in a resume."""
    found = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
    return found


def walk(node: ast.AST) -> list[Any]:
    """Return a list of ``ast.walk``: outer nodes come first."""
    found = [node]
    for each in found:
        found += children(each)
    return found


def first_line(node: Any) -> int:
    """Return the first line of a node, decorators included; 0 for a node without a line."""
    lines: list[int] = [each.lineno for each in getattr(node, "decorator_list", ())]
    return min([getattr(node, "lineno", 0), *lines])


def definition_at(
    tree: ast.AST, name: str, line: int
) -> tuple[Definition, tuple[Definition, ...]] | None:
    """Return the function that begins on a line, and the definitions around it, outermost first.

    Args:
        name: the name of the function; ``<lambda>`` for the only lambda of the line.
        line: the first line, that of the first decorator if there is one.
    """
    around: list[Definition] = []
    lambdas: list[ast.Lambda] = []
    block: list[Any] = [*children(tree)]
    while block:
        inside: list[Any] = []
        for node in block:
            first = first_line(node)
            if not first <= line <= (getattr(node, "end_lineno", None) or line):
                continue
            if isinstance(node, FUNCTIONS) and node.name == name and first == line:
                return node, (*around,)
            if isinstance(node, ast.Lambda) and node.lineno == line:
                lambdas.append(node)
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                around.append(node)
            inside += children(node)
        block = inside
    return (lambdas[0], (*around,)) if name == "<lambda>" and len(lambdas) == 1 else None


def _block(lines: list[str]) -> tuple[str, ast.Module]:
    """Return the text and the tree of the definition that begins with the first of these lines.

    ``inspect.getblock`` tokenizes in Python: 15 million instructions for seven lines, a thirtieth
    of a start.  A definition ends before the next statement that is not indented further than the
    definition.  A line that only looks like such a statement continues a string, a bracket or a
    line, and then the text above it does not parse.
    """
    looks = 0
    for number, line in enumerate([*lines[1:], "end of file"], 1):
        code = line.lstrip()
        if not code or code[0] == "#" or _column(line) > _column(lines[0]):
            continue
        if looks == _LOOKS or code != line.lstrip(" \t"):  # a form feed restarts the columns
            break
        looks += 1
        found = "".join(lines[:number])
        with contextlib.suppress(SyntaxError):
            tree = _parsed_block(found)
            if isinstance(_first(tree), FUNCTIONS):
                return found, tree
            break  # the file is not the function's file
    found = "".join(inspect.getblock(lines))
    return found, _parsed_block(found)


def _first(tree: ast.Module) -> ast.stmt | None:
    """Return the first statement, inside the ``if`` block that ``_parsed_block`` adds."""
    body = tree.body
    while body and isinstance(body[0], ast.If):
        body = body[0].body
    return body[0] if body else None


def _column(line: str) -> int:
    line = line.expandtabs()
    return len(line) - len(line.lstrip(" "))


def _parsed_block(block: str) -> ast.Module:
    # Indented code is parsed inside an added block, since dedenting would change multi-line
    # strings.
    return parsed(("if 1:\n" if block[0].isspace() else "") + block)


def parsed(text: str) -> ast.Module:
    """Parse a module, even while another thread parses one.

    In CPython 3.11 two threads share one depth counter.  A valid source may then fail with "AST
    constructor recursion depth mismatch"; fixed in 3.12.

    Raises:
        SyntaxError, ValueError, RecursionError: the text cannot be parsed.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def remove_docstring(node: FunctionNode) -> None:
    """Drop the docstring: it has no effect, and positions must not depend on it."""
    if ast.get_docstring(node, clean=False) is not None:
        node.body[:1] = [] if len(node.body) > 1 else [ast.copy_location(ast.Pass(), node.body[0])]


def capture(function: Callable[..., Any]) -> Source:
    """Take the source of a function now; a function without source has empty ``lines``."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the module may have been edited and reloaded
    lines = linecache.getlines(code.co_filename, function.__globals__)
    return Source(code.co_filename, code.co_name, code.co_firstlineno, lines)
