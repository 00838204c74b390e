"""The table of mutants fits the code as it is; ``make mutants`` applies them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "mutants"))

from table import MUTANTS, Mutant

TESTS = pathlib.Path(__file__).parent


def test_a_mutant_can_be_applied():
    """The text that a mutant replaces is in its file once; what comes of that is Python."""
    for mutant in MUTANTS:
        source = (TESTS.parent / mutant.file).read_text(encoding="utf-8")
        changed = mutant.applied(source)
        assert changed != source
        compile(changed, mutant.file, "exec")


def test_a_text_that_is_gone_is_noticed():
    """A mutant whose text is not there, or more than once, is refused by file and text."""
    mutant = Mutant("", "stepwise/_x.py", "a = 1", "a = 2", ())
    assert mutant.applied("a = 1\n") == "a = 2\n"
    for source in ("b = 1\n", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"_x\.py: [02] times, not once: 'a = 1'"):
            mutant.applied(source)


def test_the_tests_that_guard_are_there():
    """Each mutant names tests that exist."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    for mutant in MUTANTS:
        assert mutant.guards
        for guard in mutant.guards:
            file, _, name = guard.partition("::")
            assert f"\ndef {name}(" in texts[file], guard


def test_no_two_mutants_are_one():
    """Each change is in the table once, under a description of its own."""
    assert len({(each.file, each.old, each.new) for each in MUTANTS}) == len(MUTANTS)
    assert len({(each.file, each.what) for each in MUTANTS}) == len(MUTANTS)
