"""The source of a function: its syntax tree, its statements by position, a fingerprint of its code.

The source is taken when the function's decorator runs.  Later is too late: a notebook cell may be
edited, or a file saved, while the program runs.

A *structural position* names a statement, whatever lines it moves to: ``body[3].orelse[0]``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import linecache
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Union

from stepwise._runtime.facts import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Definition = Any
"""A node that defines something: a function, a lambda, a class, an assignment."""

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # source order
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (*FUNCTIONS, ast.Lambda)
_CALLS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
TRIES: tuple[type[ast.stmt], ...] = (ast.Try,)
if hasattr(ast, "TryStar"):
    TRIES += (ast.TryStar,)
_REPEATING = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)

_LOOKS = 4  # attempts to find the end of a definition
_TRIES = 20  # attempts to parse a text while other threads parse


# -- source ----------------------------------------------------------------------------------------


def capture(function: Callable[..., Any]) -> Source:
    """Take the source of a function now; a function without source has empty ``lines``."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the module may have been edited and reloaded
    lines = linecache.getlines(code.co_filename, function.__globals__)
    return Source(code.co_filename, code.co_name, code.co_firstlineno, lines)


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


# -- syntax trees ----------------------------------------------------------------------------------


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


def decorators_of(node: FunctionNode) -> dict[str, str]:
    """Return the decorators of a function, each with the name that it gives the function."""
    found = {}
    for each in node.decorator_list:
        given = each.keywords if isinstance(each, ast.Call) else []
        names = [n.value.value for n in given if n.arg == "name" and type(n.value) is ast.Constant]
        found[ast.unparse(each.func if isinstance(each, ast.Call) else each)] = str(*names)
    return found


def functions_named(text: str) -> Iterator[FunctionNode]:
    """Yield the functions of a file, without their docstrings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in walk(module):
        if isinstance(node, FUNCTIONS):
            remove_docstring(node)
            yield node


# -- nodes that contain a call -------------------------------------------------------------------


def calls(node: ast.AST) -> bool:
    """Return whether executing a node may call something (operators and attributes excluded)."""
    if isinstance(node, _CALLS):
        return True
    if isinstance(node, _SCOPES):
        return any(calls(child) for child in _evaluated_now(node))
    if isinstance(node, ast.comprehension) and node.is_async:
        return True
    return any(calls(child) for child in children(node))


def _evaluated_now(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the decorators and defaults of a nested function, not its body."""
    arguments = node.args  # type: ignore[attr-defined]
    yield from getattr(node, "decorator_list", ())
    yield from arguments.defaults
    yield from (default for default in arguments.kw_defaults if default is not None)


def yields(function: FunctionNode) -> Iterator[int]:
    """Yield the lines of the function's own ``yield`` expressions."""
    nodes: list[ast.AST] = [*function.body]
    for node in nodes:
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            yield node.lineno
        if not isinstance(node, (*_SCOPES, ast.ClassDef)):
            nodes += children(node)


def any_calls(nodes: Iterable[ast.AST]) -> bool:
    """Return whether executing any of these nodes may call something."""
    return any(calls(node) for node in nodes)


