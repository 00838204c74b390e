"""The source of a function is found as ``inspect`` finds it."""

from __future__ import annotations

import ast
import inspect
import io
import linecache

import pytest

from stepwise._rewrite.source import Source

TEXTS = {
    "last in the file": "def one():\n    return 1",
    "one line": "def one(): return 1\nx = 2\n",
    "a comment": "def one():\n    a = 1\n# aside\n    return a\n# after\nx = 1\n",
    "a text": "def one():\n    return %s\nx = 1\ndef two():\n%s\nx = 2\n",
    "a long text": "def one():\n    return %s\n" + "x = 1\n" * 9 + "%s\nx = 2\n",
    "a bracket": "def one(\na,\n):\n    return [\na\n]\nx = 3\n",
    "a continued line": "def one():\n    return 1 + \\\n2\nx = 4\n",
    "decorators": "@a\n@b(\n1\n)\nasync def one():\n    return 1\nx = 5\n",
    "a form feed": "def one():\n    a = 1\n\f    b = 2\n    return a + b\nx = 6\n",
    "tabs": "if 1:\n\tdef one():\n\t\ta = 1\n\t\treturn a\n\tx = 7\n",
    "inside": "class C:\n    def one(self):\n        return 1\n\n    def two(self): pass\n",
    "nested": "def one():\n    def one():\n        return 1\n    return one\ndef two(): pass\n",
    "an else": "if a:\n    def one():\n        return 1\nelse:\n    def one():\n        return 2\n",
    "no function": "one = 1\ndef one():\n    return 1\n",
    "an error": "def one():\n    return 1 +\nx = 8\n",
}


def as_inspect(lines, first):
    """Parse the block that ``inspect`` cuts out."""
    source = Source("file", "one", first, lines)
    source._block = "".join(inspect.getblock(lines[first - 1 :]))
    return shown(source)


def shown(source):
    node = source.node()
    return None if node is None else ast.dump(node, include_attributes=True)


@pytest.mark.parametrize("name", TEXTS)
def test_blocks(name):
    """Texts, brackets, form feeds and comments inside a definition do not end it."""
    lines = [*io.StringIO(TEXTS[name].replace("%s", "'''"))]

    for first, line in enumerate(lines, 1):
        if line.strip().startswith(("def one", "@a", "one")):
            assert shown(Source("file", "one", first, lines)) == as_inspect(lines, first)


def test_blocks_of_the_library():
    """Every definition of some real modules is found with the same tree at the same lines."""
    for module in (ast, linecache):
        lines = [*io.StringIO(inspect.getsource(module))]
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                block = Source("file", node.name, first, lines)
                other = Source("file", node.name, first, lines)
                other._block = "".join(inspect.getblock(lines[first - 1 :]))
                assert shown(block) == shown(other), node.name
