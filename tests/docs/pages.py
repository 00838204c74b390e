"""Executes every code block of a page, as a reader would, and compares what comes of it.

``python tests/docs/pages.py docs/tutorial.md`` prints where the page differs from what happens, and
``--update`` writes what happens into the page.  A page has a folder and a ``STEPWISE_HOME`` of its
own, and its blocks are executed in their order:

``python``   with a first line ``# name.py``: the file of that name.  Else a program, which must
             exit with 0; a ``text`` block right behind it is its output.
``console``  ``$ `` begins a command of bash, then its output follows.  ``Killed`` or ``^C`` at the
             end of the output ends the program by that signal, when it has printed what stands
             above and waits in a ``sleep``.  (Other programs do not wait in a ``sleep``.)
others       a file if the first line is ``# name``.

``...`` stands for any lines, or for any text in a line.  Ids, times, sizes, versions, folders and
white space are compared loosely.  ``<!-- not executed: REASON -->`` above a block excuses it, and
``<!-- executed by FILE -->`` in a page leaves the page to a test of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "programs"))

from harness import python, python_path  # noqa: E402 -- where that is

WAITING = HERE / "waiting"
SECONDS = 120  # for a command, at most

# -- reading a page ------------------------------------------------------------------------------

_FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)\n(.*?)^ *\2 *$", re.DOTALL | re.MULTILINE)
_EXCUSE = re.compile(r"<!-- not executed: (.+?) -->\s*\Z", re.DOTALL)
_ELSEWHERE = re.compile(r"<!-- executed by (\S+) -->")
_FILE = re.compile(r"# ((?:[\w.-]+/)*(?:[\w-]*\.[\w.-]+|Dockerfile|Makefile|crontab))\n")


@dataclasses.dataclass
class Block:
    """A block of code: where its text stands in the page, and what the page says of it."""

    language: str
    text: str
    start: int
    end: int
    line: int
    indent: str = ""
    excuse: str = ""

    @property
    def name(self) -> str:
        """The file that it is, if it is one."""
        found = _FILE.match(self.text)
        if not found or self.language in ("console", "text"):
            return ""
        return found[1] if self.language != "python" or found[1].endswith(".py") else ""


class Command(NamedTuple):
    """A command of a ``console`` block with the output that the page shows."""

    line: int
    words: str
    shown: str


def blocks(text: str) -> list[Block]:
    """Read the blocks of code of a page."""
    return [
        Block(
            language=(found[3].split() or [""])[0],
            text=textwrap.dedent(found[4]),
            start=found.start(4),
            end=found.end(4),
            line=text.count("\n", 0, found.start()) + 1,
            indent=found[1],
            excuse=excuse[1] if (excuse := _EXCUSE.search(text[: found.start()])) else "",
        )
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """Read the commands of a ``console`` block."""
    found = re.finditer(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)
    for each in found:
        line = block.line + 1 + block.text.count("\n", 0, each.start())
        yield Command(line, each[1].rstrip("\n"), each[2])


# -- comparing -----------------------------------------------------------------------------------

_ID = re.compile(r"(?<![\w./-])([A-Za-z_][\w.]*(?:-[A-Za-z_]\w*)*)-([0-9a-f]{12})(?![0-9a-f])")
_SHORT = re.compile(r"(?<![\w./-])([A-Za-z_][\w.]*(?:-[A-Za-z_]\w*)*)-([0-9a-f]{3,11})\b")
_CLOCK = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_NUMBER = r"(?<![\w.])\d+(?:[.,]\d+)*"
_LOOSE = [
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(rf"\d{{4}}-\d\d-\d\d(?:[ T]{_CLOCK}(?:[+-]\d\d:\d\d|Z)?)?"), "WHEN"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?\b"), "WHEN"),
    (re.compile(rf"{_NUMBER} ?(?:[nuµm]?s|min|h|d|(?:second|minute|hour|day)s?)\b"), "TIME"),
    (re.compile(rf"{_NUMBER} ?(?:bytes|[kKMGT]i?B)\b"), "SIZE"),
    (re.compile(r"\b(process|pid|PID) \d+"), r"\1 NUMBER"),
    (re.compile(r"\b(localhost|127\.0\.0\.1):\d+"), r"\1:PORT"),
    (re.compile(r"(?<![\w.])\d+\.\d+\.\d+(?:[\w.+-]*\w)?"), "VERSION"),
    (re.compile(r"(?<![\w.])1[6-9]\d{8}\.\d+\b"), "WHEN"),  # seconds since 1970
    (re.compile(r"(?<![\w.])\d+\.\d{4,}(?:e-?\d+)?\b"), "NUMBER"),
    (re.compile(r"\bPython 3\.\d+\b"), "Python VERSION"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
    (re.compile(r"(?<![\w.<])~?(?:/[\w.@+%-]+)*/([\w@+%-]+\.[\w]+)\b"), r"PATH/\1"),
    (re.compile(r"(?<![\w.<])~?(?:/[\w.@+%-]+){2,}/?"), "PATH"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"), "DIGEST"),
    (re.compile(r"([-=_─━═╌┄])\1{3,}"), r"\1\1\1"),  # a rule is as wide as its table
]  # fmt: skip


def normal(text: str) -> list[str]:
    """The lines without what differs from one time, or one machine, to the next."""
    for pattern, instead in _LOOSE:
        text = pattern.sub(instead, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


class Ids:
    """The ids of runs as the page has them, and as they are."""

    def __init__(self) -> None:
        self.real: dict[str, str] = {}

    def translate(self, text: str) -> str:
        """The page's text with the ids as they are."""
        text = _ID.sub(lambda found: self.real.get(found[0], found[0]), text)
        return _SHORT.sub(self._short, text)

    def _short(self, found: re.Match[str]) -> str:
        known = [real for page, real in self.real.items() if page.startswith(found[0])]
        return known[0][: len(found[0])] if known else found[0]

    def shown(self, text: str) -> str:
        """The other direction."""
        page = {real: page for page, real in self.real.items()}
        return _ID.sub(lambda found: page.get(found[0], found[0]), text)

    def unknown(self, text: str) -> list[str]:
        """The ids in a text of the page of which nothing is known yet, in their order."""
        found = dict.fromkeys(each[0] for each in _ID.finditer(text))
        return [each for each in found if each not in self.real]

    def match(self, shown: str, printed: str) -> bool:
        """Whether a program printed what the page shows; learn ids that are met first here."""
        unknown = self.unknown(shown)
        reals = list(dict.fromkeys([*self.real.values(), *(e[0] for e in _ID.finditer(printed))]))

        def token(real: str) -> str:  # nothing takes it for a digest or a version
            return f"{real.rpartition('-')[0]}-RUN{reals.index(real)}"

        def mark(found: re.Match[str]) -> str:
            known = found[0] in self.real
            return token(self.real[found[0]]) if known else f"«{unknown.index(found[0])}»"

        pattern, groups = "", set()
        for line in normal(_SHORT.sub(self._short, _ID.sub(mark, shown))):
            if line == "...":
                pattern += r"(?:[^\n]*\n)*?"
                continue
            for part in re.split(r"(\.\.\.|«\d+»)", line):
                group = f"id{part[1:-1]}"
                if part == "...":
                    pattern += r"[^\n]*?"
                elif part[:1] != "«":
                    pattern += re.escape(part)
                elif group in groups:
                    pattern += f"(?P={group})"
                else:
                    groups.add(group)
                    pattern += rf"(?P<{group}>[\w.-]+-RUN\d+)"
            pattern += r"\n"
        text = normal(_ID.sub(lambda found: token(found[0]), printed))
        found = re.fullmatch(pattern, "".join(f"{line}\n" for line in text))
        for group in groups if found else ():
            self.real[unknown[int(group[2:])]] = reals[int(found[group].rpartition("RUN")[2])]
        if not found:
            self._guess(unknown, printed)
        return found is not None

    def _guess(self, unknown: list[str], printed: str) -> None:
        """Learn ids of an output that differs otherwise, so that later commands mean their runs."""
        met = dict.fromkeys(found[0] for found in _ID.finditer(printed))
        new = [each for each in met if each not in self.real.values()]
        for page in unknown:
            alike = [each for each in new if each.rpartition("-")[0] == page.rpartition("-")[0]]
            if alike:
                self.real[page] = alike[0]
                new.remove(alike[0])


