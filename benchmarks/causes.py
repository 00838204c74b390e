"""Which calls lead to the cause of a failure: twenty broken programs, as runs on disk.

    python benchmarks/causes.py [--quick] [--json FILE]
    python benchmarks/causes.py --prepare FOLDER [--without] [--quick]
    python benchmarks/causes.py --grade ANSWERS

The programs (``broken/``) are ordinary ones, each with one fault of a kind that people make.  What
services and the model answer comes from elsewhere (``outside.json``), and is seen only as far as a
run has recorded it.  ``causes.json`` has for each program the symptom as its user reports it, the
lines of the fault, the cause in a sentence, and the *evidence*: the values that decide between this
cause and one that looks the same from outside.  Found means: all evidence is in the answers.

The calls are those of a fixed policy, the same for all programs.  It knows the symptom alone:

1. ``why RUN``.
2. ``locals RUN --changes NAME``, the history of a variable: of the failing statement; if the run
   completed, of one that holds what the symptom quotes (a list or dict first), or is quoted by it.
   If there is none, ``bisect`` for the step at which a variable holds it first.
3. ``why RUN --at STEP``, variables and what changed, at the step at which the variable got what the
   symptom quotes, else at its last change.  If it was set only once, by a statement with other
   variables, the history of the last of them instead.

So with all checkpoints and arguments, with ``retention="thinned"``, and with the default.  Then the
evidence is searched in what there is without variables: what the program printed, and its
traceback.  Source is no evidence, though a linter suspects three of the faults.

``--prepare`` makes a folder for a coding agent: the programs, what they printed, their runs, and a
question for each, without the answers; with ``--without``, the runs are left out.  ``--grade``
compares its answers, a file of JSON like ``{"refunds": {"file": "refunds.py", "line": 12, "cause":
"..."}}``, with the lines of the faults.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import common
from click.testing import CliRunner

import stepwise
from stepwise.cli import main as command_line

_BROKEN = common.HERE / "broken"
_CAUSES: dict[str, dict[str, Any]] = json.loads((_BROKEN / "causes.json").read_text("utf-8"))
_QUICK = ("crm", "newsletter", "sales")
_WORD = re.compile(r"[^\W\d]\w*")
_MOST = 2000  # tokens of an answer, of four characters each
_EVERYTHING = {"STEPWISE_RECORD_ARGUMENTS": "1", "STEPWISE_RECORD_LOCALS": "1"}


# -- the runs -------------------------------------------------------------------------------------


def make_runs(folder: pathlib.Path, names: list[str], retention: str = "all") -> None:
    """Execute the programs in a folder: NAME.py, NAME.log with its output, and the store."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: text for name, text in os.environ.items() if name[:9] != "STEPWISE_"}
    environment |= {"STEPWISE_HOME": str(folder / "home"), "STEPWISE_QUIET": "1"}
    environment |= {"PYTHONPATH": str(_BROKEN), **(_EVERYTHING if retention == "all" else {})}

    def execute(name: str) -> None:
        source = (_BROKEN / f"{name}.py").read_text(encoding="utf-8")
        source = source.replace("@workflow\n", f'@workflow(retention="{retention}")\n')
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
        with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
            command = [sys.executable, f"{name}.py"]
            subprocess.call(command, cwd=folder, env=environment, stdout=log, stderr=log)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(execute, names))


def lines_of(name: str) -> list[int]:
    """Return the lines of a program's fault."""
    lines = (_BROKEN / f"{name}.py").read_text(encoding="utf-8").splitlines()
    return [lines.index(text) + 1 for text in _CAUSES[name]["fault"]]


# -- the policy -----------------------------------------------------------------------------------


