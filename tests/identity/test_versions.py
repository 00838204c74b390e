"""The version of a step: which edits it shows, and which it does not."""

from __future__ import annotations

import ast
import importlib
import itertools
import linecache
import os
import pathlib
import sys
import textwrap

import pytest
from harness import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from pythons import copy_library, interpreters

from stepwise._calls.steps import step_of
from stepwise._identity.following import version_of
from stepwise._identity.versions import changed

AGENT = '''
import json
import math
from dataclasses import dataclass
from enum import Enum
from math import floor as whole
from stepwise import step, tool
import prompts
from prompts import SYSTEM, shorten

LIMIT = 10
LATER = {"a": 1}
splitter = prompts.Splitter(size=500)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Words:
    HELLO = "hello"
    BYE = "bye"


@dataclass
class Order(prompts.Base):
    """An order."""

    price: int = 3

    def total(self):
        return self.price * self.vat()

    def vat(self):
        return 2

    def unread(self):
        return 99


def logged(function):
    def inner(*args):
        return function(*args)
    return inner


def helper(text):
    """Help."""
    return deeper(text) + 1


def deeper(text):
    return len(text) * 2


@step
def other(x):
    return x + 1


@step
def score(question: str, scale=10):
    """Score an answer."""
    # how good it is
    words = [word for word in question.split() if word not in {"the", "a"}]
    found = helper(question) + LIMIT + whole(math.pi)
    try:
        order = Order(price=scale)
    except ValueError:
        order = None
    if found > 3 and Colour.RED:
        found -= 1
    text = f"{SYSTEM} {shorten(question)} {prompts.RULES!r}"
    return json.dumps([words, found, order.total(), text, Words.HELLO, other(1), LATER], indent=2)


@step
@logged
def wrapped(x):
    return x


class Agent:
    STYLE = "kind"

    @step
    def run(self, question):
        return self.ask(question) + self.STYLE

    def ask(self, question):
        return self.more(question)

    def more(self, question):
        return question * 2

    def unread(self):
        return 1


@tool
def search(query: str, order: Order) -> str:
    """Search the web."""
    return splitter.split(query)
'''
PROMPTS = """
SYSTEM = "be short"
RULES = ("one", 2)
UNREAD = 1


class Base:
    def of_base(self):
        return 1


class Splitter:
    def __init__(self, size):
        self.size = size

    def split(self, text):
        return text[: self.size]


def shorten(text):
    return text[:100]


def unread():
    return 2
"""


NUMBERS = itertools.count()


