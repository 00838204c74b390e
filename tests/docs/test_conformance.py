"""The conformance cells: what the page says of stepwise is what happens."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "conformance"
PAGE = FOLDER.parents[1] / "docs" / "conformance.md"
sys.path.insert(0, str(FOLDER))

import cells  # noqa: E402
import conformance  # noqa: E402
from trial import Trial  # noqa: E402

RESULTS = json.loads((FOLDER / "results.json").read_text("utf-8"))


@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda cell: cell.name)
def test_a_cell_comes_out_as_the_page_says(cell, tmp_path):
    """Each cell is played for stepwise, and ends as in the results that the page shows."""
    program = FOLDER / "with_stepwise.py"
    result, what = cell.play(Trial(sys.executable, program, tmp_path, 0, **cell.settings))
    assert result == RESULTS["cells"][cell.name]["stepwise"]["result"], what


def test_the_table_is_made_of_the_results():
    """The page has the table that the committed results make, and a row for each cell."""
    page = PAGE.read_text("utf-8")
    assert conformance.with_table(page, RESULTS) == page
    assert all(f"| {cell.name} | {cell.fault} |" in page for cell in cells.CELLS)
    assert {*RESULTS["cells"]} == {cell.name for cell in cells.CELLS}
