"""Everything that a user can write is documented: see ``coverage_of_pages.py``."""

import inspect
import re

import coverage_of_pages as coverage
import pytest
from coverage_of_pages import from_code

import stepwise
from stepwise.stores.base import FORMAT


@pytest.mark.parametrize("kind", sorted({thing.kind for thing in coverage.things()}))
def test_everything_has_a_page(kind):
    """Every name, option, error, setting and command is on a page that is made from the code."""
    of_kind = [thing for thing in coverage.things() if thing.kind == kind]
    assert of_kind
    assert [thing.name for thing in of_kind if not thing.page] == []


def test_a_name_without_a_page_is_noticed(monkeypatch):
    """A public name that no directive names has no page."""

    def unknown():
        """Do something new."""

    monkeypatch.setattr(stepwise, "unknown", unknown, raising=False)
    monkeypatch.setattr(stepwise, "__all__", [*stepwise.__all__, "unknown"])
    (missing,) = [thing.name for thing in coverage.names() if not thing.page]
    assert missing == "stepwise.unknown"


@pytest.mark.parametrize("page", sorted(coverage.DOCS.glob("reference/*.md")), ids=lambda p: p.stem)
def test_the_tables_are_those_of_the_code(page):
    """What a page says of names, options and settings is what the code says: see `make map`."""
    text = page.read_text("utf-8")
    assert from_code.at_a_glance(text) == text


def test_the_page_names_the_format_that_is_written():
    """The number of the format stands in the page as the code writes it."""
    page = (coverage.DOCS / "reference/file-format.md").read_text("utf-8")
    named = re.findall(r"format of the (?:whole )?store[,:] (\d+)", page)
    assert named == [str(FORMAT)] * 2


@pytest.mark.parametrize("of", ["step", "tool", "workflow", "configure"])
def test_the_docstring_names_the_options_that_there_are(of):
    """Each option has a meaning in the docstring, which describes no other."""
    described = from_code.arguments(getattr(stepwise, of))
    assert {each.name for each in from_code.options(of)} == set(described)


FUNCTIONS = [
    name
    for name in stepwise.__all__
    if inspect.isfunction(getattr(stepwise, name)) and name not in ("step", "tool", "workflow")
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_describes_its_arguments(name):
    """The docstring of a public function speaks of each of its arguments."""
    function = getattr(stepwise, name)
    text = inspect.getdoc(function)
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"\b{argument}\b", text), argument


def test_the_errors_are_in_the_order_of_the_tree():
    """The page of errors has each of them once."""
    names = [each.name for each in from_code.problems()]
    assert sorted(names) == sorted(stepwise.errors.__all__)