def versions(folder: pathlib.Path, agent: str = AGENT, prompts: str = PROMPTS):
    """Write the program into a folder of its own, import it, and return its versions by name."""
    here = folder / str(next(NUMBERS))
    here.mkdir()
    (here / "agent.py").write_text(agent)
    (here / "prompts.py").write_text(prompts)
    sys.path.insert(0, str(here))
    importlib.invalidate_caches()
    try:
        program = importlib.import_module("agent")
        found = {"Agent.run": program.Agent.run}
        found |= {name: getattr(program, name) for name in ("score", "wrapped", "search")}
        return {name: step_of(each).version for name, each in found.items()}
    finally:
        sys.path.remove(str(here))
        for name in ("agent", "prompts"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The versions of the program as it stands above."""
    return versions(tmp_path_factory.mktemp("before"))


TOLD = [
    ("score", '{"the", "a"}', '{"the", "an"}', "body"),
    ("score", "found > 3", "found >= 3", "body"),
    ("score", "found > 3 and", "found > 3 or", "body"),
    ("score", "found -= 1", "found += 1", "body"),
    ("score", "except ValueError", "except TypeError", "body"),
    ("score", "indent=2", "indent=3", "body"),
    ("score", "        found -= 1\n", "        found -= 1\n        found -= 1\n", "body"),
    ("score", "} {shorten", "}; {shorten", "body"),
    ("score", "RULES!r}", "RULES}", "body"),
    ("score", "json.dumps", "json.loads", "body"),
    ("score", "scale=10", "scale=20", "signature"),
    ("score", "floor as whole", "ceil as whole", "body"),
    ("score", "import SYSTEM, shorten", "import SYSTEM, unread as shorten", "body"),
    ("score", "LIMIT = 10", "LIMIT = 11", "LIMIT"),
    ("score", "deeper(text) + 1", "deeper(text) + 2", "helper"),
    ("score", "len(text) * 2", "len(text) * 3", "deeper"),
    ("score", '"a": 1', '"a": 2', "LATER"),
    ("score", "RED = 1", "RED = 3", "Colour.RED"),
    ("score", '"hello"', '"hi"', "Words.HELLO"),
    ("score", "price: int = 3", "price: float = 3", "Order"),
    ("score", "(prompts.Base)", "", "Order"),
    ("score", "@dataclass\n", "@dataclass(frozen=True)\n", "Order"),
    ("score", "return self.price * ", "return self.price + ", "Order.total"),
    ("score", "return 2\n\n    def unread", "return 3\n\n    def unread", "Order.vat"),
    ("score", '"be short"', '"be long"', "SYSTEM in prompts.py"),
    ("score", '("one", 2)', '("one", 3)', "RULES in prompts.py"),
    ("score", "text[:100]", "text[:200]", "shorten in prompts.py"),
    ("wrapped", "return function(*args)", "return function(*args) or 1", "body"),
    ("wrapped", "return x\n", "return -x\n", "wrapped"),
    ("wrapped", "@logged\n", "", "body"),
    ("Agent.run", '"kind"', '"rude"', "Agent.STYLE"),
    ("Agent.run", "self.more(question)", "self.more(question)[1:]", "Agent.ask"),
    ("Agent.run", "question * 2", "question * 3", "Agent.more"),
    ("search", "Search the web", "Search the archive", "docstring"),
    ("search", "query: str, order", "query: bytes, order", "signature"),
    ("search", "price: int = 3", "price: int = 4", "Order"),
    ("search", "size=500", "size=600", "splitter"),
    ("search", "text[: self.size]", "text[self.size :]", "Splitter.split in prompts.py"),
]


@pytest.mark.parametrize(("name", "old", "new", "part"), TOLD)
def test_an_edit_of_what_a_step_does_changes_its_version(before, tmp_path, name, old, new, part):
    """An edit of the body, of a helper, a constant, a class, a prompt names the changed part."""
    assert (AGENT + PROMPTS).count(old) == 1, old
    after = versions(tmp_path, AGENT.replace(old, new), PROMPTS.replace(old, new))
    assert part in changed(before[name].parts, after[name].parts)
    assert before[name].id != after[name].id


SILENT = [
    ("    # how good it is\n", ""),
    ('    """Score an answer."""\n', '    """Score answers."""\n'),
    ('    """Help."""\n', ""),
    ("question: str, scale=10", "question: bytes, scale=10"),
    ("words = [word for word in question.split()", "words = [each for each in question.split()"),
    (
        'helper(text):\n    """Help."""\n    return deeper(text)',
        "helper(it):\n    return deeper(it)",
    ),
    ("if found > 3 and Colour.RED:", "if (found > 3\n            and Colour.RED):"),
    ('"be short"', "'be ' 'short'"),
    ('BYE = "bye"', 'BYE = "so long"'),
    ("return 99", "return 100"),
    ("UNREAD = 1", "UNREAD = 2"),
    ("def unread():\n    return 2", "def unread():\n    return 3"),
    ("    def unread(self):\n        return 1\n", "    def unread(self):\n        return 2\n"),
    ("def other(x):\n    return x + 1", "def other(x):\n    return x + 2"),
    ("import json\nimport math\n", "import math\nimport json\n"),
    ("LATER = ", "\n\nLATER  = "),
    ("LIMIT = 10", "LIMIT: int = 10"),
    ('STYLE = "kind"', 'STYLE: str = "kind"'),
    ('{"the", "a"}', '{"a", "the"}'),
    ("@step\ndef score", "@step(retries=3)\ndef score"),
    ("        found -= 1\n", "        found -= 1\n        pass\n"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), SILENT)
def test_what_does_not_change_what_a_step_does_is_silent(before, tmp_path, old, new):
    """Comments, layout, docstrings, annotations, local names, and what is not read do not count."""
    assert (AGENT + PROMPTS).count(old) == 1, old
    agent = AGENT.replace(old, new)
    if "each for each" in new:
        agent = agent.replace("if word not", "if each not")
    after = versions(tmp_path, agent, PROMPTS.replace(old, new))
    for name, version in before.items():
        assert changed(version.parts, after[name].parts) == ()
        assert version.id == after[name].id


def test_reformatting_is_silent(before, tmp_path):
    """A program that is printed anew from its syntax tree has the same versions."""
    after = versions(tmp_path, ast.unparse(ast.parse(AGENT)), ast.unparse(ast.parse(PROMPTS)))
    assert {n: v.id for n, v in after.items()} == {n: v.id for n, v in before.items()}


def test_moved_functions_are_silent(before, tmp_path):
    """The place of a definition in its file does not count."""
    blocks = AGENT.split("\n\n\n")
    head, *rest = blocks
    order = [head, *rest[:4], rest[5], rest[4], *rest[6:]]
    after = versions(tmp_path, "# new\n\n" + "\n\n\n".join(order))
    assert {n: v.id for n, v in after.items()} == {n: v.id for n, v in before.items()}


# -- what a step reads ---------------------------------------------------------------------------


MODULE = '''
import logging
from pathlib import Path
from stepwise import step
from pieces.all import *
from pieces import base

HERE = Path(__file__).parent
log = logging.getLogger(__name__)
MODE = 1
if MODE == 1:
    CHOSEN = "one"
else:
    CHOSEN = "two"
SCALE = 10


def load(name):
    return (HERE / name).read_text()


PROMPT = load("prompt.txt")


def scaled(x, scale=SCALE):
    return x * scale


def prompt():
    """Be kind."""


class Note:
    def __init__(self):
        self.text = "made elsewhere"

    def __str__(self):
        return "a note"


class Reader(base.Reader):
    FIRST = 3
    SECOND = FIRST + 1

    @step
    def read(self, x, note: Note = None):
        """Read."""
        log.info("reading")
        said = [prompt.__doc__, self.read.__doc__, Reader.SECOND, CHOSEN, PROMPT, TABLE["a"]]
        return said + [scaled(x), self.inherited(x), f"{note}"]
'''
ALL = "from .tables import *\n"
TABLES = 'TABLE = {"a": 1}\n'
BASE = """
class Reader:
    def inherited(self, x):
        return x + 7
"""


def version_of_module(folder, name="reader", edit=("", "")):
    """Return the version of the step of a package, imported from a folder of its own."""
    here = folder / str(next(NUMBERS))
    (here / "pieces").mkdir(parents=True)
    texts = {
        f"{name}.py": MODULE,
        "prompt.txt": "be short",
        "pieces/__init__.py": "",
        "pieces/all.py": ALL,
        "pieces/tables.py": TABLES,
        "pieces/base.py": BASE,
    }
    for path, text in texts.items():
        (here / path).write_text(text.replace(*edit) if edit[0] else text)
    sys.path.insert(0, str(here))
    importlib.invalidate_caches()
    try:
        return step_of(importlib.import_module(name).Reader.read).version
    finally:
        sys.path.remove(str(here))
        for each in (name, "pieces", "pieces.all", "pieces.tables", "pieces.base"):
            sys.modules.pop(each, None)


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (("SCALE = 10", "SCALE = 20"), "SCALE"),
        (("MODE == 1", "MODE == 2"), "CHOSEN"),
        (("FIRST = 3", "FIRST = 4"), "Reader.FIRST"),
        (("Be kind.", "Be rude."), "prompt.__doc__"),
        (('"""Read."""', '"""Read it."""'), "docstring"),
        (("be short", "be long"), "PROMPT"),
        (('"a": 1', '"a": 2'), "TABLE in pieces/tables.py"),
        (('"a note"', '"the note"'), "Note.__str__"),
        (("x + 7", "x + 8"), "Reader.inherited in pieces/base.py"),
    ],
)
def test_what_a_step_reads_by_a_detour(tmp_path, edit, part):
    """Defaults, conditions, docstrings, files, stars and inherited methods count."""
    before, after = version_of_module(tmp_path), version_of_module(tmp_path, edit=edit)
    assert part in changed(before.parts, after.parts)


def test_another_folder_or_module_name_is_silent(tmp_path):
    """A release in a folder of its own has the same versions, also under another module name."""
    before, after = version_of_module(tmp_path), version_of_module(tmp_path, "renamed")
    assert before.parts == after.parts


# -- random programs ----------------------------------------------------------------------------


NAMES = st.sampled_from(["a", "b", "LIMIT", "text"])
EXPRESSIONS = st.recursive(
    st.integers(0, 9).map(str) | NAMES | st.sampled_from(["'x'", "None", "helper(1)", "f'{a!r}'"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "<", "and", "=="]), inner).map(
            lambda each: f"({each[0]} {each[1]} {each[2]})"
        ),
        inner.map(lambda each: f"[each for each in [{each}]]"),
        inner.map(lambda each: f"(lambda value: [value, {each}])"),
        st.tuples(inner, inner, inner).map(lambda e: f"({e[0]} if {e[1]} else {e[2]})"),
    ),
    max_leaves=8,
)


def _statements(inner):
    return st.one_of(
        st.tuples(NAMES.filter(str.islower), EXPRESSIONS).map(lambda e: f"{e[0]} = {e[1]}"),
        EXPRESSIONS.map(lambda each: f"yield_({each})"),
        st.tuples(EXPRESSIONS, inner).map(
            lambda e: f"if {e[0]}:\n{textwrap.indent(e[1], '    ')}\nelse:\n    b = 1"
        ),
        inner.map(
            lambda each: f"try:\n{textwrap.indent(each, '    ')}\nexcept OSError as a:\n    b = a"
        ),
        inner.map(lambda each: f"for a in [1, 2]:\n{textwrap.indent(each, '    ')}"),
    )


BODIES = st.recursive(st.just("b = 1"), _statements, max_leaves=5)


def version_in(folder, body, helper):
    """Return the version of a function with this body, whose helper has that body."""
    file = str(folder / f"random{next(NUMBERS)}.py")
    text = (
        f"def helper(x):\n{textwrap.indent(helper, '    ')}\n\n"
        f"def function(a, b=2):\n{textwrap.indent(body, '    ')}\n    return a\n"
    )
    namespace = {"__name__": "random_program", "LIMIT": 1, "text": ""}
    pathlib.Path(file).write_text(text)
    exec(compile(text, file, "exec", dont_inherit=True), namespace)
    try:
        return text, version_of(namespace["function"])
    finally:
        os.remove(file)
        linecache.cache.pop(file, None)


class _Changed(ast.NodeTransformer):
    """Change the n-th literal, operator or global name."""

    def __init__(self, number):
        self.left, self.done = number, False

    def visit(self, node):
        if not self.done and isinstance(node, (ast.Constant, ast.operator, ast.cmpop)):
            self.left -= 1
            if self.left < 0:
                self.done = True
                if isinstance(node, ast.Constant):
                    return ast.copy_location(ast.Constant([node.value, 77][node.value != 77]), node)
                return ast.Mult() if isinstance(node, ast.operator) else ast.NotEq()
        return self.generic_visit(node)


@settings(max_examples=60, deadline=None)
@given(BODIES, BODIES, st.integers(0, 20), st.booleans())
def test_any_edit_of_a_random_program_is_told(tmp_path_factory, body, helper, number, in_helper):
    """A literal or an operator that changes is told, in the body or in what it reads."""
    folder = tmp_path_factory.getbasetemp()
    body = f"helper(1)\n{body}"
    _, one = version_in(folder, body, helper)
    edit = _Changed(number)
    tree = edit.visit(ast.parse(helper if in_helper else body))
    edited = ast.unparse(ast.fix_missing_locations(tree))
    pair = (body, edited) if in_helper else (edited, helper)
    same = edited == ast.unparse(ast.parse(helper if in_helper else body))
    _, other = version_in(folder, *pair)
    expected = () if same else ("helper",) if in_helper else ("body",)
    assert changed(one.parts, other.parts) == expected


@settings(max_examples=60, deadline=None)
@given(BODIES, BODIES)
def test_random_programs_that_are_printed_anew_are_the_same(tmp_path_factory, body, helper):
    """Layout does not count in any program, nor do the names of local variables."""
    folder = tmp_path_factory.getbasetemp()
    _, one = version_in(folder, body, helper)
    renamed = ast.unparse(ast.parse(body)).replace("value", "value2").replace("each", "item")
    _, other = version_in(folder, f"'''A docstring.'''\n{renamed}", ast.unparse(ast.parse(helper)))
    assert one == other._replace(files=one.files)


# -- sources -------------------------------------------------------------------------------------


def test_functions_without_source_have_the_version_of_their_code():
    """A function without source changes with the interpreter's code, told as such."""
    found = []
    for text in ("return 1", "return 2", "return 2  # two"):
        namespace = {"__name__": "nowhere"}
        exec(f"def function():\n    {text}", namespace)
        found.append(version_of(namespace["function"]))
    ((name, _),) = found[0].parts.items()
    assert name == "code of Python {}.{}".format(*sys.version_info)
    assert changed(found[0].parts, found[1].parts) == (name,)
    assert found[1] == found[2]


def test_partials_lambdas_and_callable_objects(tmp_path):
    """The function inside counts, with the arguments that a partial binds."""
    text = """
import functools
class Callable:
    def __call__(self, x):
        return self.more(x) + {0}
    def more(self, x):
        return x
def plain(x, y):
    return x - y
one = functools.partial(plain, y={0})
two = lambda x: x * {0}
three = Callable()
"""
    found = []
    for number in (1, 1, 2):
        file = str(tmp_path / f"p{len(found)}.py")
        pathlib.Path(file).write_text(text.format(number))
        namespace = {"__name__": "shapes", "__file__": file}
        exec(compile(text.format(number), file, "exec", dont_inherit=True), namespace)
        found.append([version_of(namespace[name]).id for name in ("one", "two", "three")])
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])


