"""What is said about recorded pickles, without loading them, is what loading them does."""

import pickle
import random
import sys
import types

import pytest
from edited import DEFINITIONS, HEAD
from sweeping import size

from stepwise._execution.loadable import Loadable
from stepwise._values.codec import dump_plain

VALUES = [
    "Note('a', ['b'])",
    "[Note('a'), Note('b')]",
    "{Key('k'): Note('v')}",
    "{Key('k'), Key('l')}",
    "Slot(1)",
    "Point(1, 2)",
    "Color.RED",
    "[Color.BLUE, Point(3)]",
    "Own(1)",
    "Plain()",
    "collections.OrderedDict(a=Note('x'))",
    "collections.defaultdict(list, a=[Slot(1)])",
    "collections.Counter('aab')",
    "[len, Note, helper]",
    "{'a': (1, 2.0, b'c', None, {3}, frozenset({4}), range(5), slice(1), complex(1, 2))}",
    "iter([1, 2, 3])",
    "Perm.R | Perm.W",
    "Listed('a')",
    "Count((1, 2))",
    "Words(['a'])",
    "Table(a=1)",
    "{Name('a'): 1}",
    "Asking(Note('a'))",
    "Failed('a')",
    "Guarded()",
    "Numbered(1, 2)",
    "pickle.loads, Inner('a')",
    "Frozen(1, 2)",
]

MORE = """
import abc, pickle

@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: int

class Perm(enum.Flag):
    R = 1
    W = 2

class Listed(str):
    pass

class Count(tuple):
    pass

class Words(list):
    pass

class Table(dict):
    pass

class Name:
    def __init__(self, name):
        self.name = name

class Asking:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        if name[:1] == "_":
            raise AttributeError(name)
        return getattr(self.inner, name)

class Failed(Exception):
    pass

class Guarded:
    def __init__(self):
        self.a = 1

class Numbered:
    __slots__ = ("a", "b")
    def __init__(self, a, b):
        self.a, self.b = a, b

class Inner:
    def __init__(self, a):
        self.a = a
    def __reduce__(self):
        return pickle.loads, (pickle.dumps(Note(self.a)),)
"""
EDITS = [
    *DEFINITIONS,
    ("class Listed(str):", "class Listed(int):"),
    ("class Listed(str):", "class Listed:"),
    ("class Count(tuple):", "class Count:"),
    ("class Words(list):", "class Words:"),
    ("class Table(dict):", "class Table:"),
    ("class Perm(enum.Flag):", "class Perm(enum.Enum):"),
    ("class Name:", "class Name:\n    def __eq__(self, other):\n        return True"),
    ('        if name[:1] == "_":\n            raise AttributeError(name)\n', ""),
    ("class Failed(Exception):", "class Failed(UnicodeDecodeError):"),
    ("class Guarded:", "class Guarded(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ..."),
    ("class Guarded:", "Guarded = 1\nclass Guard:"),
    ("class Guarded:", "def Guarded(): ...\nclass Guard:"),
    ('("a", "b")', '("a",)'),
    ("@dataclass(frozen=True, slots=True)", "@dataclass(frozen=True)"),
    ("@dataclass(frozen=True, slots=True)", "@dataclass(slots=True)"),
    ("    a: int\n    b: int\n", "    a: int\n"),
]


def defined(text):
    """Make the module ``edited_program`` of this text."""
    module = sys.modules["edited_program"] = types.ModuleType("edited_program")
    exec(compile(text, "program", "exec", dont_inherit=True), vars(module))
    return module


@pytest.fixture(autouse=True)
def no_program():
    yield
    sys.modules.pop("edited_program", None)


@pytest.mark.parametrize("seed", range(size(20, 400)))
def test_what_is_said_is_what_happens(seed):
    """A value that is said to fail raises, one without a reservation loads, after any edit."""
    rng = random.Random(seed)
    for text in VALUES:
        data = bytes(dump_plain(eval(text, vars(defined(HEAD + MORE)))))
        head = HEAD + MORE
        for old, new in rng.sample(EDITS, rng.choice([1, 1, 2])):
            head = head.replace(old, new, 1)
        try:
            defined(head)
        except Exception:
            continue
        said = Loadable("edited_program")
        said.look(data)
        try:
            pickle.loads(data)
        except Exception as error:
            assert said.fails or said.unknown, (text, error)
        else:
            assert not said.fails, text


def test_no_code_of_the_program_is_called():
    """Looking calls nothing of the classes and functions that the pickle names."""
    module = defined(
        "called = []\n"
        "def make(*args):\n    called.append(args)\n    return 1\n"
        "class Loud:\n"
        "    def __new__(cls, *args):\n        called.append(cls)\n"
        "        return object.__new__(cls)\n"
        "    def __setstate__(self, state):\n        called.append(state)\n"
        "    def __reduce__(self):\n        return make, (self.__class__,), {'a': 1}\n"
        "    def __hash__(self):\n        called.append(self)\n        return 1\n"
    )
    data = pickle.dumps([module.Loud(), module.make])
    del module.called[:]
    said = Loadable("edited_program")
    said.look(data)
    assert module.called == []
    assert said.unknown[0] == "edited_program.make(), which is called"


def test_a_class_that_is_gone_is_named():
    """A missing class and module are named; an enumeration without the member decides."""
    module = defined(HEAD)
    data = {name: pickle.dumps(eval(name, vars(module))) for name in ("Note('a')", "Color.RED")}
    defined(HEAD.replace("class Note", "class Remark").replace("RED = 1", "RED = 5"))
    for name, why, decides in (
        ("Note('a')", "edited_program has no Note any more", []),
        ("Color.RED", "", ["edited_program.Color(), which is called"]),
    ):
        said = Loadable("edited_program")
        said.look(data[name])
        assert (said.fails, said.unknown) == (why, decides)
    del sys.modules["edited_program"]
    said = Loadable("edited_program")
    said.look(data["Note('a')"])
    assert said.fails.startswith("edited_program cannot be imported: ModuleNotFoundError: ")
