"""The names that a notebook's cell reads, binds and defines, and when two cells are the same."""

import pytest

from stepwise._rewrite.cells import parse_cell
from stepwise.notebook._magics import identify


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("y = x + x.z[w]", "x w"),
        ("x = 1; y = x", ""),
        ("x += 1", "x"),
        ("x[0] = 1", "x"),
        ("x.y = z", "z x"),
        ("del x", "x"),
        ("x: int = y", "int y"),
        ("if a:\n    b = 1\nc = b", "a b"),
        ("if a:\n    b = 1\nelse:\n    b = 2\nc = b", "a"),
        ("for a in b:\n    c = a\nprint(c)", "b print"),
        ("for a in b:\n    if a: print(d)\n    d = a", "b print d"),
        ("while a:\n    b = 1\nb", "a"),
        ("with a as b, c(b) as d: e = d", "a c"),
        ("try:\n    a = b\nexcept c as d:\n    d\nelse:\n    e(a)\nfinally: f", "b c e f"),
        ("[a for b in c for a in b if d]", "c d"),
        ("x = {k: v for k, v in y}\nk", "y k"),
        ("(a := b) + a", "b"),
        ("[c := a for a in b]; c", "b"),
        ("f = lambda x, y=z: x + w", "z w"),
        ("def f(x, y=z):\n    def g(): return v + x\n    w = 1\n    return w", "z v"),
        ("def f(): return g()\ndef g(): return f()", ""),
        ("def f():\n    global n\n    n += 1\n    return n", "n"),
        ("@d\nclass C(B):\n    a = b\n    def m(self): return a", "d B b a"),
        ("import a.b as c, d.e\nfrom f import g\nc, d, g", ""),
        ("match a:\n    case [b, *c]: d = b\nd", "a d"),
        ("f'{a!r:{b}}'", "a b"),
        ("await a(b)", "a b"),
    ],
)
def test_reads(source, reads):
    """A cell reads the names that it has not bound before, wherever they are read."""
    assert " ".join(parse_cell(source).reads) == reads


@pytest.mark.parametrize(
    ("source", "binds", "defines"),
    [
        ("a = b, *c = d", "a b c", ""),
        ("for i in x:\n    a = i", "a i", ""),
        ("import os, a.b\ndef f(): x = 1\nclass C: y = 1", "os a f C", "os a f C"),
        ("def f(): ...\nf = cache(f)", "f", ""),
        ("with a as b: pass\n(c := 1)", "b c", ""),
        ("try: pass\nexcept E as e: a = 1", "a", ""),
    ],
)
def test_binds(source, binds, defines):
    """A cell binds names at its top level; definitions are listed separately."""
    cell = parse_cell(source)
    assert " ".join(cell.binds) == binds
    assert cell.defines == set(defines.split())


def test_fingerprint():
    """Comments, layout and docstrings are not code; everything else is."""
    cell = "x = [1,\n     2]\ndef f():\n    return x"
    same = "# first\nx = [1, 2]  # second\n\ndef f():\n    'Documented.'\n    return (x)"
    assert parse_cell(cell).fingerprint == parse_cell(same).fingerprint
    others = {cell, cell.replace("2", "3"), cell.replace("x", "y"), f"{cell}\nx"}
    assert len({parse_cell(each).fingerprint for each in others}) == 4


def test_awaits():
    """Only an await outside of its functions makes a cell asynchronous."""
    assert parse_cell("x = await f()").awaits
    assert parse_cell("[x async for x in y]").awaits
    assert parse_cell("async with a: pass").awaits
    assert not parse_cell("async def f(): await g()").awaits


def functions(source):
    """The functions and classes of a notebook."""
    namespace = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace


def test_inputs_of_functions():
    """A function counts by its code, its defaults, its closure and what it reads."""
    base = "n = 1\ndef made(k):\n    def f(x=1): return x + n + k\n    return f\nf = made(1)"
    edits = [("x=1", "x=2"), ("n = 1", "n = 2"), ("made(1)", "made(2)"), ("+ k", "- k")]
    sources = [base, *(base.replace(*each) for each in edits)]
    found = [tuple(sorted(identify(["f"], functions(each)).digests.items())) for each in sources]
    assert len(set(found)) == 5
    moved = base.replace("def f", "\n    # moved\n    def f")
    assert tuple(sorted(identify(["f"], functions(moved)).digests.items())) == found[0]


def test_inputs_that_do_not_count():
    """Modules and missing names do not count; what cannot be compared is named."""
    namespace = functions("import os\nimport threading\nlock = threading.Lock()\nn = 1")
    inputs = identify(["os", "nothing", "lock", "n"], namespace)
    assert list(inputs.digests) == ["n"]
    assert list(inputs.left_out) == ["lock"]
