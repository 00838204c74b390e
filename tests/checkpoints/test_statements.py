"""What has flowed into a statement comes back with it: values drawn before a step that is killed.

Each program draws something, says so in its log, and is killed inside of the step or tool that gets
it.  Run again, it calls that with the very same value, and draws nothing again.
"""

from __future__ import annotations

import pytest
from harness import Doubt
from survival import lab_of

TOOLS = """
    import functools
    import os

    @tool(side_effect=True, in_doubt="retry")
    def pay(*cents, **more):
        log(f"try {cents} {more}")
        here("in pay")
        return [*cents, *more.values()]

    @tool(side_effect=True, in_doubt="retry")
    async def apay(*cents):
        log(f"try {cents} {{}}")
        here("in pay")
        return [*cents]

    @step
    def ask(*about):
        log(f"try {about} {{}}")
        here("in pay")
        return [*about]

    def draw():
        log("draw")
        return random.randrange(10**9)

    def helper(cents):
        return pay(cents)

    class Till:
        @tool(side_effect=True, in_doubt="retry")
        def pay(self, cents):
            return pay.__wrapped__(cents)

    class Clock:
        @property
        def now(self):
            return draw()

    @step
    def act(number):
        globals()["act"] = lambda _: draw()
        return number

    TOOLS = {"pay": pay, "draw": draw}
    clock = Clock()
"""

DRAWN = {
    "a number": ["cents = draw()", "pay(cents)"],
    "a number, for a plain step": ["cents = draw()", "ask(cents)"],
    "from the standard library": ["cents = random.randrange(10**9)", "pay(cents)"],
    "the time": ["now = time.time_ns()", "pay(now)"],
    "before the first of several": ["cents = draw()", "pay(cents) and work(2)"],
    "without a call": ["cents = os.environ['WORLD_NUMBER']", "pay(cents)"],
    "by a property": ["cents = clock.now", "pay(cents)"],
    "after a step": ["work(1)", "cents = draw()", "pay(cents)"],
    "after a step, by the library": ["work(1)", "cents = random.random()", "pay(cents)"],
    "far before": ["cents = draw()", "work(1)", "more = cents + 1", "log('on')", "pay(more)"],
    "by a helper": ["cents = draw()", "helper(cents)"],
    "by a helper, after a step": ["work(1)", "cents = random.random()", "helper(cents)"],
    "by a method": ["cents, till = draw(), Till()", "till.pay(cents)"],
    "by what a dict holds": ["cents = TOOLS['draw']()", "TOOLS['pay'](cents)"],
    "by a partial": ["cents = draw()", "call = functools.partial(pay, cents)", "call()"],
    "by a lambda": ["cents = draw()", "call = lambda: pay(cents)", "call()"],
    "in an if": ["work(1)", "cents = draw()", "if cents >= 0:", "    pay(cents)"],
    "for the head of an if": ["cents = draw()", "if pay(cents):", "    work(2)"],
    "for an elif": ["cents = draw()", "if not cents:", "    pass", "elif pay(cents):", "    pass"],
    "in an else": ["cents = draw()", "if cents < 0:", "    pass", "else:", "    pay(cents)"],
    "in a loop": ["for i in range(2):", "    cents = draw()", "    work(i)"]
    + ["    more = cents + random.random()", "    if i == 1:", "        pay(cents, more)"],
    "for the head of a loop": ["cents = draw()", "for each in pay(cents):", "    work(each)"],
    "for the head of a while": ["cents = draw()", "while pay(cents) and cents:", "    cents = 0"],
    "for a second pass": ["cents = -1", "while cents < 0 or not pay(cents):"]
    + ["    work(1)", "    cents = draw()"],
    "in a with": ["cents = draw()", "with contextlib.suppress(ValueError):", "    pay(cents)"],
    "in a with of its own": ["work(1)", "cents = random.random()"]
    + ["with open(sys.argv[0]):", "    pay(cents)"],
    "over a generator": ["work(1)", "cents = random.random()"]
    + ["for each in (c for c in [cents]):", "    pay(each)"],
    "in a try": ["work(1)", "cents = draw()", "try:", "    pay(cents)", "finally:", "    pass"],
    "for a handler": ["work(1)", "cents = random.random()", "try:", "    {}['x']"]
    + ["except KeyError:", "    pay(cents)"],
    "in a match": ["cents = draw()", "match cents:", "    case int():", "        pay(cents)"],
    "for the head of a match": ["cents = draw()", "match pay(cents):", "    case [_]:"]
    + ["        pass"],
    "returned": ["cents = draw()", "return pay(cents)"],
    "asserted": ["cents = draw()", "assert pay(cents)"],
    "in a comprehension": ["cents = [draw(), 2]", "paid = [pay(each) for each in cents[:1]]"],
    "in a class": ["cents = draw()", "class Paid:", "    paid = pay(cents)"],
    "deleted": ["cents = [draw()]", "del cents[pay(*cents) is None]"],
    "for another function of the kind": ["call = work if random else pay", "call(1)"]
    + ["cents = draw()", "call = pay", "call(cents)"],
    "by what a name denotes at the next pass": ["for i in range(2):", "    cents = act(i)"]
    + ["    if i:", "        pay(cents)"],
}


