"""A function's source, the positions of its statements, and the fingerprint of its code."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import linecache
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from pythons import interpreter

import stepwise
from stepwise._rewrite import Place, Points, capture, fingerprint


def node_of(source):
    """The syntax tree of the one function in a source."""
    return ast.parse(textwrap.dedent(source)).body[0]


def print_of(source):
    return fingerprint(node_of(source))


def marked(source):
    """The place of each line of a function that ends in a comment ``# path``, with that path."""
    lines = textwrap.dedent(source).splitlines()
    points = Points(node_of(source))
    return [
        (points.at(number), line.rpartition("# ")[2].strip())
        for number, line in enumerate(lines, 1)
        if "# " in line
    ]


def check_paths(source):
    """Compare the paths of the lines with those in their comments (``none``: no statement)."""
    found = marked(source)
    assert found
    assert [place.path if place else "none" for place, _ in found] == [path for _, path in found]


# -- where a line is -------------------------------------------------------------------------------


def test_statements_in_a_row():
    """A simple statement's position is its index in the body."""
    check_paths(
        """
        def f(a,          # none
              b):
            one()         # body[0]
            two()         # body[1]

            return three()  # body[2]
        """
    )


def test_docstrings():
    """A docstring is a statement: the positions of the others do not depend on what it says."""
    check_paths(
        '''
        def f():
            """Text
            of two lines."""
            one()         # body[1]
        '''
    )


def test_statements_of_several_lines():
    """Every line of a statement that spans several belongs to it."""
    check_paths(
        '''
        def f():
            value = one(  # body[0]
                1,        # body[0]
                [2,       # body[0]
                 3],
            )             # body[0]
            text = """    # body[1]
            # body[1]
            """
            chained = (a  # body[2]
                       .b()   # body[2]
                       .c())  # body[2]
            long = a + \\
                b()       # body[3]
        '''
    )


def test_lines_between_statements():
    """A blank line or a comment between two statements belongs to none of them."""
    points = Points(node_of("def f():\n    one()\n\n    # comment\n    two()\n"))
    assert [points.at(line) and points.at(line).path for line in range(7)] == [
        *(None, None, "body[0]", None, None, "body[1]", None)
    ]


def test_branches():
    """The innermost statement counts; ``elif`` is an ``if`` in the ``else``."""
    check_paths(
        """
        def f(x):
            if x:         # body[0]
                one()     # body[0].body[0]
                if two(): # body[0].body[1]
                    three()   # body[0].body[1].body[0]
            elif four():  # body[0].orelse[0]
                five()    # body[0].orelse[0].body[0]
            else:         # body[0].orelse[0]
                six()     # body[0].orelse[0].orelse[0]
        """
    )


def test_loops():
    """Loops, their bodies, their ``else``."""
    check_paths(
        """
        async def f(x):
            for i in one():   # body[0]
                two()         # body[0].body[0]
                while x:      # body[0].body[1]
                    break     # body[0].body[1].body[0]
                else:
                    three()   # body[0].body[1].orelse[0]
            else:
                four()        # body[0].orelse[0]
            async for j in x: # body[1]
                five()        # body[1].body[0]
        """
    )


