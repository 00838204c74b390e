"""``stepwise skill``: where it writes, and what it leaves alone."""

import json
import os
import re

from command import process

import stepwise.cli


def test_the_skill_is_written(tmp_path, monkeypatch):
    """Without a folder, the file lies where coding agents look for skills, with its frontmatter."""
    monkeypatch.chdir(tmp_path)
    done = process("skill")
    assert done.stdout == ".claude/skills/stepwise/SKILL.md\n"
    text = (tmp_path / done.stdout.strip()).read_text("utf-8")
    _, head, body = text.split("---\n", 2)
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    assert facts.keys() == {"name", "description"}
    assert facts["name"] == "stepwise"
    assert len(facts["description"]) <= 1024
    assert body.lstrip().startswith("# ")


def test_a_skill_that_was_edited_stays(tmp_path):
    """A file with another text is replaced on request only; the same text is written again."""
    assert process("skill", str(tmp_path)).returncode == 0
    assert process("skill", str(tmp_path)).returncode == 0
    file = tmp_path / "stepwise" / "SKILL.md"
    file.write_text("mine", "utf-8")
    done = process("skill", str(tmp_path))
    assert (done.returncode, file.read_text("utf-8")) == (1, "mine")
    command = re.search(r"stepwise (skill .* --replace)", done.stderr)[1]
    done = process(*command.split(), "--json")
    assert json.loads(done.stdout) == {"file": str(file)}
    assert file.read_text("utf-8") != "mine"


def test_a_folder_that_cannot_be_written(tmp_path):
    """A place that is no folder is a sentence."""
    (tmp_path / "file").write_text("")
    done = process("skill", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_each_command_of_the_skill_exists():
    """The skill names no command that the command line does not have."""
    path = os.path.join(os.path.dirname(stepwise.cli.__file__), "..", "mcp", "SKILL.md")
    with open(path, encoding="utf-8") as file:
        named = set(re.findall(r"(?:`|\$ )stepwise ([a-z-]+)", file.read()))
    assert len(named) > 9
    assert named <= stepwise.cli.main.commands.keys()