# -- executing -----------------------------------------------------------------------------------

_FOR_BASH = re.compile(r"[|&;<>*?~#$`\\!\n]")
_FIRST = f"""
import sys
sys.stdout.reconfigure(line_buffering=True)
exec(compile(open({str(WAITING / "sitecustomize.py")!r}).read(), "sitecustomize", "exec"))
"""
_END = re.compile(r"^(Killed|\^C)\b.*\n", re.MULTILINE)
SIGNALS = {"Killed": signal.SIGKILL, "^C": signal.SIGINT}


class Ended(NamedTuple):
    """What a program printed, and how it exited."""

    printed: str
    code: int


class Reader:
    """A reader with a terminal in an empty folder."""

    def __init__(self, name: str) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="page-", dir=memory))
        self.folder = self.home / name
        self.folder.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STEPWISE_", "PYTEST_"))}
        for each in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "OPENAI_API_KEY"):
            kept.pop(each, None)
        self.env = {
            **kept,
            "HOME": str(self.home),
            "STEPWISE_HOME": str(self.home / ".stepwise"),
            "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": python_path(WAITING),
            "PYTHONUNBUFFERED": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        }

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.home, ignore_errors=True)

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def public(self, text: str) -> str:
        """The text as the page shows it, with the folders of somebody."""
        text = text.replace(str(self.home), "/home/ann").replace(sys.executable, "/usr/bin/python3")
        text = text.replace(sysconfig.get_path("scripts") + "/", "/usr/bin/")
        return text.replace(f"{ROOT}/", "/usr/lib/python3/site-packages/")

    def execute(self, line: str) -> Ended:
        """Execute a line of bash."""
        moved = re.fullmatch(r"(?:export (\w+)=(\S*)|cd (\S+))", line)
        if moved and moved[1]:
            self.env[moved[1]] = os.path.expandvars(moved[2])
            return Ended("", 0)
        if moved:
            self.folder = (self.folder / moved[3]).resolve()
            return Ended("", 0)
        if not _FOR_BASH.search(line):
            words, given = shlex.split(line), {}
            while words and (found := re.fullmatch(r"(\w+)=(.*)", words[0])):
                given[found[1]] = found[2]
                del words[0]
            if words and words[0] in ("python", "stepwise") and self._can_be_forked(words):
                return self._fork(words if words[0] == "stepwise" else words[1:], given)
        with subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                return Ended(process.communicate(timeout=SECONDS)[0], process.returncode)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    @staticmethod
    def _can_be_forked(words: list[str]) -> bool:
        if words[0] == "stepwise":
            return True
        return len(words) > 1 and (words[1][0] != "-" or words[1] in ("-c", "-m"))

    def _fork(self, words: list[str], given: dict[str, str]) -> Ended:
        env = {**self.env, **given}
        done = python(*words, cwd=self.folder, env=env, together=True, first=_FIRST)
        return Ended(done.stdout, done.returncode)

    def run(self, name: str) -> Ended:
        """Run a program of the folder."""
        return self._fork([name], {})

    def execute_and_end(self, line: str, enough: str, how: int, ids: Ids) -> Ended:
        """Execute a line of bash; end it once it has printed enough and waits in a sleep."""
        told = self.home / "printed"
        path = self.home / "asleep"
        path.unlink(missing_ok=True)
        sleepers: list[socket.socket] = []
        with socket.socket(socket.AF_UNIX) as listening, told.open("w") as out:
            listening.bind(str(path))
            listening.listen()
            process = subprocess.Popen(
                ["bash", "-c", line],
                cwd=self.folder,
                env={**self.env, "PAGES_SLEEP": str(path)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            watched = os.pidfd_open(process.pid)
            ended = False
            while True:
                patience = 1 if ended and sleepers else SECONDS
                ready = select.select([listening, watched], [], [], patience)[0]
                if watched in ready:
                    break
                if listening in ready:
                    sleepers.append(listening.accept()[0])
                    if not ended and ids.match(enough, told.read_text("utf-8")):
                        ended = True
                        os.killpg(process.pid, how)
                        continue
                elif not ended or not sleepers:
                    os.killpg(process.pid, signal.SIGKILL)
                while sleepers:
                    sleepers.pop().close()
            for each in sleepers:
                each.close()
            os.close(watched)
            code = process.wait()
        printed = told.read_text("utf-8")
        return Ended(printed if ended else f"{printed}(it never waited at that point)\n", code)


class Page:
    """A page that is being executed."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.text = path.read_text("utf-8")
        self.blocks = blocks(self.text)
        self.differences: list[str] = []
        self.better: list[tuple[Block, str]] = []  # what the block should say
        self.ids = Ids()
        self.programs = 0

    def execute(self) -> list[str]:
        """Execute the blocks. Return what differs."""
        elsewhere = _ELSEWHERE.search(self.text)
        if elsewhere:
            if not (ROOT / elsewhere[1]).exists():
                self.differ(1, f"{elsewhere[1]} is not there")
            return self.differences
        self.reader = Reader(self.path.stem)
        try:
            for block, after in zip(self.blocks, [*self.blocks[1:], None], strict=False):
                self._execute(block, after)
        finally:
            self.reader.close()
        return self.differences

    def differ(self, line: int, text: str) -> None:
        """Note a difference."""
        path = self.path.resolve()
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        self.differences.append(f"{name}:{line}: {text}")

    def _execute(self, block: Block, after: Block | None) -> None:
        if block.language == "python":
            try:
                compile(block.text, str(self.path), "exec", dont_inherit=True)
            except SyntaxError as error:
                if not block.excuse or block.text.lstrip()[:1] not in "%!":
                    self.differ(block.line + (error.lineno or 0), f"does not compile: {error.msg}")
                return
        if block.excuse:
            return
        if block.name:
            self.reader.write(block.name, block.text)
        elif block.language == "python":
            self._run(block, after)
        elif block.language == "console":
            self._console(block)

    def _run(self, block: Block, after: Block | None) -> None:
        """Run a whole program."""
        self.programs += 1
        name = f"program{self.programs}.py"
        self.reader.write(name, block.text)
        ended = self.reader.run(name)
        if ended.code:
            self.differ(block.line, f"exits with {ended.code}:\n{ended.printed}")
        elif after and after.language == "text" and not self._same(after.text, ended.printed):
            self.differ(after.line, self._diff(after.text, ended.printed))
            self.better.append((after, self._show(ended.printed)))

    def _console(self, block: Block) -> None:
        """Execute the commands of a terminal."""
        better, worse = "", False
        for command in commands(block):
            shown, ends = command.shown, _END.search(command.shown)
            words = self._with_real_ids(command.words)
            if ends:
                before, behind = shown[: ends.start()], shown[ends.end() :]
                how = SIGNALS[ends[1]]
                ended = self.reader.execute_and_end(words, before, how, self.ids)
                shown, last = before + behind, ends[0]
            else:
                ended, last = self.reader.execute(words), ""
            if self._same(shown, ended.printed):
                better += f"$ {command.words}\n{command.shown}"
            else:
                worse = True
                self.differ(command.line, f"$ {command.words}\n{self._diff(shown, ended.printed)}")
                better += f"$ {command.words}\n{self._show(ended.printed)}{last}"
        if worse:
            self.better.append((block, better))

    def _with_real_ids(self, words: str) -> str:
        """The command with ids as they are; those that no output showed are looked up."""
        for page in self.ids.unknown(words):
            look = "import stepwise; print(*(run.id for run in stepwise.runs()))"
            real = self.reader._fork(["-c", look], {}).printed.split()
            name = page.rpartition("-")[0]
            new = [r for r in real if r.startswith(f"{name}-") and r not in self.ids.real.values()]
            if len(new) == 1:
                self.ids.real[page] = new[0]
        return self.ids.translate(words)

    def _same(self, shown: str, printed: str) -> bool:
        return self.ids.match(shown, printed)

    def _show(self, printed: str) -> str:
        text = self.reader.public(self.ids.shown(printed))
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def _diff(self, shown: str, printed: str) -> str:
        lines = difflib.unified_diff(
            normal(shown), normal(self._show(printed)), "the page", "in fact", lineterm="", n=2
        )
        return "\n".join(lines)

    def update(self) -> None:
        """Write what happened into the page."""
        text = self.text
        for block, better in sorted(self.better, key=lambda pair: -pair[0].start):
            text = text[: block.start] + textwrap.indent(better, block.indent) + text[block.end :]
        self.path.write_text(text, encoding="utf-8")


def pages() -> list[pathlib.Path]:
    """The pages whose blocks are executed."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Execute the pages that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path, default=pages())
    parser.add_argument("--update", action="store_true", help="write what happens into the pages")
    given = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    different = 0
    for path in given.pages:
        page = Page(path)
        differences = page.execute()
        different += len(differences)
        print(*differences, sep="\n\n", end="\n" if differences else "")
        if given.update and page.better:
            page.update()
            print(f"{path}: {len(page.better)} blocks written anew")
    if not different:
        print("the pages are true")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
