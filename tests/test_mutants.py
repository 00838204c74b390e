"""The table of mutants fits the code as it is; ``make mutants`` applies them."""

import ast
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "mutants"))

from table import MUTANTS, Mutant

TESTS = pathlib.Path(__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.what}")
def test_a_mutant_can_be_applied(mutant):
    """The text that a mutant replaces is in its file once; what comes of that is Python."""
    source = (TESTS.parent / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(source)
    assert changed != source
    ast.parse(changed)


def test_a_text_that_is_gone_is_noticed():
    """A mutant whose text is not there, or more than once, is refused by file and text."""
    mutant = Mutant("", "stepwise/_x.py", "a = 1", "a = 2", ())
    assert mutant.applied("a = 1\n") == "a = 2\n"
    for source in ("b = 1\n", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"_x\.py: [02] times, not once: 'a = 1'"):
            mutant.applied(source)


def test_the_tests_that_guard_are_there():
    """Each mutant names tests that exist."""
    for mutant in MUTANTS:
        assert mutant.guards
        for guard in mutant.guards:
            file, _, name = guard.partition("::")
            tree = ast.parse(next(TESTS.rglob(file)).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_two_mutants_are_one():
    """Each change is in the table once, under a description of its own."""
    assert len({(each.file, each.old, each.new) for each in MUTANTS}) == len(MUTANTS)
    assert len({(each.file, each.what) for each in MUTANTS}) == len(MUTANTS)
