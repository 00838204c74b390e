"""The README, beyond what ``test_pages.py`` executes: its links, its names, its promises."""

import configparser
import inspect
import os
import pathlib
import re
from importlib.util import find_spec

from harness import python
from pages import blocks

import stepwise
from stepwise import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_config = configparser.ConfigParser()
_config.read(ROOT / "setup.cfg", encoding="utf-8")
METADATA = _config["metadata"]
REPOSITORY = METADATA["url"]
FILES_AT = f"{REPOSITORY}/blob/main/"
FILES = {each.name: each.text for each in blocks(README)}


def start(folder, name, **environment):
    """Start a program of the README."""
    (folder / name).write_text(FILES[name], encoding="utf-8")
    return python(name, cwd=folder, env={**os.environ, **environment})


def test_the_tool_in_doubt(tmp_path):
    """Killed inside ``charge``, the next process asks ``did_it_land``, and charges once."""
    assert start(tmp_path, "shop.py", CRASH="1").returncode == 9
    (payment,) = (tmp_path / "bank").iterdir()
    assert start(tmp_path, "shop.py").stdout == "ann paid 1000\n"
    assert list((tmp_path / "bank").iterdir()) == [payment]


def test_in_doubt(tmp_path):
    """Without ``did_it_land`` it stops before it does anything twice, every time."""
    assert start(tmp_path, "refund.py", CRASH="1").returncode == 9
    for _ in range(2):
        done = start(tmp_path, "refund.py")
        assert (done.returncode, done.stdout) == (1, "")
        assert "StepInDoubtError" in done.stderr


def test_looking_at_runs(tmp_path, capsys):
    """The block that looks at crashed runs prints their steps and variables."""
    program = FILES["agent.py"].replace("time.sleep(1)", "topic == 'winds' and os._exit(9)")
    (tmp_path / "agent.py").write_text(f"import os\n{program}", encoding="utf-8")
    python("agent.py", cwd=tmp_path, code=9)
    (look,) = [each.text for each in blocks(README) if "run.locals()" in each.text]
    exec(look, {})
    steps, variables = capsys.readouterr().out.splitlines()
    assert steps.endswith("[('research', 'completed')]")
    assert "'notes': ['what is known about tides']" in variables


def test_every_command_exists():
    """Each command of ``stepwise`` and each target of ``make`` that the README names is there."""
    named = set(re.findall(r"(?:`|^\$ |^)stepwise ([a-z-]+)", README, re.MULTILINE))
    assert {"runs", "show", "in-doubt", "resolve", "forget"} <= named
    assert named <= set(cli.main.commands)
    options = {
        option for each in cli.main.commands.values() for p in each.params for option in p.opts
    }
    assert set(re.findall(r"stepwise resolve.* (--[a-z-]+)", README)) <= options
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", README)) <= targets


def test_every_name_exists():
    """Each setting, option and name of the package that the README mentions is there."""
    sources = "".join(path.read_text() for path in (ROOT / "stepwise").rglob("*.py"))
    for setting in re.findall(r"\bSTEPWISE_[A-Z]+", README):
        assert f'"{setting}"' in sources, setting
    for name in re.findall(r"\bstepwise\.([a-z]\w+)\b(?!\.)", README):
        assert hasattr(stepwise, name) or find_spec(f"stepwise.{name}"), name
    for setting in re.findall(r"configure\((\w+)=", README):
        assert setting in inspect.signature(stepwise.configure).parameters
    for name in re.findall(r"from stepwise import (.*)", README):
        assert all(hasattr(stepwise, each.strip()) for each in name.split(","))
    for name in re.findall(r"`([A-Z]\w+Error)`", README):
        assert hasattr(stepwise, name), name


def test_every_link_leads_somewhere():
    """Links are absolute, since the README is shown elsewhere too; ours name files that exist."""
    defined = dict(re.findall(r"^\[(.+)\]: (\S+)$", README, re.MULTILINE))
    assert defined == {name: f"{FILES_AT}{name}" for name in defined}
    assert [name for name in defined if not (ROOT / name).exists()] == []
    used = re.findall(r"\[[^\[\]]+\](?:\[([^\]]+)\]|\((\S+?)\))", README)
    assert {name for name, _ in used if name} <= set(defined)
    assert all(url.startswith("https://") for _, url in used if url)


def test_the_address_is_in_one_place():
    """The metadata name one address of the repository; all links of the metadata begin with it."""
    urls = METADATA["project_urls"].split("\n")[1:]
    assert all(url.partition(" = ")[2].startswith(REPOSITORY) for url in urls)


def test_every_example_is_listed():
    """The README leads to each example and each notebook."""
    scripts = [path for path in (ROOT / "examples").glob("*.py") if path.name != "chat_server.py"]
    for path in [*scripts, *(ROOT / "notebooks").glob("*.ipynb")]:
        assert f"][{path.relative_to(ROOT)}]" in README, path.name


def test_few_words_before_the_first_program():
    """A reader sees code on the first screen."""
    assert len(README.partition("```")[0].split()) < 80
