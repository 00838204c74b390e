"""Which edits of steps are reported: a hundred that change what a step does, a hundred that do not.

    python benchmarks/edits.py [--only WORD] [--json FILE]

A small project (``edited/``) has a step for each way in which code gets its meaning: literals,
operators, helpers, helpers of helpers, prompts, methods, base classes, decorators, models.  One run
of all its steps is recorded and stops at the last statement.  For each edit, a copy of the store
and of the project is made, one text is replaced by another, and a process of its own resumes the
run.  The first statement of the workflow is edited as well, so that the run replays and every
record answers.  An edit counts as *told* if the run reports the steps that the edit means;
a *cosmetic* edit must report none.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import traceback
from typing import NamedTuple

import common
import pydantic  # noqa: F401 -- the project uses it

import stepwise  # noqa: F401 -- forks need not import it

_PROJECT = common.HERE / "edited"
_TOLD = re.compile(r"(?:step|tool) (\S+) \([\w.]+:\d+\) has changed since its result")


class Edit(NamedTuple):
    """One edit of the project.

    Args:
        steps: names of the steps that the edit changes, in order; empty for a cosmetic edit.
        old: occurs exactly once in the file.
        file: without ``.py``.
        also: a second replacement, in the same file.
    """

    steps: str
    old: str
    new: str
    file: str = "agents"
    also: tuple[str, str] | None = None


_SEMANTIC = (
    # literals, operators, comparisons
    Edit(
        "literal", "return x + 1\n\n\n@step\ndef compared", "return x + 2\n\n\n@step\ndef compared"
    ),
    Edit(
        "literal", "return x + 1\n\n\n@step\ndef compared", "return x - 1\n\n\n@step\ndef compared"
    ),
    Edit(
        "literal", "return x + 1\n\n\n@step\ndef compared", "return 1 + x\n\n\n@step\ndef compared"
    ),
    Edit(
        "literal",
        "return x + 1\n\n\n@step\ndef compared",
        "return x + 1.0\n\n\n@step\ndef compared",
    ),
    Edit(
        "literal",
        "return x + 1\n\n\n@step\ndef compared",
        "return x + True\n\n\n@step\ndef compared",
    ),
    Edit("literal", "return x + 1\n\n\n@step\ndef compared", "x + 1\n\n\n@step\ndef compared"),
    Edit(
        "literal",
        "return x + 1\n\n\n@step\ndef compared",
        "x += 1\n    return x + 1\n\n\n@step\ndef compared",
    ),
    Edit("compared", "if x > 2:", "if x >= 2:"),
    Edit("compared", "if x > 2:", "if not x > 2:"),
    Edit("compared", "if x > 2:", "while x > 2:"),
    Edit("compared", '        return "many"\n', '        return "Many"\n'),
    Edit("compared", '        return "many"\n', '        return b"many"\n'),
    Edit(
        "compared",
        '        return "many"\n    return "few"',
        '        return "few"\n    return "many"',
    ),
    # arguments, defaults, keywords
    Edit("ordered", "divmod(x, 7)", "divmod(7, x)"),
    Edit("ordered", "divmod(x, 7)", "divmod(*(x, 7, 1)[:2])"),
    Edit("ordered", "divmod(x, 7)", "pow(x, 7)"),
    Edit("defaulted", "def defaulted(x, times=2)", "def defaulted(x, times=3)"),
    Edit("defaulted", "def defaulted(x, times=2)", "def defaulted(x, *, times=2.5)"),
    Edit("keyword", "sort_keys=True", "sort_keys=False"),
    Edit("keyword", "sort_keys=True", "skipkeys=True"),
    Edit("keyword", ", sort_keys=True", ""),
    Edit("keyword", '"b": x, "a": 1', '"a": 1, "b": x'),
    Edit("keyword", '"a": 1}', '"c": 1}'),
    # helpers, helpers of helpers
    Edit("helped", ".strip().lower()", ".strip().upper()", "helpers"),
    Edit("helped", ".strip().lower()", ".lower()", "helpers"),
    Edit("helped", 'clean(f" {x} ")', 'shout(f" {x} ")'),
    Edit("helped", "import clean, grade, shout", "import shout as clean, grade, shout"),
    Edit("helped_twice", ">= BOUND", "> BOUND", "helpers"),
    Edit("helped_twice", "BOUND = 12", "BOUND = 14", "scales"),
    Edit("helped_twice", "BONUS = 1", "BONUS = -5", "scales"),
    Edit("helped_twice", "x * 2 + BONUS", "x * 2 - BONUS", "scales"),
    Edit("helped_twice", "x * 2 + BONUS", "x + 2 * BONUS", "scales"),
    Edit("helped_twice", '"good" if', '"fine" if', "helpers"),
    Edit("partial", "text.upper()", "text.title()", "helpers"),
    Edit("partial", '"!" * times', '"?" * times', "helpers"),
    Edit("partial", "times=2)(f", "times=3)(f"),
    # constants, prompts
    Edit("constant derived", "RATE = 3\n", "RATE = 4\n"),
    Edit("derived", "VAT = RATE * 7 / 100", "VAT = RATE * 9 / 100"),
    Edit("derived", "round(x * VAT, 2)", "round(x * VAT, 1)"),
    Edit("named", '("ann", "bob")', '("ann", "bob", "cid")'),
    Edit("named", '("ann", "bob")', '("bob", "ann")'),
    Edit("known", 'frozenset({"eur", "usd"})', 'frozenset({"usd"})'),
    Edit("known", '"eur" in KNOWN', '"eur" not in KNOWN'),
    Edit("matched", r'r"[a-z]+-\d+"', r'r"[a-z]+-\d"'),
    Edit("matched", r're.compile(r"[a-z]+-\d+")', r're.compile(r"[a-z]+-\d+", re.I)'),
    Edit("matched", "PATTERN.findall(", "PATTERN.split("),
    Edit("prompted", "a careful assistant", "a careless assistant", "texts"),
    Edit("prompted", "{SYSTEM} {x}", "{SYSTEM}: {x}"),
    Edit("prompted_by_module", '"Good day,"', '"Good night,"', "texts"),
    Edit("limited", "(10, 100)", "(5, 100)", "texts"),
    Edit("limited", "min(x, *LIMITS)", "max(x, *LIMITS)"),
    Edit("weighted", "title=3", "title=4", "texts"),
    Edit("weighted", "WEIGHTS.title", "WEIGHTS.body"),
    Edit("toned", '"Sir or Madam"', '"Madam or Sir"', "texts"),
    Edit("toned", "Tone.FORMAL.value", "Tone.CASUAL.value"),
    Edit("toned", "Tone.FORMAL.value", "Tone.FORMAL.name"),
    # methods, base classes, class attributes
    Edit("weighed weighed_by_class", "factor = 2", "factor = 3"),
    Edit("weighed weighed_by_class", "offset = 5", "offset = 6"),
    Edit("weighed weighed_by_class", "x * self.factor", "x + self.factor"),
    Edit("weighed weighed_by_class", "self.scale(x) + self.offset", "self.scale(x) - self.offset"),
    Edit("weighed weighed_by_class", "self.scale(x) + self.offset", "x + self.offset"),
    Edit("weighed_by_class", "cls().weigh(x)", "cls().weigh(x + 1)"),
    Edit("unit", 'return "kg"', 'return "lb"'),
    Edit("signed", "return -x", "return +x"),
    Edit(
        "weighed weighed_by_class unit",
        "class Scale(Base)",
        "class Scale(Light)",
        also=(
            "class Scale(Light",
            'class Light(Base):\n    factor = 4\n    unit = "mg"\n\n\nclass Scale(Light',
        ),
    ),
    # dataclasses, models
    Edit("ordering", "count: int = 1", "count: int = 2"),
    Edit("ordering", "self.count * 10", "self.count * 11"),
    Edit("ordering", ".total()\n\n\nclass Offer", ".count\n\n\nclass Offer"),
    Edit("offered quote", 'currency: str = "eur"', 'currency: str = "usd"'),
    Edit("offered quote", "price: int = Field(ge=0)", "price: float = Field(ge=0)"),
    Edit("offered quote", 'currency: str = "eur"', 'currency: str = "eur"\n    note: str = ""'),
    Edit("offered", ".model_dump()", ".model_dump(exclude_defaults=True)"),
    # tools: prompts and schemas
    Edit("search", "Search the catalogue for a query.", "Search the whole catalogue for a query."),
    Edit("search", "limit: int = 5", "limit: int = 6"),
    Edit("search", "query: str, limit", "query: str | None, limit"),
    Edit("search", "[query] * limit", "[query.upper()] * limit"),
    Edit("quote", "Quote an offer to the customer.", "Quote an offer."),
    Edit("quote", "{offer.price} {offer.currency}", "{offer.currency} {offer.price}"),
    # decorators
    Edit("wrapped", "value + 1", "value + 2", "retrying"),
    Edit("wrapped", "@step\n@logged\n", "@step\n"),
    Edit("patient_step", "times=3)", "times=4)"),
    Edit("patient_step", "range(times)", "range(times + 1)", "retrying"),
    # expressions
    Edit("squares", "n * n for", "n + n for"),
    Edit("squares", "if n % 2 == 0]", "if n % 2]"),
    Edit(
        "squares",
        "[n * n for n in range(x) if n % 2 == 0]",
        "{n * n for n in range(x) if n % 2 == 0}",
    ),
    Edit("formatted", "{x:>5}", "{x:<5}"),
    Edit("formatted", "{x + 1!r}", "{x + 1!s}"),
    Edit("sliced", "[1:x]", "[1:-x]"),
    Edit("unpacked", "[first, rest]", "[rest, first]"),
    Edit("unpacked", "first, *rest = range(x)", "*rest, first = range(x)"),
    # statements
    Edit("looped", "continue", "break"),
    Edit("looped", "total += n", "total -= n"),
    Edit("guarded", "except ValueError", "except TypeError"),
    Edit("guarded", '        os.environ.get("HOME")', "        return 0"),
    Edit("chosen", "case 1:", "case 2:"),
    Edit("conditional", "x and not x == 3", "x or not x == 3"),
    Edit("nested", "y + 7", "y + 8"),
    Edit("sorted_by", "key=lambda each: len(each)", "key=lambda each: each"),
    Edit("summed", "n := x * 2", "n := x * 3"),
    Edit("exact", 'Decimal("0.1")', "Decimal(0.1)"),
    Edit("raised", "raise ValueError(f", "raise RuntimeError(f"),
    Edit("awaited", "x + 50", "x + 51"),
    Edit("Agent.greet", "dear {x}", "dearest {x}"),
    Edit("Agent.greet", 'greeting = "hello"', 'greeting = "hi"'),
)

_COSMETIC = (
    # comments and blank lines
    Edit(
        "",
        "return x + 1\n\n\n@step\ndef compared",
        "# the next one\n    return x + 1\n\n\n@step\ndef compared",
    ),
    Edit(
        "",
        "return x + 1\n\n\n@step\ndef compared",
        "return x + 1  # the next one\n\n\n@step\ndef compared",
    ),
    Edit("", "return divmod(x, 7)", "\n    return divmod(x, 7)\n"),
    Edit("", "def sign(x):\n", "def sign(x):\n        # the other one\n"),
    Edit("", "RATE = 3\n", "RATE = 3  # percent\n"),
    Edit("", "BOUND = 12", "# the bound\nBOUND = 12", "scales"),
    Edit("", "return x * 2 + BONUS", "# twice\n    return x * 2 + BONUS", "scales"),
    Edit("", 'NAMES = ("ann", "bob")', 'NAMES = (\n    "ann",  # the first\n    "bob",\n)'),
    Edit("", "total = 0\n", "total = 0\n\n"),
    Edit(
        "",
        "    value = function(*args, **kwargs)\n        return value + 1",
        "    # called\n        value = function(*args, **kwargs)\n        return value + 1",
        "retrying",
    ),
    Edit("", "factor = 2", "factor = 2  # of all"),
    Edit("", 'currency: str = "eur"', 'currency: str = "eur"  # ISO 4217'),
    Edit("", "case 1:", "case 1:  # exactly"),
    Edit("", "return [query] * limit", "# as often\n    return [query] * limit"),
    Edit("", "class Scale(Base):\n", "class Scale(Base):\n    # heavy\n\n"),
    # quotes, numbers, line breaks, parentheses, trailing commas
    Edit("", 'return "many"', "return 'many'"),
    Edit("", 'return "many"', 'return """many"""'),
    Edit("", 'return "many"', 'return "ma" "ny"'),
    Edit("", 'return "many"', 'return ("many")'),
    Edit("", 'return "many"', r'return "m\x61ny"'),
    Edit("", "x > 1000", "x > 1_000"),
    Edit("", "x > 1000", "x > 0x3E8"),
    Edit("", "x > 1000", "(x) > (1000)"),
    Edit("", "x > 1000", "(\n        x\n        > 1000\n    )"),
    Edit("", "divmod(x, 7)", "divmod(\n        x,\n        7,\n    )"),
    Edit("", "divmod(x, 7)", "divmod(x,7)"),
    Edit("", "return divmod(x, 7)", "return (divmod(x, 7))"),
    Edit("", '"b": x, "a": 1}', '"b": x,\n        "a": 1,\n    }'),
    Edit("", "return [first, rest]", "return [first, rest,]"),
    Edit("", "first, *rest = range(x)", "(first, *rest) = range(x)"),
    Edit(
        "",
        "[n * n for n in range(x) if n % 2 == 0]",
        "[\n        n * n\n        for n in range(x)\n        if n % 2 == 0\n    ]",
    ),
    Edit("", 'f"{x:>5} of {x + 1!r}"', "f'{x:>5} of {x + 1!r}'"),
    Edit("", 'f"{x:>5} of {x + 1!r}"', 'f"{x:>5} of " f"{x + 1!r}"'),
    Edit("", 'f"{x:>5} of {x + 1!r}"', 'f"{ x:>5} of { x + 1 !r}"'),
    Edit("", '"yes" if x and not x == 3 else "no"', '("yes" if (x and (not x == 3)) else "no")'),
    Edit("", '"yes" if x and not x == 3 else "no"', '"yes" if x and not (x == 3) else "no"'),
    Edit("", "return total\n", "return (\n        total\n    )\n"),
    Edit("", "total += n", "total+=n"),
    Edit("", "if n == 4:\n            continue", "if n == 4: continue"),
    Edit("", "x * 2 + BONUS", "(x * 2) + BONUS", "scales"),
    Edit(
        "",
        "text.strip().lower()",
        "(\n        text\n        .strip()\n        .lower()\n    )",
        "helpers",
    ),
    Edit("", '"You are a careful assistant."', "'You are a careful assistant.'", "texts"),
    Edit(
        "",
        '"You are a careful assistant."',
        '(\n    "You are a careful "\n    "assistant."\n)',
        "texts",
    ),
    Edit("", "(10, 100)", "(\n    10,\n    100,\n)", "texts"),
    Edit("", '{"eur", "usd"}', '{"usd", "eur"}'),
    Edit("", "RATE = 3\n", "RATE = 0b11\n"),
    Edit("", "RATE * 7 / 100", "(RATE * 7) / 100"),
    Edit("", 'KNOWN = frozenset({"eur", "usd"})', 'KNOWN = frozenset(\n    {"eur", "usd"},\n)'),
    Edit("", "Weights(title=3, body=1)", "Weights(\n    title=3,\n    body=1,\n)", "texts"),
    Edit("", r're.compile(r"[a-z]+-\d+")', 're.compile("[a-z]+-\\\\d+")'),
    Edit(
        "",
        'functools.partial(shout, times=2)(f"{x}")',
        'functools.partial(\n        shout,\n        times=2,\n    )(f"{x}")',
    ),
    # docstrings of plain steps and helpers
    Edit("", "Return the next number.", "Return the number after this one."),
    Edit("", '    """Return the next number."""\n', ""),
    Edit("", "def ordered(x):\n", 'def ordered(x):\n    """Return quotient and rest."""\n'),
    Edit("", "Return a text without the spaces around it.", "Strip and lower a text.", "helpers"),
    Edit("", "def points(x):\n", 'def points(x):\n    """Return the points."""\n', "scales"),
    Edit("", "class Base:\n", 'class Base:\n    """A scale."""\n\n'),
    Edit("", "def scale(self, x):\n", 'def scale(self, x):\n        """Scale."""\n'),
    Edit("", "def logged(function):\n", 'def logged(function):\n    """Log."""\n\n', "retrying"),
    Edit("", '"""A helper of helpers."""', '"""What helpers need."""', "scales"),
    # annotations
    Edit("", "def ordered(x):", "def ordered(x: int) -> tuple[int, int]:"),
    Edit("", "def defaulted(x, times=2):", "def defaulted(x: int, times: int = 2) -> int:"),
    Edit("", "def clean(text):", "def clean(text: str) -> str:", "helpers"),
    Edit("", "def points(x):", 'def points(x: "int") -> "int":', "scales"),
    Edit("", "RATE = 3\n", "RATE: int = 3\n"),
    Edit("", "SYSTEM =", "SYSTEM: str =", "texts"),
    Edit("", "total = 0\n", "total: int = 0\n"),
    Edit("", "def weigh(self, x):", "def weigh(self, x: int) -> int:"),
    Edit("", "factor = 2", "factor: int = 2"),
    Edit(
        "",
        "def wrapper(*args, **kwargs):\n        value = function(*args, **kwargs)\n        return value + 1",
        "def wrapper(*args: object, **kwargs: object) -> object:\n        value = function(*args, **kwargs)\n        return value + 1",
        "retrying",
    ),
    Edit("", "def inner(y):", "def inner(y: int) -> int:"),
    # renamed local variables
    Edit(
        "",
        "    total = 0\n    for n in range(x):\n        if n == 4:\n            continue\n        total += n\n    return total",
        "    added = 0\n    for n in range(x):\n        if n == 4:\n            continue\n        added += n\n    return added",
    ),
    Edit(
        "",
        "    for n in range(x):\n        if n == 4:\n            continue\n        total += n\n",
        "    for each in range(x):\n        if each == 4:\n            continue\n        total += each\n",
    ),
    Edit(
        "",
        "first, *rest = range(x)\n    return [first, rest]",
        "head, *tail = range(x)\n    return [head, tail]",
    ),
    Edit(
        "",
        "[n * n for n in range(x) if n % 2 == 0]",
        "[each * each for each in range(x) if each % 2 == 0]",
    ),
    Edit("", "lambda each: len(each)", "lambda word: len(word)"),
    Edit("", "(n := x * 2) > 3:\n        return n", "(twice := x * 2) > 3:\n        return twice"),
    Edit(
        "",
        "    def inner(y):\n        return y + 7\n\n    return inner(x)",
        "    def add(y):\n        return y + 7\n\n    return add(x)",
    ),
    Edit("", "def inner(y):\n        return y + 7", "def inner(z):\n        return z + 7"),
    Edit(
        "",
        "        value = function(*args, **kwargs)\n        return value + 1",
        "        result = function(*args, **kwargs)\n        return result + 1",
        "retrying",
    ),
    # what stands elsewhere in the file
    Edit(
        "",
        '@step\ndef compared(x):\n    if x > 2:\n        return "many"\n    return "few"\n\n\n',
        "",
        also=(
            "@step\ndef raised",
            '@step\ndef compared(x):\n    if x > 2:\n        return "many"\n    return "few"\n\n\n@step\ndef raised',
        ),
    ),
    Edit("", "BOUND = 12\nBONUS = 1\n", "BONUS = 1\nBOUND = 12\n", "scales"),
    Edit("", "import json\nimport math\n", "import math\nimport json\n"),
    Edit("", "import clean, grade, shout", "import grade, shout, clean"),
    Edit(
        "",
        "import texts\nfrom helpers import clean, grade, shout\n",
        "from helpers import clean, grade, shout\nimport texts\n",
    ),
    Edit("", "import math\n", "import math\nimport string\n"),
    Edit("", 'TABLE = {"low": 1, "high": 10}', 'TABLE = {"low": 1, "high": 20}'),
    Edit("", "RATE = 3\n", "RATE = 3\nUNUSED = 5\n"),
    Edit("", "def unused(x):\n    return x", "def unused(x):\n    return x + 1", "helpers"),
    Edit("", '    CASUAL = "hey"\n', '    CASUAL = "hey"\n\n\nOTHER = "other"\n', "texts"),
    Edit("", "@step\ndef literal", "def another(x):\n    return x\n\n\n@step\ndef literal"),
    Edit("", '"""An agent of many steps', '"""One agent of many steps'),
    Edit(
        "",
        "from dataclasses import dataclass, field",
        "from dataclasses import (\n    dataclass,\n    field,\n)",
    ),
    # what the decorator of a step is told changes no result
    Edit("", "@step\ndef literal", "@step()\ndef literal"),
    Edit("", "@step\ndef literal", "@step(retries=2)\ndef literal"),
    Edit("", "@step\ndef literal", "@step(timeout=60)\ndef literal"),
    Edit("", "@tool\ndef search", "@tool()\ndef search"),
    # the whole file in another layout
    Edit("", "*", "unparse"),
    Edit("", "*", "unparse", "helpers"),
    Edit("", "*", "unparse", "scales"),
    Edit("", "*", "unparse", "texts"),
    Edit("", "*", "unparse", "retrying"),
    Edit("", "*", "crlf"),
    Edit("", "*", "indent by two"),
)


class Told(NamedTuple):
    """What came of an edit: the steps that the resumed run reported, and its last words."""

    steps: tuple[str, ...]
    said: str


def _recorded(folder: pathlib.Path) -> None:
    """Make the project, and a run of it that stops at its end."""
    shutil.copytree(_PROJECT, folder / "project", ignore=shutil.ignore_patterns("__pycache__"))
    code, said = _execute(folder, STOP="1")
    if code != 7:
        sys.exit(said)


def _execute(folder: pathlib.Path, **more: str) -> tuple[int, str]:
    """Call the workflow in a process of its own; return its exit code and what it said."""
    for path in (folder / "project").glob("*.py"):
        os.utime(path, (1, 1))  # as in images that are built reproducibly: times prove nothing
    said = folder / "said"
    child = os.fork()  # of this process, which has imported the libraries
    if not child:
        code = 1
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
        try:
            os.environ.update(STEPWISE_HOME=str(folder / "home"), STEPWISE_QUIET="", **more)
            os.chdir(folder / "project")
            sys.path.insert(0, os.getcwd())
            asyncio.run(importlib.import_module("agents").agent())
            code = 0
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.read_text("utf-8")


def _tried(edit: Edit, recorded: pathlib.Path) -> Told:
    """Resume a copy of the recorded run with the edited project; return what was told."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name, "copy")
        shutil.copytree(recorded, folder)
        path = folder / "project" / f"{edit.file}.py"
        path.write_bytes(_edited(path.read_text("utf-8"), edit))
        agents = folder / "project" / "agents.py"
        agents.write_bytes(agents.read_bytes().replace(b"version = 1", b"version = 2"))
        code, said = _execute(folder)
        return Told(tuple(sorted(set(_TOLD.findall(said)))), said if code else "")


