"""Every code block of every page does what the page shows: see ``pages.py``."""

import pytest
from pages import ROOT, Page, pages


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_page_is_what_happens(path):
    """Each block of the page is executed as it stands, and prints what the page shows."""
    differences = Page(path).execute()
    assert not differences, "\n\n".join(differences)


def made(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return Page(path)


SLOW = """
# Slow

```python
# slow.py
import time
print("one", flush=True)
time.sleep(3600)
print("two")
```

```console
$ python slow.py
one
{end}
$ python slow.py
one
two
```
"""


@pytest.mark.parametrize("end", ["Killed", "^C\n...\nKeyboardInterrupt"])
def test_a_program_is_ended_where_the_page_shows_it(tmp_path, end):
    """A program is ended in its sleep, after the lines above; else no sleep takes time."""
    assert made(tmp_path, SLOW.format(end=end)).execute() == []


def test_a_task_is_ended_in_its_sleep(tmp_path):
    """A task that sleeps can be ended as well."""
    text = SLOW.format(end="Killed").replace("import time", "import asyncio")
    text = text.replace("time.sleep(3600)", "asyncio.run(asyncio.sleep(3600))")
    assert made(tmp_path, text).execute() == []


def test_what_differs_is_told_and_can_be_written_into_the_page(tmp_path):
    """Differences name page and line, and the updated page has none."""
    text = """
    ```python
    # hello.py
    print("it is", 7 * 6)
    ```

    - In a list, too:

      ```console
      $ python hello.py
      it is 43
      $ python hello.py
      it is ...
      ```
    """
    page = made(tmp_path, text)
    (difference,) = page.execute()
    assert f"{page.path}:10: $ python hello.py" in difference
    assert "-it is 43\n+it is 42" in difference
    page.update()
    assert page.path.read_text() == text.replace("43", "42")
    assert Page(page.path).execute() == []


def test_programs_and_their_outputs(tmp_path):
    """A program has to exit with 0, and to print what the block of text behind it shows."""
    page = made(tmp_path, "```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n")
    assert page.execute() == []
    for program in ("print(43)", "1 / 0", "print("):
        page = made(tmp_path, f"```python\n{program}\n```\n\n```text\n42\n```\n")
        assert len(page.execute()) == 1


def test_an_excused_block_is_read_only(tmp_path):
    """A block that is not executed has a reason above it, and has to be Python all the same."""
    text = "<!-- not executed: it needs a server -->\n```python\nimport nowhere\n```\n"
    assert made(tmp_path, text).execute() == []
    assert made(tmp_path, text.replace("import", "import import")).execute() != []
    assert made(tmp_path, text.replace("it needs a server", "")).execute() != []


def test_ids_are_those_of_the_machine(tmp_path):
    """The page's ids stand for the real ones, in commands too, and another id is a difference."""
    text = """
```console
$ echo run-0123456789ab and run-aaaaaaaaaaaa
run-111111111111 and run-222222222222
$ echo run-222222222222
run-222222222222
$ echo run-111
run-111
```
"""
    page = made(tmp_path, text.replace("run-0123456789ab", "$(echo run-)0123456789ab", 1))
    assert page.execute() == []
    assert page.ids.real["run-222222222222"] == "run-aaaaaaaaaaaa"
    (difference,) = made(
        tmp_path, text.replace("\nrun-222222222222\n", "\nrun-111111111111\n", 1)
    ).execute()
    assert "$ echo run-222222222222" in difference


def test_an_output_that_differs_hides_no_ids(tmp_path):
    """The commands behind an output that differs mean the same runs as before."""
    text = """
```console
$ echo the run "$(echo run-)aaaaaaaaaaaa"
run-111111111111
$ echo run-111111111111
run-111111111111
```
"""
    page = made(tmp_path, text)
    (difference,) = page.execute()
    assert "+the run run-DIGEST" in difference
    assert page.ids.translate("run-111111111111") == "run-aaaaaaaaaaaa"