def _inner_blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement that can contain resume points."""
    if isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor, *TRIES)):
        return [node.body, node.orelse]  # type: ignore[attr-defined]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [node.body]
    if isinstance(node, ast.Match):
        return [case.body for case in node.cases]
    return []


def opens(node: ast.stmt) -> bool:
    """Return whether a statement has resume points inside; other statements run as one piece."""
    if isinstance(node, ast.While) and calls(node.test):
        return True
    return any(any_calls(block) for block in _inner_blocks(node))


# -- statements, by line and by position -----------------------------------------------------------


class Place(NamedTuple):
    """A statement of a function.

    Args:
        path: its structural position.
        line: its first line, decorators included.
        once: each call of the function executes the statement, and each call in it, at most once.
    """

    path: str
    line: int
    end_line: int
    once: bool


class Points:
    """The statements of a function, by line."""

    def __init__(self, node: FunctionNode) -> None:
        self.places = list(_places(node, "", in_loop=False))

    def at(self, line: int) -> Place | None:
        """Return the innermost statement on a line of the file."""
        found = None
        for place in self.places:  # in source order: the last match is the innermost
            if place.line <= line <= place.end_line:
                found = place
        return found


def _places(parent: ast.AST, prefix: str, *, in_loop: bool) -> Iterator[Place]:
    for block in _BLOCKS:
        for index, node in enumerate(getattr(parent, block, ())):
            path = f"{prefix}{block}[{index}]"
            if isinstance(node, ast.stmt):
                repeats = isinstance(node, ast.While) or any(
                    isinstance(each, _REPEATING) for each in _heads(node)
                )
                end = node.end_lineno or node.lineno
                yield Place(path, first_line(node), end, once=not in_loop and not repeats)
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                yield from _places(node, f"{path}.", in_loop=in_loop or isinstance(node, _LOOPS))


def handler_at(function: FunctionNode, line: int) -> tuple[str, int]:
    """Return the kind and the first line of the outermost ``except`` or ``finally`` around a line.

    Return an empty kind and 0 without such a block.  The same goes for a line inside a
    comprehension or lambda, which runs as one piece anywhere.
    """
    blocks: list[tuple[str, int, list[ast.stmt]]] = []
    within = False
    for node in walk(function):  # outer nodes come first
        if isinstance(node, TRIES):
            blocks += (("except", each.lineno, each.body) for each in node.handlers)  # type: ignore[attr-defined]
            final = node.finalbody  # type: ignore[attr-defined]
            blocks += (("finally", each.lineno, final) for each in final[:1])
        elif isinstance(node, _REPEATING):
            within = within or node.lineno <= line <= (node.end_lineno or line)
    for kind, begin, body in blocks:
        if not within and body[0].lineno <= line <= (body[-1].end_lineno or line):
            return kind, begin
    return "", 0


def finally_lines(text: str) -> list[tuple[int, int]]:
    """Return the first and last lines of a file's ``finally`` blocks; none if it is invalid."""
    try:
        nodes = walk(parsed(text))
    except (SyntaxError, ValueError, RecursionError):
        return []
    bodies = [getattr(node, "finalbody", ()) for node in nodes]
    return [(body[0].lineno, body[-1].end_lineno or 0) for body in bodies if body]


