"""The contract, ``docs/design.md``: short enough to be read whole, each promise with its test."""

import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parents[1]
ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PROMISES = PAGE.partition("\n## 1. ")[2].partition("\n## 8. ")[0]
NAMED = re.compile(r"`(test_\w+\.py|contract\.py)(?:::(test_\w+))?`")
FILES: dict[str, str] = {}
for _path in [*TESTS.rglob("test_*.py"), ROOT / "stepwise" / "testing" / "contract.py"]:
    FILES[_path.name] = FILES.get(_path.name, "") + _path.read_text(encoding="utf-8")


def test_the_contract_can_be_read_whole():
    """The page has at most 9,000 words."""
    assert len(PAGE.split()) <= 9_000


def test_the_tests_that_are_named_exist():
    """Each test that the page names is there, by its file and its name."""
    named = set(NAMED.findall(PAGE))
    assert len(named) > 200
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if (f"def {name}(" if name else "def test_") not in FILES.get(file, "")
    ]
    assert missing == []


@pytest.mark.parametrize("mark", ["\n- ", "\n| "])
def test_each_promise_has_its_test(mark):
    """Each item of a list, and each row of the first table, names a test or a page that has it."""
    promises = PROMISES if mark == "\n- " else PROMISES.partition("\n### 1.2")[0]
    items = re.findall(rf"^{re.escape(mark[1:])}.*(?:\n {{2}}.*)*", promises, re.MULTILINE)
    rows = [each for each in items if "---" not in each and "| what happens" not in each]
    assert len(rows) > 9
    assert [each for each in rows if not NAMED.search(each) and ".md" not in each] == []


def test_links_into_the_page_lead_to_a_heading():
    """What other pages and docstrings call a section of the contract is one."""
    headings = set(re.findall(r"^#{2,3} ([\d.]+)", PAGE, re.MULTILINE))
    numbers = {each.rstrip(".") for each in headings}
    sources = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "stepwise").rglob("*.py"),
        *TESTS.rglob("*.py"),
    ]
    for path in sources:
        text = path.read_text(encoding="utf-8")
        for said in re.findall(r"design\.md\)?, (?:sections? )?([\d.]+\d|\d)", text):
            assert said in numbers, f"{path.name}: {said}"
