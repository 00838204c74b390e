"""Draws the rooms of ``stepwise/`` and counts what is in them: ``make map`` writes docs/house.md.

The picture, ``--picture FILE``, is a table: a row imports from the columns where it has a square.
Rooms and arrows come from the imports, those inside functions included; the modules that a call
visits, from a trace of a small program.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import gc
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tokenize
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "stepwise"


def modules():
    """Each module's name and file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def room(module):
    """The room of a module, or the module itself where it stands at the top."""
    return ".".join(module.split(".")[1:2])


def imported(path, names):
    """The modules of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            inner = (f"{node.module}.{each.name}" for each in node.names)
            yield from (each if each in names else node.module for each in inner)


def lines_of_code(path):
    """Lines that hold more than a comment, a docstring or nothing."""
    text = path.read_text("utf-8")
    skipped = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped |= set(range(node.lineno, node.end_lineno + 1))
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in nothing for n in range(t.start[0], t.end[0] + 1)}
    return len(lines - skipped)


# -- what one call visits ------------------------------------------------------------------------


class Trace:
    """Counts the modules that are entered, and the calls from one of ours into another."""

    def __init__(self):
        self.seen, self.hops = set(), 0

    def watch(self, frame, event, argument):
        """See ``sys.setprofile``."""
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.seen.add(frame.f_code.co_filename)
            below = frame.f_back
            while below is not None and not below.f_code.co_filename.startswith(str(PACKAGE)):
                below = below.f_back
            self.hops += below is None or below.f_code.co_filename != frame.f_code.co_filename

    def __enter__(self):
        sys.setprofile(self.watch)
        return self

    def __exit__(self, *exception):
        sys.setprofile(None)


def loaded():
    """How many modules ``import stepwise`` loads: all, and those of ours."""
    count = "import sys; b = {*sys.modules}; import stepwise; n = {*sys.modules} - b; "
    shown = "print(len(n), sum(m.startswith('stepwise') for m in n))"
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]; {count}{shown}",
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@contextlib.contextmanager
def nothing_else():
    """Let no time pass and collect no garbage: what these enter is not of the traced call.

    A slow machine looks into the inbox during a step, and weighs variables after a slow checkpoint.
    """
    moments = {
        "time": time.time(),
        "monotonic": time.monotonic(),
        "perf_counter": time.perf_counter(),
        "clock_gettime": time.clock_gettime(time.CLOCK_BOOTTIME),
    }
    with contextlib.ExitStack() as stack:
        for name, moment in moments.items():
            stack.enter_context(mock.patch.object(time, name, lambda *_, moment=moment: moment))
        gc.disable()
        stack.callback(gc.enable)
        yield


def visits():
    """What a few calls of a user enter: a trace of each, by what it is."""
    with tempfile.TemporaryDirectory() as home, nothing_else():
        os.environ.update(STEPWISE_HOME=home, STEPWISE_QUIET="1")
        sys.path.insert(0, str(ROOT))
        return {
            **steps_and_a_resume(),
            "an approved tool, its owner's side": an_approval(),
            "an instrumented model call": a_model_call(),
        }


traced = []
"""The tracer of a step."""


def switch(number):
    """Trace from the body of one step to that of the next: whatever is made once is there."""
    if number == 4:
        traced[0].__enter__()
    elif number == 5:
        sys.setprofile(None)


def steps_and_a_resume():
    """Trace a step without and one with a checkpoint, and a run that goes on after a failure."""
    import stepwise

    plain, call, resume, fails = Trace(), Trace(), Trace(), [True]

    @stepwise.step
    def one(number):
        switch(number)
        return number

    @stepwise.workflow(checkpoint_every=100)
    def rarely():
        for number in range(7):
            one(number)

    @stepwise.workflow
    def flow():
        for number in range(7):
            one(number)
        if fails:
            raise LookupError
        return "done"

    traced.append(plain)
    rarely()
    traced[:] = [call]
    try:
        flow()
    except LookupError:
        fails.clear()
    with resume:
        flow()
    return {
        "a step without a checkpoint": plain,
        "a step with its checkpoint": call,
        "a resume, to the end of its run": resume,
    }


def an_approval():
    """Trace a call that asks a person, from its beginning to its end, in the run's own thread."""
    import stepwise

    trace = Trace()

    @stepwise.tool(side_effect=True, approve=True)
    def pay(amount):
        return amount

    @stepwise.workflow(run_id="asks")
    def asks():
        trace.__enter__()
        pay(3)
        trace.__exit__()

    def answer():
        while True:
            with contextlib.suppress(stepwise.RunNotFoundError):
                for question in stepwise.get_run("asks").questions:
                    return question.approve()

    thread = threading.Thread(target=answer)
    thread.start()
    asks()
    thread.join()
    return trace


def a_model_call():
    """Trace a request to a model through its own library, with a server that is played."""
    import httpx
    import openai

    import stepwise

    trace = Trace()
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    played = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
    client = openai.OpenAI(api_key="none", http_client=httpx.Client(transport=played))

    @stepwise.workflow
    def asks_a_model():
        for number in range(2):
            if number:  # whatever is made once is there
                trace.__enter__()
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": str(number)}]
            )
        trace.__exit__()

    stepwise.instrument()
    asks_a_model()
    stepwise.uninstrument()
    return trace