def _heads(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement that belong to no statement inside it."""
    for child in children(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from _heads(child)


def following_line(node: FunctionNode, position: str) -> int | None:
    """Return the line of the statement that is executed next, or ``None`` if the function returns.

    After the last statement of a loop's body, the next statement is the loop itself, which takes
    its next item.

    Args:
        position: ``after PATH`` or ``enter PATH``; see ``transform``.
    """
    found = _way_to(node, position)
    if found is None:
        return None
    kind, here, around = found
    if kind == "enter":
        return first_line(here)
    for parent, block, index in reversed(around):
        items = getattr(parent, block)
        if block not in ("cases", "handlers") and index + 1 < len(items):
            return first_line(items[index + 1])
        if isinstance(parent, _LOOPS) and block == "body":
            return first_line(parent)
        if isinstance(parent, TRIES) and block != "finalbody":
            rest = [*(parent.orelse if block == "body" else ()), *parent.finalbody]  # type: ignore[attr-defined]
            if rest:
                return first_line(rest[0])
    return None


def statement_lines(node: FunctionNode, position: str) -> tuple[int, int] | None:
    """Return the first and last line of the statement of a position; of its head, if it has blocks.

    Return ``None`` if the function has no such statement.

    Args:
        position: ``after PATH`` or ``enter PATH``; see ``transform``.
    """
    found = _way_to(node, position)
    if found is None:
        return None
    kind, here, around = found
    if kind == "enter":
        here = around[-1][0]
    return here.lineno, _end_of_head(here)


def _end_of_head(node: Any) -> int:
    """Return the last line of a statement without its blocks."""
    last: int = node.end_lineno or node.lineno
    inside = (each for block in _BLOCKS for each in getattr(node, block, ()))
    first = min((each.lineno for each in inside if hasattr(each, "lineno")), default=last + 1)
    line: int = node.lineno
    return max(line, min(last, first - 1))


def writers_of(node: FunctionNode, name: str) -> list[tuple[int, int]]:
    """Return the lines of the statements that bind a variable, or change it by a method or an item.

    Statements that only hand it to a function are not among them.
    """
    found = []
    for each in walk(node):
        if not isinstance(each, ast.stmt) or isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            continue
        if any(_writes(part, name) for part in _heads(each)):
            found.append((each.lineno, _end_of_head(each)))
    return found


def _writes(part: ast.AST, name: str) -> bool:
    if isinstance(part, ast.Call):  # a method
        part = part.func
        return isinstance(part, ast.Attribute) and _root(part) == name
    return isinstance(getattr(part, "ctx", None), (ast.Store, ast.Del)) and _root(part) == name


def _root(node: Any) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def loop_around(node: FunctionNode, *lines: int) -> tuple[int, int] | None:
    """Return the first and last line of the innermost loop around these lines, or ``None``."""
    loops: list[Any] = [each for each in walk(node) if isinstance(each, _LOOPS)]
    spans: list[tuple[int, int]] = [(each.lineno, each.end_lineno) for each in loops]
    return max((s for s in spans if all(s[0] <= line <= s[1] for line in lines)), default=None)


def _way_to(
    node: FunctionNode, position: str
) -> tuple[str, Any, list[tuple[Any, str, int]]] | None:
    """Return the kind of a position, its node, and the way to the node.

    The way consists of each statement, its block and the index there.
    """
    kind, _, path = position.partition(" ")
    around: list[tuple[Any, str, int]] = []
    here: Any = node
    for part in path.split("."):
        block, _, index = part.partition("[")
        items = getattr(here, block, None)
        number = int(index[:-1]) if index else 0
        if not isinstance(items, list) or number >= len(items):
            return None
        around.append((here, block, number))
        here = items[number]
    return kind, here, around


# -- fingerprints ----------------------------------------------------------------------------------


def text_digest(text: str) -> str:
    """Return 8 characters for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def fingerprint(node: FunctionNode) -> str:
    """Return a digest of the code; comments, layout, docstrings and annotations do not count."""
    parts = [type(node).__name__, node.name, _canonical(node.args)]
    return _digest([*parts, _canonical(_without_docstring(node.body))])


def code_digest(body: list[ast.stmt]) -> str:
    """Return the same digest for statements outside of any function."""
    return _digest([_canonical(body)])


_NOT_CODE = ("returns", "type_comment", "type_params", "ctx", "kind")


def _canonical(node: Any, *, in_class: bool = False) -> str:
    """Return a text that is equal for equal code.

    Annotations in a class body are code, since they define the fields of the class.
    """
    if isinstance(node, list):
        return "[" + ",".join([_canonical(item, in_class=in_class) for item in node]) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.arg):
        return f"arg({node.arg})"
    if isinstance(node, ast.AnnAssign) and not in_class:
        if node.value is None:
            return "Pass()"
        return _canonical(ast.Assign(targets=[node.target], value=node.value))
    is_definition = isinstance(node, (*FUNCTIONS, ast.ClassDef))
    in_class = isinstance(node, ast.ClassDef) or (in_class and not is_definition)
    parts = []
    for name, value in ast.iter_fields(node):
        if name in _NOT_CODE:
            continue
        content = _without_docstring(value) if name == "body" and is_definition else value
        if isinstance(node, ast.JoinedStr):
            content = f_string_parts(node)
        parts.append(f"{name}={_canonical(content, in_class=in_class)}")
    return f"{type(node).__name__}({','.join(parts)})"


