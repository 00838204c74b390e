"""What preflight says of real changes, against what then happens.

    python benchmarks/changes.py --prepare CHANGES.json REPOSITORY...
    python benchmarks/changes.py CHANGES.json [--limit N] [--most N] [--part K/N] [--json FILE]

A *change* is a function of a public Python project before and after one of its commits.
``--prepare`` takes changes from local copies of the repositories in ``_CORPUS``, at the commits
named there; nothing of them is part of this project.  A function becomes a workflow: each name that
it does not define itself is a stand-in, every call of a stand-in is a step, and the values that
steps return are stand-ins, too, whose truth, length and items follow from their names.  So the
function's own control flow is executed, and nothing else of its project.

The old text is executed and killed (SIGKILL) in each of its calls, in a process of its own each.
Then, with the new text in the same file, three more processes say: what preflight tells of the run,
what it tells with ``--replay``, and what really happens when the run is called again.  A forecast
that names nothing unknown has committed itself: it is *right* if verdict, line and number of steps
are those of the real start.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import functools
import importlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import stepwise
from stepwise._journal.journal import facts_of
from stepwise._runs.replica import taken_from
from stepwise._workflows.preflight import Forecast, forecast, replay, with_replay

_CORPUS = {
    "boltons": "967864f89791509f9eb36b22b4579d36b72a6df2",
    "requests": "1f6589ec3a1ee910f9a65cc3ceac60b26677bc0e",
    "humanize": "c3a124cdeb272d7f63bc0aa66f79c6fbafd2fc6d",
    "rich": "42899d8a0a96b121a514516f4be9db44ff7aeaf3",
    "furl": "7c233324610338414f77a37a2f1e1dc75b4bc9b0",
    "werkzeug": "1b00618e787f40dfb21eba29caf8f8be7c8e1d93",
    "toolz": "568c2b8393973cd172a466546c9d95779c452438",
    "click": "2c8cd3ac958a7eb316d67f2d316c27086c4c0369",
    "tqdm": "f6a30fab726ab8e794a9db88b4392ce207760937",
    "jinja": "5ef70112a1ff19c05324ff889dd30405b1002044",
    "bottle": "2a743a302a71460bfe4c0b8b7cb99a306b0328c6",
    "seaborn": "f04b6cd5484267a0885d1fed068e99dff3a1b226",
}
_EACH = 60  # changes of one repository, at most
_CALLS = range(2, 25)  # calls that the old text makes
_SECONDS = 10  # for one process
_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


# -- the corpus ------------------------------------------------------------------------------------


def _prepare(file: pathlib.Path, repositories: list[pathlib.Path]) -> None:
    """Write changes of functions from the histories of repositories."""
    changes = []
    for repository in repositories:
        found = list(itertools.islice(_changes_of(repository), 3 * _EACH))
        random.Random(0).shuffle(found)
        changes += found[:_EACH]
        print(f"{repository}: {len(found)} changes found", file=sys.stderr)
        random.Random(1).shuffle(changes)
        file.write_text(json.dumps(changes, indent=1), "utf-8")


def _changes_of(repository: pathlib.Path) -> Iterator[dict[str, str]]:
    name = next(each for each in _CORPUS if each in str(repository))
    git = ["git", "-C", str(repository)]
    log = subprocess.run(
        [*git, "log", "--no-merges", "--diff-filter=M", "--name-only", "--format=commit %H", "-n",
         "1000", _CORPUS[name], "--", "*.py"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    texts = _reader(git)
    seen, commit = set(), ""
    for line in filter(None, log.splitlines()):
        if line.startswith("commit "):
            commit = line.split()[1]
            continue
        if "test" in line or "docs" in line or "setup" in line:
            continue
        before, after = (_functions(texts(f"{at}:{line}")) for at in (f"{commit}^", commit))
        for label in before.keys() & after.keys():
            old, new = before[label], after[label]
            if old != new and (old, new) not in seen:
                seen.add((old, new))
                yield {"repository": name, "commit": commit, "name": label, "old": old, "new": new}


def _reader(git: list[str]) -> Callable[[str], bytes]:
    """Return a function that reads a file of a commit: ``COMMIT:PATH``."""
    process = subprocess.Popen(
        [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def read(name: str) -> bytes:
        process.stdin.write(f"{name}\n".encode())
        process.stdin.flush()
        *_, size = process.stdout.readline().split()
        return process.stdout.read(int(size) + 1)[:-1] if size.isdigit() else b""

    return read


def _functions(text: bytes) -> dict[str, str]:
    """Return the functions of a module that can become workflows, as texts of workflows."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for node in ast.walk(tree):
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for each in [*inner, *(tree.body if node is tree else [])]:
            if isinstance(each, ast.FunctionDef) and _is_fit(each):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                found[owner + each.name] = _as_workflow(text.decode(), each)
    return found


