"""Random programs of cached steps, and a program that is killed at a write of its cache or store.

``program(random)`` is the text of a script, ``edited(random, text)`` the text after an edit.
"""

import re

HEAD = """
import os, signal, sys
from datetime import timedelta
import stepwise
from stepwise import Landed, DidNotHappen, step, tool, workflow

def did(what):
    with open(os.environ["DID"], "a") as file:
        file.write(what + "\\n")
    left = int(os.environ.get("KILL", 0)) - 1  # the environment is in no key
    os.environ["KILL"] = str(left)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def landed(call):
    lines = open(os.environ["SENT"]).read().split() if os.path.exists(os.environ["SENT"]) else []
    return Landed(len(lines)) if call.idempotency_key in lines else DidNotHappen

@tool(side_effect=True, in_doubt=landed)
def send(number):
    with open(os.environ["SENT"], "a") as file:
        file.write(stepwise.current_step().idempotency_key + "\\n")
    return 1
"""

FUNCTIONS = [
    "return [x + {a}, *items]",
    "return helper{h}(x) + len(items)",
    "items.append(x + {a}); return len(items)",
    "return items",
    "return {{'all': items, 'x': x * {a}}}",
    "return [list(items), {{x: CONFIG['a']}}]",
    "return TABLE[(x + {a}) % len(TABLE)]",
    "return (lambda y: y * {a} + LEVEL)(x)",
    "items[:] = items[:2]; return x - {a}",
    "return sorted(items, key=lambda each: str(each))[:{a}]",
]
METHODS = [
    "return [self.size, x, {a}]",
    "return self.scaled(x) + {a}",
    "self.seen.append(x); return len(self.seen)",
    "return [self.seen, self.limit]",
]


def program(random):
    """Return the text of a random program."""
    constant = lambda: random.randint(2, 5)  # noqa: E731
    parts = [HEAD, f"LEVEL = {constant()}", f"CONFIG = {{'a': {constant()}}}"]
    parts.append(f"TABLE = [[{constant()}], [{constant()}], [{constant()}]]")
    for number in range(2):
        parts.append(f"def helper{number}(x):\n    return x * {constant()} + LEVEL")
    for number in range(4):
        body = random.choice(FUNCTIONS).format(a=constant(), h=random.randrange(2))
        parts.append(
            f"@step(cache='dev')\ndef step{number}(x, items):\n    did('step{number}')\n    {body}"
        )
    methods = [
        f"    @step(cache=timedelta(days=1))\n    def ask{number}(self, x):\n"
        f"        did('ask{number}')\n        {random.choice(METHODS).format(a=constant())}"
        for number in range(2)
    ]
    parts.append(
        f"class Base:\n    limit = {constant()}\n    def scaled(self, x):\n        return x * "
        f"self.limit\n\nclass Agent(Base):\n    def __init__(self, size):\n        self.size, "
        "self.seen = size, []\n" + "\n".join(methods)
    )
    lines = [f"agents = [Agent({constant()}), Agent({constant()})]", "items, told = [1, [2]], []"]
    for _ in range(random.randint(8, 14)):
        x = random.randint(0, 2)
        given = random.choice(["items", "[1]", "list(items)", "items[-1:]"])
        lines.append(
            random.choice(
                [
                    f"told.append(step{random.randrange(4)}({x}, {given}))",
                    f"told.append(step{random.randrange(4)}({x}, {given}))",
                    f"told.append(agents[{random.randrange(2)}].ask{random.randrange(2)}({x}))",
                    "told[-1:] and isinstance(told[-1], list) and told[-1].append('mine')",
                    "items.append([len(told)])",
                    f"send({x})",
                ]
            )
        )
    body = "\n    ".join(lines)
    parts.append(f"@workflow\ndef flow():\n    {body}\n    return told, items, agents[0].seen")
    parts.append("print(flow.options(run_id=sys.argv[1])())")
    parts.append(
        "answered = sum(bool(each.cached) for each in stepwise.get_run(sys.argv[1]).steps)\n"
        "print('answered', answered, file=sys.stderr)"
    )
    return "\n\n".join(parts) + "\n"


def edited(random, text):
    """Return a program in which one number of its code is another."""
    head, body = text[: len(HEAD)], text[len(HEAD) :]
    found = random.choice([*re.finditer(r"(?<![\w'])[2-5](?![\w'])", body)])
    number = random.randint(2, 5)
    return f"{head}{body[: found.start()]}{number}{body[found.end() :]}"


WRITES = """
import os, signal
import diskcache
from stepwise.stores import _cache, disk

left = int(os.environ.get("KILL_WRITE", 0))

def counted(owner, name):
    plain = getattr(owner, name)
    def counting(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return plain(*args, **kwargs)
        finally:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, counting)

counted(_cache.ByteCache, "put")
counted(diskcache.Cache, "_row_insert")
counted(diskcache.Cache, "_row_update")
counted(disk.DiskStore, "write")
"""
"""What a script executes first to be killed before or after a write."""