def test_a_file_that_is_edited_while_the_program_runs_is_not_taken_for_its_code(tmp_path):
    """A helper's file counts only if its text is what is executed."""
    (tmp_path / "prompts_now.py").write_text("P = 'old'\ndef help():\n    return P\n")
    (tmp_path / "agent_now.py").write_text(
        "from stepwise import step\nfrom prompts_now import help\n\n"
        "@step\ndef ask():\n    return help()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        program = importlib.import_module("agent_now")
        (tmp_path / "prompts_now.py").write_text("P = 'new'\ndef help():\n    return P\n")
        parts = step_of(program.ask).version.parts
        assert set(parts) == {"body", "signature"}
    finally:
        sys.path.remove(str(tmp_path))
        for name in ("agent_now", "prompts_now"):
            sys.modules.pop(name, None)


def test_a_recorded_version_holds_while_no_file_has_changed(before):
    """A start takes over the recorded version without looking into files that are the same."""
    version = before["score"]
    assert {os.path.basename(each) for each in version.files} == {"agent.py", "prompts.py"}
    assert not version._replace(files={}).holds(None)
    assert not version._replace(files=dict.fromkeys(version.files, "other")).holds(None)


def test_another_version_of_python_gives_the_same_version(tmp_path):
    """The text decides, not the interpreter: records of another Python are compared."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "prompts.py").write_text(PROMPTS)
    library = copy_library(tmp_path)
    code = (
        "import agent; from stepwise._calls.steps import step_of;"
        "print(*[step_of(each).version for each in (agent.score, agent.Agent.run, agent.search)])"
    )
    found = {
        interpreted("-c", code, by=python, cwd=library).stdout for python in interpreters().values()
    }
    assert len(found) == 1