def page():
    """The lines of docs/house.md."""
    files = dict(modules())
    arrows, edges, lines = collections.Counter(), 0, collections.Counter()
    count = collections.Counter(room(name) for name in files)
    for name, path in files.items():
        lines[room(name)] += lines_of_code(path)
        for other in set(imported(path, files)) - {name}:
            edges += 1
            if room(other) and room(name) and room(other) != room(name):
                arrows[room(name), room(other)] += 1
    yield "# Source map (for contributors)"
    yield ""
    yield "`make map` writes this page from the imports, those inside functions included. The"
    yield "purpose of each room: [design.md](design.md), section 8."
    yield ""
    yield "| room | modules | lines of code |"
    yield "|---|---:|---:|"
    for each in sorted(filter(None, count), key=lambda name: (name.strip("_"), name)):
        yield f"| `{each}` | {count[each]} | {lines[each]:,} |"
    yield ""
    total = sum(lines.values())
    yield f"{len(files)} modules, {total:,} lines of code without docstrings, comments and blank"
    yield f"lines, {edges} imports between modules, {len(arrows)} arrows between rooms."
    yield ""
    yield "`make map SINCE=COMMIT` prints how large the house is and was at a commit."
    yield ""
    yield "| | modules visited | calls from one module into another |"
    yield "|---|---:|---:|"
    for what, trace in visits().items():
        yield f"| {what} | {len(trace.seen)} | {trace.hops} |"
    yield ""
    every, ours = loaded()
    yield f"`import stepwise` loads {every} modules, {ours} of them ours."
    yield ""
    yield "## The picture"
    yield ""
    yield "Each room imports from the rooms that have a square in its row; the number counts the"
    yield "imports. Every square is left of the diagonal: no room imports from one below it."
    yield ""
    yield "![A triangular table of the imports between rooms](pictures/house.svg)"


# -- how large it is and was ---------------------------------------------------------------------


def words(paths):
    """How many words texts have."""
    return sum(len(path.read_text("utf-8").split()) for path in paths)


def size():
    """How much somebody has to read, by what it is."""
    files = dict(modules())
    yield "modules", len(files)
    yield "lines of code", sum(map(lines_of_code, files.values()))
    tests = (ROOT / "tests").rglob("*.py")
    yield "lines of tests", sum(len(path.read_text("utf-8").splitlines()) for path in tests)
    yield "words of docs/design.md", words([ROOT / "docs" / "design.md"])
    yield "words of all pages", words([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    for what, trace in visits().items():
        yield f"{what}: modules", len(trace.seen)
        yield f"{what}: calls between modules", trace.hops


def size_at(commit):
    """The size of an earlier house, by today's measure."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", commit]
        archive = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder)
        shutil.copy(__file__, f"{folder}/tests/house.py")
        command = [sys.executable, f"{folder}/tests/house.py", "--size"]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder)
    return json.loads(found.stdout)


def sizes(commit):
    """The lines of a table: how large the house was at a commit, and is."""
    before = size_at(commit)
    yield f"| | {commit} | now |"
    yield "|---|---:|---:|"
    for what, now in size():
        yield f"| {what} | {before[what]:,} | {now:,} |"


# -- the picture -----------------------------------------------------------------------------------

CELL, LEFT, TOP = 30, 130, 110
STYLE = """
  rect.page { fill: #ffffff } text { fill: #1f2328; font: 13px sans-serif }
  rect.even { fill: #f2f4f7 } rect.own { fill: #d0d7de } rect.import { fill: #0969da }
  text.count { fill: #ffffff; font-size: 11px; text-anchor: middle } text.row { text-anchor: end }
  @media (prefers-color-scheme: dark) {
    rect.page { fill: #131416 } text { fill: #e6edf3 } rect.even { fill: #1d1f23 }
    rect.own { fill: #3d444d } rect.import { fill: #1f6feb }
  }
"""


def layers():
    """The rooms, the lowest first, as the table of the package's docstring has them."""
    sys.path.insert(0, str(ROOT))
    import stepwise

    table = (stepwise.__doc__ or "").partition("importing only from those above it::")[2]
    return re.findall(r"^ {4}(\w+) {2,}\S", table, re.MULTILINE)


def picture():
    """The lines of docs/pictures/house.svg."""
    files, arrows = dict(modules()), collections.Counter()
    for name, path in files.items():
        for other in set(imported(path, files)) - {name}:
            arrows[room(name), room(other)] += 1
    rooms = layers()
    size = CELL * len(rooms)
    width, height = LEFT + size + 50, TOP + size + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">'
    )
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
    for n, each in enumerate(rooms):
        at = TOP + n * CELL
        if n % 2 == 0:
            yield f'<rect class="even" x="10" y="{at}" width="{width - 20}" height="{CELL}"/>'
        yield f'<text class="row" x="{LEFT - 10}" y="{at + 20}">{each}</text>'
        x = LEFT + n * CELL + CELL // 2 + 4
        yield f'<text transform="translate({x},{TOP - 8}) rotate(-50)">{each}</text>'
        yield square(n, n, "own")
    for (a, b), count in sorted(arrows.items()):
        if a in rooms and b in rooms and a != b:
            row, column = rooms.index(a), rooms.index(b)
            yield square(row, column, "import")
            x, y = LEFT + column * CELL + CELL // 2, TOP + row * CELL + CELL // 2 + 4
            yield f'<text class="count" x="{x}" y="{y}">{count}</text>'
    yield "</svg>"


def square(row, column, kind):
    """A cell of the table."""
    x, y = LEFT + column * CELL + 3, TOP + row * CELL + 3
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL - 6}" height="{CELL - 6}" rx="4"/>'


if __name__ == "__main__":
    if sys.argv[1:] == ["--size"]:
        print(json.dumps(dict(size())))
        sys.exit()
    if sys.argv[1:2] == ["--since"]:
        print(*sizes(sys.argv[2]), sep="\n")
        sys.exit()
    if sys.argv[1:2] == ["--picture"]:
        pathlib.Path(sys.argv[2]).write_text("\n".join([*picture(), ""]), encoding="utf-8")
    print(*page(), sep="\n")