def survives_inside(body, options="", kind="def"):
    """Kill the program inside of what gets the drawn value, and run it again; its log."""
    lines = "".join(f"\n        {line}" for line in body)
    program = f"{TOOLS}\n    @workflow({options})\n    {kind} flow():{lines}\n"
    call = "asyncio.run(flow())" if kind == "async def" else "flow()"
    program += f"\n    def run():\n        {call}\n"
    with lab_of(program) as lab:
        lab.environment["WORLD_NUMBER"] = "1"
        assert lab.run(die_at="in pay").code == -9, lab.said
        before = lab.log
        lab.environment["WORLD_NUMBER"] = "2"
        ended = lab.run()
        assert ended.code == 0, ended.text
        again = lab.log[len(before) :]
        assert again[0] == before[-1], (before, again)
        assert before[-1].startswith("try ")
        return again


@pytest.mark.parametrize("name", DRAWN)
def test_what_was_drawn_comes_back(name):
    """What the statements before it drew is paid again as it was, and not drawn again."""
    assert "draw" not in survives_inside(DRAWN[name])


ASYNC = {
    "awaited": ["cents = draw()", "await apay(cents)"],
    "gathered": ["await awork(1)", "cents = random.random()", "await asyncio.gather(apay(cents))"],
    "in a lock": ["lock = asyncio.Lock()", "cents = draw()", "async with lock:"]
    + ["    await apay(cents)"],
}


@pytest.mark.parametrize("name", [*ASYNC, "a number", "after a step", "by a helper", "in a with"])
def test_what_was_drawn_comes_back_to_what_is_awaited(name):
    """The same holds for coroutine functions; and however few checkpoints are asked for."""
    if name in ASYNC:
        assert "draw" not in survives_inside(ASYNC[name], kind="async def")
    else:
        assert "draw" not in survives_inside(DRAWN[name], "checkpoint_every=50")


WITHIN = {
    "popped": ["queue = [1, 2, 3]", "pay(queue.pop(0))", "pay(*queue)"],
    "next": ["it = iter([1, 2, 3])", "pay(next(it))", "pay(*it)"],
    "walrus": ["n = 1", "pay(n := n + 1)", "pay(n)"],
    "added": ["n = [1]", "n = n + pay(len(n))", "pay(*n)"],
    "after another step": ["n = work(1) + len(pay(2))", "work(n)"],
    "chosen": ["n = 1", "n = work(n) if n > 1 else pay(n)", "work(len(n))"],
    "starred": ["n = [[1, 2], {'k': 3}]", "pay(*n.pop(0), **n.pop())", "work(len(n))"],
    "twice": ["n = [1, 2]", "found = pay(n.pop()), ask(n.pop())", "work(len(found))"],
    "awaited": ["n = [1, 2]", "await apay(await awork(n.pop()), n.pop())", "await awork(len(n))"],
}


@pytest.mark.parametrize("name", WITHIN)
def test_what_the_statement_itself_changes(name):
    """A statement that is executed again finds the variables as they were before it."""
    survives_inside(WITHIN[name], kind="async def" if name == "awaited" else "def")


def test_what_is_drawn_first_after_going_on():
    """What the very statement draws at which a run went on is not drawn again either."""
    program = """
    def draw_slowly():
        if os.environ["WORLD_NUMBER"] == "1":
            raise OSError("away")
        return draw()

    @workflow(checkpoint_every=2)
    def run():
        work(1)
        work(2)
        cents = draw_slowly()
        pay(cents)
    """
    with lab_of(f"{TOOLS}{program}") as lab:
        lab.environment["WORLD_NUMBER"] = "1"
        assert lab.run().code == 1
        lab.environment["WORLD_NUMBER"] = "2"
        killed = lab.run(die_at="in pay")
        assert killed.code == -9, killed.text
        assert "resumes at" in killed.text
        before = lab.log
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.log == [*before, before[-1]]


def test_what_somebody_settled_is_what_was_paid():
    """After ``resolve --landed`` the variables are those of the call that landed."""
    program = """
        @tool(side_effect=True)
        def pay(cents):
            log(f"try {cents}")
            here("in pay")

        @workflow
        def run():
            cents = random.randrange(10**9)
            pay(cents)
            log(f"paid {cents}")
    """
    with lab_of(program) as lab:
        assert lab.run(die_at="in pay").code == -9
        lab.settle(Doubt.read(lab.run().text), "null")
        assert lab.run().code == 0
        tried, paid = lab.log
        assert tried.removeprefix("try ") == paid.removeprefix("paid ")


def test_number_crunching_takes_no_checkpoints():
    """Loops that call nothing that could be a step, or a helper that is none, take none."""
    program = """
        def plain(x):
            return x + 1

        @workflow(retention="all")
        def flow():
            total = work(1)
            for i in range(20_000):
                total += abs(i) + random.random()
            work(2)
            for i in range(20_000):
                total = plain(total)
            return work(3)

        def run():
            return len(flow.execute().checkpoints)
    """
    with lab_of(program) as lab:
        assert lab.run().code == 0, lab.said
        assert lab.result in (2, 3)