_UNFIT = (
    *(ast.Yield, ast.YieldFrom, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal),
    *(ast.AsyncFunctionDef, ast.Await, ast.ClassDef),
)


def _is_fit(function: ast.FunctionDef) -> bool:
    nodes = list(ast.walk(function))
    calls = sum(isinstance(each, ast.Call) for each in nodes)
    lines = function.end_lineno - function.lineno
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    fits = not any(isinstance(each, _UNFIT) for each in nodes) and "super" not in names
    return fits and calls >= 2 and 3 <= lines <= 60


def _as_workflow(text: str, function: ast.FunctionDef) -> str:
    """Return the text of a function as that of ``agent``, whose parameters have no defaults."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [each.arg for each in (given.vararg, given.kwarg) if each]
    first, head = function.body[0].lineno - 1, function.lineno - 1
    if first == head:
        first += 1
    lines = text.splitlines()[first : function.end_lineno]
    body = "\n".join(line[function.col_offset :] for line in lines)
    return f"def agent({', '.join(names)}):\n{body}\n"


# -- a change as programs --------------------------------------------------------------------------


_STUBS = '''
"""Stand-ins for all that a function does not define itself."""

import builtins, os, signal, zlib
from stepwise import step

made = 0
HARMLESS = {
    *("abs all any bool bytes callable chr dict divmod enumerate filter float format frozenset"
      " getattr hasattr hash int isinstance iter len list map max min next object ord range repr"
      " reversed round set slice sorted str sum tuple type zip None True False").split(),
    *(name for name, each in vars(builtins).items() if isinstance(each, type)
      and issubclass(each, Exception)),
}

@step
def made_by(name, count):
    global made
    made += 1
    with open(os.environ["CALLS"], "a") as file:
        file.write(name + "\\n")
    if made == int(os.environ.get("DIE_IN", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    if made > 60:
        raise RuntimeError("too many calls")
    return Value(name + "()")

class Attribute:
    def __init__(self, name):
        self.name = name
    def __get__(self, value, cls):
        if len(value.name) > 200:
            raise AttributeError(self.name)
        return Value(f"{value.name}.{self.name}")

class Value:
    def __init__(self, name):
        self.name = name
    def __call__(self, *args, **kwargs):
        return made_by(self.name[-60:], len(args) + len(kwargs))
    def _chance(self, *more):
        return zlib.crc32(repr((self.name, *map(str, more))).encode())
    def __bool__(self):
        return self._chance() % 3 > 0
    def __len__(self):
        return 2
    def __iter__(self):
        return iter([Value(f"{self.name}[{n}]") for n in range(2)])
    def __getitem__(self, at):
        return Value(f"{self.name}[{at}]")
    def __setitem__(self, at, value):
        pass
    def __contains__(self, each):
        return self._chance(each) % 2 > 0
    def __hash__(self):
        return self._chance()
    def __eq__(self, other):
        return str(self) == str(other) or self._chance(other) % 3 == 0
    def __lt__(self, other):
        return self._chance(other) % 2 > 0
    def __index__(self):
        return 2
    def __str__(self):
        return self.name[:60]
    def __repr__(self):
        return self.name[:60]
    def __format__(self, spec):
        return self.name[:60]
    def __enter__(self):
        return self
    def __exit__(self, *exception):
        return None
    def __instancecheck__(self, other):
        return self._chance(other) % 2 > 0
    def _with(self, other=None):
        return Value(f"({self.name} {other})"[:80])
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _with
    __truediv__ = __floordiv__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _with
    __neg__ = __invert__ = __pos__ = __pow__ = __rtruediv__ = __rfloordiv__ = __ror__ = _with
    __gt__ = __ge__ = __le__ = __lt__

for name in ATTRIBUTES - {"name"}:  # no __getattr__: whether that loads, no preflight can know
    setattr(Value, name, Attribute(name))
'''


def _program(text: str) -> str:
    """Return the module of a change: the stand-ins for free names, and the workflow."""
    tree = ast.parse(text)
    read = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    free = sorted(read - {"agent"} - _HARMLESS)
    stand_ins = "".join(f"{name} = Value({name!r})\n" for name in free)
    parameters = [each.arg for each in tree.body[0].args.args]
    call = f"def call():\n    return agent({', '.join(f'Value({each!r})' for each in parameters)})"
    return (
        f"from stepwise import workflow\nfrom stubs import Value\n\n{stand_ins}\n@workflow\n"
        f"{text}\n{call}\n"
    )


def _attributes(text: str) -> set[str]:
    """Return the names of attributes that a text reads, with ``getattr`` too."""
    nodes = [*ast.walk(ast.parse(text))]
    names = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    names |= {each.value for each in nodes if isinstance(each, ast.Constant)}
    return {each for each in names if isinstance(each, str) and re.fullmatch(r"(?!__)\w+", each)}


def _harmless() -> set[str]:
    names: dict[str, Any] = {}
    text = _STUBS[_STUBS.index("HARMLESS =") : _STUBS.index("@step")]
    exec(compile(text, "stubs", "exec"), {"builtins": builtins}, names)  # ours
    return names["HARMLESS"]


_HARMLESS = _harmless()


# -- trials ----------------------------------------------------------------------------------------


def _in_child(folder: pathlib.Path, work: Callable[[], object], **environment: str) -> Any:
    """Execute a function in a fork; return its result, or how the fork ended: a number."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(_SECONDS)
            with (folder / "said").open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.environ.update(environment)
            os.chdir(folder)
            sys.path.insert(0, str(folder))
            answer.write_text(json.dumps(work()), "utf-8")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(answer.read_text("utf-8")) if status == 0 else status