def f_string_parts(node: ast.JoinedStr) -> list[ast.expr | str]:
    """Return texts and fields in turn, beginning and ending with a text, which may be empty.

    Versions of Python divide the constant text in different ways: 3.12.1 ends the format in
    ``f"{number:{width}}"`` with an empty text, 3.11 does not.
    """
    parts: list[ast.expr | str] = []
    text = ""
    for each in node.values:
        if isinstance(each, ast.Constant):
            text += str(each.value)
        else:
            parts += [text, each]
            text = ""
    return [*parts, text]


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    value = first.value if isinstance(first, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return body[1:]
    return body


def prefix_fingerprint(node: FunctionNode, position: str, visited: Iterable[str]) -> str | None:
    """Return a digest of the code that had been executed when a position was reached.

    The digest covers the statements before the position and the heads of the statements around it.
    Branches of earlier statements that were not entered do not count.  If the digests are equal,
    local variables saved at the position are what this code would have produced.

    Args:
        position: ``after PATH`` or ``enter PATH``; see ``transform``.
        visited: paths of the blocks that were entered.

    Returns:
        The digest, or ``None`` if the function has no such position.
    """
    return _texts(node).fingerprint(position, frozenset(visited))


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Texts:
    """Cache of the canonical texts in a function, since every checkpoint needs a fingerprint."""

    def __init__(self, node: FunctionNode) -> None:
        self.node = node
        self.whole = functools.cache(_canonical)  # the text of a node with everything inside it
        self.head = functools.cache(_head)
        self.opens = functools.cache(opens)

    def fingerprint(self, position: str, entered: frozenset[str]) -> str | None:
        """Return the digest that ``prefix_fingerprint`` describes."""
        kind, _, path = position.partition(" ")
        parts = [self.whole(self.node.args)]
        here: Any = self.node
        prefix = ""
        for part in path.split("."):
            block, bracket, number = part.partition("[")
            index = int(number[:-1]) if bracket else None
            stmts = getattr(here, block, None)
            if not isinstance(stmts, list) or (index is not None and index >= len(stmts)):
                return None
            if isinstance(here, ast.stmt) and here is not self.node:
                parts.append(self.head(here))
            prefix = f"{prefix}.{block}" if prefix else block
            if index is None:  # the position is the beginning of this block
                return _digest(parts)
            before = stmts[:index] if block != "cases" else []
            parts += [self.taken(stmt, f"{prefix}[{n}]", entered) for n, stmt in enumerate(before)]
            here, prefix = stmts[index], f"{prefix}[{index}]"
        if kind == "after":
            parts.append(self.taken(here, prefix, entered))
        return _digest(parts)

    def taken(self, node: Any, path: str, entered: frozenset[str]) -> str:
        """Return the text of a statement without the branches that were not entered.

        Entered branches are known only for statements that are executed piece by piece; other
        statements count whole.
        """
        if not self.opens(node):  # it is executed as one piece
            return self.whole(node)
        parts = [self.head(node)]
        for block in _BLOCKS:
            items = getattr(node, block, ())
            for index, item in enumerate(items):
                here = f"{path}.{block}[{index}]"
                if block in ("cases", "handlers"):
                    if f"{here}.body" in entered:
                        parts.append(self.head(item))
                        parts += [
                            self.whole(stmt)  # a handler is one piece
                            if block == "handlers"
                            else self.taken(stmt, f"{here}.body[{n}]", entered)
                            for n, stmt in enumerate(item.body)
                        ]
                elif block == "finalbody":
                    parts.append(self.whole(item))
                elif f"{path}.{block}" in entered:
                    parts.append(self.taken(item, here, entered))
        return f"{type(node).__name__}<{';'.join(parts)}>"


_texts = functools.lru_cache(maxsize=64)(_Texts)


def _head(node: ast.AST) -> str:
    """Return the text of a compound statement without its blocks; ``match`` keeps its patterns."""
    fields = [
        f"{name}={_canonical(value)}"
        for name, value in ast.iter_fields(node)
        if name not in (*_BLOCKS, "type_comment")
    ]
    if isinstance(node, ast.Match):
        fields += [f"{_canonical(c.pattern)} if {_canonical(c.guard)}" for c in node.cases]
    return f"{type(node).__name__}({','.join(fields)})"