def _edited(text: str, edit: Edit) -> bytes:
    if edit.new == "crlf":
        text = text.replace("\n", "\r\n")
    elif edit.new == "indent by two":
        text = re.sub(r"^( +)", lambda found: found[1][::2], text, flags=re.MULTILINE)
    elif edit.new == "unparse":
        text = ast.unparse(ast.parse(text))
    else:
        for old, new in filter(None, ((edit.old, edit.new), edit.also)):
            if text.count(old) != 1:
                sys.exit(f"{old!r} occurs {text.count(old)} times in {edit.file}.py")
            text = text.replace(old, new)
    return text.encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="edits whose texts have this word")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    figures, wrong = {}, 0
    with tempfile.TemporaryDirectory() as name:
        recorded = pathlib.Path(name, "recorded")
        _recorded(recorded)
        for kind, edits in (("semantic", _SEMANTIC), ("cosmetic", _COSMETIC)):
            chosen = [each for each in edits if options.only in "".join(map(str, each))]
            right = extra = 0
            for edit in chosen:
                told = _tried(edit, recorded)
                meant = set(edit.steps.split())
                extra += len(set(told.steps) - meant) * bool(meant)
                if meant <= set(told.steps) and (meant or not told.steps):
                    right += 1
                else:
                    wrong += 1
                    print(
                        f"{edit.file}.py: {edit.old!r}\n  -> {edit.new!r}\n  meant {edit.steps!r}"
                    )
                    print(f"  told {' '.join(told.steps)!r} {told.said}")
            figures[kind] = {"edits": len(chosen), "right": right, "others told": extra}
            what = "told" if kind == "semantic" else "silent"
            print(f"{kind}: {right} of {len(chosen)} {what}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