def _called() -> str:
    """Call the workflow; return how that ended."""
    try:
        return f"returned {importlib.import_module('change').call()!r}"
    except Exception as error:  # the functions' own, as their stand-ins make them fail
        return f"raised {type(error).__name__}"


def _foretold() -> list[dict[str, Any]]:
    """Return what preflight tells of the run, without and with its replay."""
    importlib.import_module("change")
    (run,) = stepwise.runs()
    store, seal = run.store, run._seal
    plain = forecast(store, seal, facts_of(store, seal, run.id))
    found = [plain]
    if plain.verdict not in ("refuses", "elsewhere"):
        found.append(with_replay(plain, replay(taken_from(store, seal, run.id))))
    return [_plain(each) for each in found]


def _plain(found: Forecast) -> dict[str, Any]:
    return {
        "verdict": found.verdict, "at": found.at, "steps": found.steps, "why": found.why,
        "unknown": found.unknown, "notes": found.notes,
    }  # fmt: skip


_NOTICE = re.compile(
    r"(resumes at change\.py:\d+|resumes after change\.py:\d+|replays from the top"
    r"|begins again from the top)(?:, after (\d+) step|, (\d+) steps? answered)?"
)


def _really(said: str) -> tuple[str, int]:
    """Return what a start said of where it continues: verdict and place, number of steps."""
    found = _NOTICE.search(said)
    if found is None:
        return "refuses", 0
    return found[1], int(found[2] or found[3] or 0)


def _as_said(told: dict[str, Any]) -> tuple[str, int]:
    words = {"replays": "replays from the top", "begins": "begins again from the top"}
    at = told["at"]
    resumes = f"resumes {at}" if at.startswith("after") else f"resumes at {at}"
    words["resumes"] = resumes
    return words.get(told["verdict"], told["verdict"]), told["steps"]


class _Lab:
    """The folder of one change."""

    def __init__(self, change: dict[str, str], folder: pathlib.Path) -> None:
        self.folder = folder
        self.texts = {version: _program(change[version]) for version in ("old", "new")}
        read = sorted(_attributes(change["old"]) | _attributes(change["new"]))
        (folder / "stubs.py").write_text(f"ATTRIBUTES = {{'name', *{read}}}\n{_STUBS}", "utf-8")
        self.calls = folder / "calls"
        self.store = 0

    def execute(self, version: str, work: Callable[[], object] = _called, **more: str) -> Any:
        self.calls.write_text("")
        (self.folder / "change.py").write_text(self.texts[version], "utf-8")
        environment = {
            "STEPWISE_HOME": str(self.folder / f"home{self.store}"),
            "STEPWISE_QUIET": "",
            "CALLS": str(self.calls),
            **more,
        }
        return _in_child(self.folder, work, **environment)

    def said(self) -> str:
        return (self.folder / "said").read_text("utf-8")

    def undisturbed(self, version: str) -> int:
        """Return how many calls a version makes; 0 if it cannot be executed."""
        self.store += 1
        ended = self.execute(version)
        shutil.rmtree(self.folder / f"home{self.store}", ignore_errors=True)
        return len(self.calls.read_text().split("\n")) - 1 if isinstance(ended, str) else 0

    def trial(self, number: int) -> dict[str, Any] | None:
        """Kill the old text in its N-th call; return what was foretold and what happened."""
        self.store += 1
        if self.execute("old", DIE_IN=str(number)) != -signal.SIGKILL:
            return None
        told = self.execute("new", _foretold)
        if isinstance(told, int):
            return {"number": number, "fault": self.said()}
        ended = self.execute("new")
        said = self.said()
        shutil.rmtree(self.folder / f"home{self.store}", ignore_errors=True)
        return {
            "number": number, "told": told, "really": _really(said), "ended": ended, "said": said,
        }  # fmt: skip