@dataclass
class Looking:
    """The calls of the policy about a run, and their answers; ``quoted`` is in the symptom."""

    run_id: str
    quoted: list[str]
    calls: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def ask(self, *words: str) -> Any:
        """Call a command, and return its answer as data; an error is an answer as well."""
        done = CliRunner().invoke(command_line, [words[0], self.run_id, *words[1:], "--json"])
        self.calls.append(" ".join(words))
        self.tokens.append(-(-len(done.output) // 4))
        answer = json.loads(done.stdout) if done.stdout[:1] == "{" else {"error": done.output}
        self.answers.append(answer)
        return answer

    def look(self) -> None:
        """Make the calls that the policy prescribes."""
        why = self.ask("why")
        name = self._suspect(why)
        if name is None:
            step = self.ask("bisect", f"{self.quoted[0]!r} in str(globals())").get("step")
            self.ask("why", *(() if step is None else ("--at", str(step))))
            return
        changes = self.ask("locals", "--changes", name)["changes"]
        others = {each["name"] for each in why["variables"]} - {name}
        sources = [each for each in _WORD.findall(changes[-1]["statement"]) if each in others]
        if len(changes) == 1 and sources:
            self.ask("locals", "--changes", sources[-1])
        else:
            self.ask("why", "--at", str(self._worse(changes)["step"]))

    def _suspect(self, why: dict[str, Any]) -> str | None:
        """Return the variable to ask for; ``None`` if none has to do with what is quoted."""
        variables = why["variables"]
        if why["status"] == "completed":
            variables.sort(key=lambda each: each["type"] not in ("list", "dict"))
            return next((each["name"] for each in variables if self._quotes(each["text"])), None)
        names = {each["name"] for each in variables}
        return next(each for each in _WORD.findall(why["at"]["statement"]) if each in names)

    def _worse(self, changes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the change that brought what the symptom quotes, else the last change."""
        found = (each for each in changes if self._quotes(f"{each['path']} {each['new']}"))
        return next(found, changes[-1])

    def _quotes(self, text: str) -> bool:
        """Return whether a text holds words that the symptom quotes, or is among them."""
        whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
        return any(each in text or (len(text) > 2 and whole.search(each)) for each in self.quoted)


# -- evidence -------------------------------------------------------------------------------------


def texts_in(answer: Any, about: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each text of an answer, with the names or paths beside it, else with its keys."""
    if isinstance(answer, dict):
        beside = tuple(each for key, each in answer.items() if key in ("name", "path"))
        for key, value in answer.items():
            yield from texts_in(value, (*about, *(beside or (key,))))
    elif isinstance(answer, list):
        for value in answer:
            yield from texts_in(value, about)
    else:
        yield about, str(answer)


def told_by(evidence: dict[str, str], answers: list[Any]) -> bool:
    """Return whether an answer has the value: of the variable, or of the step, that is named."""
    name, step = evidence.get("name"), evidence.get("step")
    found = (each for a in answers for each in texts_in(a) if evidence["has"] in each[1])
    return any(
        name is None or fnmatch.filter(about, name) or re.match(rf"\d+ {step}\(", text)
        for about, text in found
    )


def runs_in(folder: pathlib.Path) -> dict[str, str]:
    """Open the store of a folder; the ids of its runs by the names of their programs."""
    os.environ["STEPWISE_HOME"] = str(folder / "home")
    found = (each for each in stepwise.runs() if each.parent is None)
    return {pathlib.Path(each.workflow.rpartition(":")[0]).stem: each.id for each in found}


def look_at(folder: pathlib.Path, names: list[str]) -> dict[str, Looking]:
    """Make the calls of the policy about each program of a folder."""
    ids, found = runs_in(folder), {}
    for name in names:
        quoted = re.findall(r'"([^"]+)"', _CAUSES[name]["symptom"])
        found[name] = Looking(ids[name], quoted)
        found[name].look()
    return found


def calls_needed(name: str, looking: Looking) -> int | None:
    """Return how many calls have told all of the evidence; ``None`` if it was not told."""
    evidence, answers = _CAUSES[name]["evidence"], looking.answers
    counts = range(1, len(answers) + 1)
    return next((n for n in counts if all(told_by(e, answers[:n]) for e in evidence)), None)


def told_without_variables(name: str, log: str) -> bool:
    """Return whether what the program printed, with its traceback, tells the evidence."""
    known = _CAUSES[name]
    return all(text in log for text in known.get("log", [e["has"] for e in known["evidence"]]))


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    names = [*_QUICK] if arguments.quick else sorted(_CAUSES)
    looked, told = {}, {}
    with common.folder() as folder:
        for kept in ("all", "thinned", "prune_old"):
            make_runs(folder / kept, names, kept)
            looked[kept] = look_at(folder / kept, names)
            told[kept] = {name for name in names if calls_needed(name, looked[kept][name])}
        logs = {name: (folder / "all" / f"{name}.log").read_text("utf-8") for name in names}
    told["no variables"] = {name for name in names if told_without_variables(name, logs[name])}
    rows, found = [], looked["all"]
    for name in names:
        calls = calls_needed(name, found[name])
        note = f"{calls} of 3 calls" if calls else "not found by"
        note += f": {', '.join(found[name].calls[:calls])}"
        others = (f"{how}: {'' if name in told[how] else 'not '}found" for how in [*told][1:])
        tokens = common.Spread.of([float(sum(found[name].tokens[:calls]))])
        what = f"{name}: {_CAUSES[name]['kind']}"
        rows.append(common.Row(what, tokens, "tokens", other=", ".join(others), note=note))
    for how, those in told.items():
        total = common.Spread.of([float(len(those))])
        rows.append(common.Row(f"causes found, {how}", total, f"of {len(names)}"))
    longest = common.Spread.of([float(max(max(each.tokens) for each in found.values()))])
    return [*rows, common.Row("the longest answer", longest, "tokens", limit=float(_MOST))]


# -- for a coding agent ---------------------------------------------------------------------------


_QUESTION = """# {name}

{symptom}

The program is `{name}.py`; what it printed stands in `{name}.log`.{run}
Which line is at fault? Add to `answers.json`, one object for all programs:

    {{"{name}": {{"file": "{name}.py", "line": 0, "cause": "one sentence"}}}}
"""
_RUN = """ At most three of these calls tell about its run:

    export STEPWISE_HOME={home}
    stepwise why {run_id} --json
    stepwise why {run_id} --at STEP --json
    stepwise locals {run_id} --changes NAME --json
    stepwise bisect {run_id} EXPRESSION --json
"""


def prepare(folder: pathlib.Path, names: list[str], *, without: bool) -> None:
    """Write the programs, their outputs, their runs and the questions into a folder."""
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: name a new folder, since old runs would answer there")
    make_runs(folder, names)
    ids = runs_in(folder)
    if without:
        shutil.rmtree(folder / "home")
    for name in names:
        run = "" if without else _RUN.format(run_id=ids[name], home=folder / "home")
        text = _QUESTION.format(name=name, symptom=_CAUSES[name]["symptom"], run=run)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    print(f"{len(names)} questions in {folder}; python {__file__} --grade {folder}/answers.json")


def grade(path: pathlib.Path) -> None:
    """Print which answers name a line of the fault."""
    answers = json.loads(path.read_text(encoding="utf-8"))
    right = 0
    for name in sorted(_CAUSES):
        file, line, cause = (answers.get(name, {}).get(key) for key in ("file", "line", "cause"))
        at_fault = [*map(str, lines_of(name))]
        correct = pathlib.PurePath(str(file)).name == f"{name}.py" and str(line) in at_fault
        right += correct
        print(f"{name}: {'right' if correct else 'wrong' if name in answers else 'no answer'}")
        print(f"  answer  line {line}: {cause}")
        print(f"  cause   line {', '.join(at_fault)}: {_CAUSES[name]['cause']}")
    print(f"{right} of {len(_CAUSES)} right")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--prepare", "--grade"):
        parser.add_argument(option, type=pathlib.Path)
    parser.add_argument("--without", action="store_true")
    arguments, others = parser.parse_known_args()
    if arguments.prepare is not None:
        names = [*_QUICK] if "--quick" in others else sorted(_CAUSES)
        prepare(arguments.prepare.resolve(), names, without=arguments.without)
    elif arguments.grade is not None:
        grade(arguments.grade)
    else:
        sys.argv[1:] = others
        common.main(measure, "Causes of broken programs, found by looking at their runs")


if __name__ == "__main__":
    main()
