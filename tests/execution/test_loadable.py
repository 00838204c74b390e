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
        data = bytes(dump_plain(eval(text, vars(defined(HEAD)))))
        head = HEAD
        for old, new in rng.sample(DEFINITIONS, rng.choice([1, 1, 2])):
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
    """A missing class, member and module are named."""
    module = defined(HEAD)
    data = {name: pickle.dumps(eval(name, vars(module))) for name in ("Note('a')", "Color.RED")}
    defined(HEAD.replace("class Note", "class Remark").replace("RED = 1", "RED = 5"))
    for name, why in (
        ("Note('a')", "edited_program has no Note any more"),
        ("Color.RED", "edited_program.Color has no member 1 any more"),
    ):
        said = Loadable("edited_program")
        said.look(data[name])
        assert said.fails == why
    del sys.modules["edited_program"]
    said = Loadable("edited_program")
    said.look(data["Note('a')"])
    assert said.fails.startswith("edited_program cannot be imported: ModuleNotFoundError: ")