def _tried(change: dict[str, str], most: int) -> list[dict[str, Any]]:
    """Return the trials of a change: one for each call of the old text, or for ``most`` of them."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as name:
        try:
            lab = _Lab(change, pathlib.Path(name))
        except SyntaxError:
            return []
        calls = lab.undisturbed("old")
        if calls not in _CALLS or not lab.undisturbed("new"):
            return []
        numbers = sorted({1 + n * (calls - 1) // (most - 1) for n in range(most)})
        return [each for each in map(lab.trial, numbers) if each is not None]


def _warm() -> None:
    """Import what the children of this process need, so that they need not."""
    text = "def agent(x):\n    x.one()\n    x.two()\n    return x.three()\n"
    needed: set[str] = set()

    def loaded(work: Callable[[], object]) -> list[str]:
        work()
        return [name for name in sys.modules if name not in ("change", "stubs")]

    with tempfile.TemporaryDirectory(dir=_MEMORY) as name:
        lab = _Lab({"old": text, "new": text}, pathlib.Path(name))
        lab.execute("old", DIE_IN="2")
        for work in (_foretold, _called):
            needed.update(lab.execute("new", functools.partial(loaded, work)))
    for each in sorted(needed - sys.modules.keys()):
        with contextlib.suppress(ImportError):
            importlib.import_module(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="write FILE from REPOSITORIES")
    parser.add_argument("--limit", type=int, default=300, help="changes to try")
    parser.add_argument("--most", type=int, default=25, help="calls in which each is killed")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th change, from the K-th")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("repositories", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.prepare:
        _prepare(options.file, options.repositories)
        return
    _warm()
    tally, changes = Counter[str](), 0
    number, parts = map(int, options.part.split("/"))
    for change in json.loads(options.file.read_text("utf-8"))[number - 1 :: parts]:
        trials = _tried(change, options.most)
        if not trials:
            continue
        changes += 1
        for each in trials:
            _count(tally, change, each)
        figures = {"changes": changes, **dict(sorted(tally.items()))}
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
        if changes == options.limit:
            break
    print(json.dumps(figures, indent=1))
    sys.exit(any("wrong" in key or "fault" in key for key in tally))


def _count(tally: Counter[str], change: dict[str, str], trial: dict[str, Any]) -> None:
    """Add a trial to the tally, and print it if a forecast was wrong."""
    what = f"{change['repository']} {change['commit'][:10]} {change['name']} call {trial['number']}"
    if "fault" in trial:
        tally["fault"] += 1
        print(f"{what}: preflight failed\n{trial['fault'][-1500:]}", flush=True)
        return
    tally["trials"] += 1
    place, steps = trial["really"]
    tally["really " + re.sub(r" (at|after) .*", " inside", place)] += 1
    for how, told in zip(("plain", "replay"), trial["told"], strict=False):
        said = _as_said(told)
        is_right = said == (place, steps)
        verdict = "right" if is_right else "wrong"
        if told["unknown"]:
            verdict = f"not known, {verdict}"
        tally[f"{how}: {verdict}"] += 1
        if how == "replay":
            notes = " ".join(told["notes"])
            is_same, was_unused = "as recorded" in notes, "not called again" in trial["said"]
            tally[f"replay: {'as recorded' if is_same else 'differs'}"] += 1
            if is_same and was_unused:
                verdict = "wrong"
                tally["replay: wrong, as recorded"] += 1
        if verdict == "wrong":
            print(f"{what}: {how} said {said}, really {(place, steps)}; {told}", flush=True)
            print(f"  {trial['said'][-600:]}\n--- old\n{change['old']}\n--- new\n{change['new']}")


if __name__ == "__main__":
    main()