def test_try():
    """Bodies, handlers, ``else`` and ``finally``."""
    check_paths(
        """
        def f():
            try:              # body[0]
                one()         # body[0].body[0]
            except ValueError:  # body[0]
                two()         # body[0].handlers[0].body[0]
                three()       # body[0].handlers[0].body[1]
            except (KeyError, # body[0]
                    TypeError) as error:  # body[0]
                raise four() from error   # body[0].handlers[1].body[0]
            else:
                five()        # body[0].orelse[0]
            finally:
                six()         # body[0].finalbody[0]
            seven()           # body[1]
        """
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups in 3.10")
def test_try_with_groups():
    """``except*`` has the positions of ``except``."""
    check_paths(
        """
        def f():
            try:
                one()         # body[0].body[0]
            except* ValueError:
                two()         # body[0].handlers[0].body[0]
        """
    )


def test_match():
    """The cases of a ``match``, and their guards, which belong to the ``match`` itself."""
    check_paths(
        """
        def f(x):
            match one(x):     # body[0]
                case 1:       # body[0]
                    two()     # body[0].cases[0].body[0]
                case [a, *_] if three(a):  # body[0]
                    four()    # body[0].cases[1].body[0]
                    five()    # body[0].cases[1].body[1]
                case _:
                    match x:  # body[0].cases[2].body[0]
                        case 2:
                            six()  # body[0].cases[2].body[0].cases[0].body[0]
        """
    )


def test_with():
    """A ``with`` statement with its managers, and its body."""
    check_paths(
        """
        async def f():
            with one() as a, \\
                    two() as b:   # body[0]
                three()           # body[0].body[0]
            async with (
                four() as c,      # body[1]
            ):
                await five()      # body[1].body[0]
        """
    )


def test_nested_definitions():
    """What a nested function or class holds belongs to its definition, which is the statement."""
    check_paths(
        """
        def f():
            def inner(x=one()):   # body[0]
                two()             # body[0]
                if x:
                    three()       # body[0]
            if inner:
                class Inner:      # body[1].body[0]
                    x = four()    # body[1].body[0]
                    def method(self):
                        five()    # body[1].body[0]
            g = lambda: (         # body[2]
                six())            # body[2]
            return inner()        # body[3]
        """
    )


def test_decorators_of_nested_definitions():
    """The decorators of a nested definition are part of its statement."""
    check_paths(
        """
        def f():
            one()             # body[0]
            @two()            # body[1]
            @three(           # body[1]
                4)            # body[1]
            def inner():      # body[1]
                five()        # body[1]
            if inner:
                @six()        # body[2].body[0]
                class Inner:  # body[2].body[0]
                    pass
        """
    )


def test_decorators_of_the_function():
    """The function's own decorators, its name and its defaults belong to no statement."""
    check_paths(
        """
        @one()            # none
        @two(
            3)            # none
        def f(a=four(),   # none
              b=5):       # none
            six()         # body[0]
        """
    )


def test_one_line():
    """Of several statements on a line, the last or innermost counts."""
    points = Points(node_of("def f():\n    one(); two()\n    if x: three()\n"))
    assert [points.at(line).path for line in (2, 3)] == ["body[1]", "body[2].body[0]"]


def test_places():
    """A place knows its lines and its path; no two statements share a path."""
    source = inspect.getsource(argparse_like())
    points = Points(node_of(source))
    paths = [place.path for place in points.places]
    assert len(set(paths)) == len(paths)
    for place in points.places:
        assert isinstance(place, Place)
        assert place.line <= place.end_line
        found = points.at(place.line)
        assert found.line >= place.line
        assert found.path.startswith(place.path) or found.line == place.line


def argparse_like():
    import argparse

    return argparse.ArgumentParser._parse_known_args


def test_paths_lead_to_statements():
    """A path, followed from the function's node, leads to the statement on its lines."""
    node = node_of(inspect.getsource(argparse_like()))
    for place in Points(node).places:
        found = eval("node." + place.path, {"node": node})
        first = min([found.lineno, *(d.lineno for d in getattr(found, "decorator_list", ()))])
        assert (place.line, place.end_line) in [
            *((found.lineno, found.end_lineno), (first, found.end_lineno))
        ]


# -- what is called at most once -------------------------------------------------------------------


def once_at(source):
    """Lines marked ``# once`` and ``# again``, and what the points say of them."""
    return [("once" if place.once else "again", said) for place, said in marked(source)]


def check_once(source):
    found = once_at(source)
    assert found
    assert [says for says, _ in found] == [said for _, said in found]


def test_once():
    """A statement outside of loops runs at most once, and so do the calls in it."""
    check_once(
        """
        def f(x):
            one()             # once
            if two():         # once
                three()       # once
            try:
                four()        # once
            except ValueError:
                five()        # once
            finally:
                six()         # once
            with seven():     # once
                eight()       # once
            match nine():     # once
                case 1:
                    ten()     # once
            for i in eleven():  # once
                pass
        """
    )


def test_again_in_loops():
    """What is in a loop's body may run again."""
    check_once(
        """
        async def f(x):
            for i in x:
                one()         # again
                if two():     # again
                    three()   # again
            while x:
                four()        # again
            async for i in x:
                five()        # again
            six()             # once
        """
    )


def test_again_in_the_test_of_a_loop():
    """The test of a ``while`` is evaluated again and again."""
    check_once(
        """
        def f():
            while one():      # again
                pass
        """
    )


def test_again_in_comprehensions():
    """A comprehension, a generator expression and a lambda may call again and again."""
    check_once(
        """
        def f(x):
            a = [one(i) for i in x]           # again
            b = {two(i) for i in x}           # again
            c = {i: three(i) for i in x}      # again
            d = sum(four(i) for i in x)       # again
            e = lambda: five()                # again
            if any(six(i) for i in x):        # again
                seven()                       # once
            for i in [eight(j) for j in x]:   # again
                pass
            with nine([i for i in x]):        # again
                pass
        """
    )


def test_again_in_guards():
    """A comprehension in the guard of a case or in a handler's classes may call again and again."""
    check_once(
        """
        def f(x):
            match x:
                case 1 if [one(i) for i in x]:  # again
                    pass
            try:
                pass
            except tuple([two(i) for i in x]):  # again
                pass
        """
    )


# -- the fingerprint -------------------------------------------------------------------------------

BEFORE = """
def agent(task, limit=3, *rest, mode="fast", **more):
    '''Do the task.'''
    messages: list = [{"role": "user", "content": f"{task!r:>10}"}]
    total = 0
    for turn in range(limit):
        try:
            reply = think(messages, turn=turn)
        except (ValueError, KeyError) as error:
            log(error)
            continue
        else:
            total += reply["cost"]
        finally:
            tick()
        if reply["done"] and not total > 10:
            return reply
        elif total == 0:
            def inner(x: int) -> str:
                '''Inner.'''
                return str(x)
            with lock as held:
                inner(held)
    while total:
        total -= 1
    return None
"""

SAME = {
    "comments": lambda s: s.replace("total = 0", "# start\n    total = 0  # nothing yet"),
    "blank lines": lambda s: s.replace("\n    total", "\n\n\n    total"),
    "docstring": lambda s: s.replace("Do the task.", "Do it,\n    well."),
    "docstring left out": lambda s: s.replace("    '''Do the task.'''\n", ""),
    "inner docstring": lambda s: s.replace("                '''Inner.'''\n", ""),
    "return annotation": lambda s: s.replace("**more):", "**more) -> dict:"),
    "annotations": lambda s: s.replace("task, limit=3", "task: str, limit: int = 3"),
    "variable annotation": lambda s: s.replace("messages: list =", "messages ="),
    "other annotation": lambda s: s.replace("messages: list =", "messages: 'list[dict]' ="),
    "inner annotations": lambda s: s.replace("(x: int) -> str", "(x)"),
    "quotes": lambda s: s.replace('"role"', "'role'"),
    "parentheses": lambda s: s.replace("not total > 10", "(not (total > 10))"),
    "line breaks": lambda s: s.replace("think(messages, ", "think(\n                messages,\n"),
    "indentation": lambda s: s.replace("    ", "  "),
    "continued lines": lambda s: s.replace('reply["done"] and', 'reply["done"] \\\n  and'),
    "trailing comma": lambda s: s.replace("turn=turn)", "turn=turn,)"),
    "split text": lambda s: s.replace('"content"', '"con" "tent"'),
    "digits": lambda s: s.replace("> 10", "> 1_0").replace("total = 0", "total = 0x0"),
    "elif": lambda s: s.replace("None\n", "None\n\n"),
    "the function's decorators": lambda s: "@workflow(name='x')\n@other" + s,
    "unicode prefix": lambda s: s.replace('"cost"', 'u"cost"'),
}

DIFFERENT = {
    "name": lambda s: s.replace("agent(", "agents("),
    "async": lambda s: s.replace("def agent", "async def agent"),
    "parameter": lambda s: s.replace("limit", "maximum"),
    "unused parameter": lambda s: s.replace("*rest", "*others"),
    "default": lambda s: s.replace("limit=3", "limit=4"),
    "keyword default": lambda s: s.replace('"fast"', '"slow"'),
    "kind of parameter": lambda s: s.replace("*rest, mode", "*, mode"),
    "constant": lambda s: s.replace("total = 0", "total = 1"),
    "type of a constant": lambda s: s.replace("total = 0", "total = 0.0"),
    "truth": lambda s: s.replace("total = 0", "total = False"),
    "text": lambda s: s.replace('"user"', '"system"'),
    "bytes": lambda s: s.replace('"user"', 'b"user"'),
    "format": lambda s: s.replace(":>10", ":>11"),
    "conversion": lambda s: s.replace("!r", "!s"),
    "called function": lambda s: s.replace("log(error)", "warn(error)"),
    "argument": lambda s: s.replace("turn=turn", "turn=limit"),
    "name of an argument": lambda s: s.replace("turn=turn", "round=turn"),
    "operator": lambda s: s.replace("> 10", ">= 10"),
    "order": lambda s: s.replace("'''\n    messages: list", "'''\n    a = 1\n    messages: list"),
    "negation": lambda s: s.replace("and not", "and"),
    "and": lambda s: s.replace(" and not", " or not"),
    "exception": lambda s: s.replace("KeyError", "TypeError"),
    "handler's name": lambda s: s.replace("error", "failure"),
    "continue": lambda s: s.replace("continue", "break"),
    "augmented": lambda s: s.replace("total -= 1", "total = 1"),
    "finally": lambda s: s.replace("tick()", "tock()"),
    "nested code": lambda s: s.replace("str(x)", "repr(x)"),
    "nested parameter": lambda s: s.replace("inner(x: int)", "inner(x: int, y=1)"),
    "with": lambda s: s.replace("with lock as held", "with key as held"),
    "returned": lambda s: s.replace("return None", "return total"),
    "statement": lambda s: s.replace("    total = 0\n", ""),
    "another statement": lambda s: s + "    cleanup()\n",
    "into the loop": lambda s: s.replace("\n    return None", "\n        return None"),
    "text that is no docstring": lambda s: s.replace("total = 0", "total = 0\n    'note'"),
    "decorator of a nested function": lambda s: s.replace(
        "            def inner", "            @cached\n            def inner"
    ),
}


@pytest.mark.parametrize("change", SAME)
def test_changes_that_do_not_count(change):
    """Comments, layout, docstrings and annotations leave the fingerprint as it is."""
    after = SAME[change](BEFORE)
    assert after != BEFORE
    assert print_of(after) == print_of(BEFORE)


@pytest.mark.parametrize("change", DIFFERENT)
def test_changes_that_count(change):
    """Whatever changes what the function does changes its fingerprint."""
    after = DIFFERENT[change](BEFORE)
    assert after != BEFORE
    assert print_of(after) != print_of(BEFORE)


def test_all_changes_differ():
    """No two different changes have the same fingerprint."""
    real = [name for name in DIFFERENT if name != "decorator of a nested function"]
    prints = {print_of(DIFFERENT[change](BEFORE)) for change in real}
    assert len(prints | {print_of(BEFORE)}) == len(real) + 1


def test_fields_of_nested_classes():
    """The annotations in a nested class are its fields: a model for structured output, say."""
    source = "def f():\n    class Answer(BaseModel):\n        {}\n    return ask(Answer)\n"
    prints = {print_of(source.format(field)) for field in ("text: str", "score: int", "text: int")}
    assert len(prints) == 3


def test_decorators_of_nested_classes():
    """A decorator that is put on a nested class changes what the function does."""
    source = "def f():\n    {}\n    class Answer:\n        x = 1\n    return Answer\n"
    assert print_of(source.format("@dataclass")) != print_of(source.format("@final"))


def test_the_form_of_a_fingerprint():
    """A fingerprint is 32 hexadecimal digits, and taking it leaves the node as it was."""
    node = node_of(BEFORE)
    before = ast.dump(node, include_attributes=True)
    assert len(fingerprint(node)) == 32
    assert int(fingerprint(node), 16)
    assert ast.dump(node, include_attributes=True) == before


def test_positions_do_not_count():
    """Where in its file a function stands does not count, nor how deep it is indented."""
    shifted = node_of("\n" * 50 + BEFORE)
    nested = ast.parse("class A:\n" + textwrap.indent(BEFORE, "    ")).body[0].body[0]
    assert fingerprint(shifted) == fingerprint(nested) == print_of(BEFORE)


PRINT_ALL = textwrap.dedent(
    f"""
    import ast, sys, types
    package = types.ModuleType("stepwise")
    package.__path__ = [{os.path.dirname(stepwise.__file__)!r}]
    sys.modules["stepwise"] = package
    from stepwise._rewrite.points import Points, fingerprint
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                places = [(place.path, place.line, place.once) for place in Points(node).places]
                print(node.name, fingerprint(node), places)
    """
)


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_pythons(version, tmp_path):
    """Another version of Python finds the same positions and fingerprints in the same source."""
    names = [tmp_path / "agent.py"]
    names[0].write_text(BEFORE, "utf-8")
    names += sorted(pathlib.Path(stepwise.__file__).parent.rglob("_*/*.py"))
    said = [
        subprocess.run(
            [python, "-B", "-c", PRINT_ALL, *map(str, names)],
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for python in (sys.executable, interpreter(version))
    ]
    assert said[0].count("\n") > 100
    assert said[0] == said[1]


# -- the source ------------------------------------------------------------------------------------


def captured():
    """Docstring."""
    first = """
text at the margin
    """
    return first  # the end  # noqa: RET504


def decorate(*_):
    return lambda function: function


@decorate(
    1,
)
@decorate()
def decorated(
    a=1,
):
    return a


def line_of(function, text):
    """The line of its file on which a function's source has a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(index for index, line in enumerate(lines) if text in line)


def test_captured_source():
    """The node has the line numbers of the file, and the texts as they are."""
    source = capture(captured)
    node = source.node()
    assert isinstance(node, ast.FunctionDef)
    assert node.lineno == captured.__code__.co_firstlineno
    assert node.end_lineno == line_of(captured, "the end")
    assert (source.filename, source.name) == (__file__, "captured")
    assert ast.literal_eval(node.body[0].value) == captured()
    assert Points(node).at(line_of(captured, "the end")).path == "body[1]"


def test_the_node_is_parsed_once():
    """The node is made when it is first asked for, and kept."""
    source = capture(captured)
    assert source.node() is source.node()
    assert capture(captured).node() is not source.node()


def test_decorated_functions():
    """The lines of a decorated function count from its file, not from its decorators."""
    node = capture(decorated).node()
    assert [d.lineno for d in node.decorator_list] == [
        *(line_of(decorated, "@decorate(\n"), line_of(decorated, "@decorate()"))
    ]
    assert node.lineno == line_of(decorated, "def decorated")
    assert Points(node).at(line_of(decorated, "return a")).path == "body[0]"


class Holder:
    # The comment at the margin is part of the source below.
    async def method(self, x):
        """Docstring."""
        if x:
            # at the margin
            text = """
  less indented
"""
            return text  # noqa: RET504
        return await x

    @staticmethod
    @decorate()
    def static():
        return 1

    @functools.lru_cache(  # noqa: B019
        maxsize=5,
    )
    def cached(self):
        return (1,
                2)  # fmt: skip

    class Inner:
        def deep(self):
            return 3


@pytest.mark.parametrize(
    ("function", "text", "path"),
    [
        (Holder.method, "return text", "body[0].body[1]"),
        (Holder.method, "return await", "body[1]"),
        (Holder.static, "return 1", "body[0]"),
        (Holder.cached.__wrapped__, "2)", "body[0]"),
        (Holder.Inner.deep, "return 3", "body[0]"),
    ],
)
def test_methods(function, text, path):
    """Methods, whose source is indented, have their statements at the lines of the file."""
    node = capture(function).node()
    assert node.name == function.__name__
    assert Points(node).at(line_of(function, text)).path == path


def test_texts_in_methods():
    """A text that spans lines keeps its own indentation."""
    node = capture(Holder.method).node()
    assert ast.literal_eval(node.body[0].body[0].value) == "\n  less indented\n"


def make_functions():
    def inner(x):
        def inner(x):
            return x

        return inner(x)

    async def later():
        pass

    if inner:

        def branch():
            return 1

    return inner, later, branch


def test_nested_functions():
    """Functions inside a function are found by their own names and lines."""
    inner, later, branch = make_functions()
    node = capture(inner).node()
    assert (node.name, len(node.body)) == ("inner", 2)
    assert node.lineno == inner.__code__.co_firstlineno
    assert isinstance(capture(later).node(), ast.AsyncFunctionDef)
    assert capture(branch).node().lineno == line_of(branch, "def branch")


def test_the_same_in_the_file_and_alone():
    """The fingerprint of a captured function is that of its text."""
    for function in (captured, decorated, Holder.Inner.deep, make_functions()[0]):
        text = textwrap.dedent(inspect.getsource(function))
        assert fingerprint(capture(function).node()) == print_of(text)


def test_without_source():
    """A function without source has no node: made by ``exec``, a lambda, generated code."""
    namespace: dict = {}
    exec("def made(): pass", namespace)
    exec(compile("def named(): pass", "no such file.py", "exec"), namespace)
    exec(compile("\n" * 5 + "def own(): pass", "<generated>", "exec"), globals(), namespace)
    for name in ("made", "named", "own"):
        assert capture(namespace[name]).node() is None
    assert capture(lambda: 1).node() is None


def test_without_source_in_other_processes():
    """A function of ``python -c`` has no node before Python 3.13."""
    code = (
        "from stepwise._rewrite import capture\n"
        "def f(): pass\n"
        "node = capture(f).node()\n"
        "print(node.name if node else None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("None" if sys.version_info < (3, 13) else "f")


def written(path, text, step=0):
    path.write_text(text, "utf-8")
    seconds = path.stat().st_mtime + step
    os.utime(path, (seconds, seconds))
    importlib.invalidate_caches()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that can be written, imported and written again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "edited_agent.py"
    sys.modules.pop("edited_agent", None)


def test_edits_after_the_decorator(module):
    """The source is taken at once: a later edit of the file does not change it."""
    written(module, "def f():\n    return 1\n")
    source = capture(importlib.import_module("edited_agent").f)
    written(module, "def f():\n    return 'edited'\n", 5)
    linecache.clearcache()
    assert ast.unparse(source.node()) == "def f():\n    return 1"


def test_edits_before_a_reload(module):
    """A module that was edited and loaded again has its new source, although the old was read."""
    written(module, "def f():\n    return 1\n")
    loaded = importlib.import_module("edited_agent")
    assert capture(loaded.f).node() is not None
    written(module, "def f():\n    return 'edited'\n", 5)
    importlib.reload(loaded)
    assert loaded.f() == "edited"
    assert ast.unparse(capture(loaded.f).node()) == "def f():\n    return 'edited'"


def test_odd_files(module):
    """Tabs, form feeds, a byte order mark and other line ends do not shift the lines."""
    text = "\ufeff# coding: utf-8\n\x0c\nif True:\n\tdef f(x):\n\t\tif x:\n\t\t\treturn 'é'\n"
    module.write_bytes(text.replace("\n", "\r\n").encode())
    importlib.invalidate_caches()
    function = importlib.import_module("edited_agent").f
    node = capture(function).node()
    assert node.lineno == 4
    assert Points(node).at(6).path == "body[0].body[0]"
    assert function(1) == ast.literal_eval(node.body[0].body[0].value)


def test_source_that_does_not_parse(module):
    """Lines that are no longer the function's give no node; they raise nothing."""
    written(module, "def f():\n    return 1\n")
    source = capture(importlib.import_module("edited_agent").f)
    for lines in ("def f(:", "x = 1", "    return 1", "'''", "def another(): pass", ""):
        source.lines, source._node = [f"{lines}\n"] if lines else [], None
        assert source.node() is None
    source.first_line = 100
    assert source.node() is None


def test_captured_source_is_small_to_show():
    """What a source shows of itself is not the whole file."""
    assert len(repr(capture(captured))) < 300
