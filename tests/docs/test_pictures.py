"""The drawings of the pages: made by a command, in their place, and used."""

import pathlib
import re
import runpy

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
DRAWN = DOCS / "pictures"


def texts(path):
    """What stands in a picture; its size; without versions and positions of matplotlib's."""
    found = path.read_text(encoding="utf-8")
    size = re.search(r'viewBox="[^"]*"', found)[0]
    return size, re.findall(r"<text[^>]*>([^<]*)</text>|<tspan[^>]*>([^<]*)</tspan>", found)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Draw all pictures, twice."""
    pytest.importorskip("matplotlib")
    main = runpy.run_path(str(DOCS / "pictures.py"))["main"]
    folders = [tmp_path_factory.mktemp("pictures") for _ in range(2)]
    for folder in folders:
        main(folder)
    return folders


def test_committed_pictures_are_what_the_command_makes(drawn):
    """``make pictures`` makes the committed pictures: the same names, sizes and texts."""
    made = {path.name: texts(path) for path in drawn[0].iterdir()}
    assert made == {name: texts(DRAWN / name) for name in made}
    assert all(words for _, words in made.values())


def test_drawing_twice_gives_the_same_bytes(drawn):
    """Neither the time nor chance is in a picture, so that drawing it again changes no file."""
    first, second = ({path.name: path.read_bytes() for path in each.iterdir()} for each in drawn)
    assert first == second


def test_each_picture_is_on_a_page():
    """Each picture is shown on a page, with a text for readers who do not see it."""
    shown = re.compile(
        r"!\[([^\]]+)\]\((?:\.\./|https://\S+/docs/)*pictures/([\w-]+\.(?:svg|png))\)"
    )
    readable = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    pages = "".join(path.read_text(encoding="utf-8") for path in readable)
    assert {name for _, name in shown.findall(pages)} == {path.name for path in DRAWN.iterdir()}


def test_pictures_of_pages_are_small():
    """A picture of ``make pictures-ui`` has less than 200 KB."""
    taken = [*DRAWN.glob("*.png")]
    assert taken
    assert max(each.stat().st_size for each in taken) < 200_000
