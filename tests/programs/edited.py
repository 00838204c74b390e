"""Random programs, and small random edits of them, as people make before a deploy."""

import re

HEAD = """import collections, enum, os
from dataclasses import dataclass, field
from typing import NamedTuple
from stepwise import step, tool, workflow

@dataclass
class Note:
    text: str
    tags: list = field(default_factory=list)

@dataclass(frozen=True)
class Key:
    name: str

@dataclass(slots=True)
class Slot:
    a: int
    b: int = 0

class Point(NamedTuple):
    x: int
    y: int = 0

class Color(enum.Enum):
    RED = 1
    BLUE = 2

class Own:
    def __init__(self, v):
        self.v = v
    def __setstate__(self, state):
        self.__dict__.update(state)

class Plain:
    limit = 3
    def __init__(self):
        self.seen = set()

LIMIT = 3
made = 0

def count_call():
    global made
    made += 1
    if made == int(os.environ.get("DIE", "0")):
        os._exit(7)

@step
def think(n):
    count_call()
    return {"n": n, "text": "t" * 3}

@step
def score(x):
    count_call()
    return Point(x, 2)

@tool(side_effect=True)
def send(to, n):
    count_call()
    return f"sent {n}"

def helper(n):
    return think(n + 100)
"""

STATEMENTS = [
    ["a{i} = think({i})"],
    ["b{i} = score({i})"],
    ["send('x', {i})"],
    ["notes{i} = [Note('a', ['b'])]"],
    ["key{i} = {{Key('k'): 1}}"],
    ["slot{i} = Slot({i})"],
    ["point{i} = Point({i})"],
    ["color{i} = Color.RED"],
    ["own{i} = Own({i})"],
    ["plain{i} = Plain()"],
    ["for n in range(2):", "    c{i} = think(n * 10 + {i})", "    d{i} = n"],
    ["for n, m in enumerate(['p', 'q']):", "    c{i} = think(m)"],
    ["if LIMIT > 2:", "    e{i} = think({i})", "else:", "    e{i} = 0"],
    ["try:", "    f{i} = think({i})", "except ValueError:", "    f{i} = think(-1)"],
    ["g{i} = [think(k) for k in range(2)]"],
    ["h{i} = helper({i})"],
    ["fn{i} = lambda: {i}"],
    ["in{i} = {i}", "def fun{i}():", "    return in{i} + 1", "r{i} = think(fun{i}())"],
    ["counts{i} = collections.Counter('aab')"],
    ["k{i} = think"],
    ["cls{i} = Note"],
    ["w{i} = 0", "while w{i} < 2:", "    w{i} += 1", "    think(w{i} + {i})"],
    ["with open(os.devnull) as file{i}:", "    think({i})"],
    ["it{i} = iter([1, 2, 3])", "v{i} = think(next(it{i}))"],
]

DEFINITIONS = [
    ("class Note:", "class Remark:"),
    ("    text: str\n", "    text: str\n    more: int = 0\n"),
    ("    text: str\n", "    words: str\n"),
    ("@dataclass(slots=True)", "@dataclass"),
    ("    b: int = 0", "    c: int = 0"),
    ("    y: int = 0", "    y: int = 0\n    z: int = 0"),
    ("    x: int\n    y: int = 0", "    x: int"),
    ("    RED = 1", "    RED = 5"),
    ("    BLUE = 2\n", ""),
    ("class Own:", "class Owner:"),
    ("        self.__dict__.update(state)", "        self.v = state['w']"),
    ("def think(n):", "def ponder(n):"),
    ("def helper(n):", "def helped(n):"),
    ("    limit = 3", "    __slots__ = ('seen',)"),
    ("class Key:", "class Keys:"),
    ("LIMIT = 3", "LIMIT = 1"),
    ("class Plain:", "class Plain(dict):"),
    ("class Color(enum.Enum):", "class Color(enum.IntEnum):"),
    ("class Point(NamedTuple):", "class Spot(NamedTuple):"),
    ("def send(to, n):", "def send(to, n, cc=None):"),
    ("def send(to, n):", "def post(to, n):"),
]
_NAME = re.compile(r"(?:class|def) (\w+)")


def program(rng):
    """The text before the workflow, and the statements of the workflow, each with its lines."""
    body = [
        [line.format(i=i) for line in rng.choice(STATEMENTS)] for i in range(rng.randrange(2, 8))
    ]
    return HEAD, body


def text_of(head, body):
    """The text of a program."""
    lines = "".join(f"    {line}\n" for statement in body for line in statement)
    return (
        f"{head}\n@workflow\ndef agent(task, tags=None, *, flag=False):\n    start = task\n{lines}"
        "    return 'done'\n\nif __name__ == '__main__':\n    print(agent('poem', ['t']))\n"
    )


def edited(rng, head, body):
    """A program after one or two small edits."""
    body = [[*lines] for lines in body]
    for _ in range(rng.choice([1, 1, 1, 2])):
        if rng.random() < 0.3:
            head, body = _redefined(rng, head, body)
        else:
            _edit_body(rng, body)
    return head, body


def _edit_body(rng, body):
    kind = rng.choice(["insert", "delete", "swap", "constant", "comment", "append", "inside"])
    k, j = rng.randrange(len(body)), rng.randrange(len(body))
    if kind == "insert":
        body.insert(k, [f"new = {rng.randrange(9)}"])
    elif kind == "delete" and len(body) > 1:
        del body[k]
    elif kind == "swap":
        body[k], body[j] = body[j], body[k]
    elif kind == "constant":
        line = rng.randrange(len(body[k]))
        body[k][line] = re.sub(r"\d+", lambda m: str(int(m[0]) + 1), body[k][line], count=1)
    elif kind == "comment":
        body.insert(k, ["# a comment", ""])
    elif kind == "append":
        body.append([f"think({rng.randrange(99)})"])
    else:
        at = rng.randrange(len(body[k]))
        line = body[k][at]
        if not line.lstrip().startswith(("else", "except")):
            body[k].insert(at, f"{line[: len(line) - len(line.lstrip())]}x = {rng.randrange(9)}")


def _redefined(rng, head, body):
    """Change a definition; a new name is used everywhere, or only where it is defined."""
    old, new = rng.choice(DEFINITIONS)
    if old not in head:
        return head, body
    head = head.replace(old, new, 1)
    before, after = _NAME.search(old), _NAME.search(new)
    if before and after and before[1] != after[1] and rng.random() < 0.7:
        name = re.compile(rf"\b{before[1]}\b")
        head = name.sub(after[1], head)
        body = [[name.sub(after[1], line) for line in lines] for lines in body]
    return head, body
