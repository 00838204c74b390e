"""SIGTERM drains a program without a handler: steps in flight end, then it ends as by the signal.

Each test talks to a real process, whose steps end when the test says so.
"""

import pathlib
import re
import signal

import pytest

import stepwise

TERM = -signal.SIGTERM

HEAD = """
import asyncio, os, select, signal, subprocess, sys, threading, time
import stepwise
from stepwise import step, tool, workflow

def line(*words):
    print(*words, flush=True)

def heard():
    text = b""
    while not text.endswith(b"\\n"):
        # Python would run no handler of a signal that came just before it began to read.
        while not select.select([0], [], [], 0.05)[0]:
            pass
        text += os.read(0, 1) or b"\\n"
    return text.decode()

@tool(side_effect=True)
def send(n):
    line("begins", n)
    answer = heard()
    line("ends", n)
    return n

@step
async def asend(n, gate=None):
    line("begins", n)
    await asyncio.get_running_loop().run_in_executor(None, heard)
    line("ends", n)
    return n

@workflow
def child():
    return [send(n) for n in range(3)]

"""
UNWINDING = """
@workflow
def agent():
    try:
        {body}
    finally:
        line("finally")
        send(99)

"""
ASYNC = UNWINDING.replace("def ", "async def ").replace("send(99)", "await asend(99)")
SENDING = UNWINDING.format(body="return [send(n) for n in range(3)]")
OUTSIDE = 'try:\n    {}\nfinally:\n    line("outside")\n'
PROGRAMS = {
    "plain": SENDING + OUTSIDE.format("agent()"),
    "async": ASYNC.format(body="await asend(0)\n        await asend(1)")
    + OUTSIDE.format("asyncio.run(agent())"),
    "thread": f'{SENDING}agent.start().result()\nline("outside")\n',
    "task": ASYNC.format(body="return [await asend(n) for n in range(3)]")
    + """
async def main():
    handle = await asyncio.sleep(0, agent.start())
    await handle
    line("outside")

asyncio.run(main())
""",
    "map": UNWINDING.format(body="return stepwise.map(send, range(5), max_workers=1)")
    + 'agent()\nline("outside")\n',
    "child": UNWINDING.format(body="return child()") + 'agent()\nline("outside")\n',
}


def terminate(script):
    """Send SIGTERM, and return when the program has begun to end: the next one will kill it.

    Else its other threads, which the main thread does not wait for, may be through by then.
    """
    status = pathlib.Path(f"/proc/{script.process.pid}/status")
    script.process.send_signal(signal.SIGTERM)
    while status.exists() and script.process.poll() is None:
        (caught,) = re.findall(r"SigCgt:\s*(\w+)", status.read_text("ascii"))
        if not int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            break


def ended(script):
    """Wait for the end of a script: its status, and what it printed since."""
    script.process.stdin.close()
    text = script.process.stdout.read()
    return script.process.wait(), text.split("\n")[:-1]


@pytest.fixture
def drained(start):
    """Start a program, send SIGTERM in its first step, let that end: its status, and the rest."""

    def run(program):
        script = start(HEAD + program)
        assert script.hear() == "begins 0"
        terminate(script)
        script.tell()
        return ended(script)

    return run


@pytest.mark.parametrize("how", PROGRAMS)
def test_the_step_in_flight_ends(drained, how):
    """The step in flight is recorded, no other begins, ``finally`` runs, the signal ends it."""
    assert drained(PROGRAMS[how]) == (TERM, ["ends 0", "finally"])
    run = stepwise.runs()[-1]
    assert run.status == "crashed"
    recorded = [each for one in stepwise.runs() for each in one.steps]
    assert [s.status for s in recorded if s.name in ("send", "asend")] == ["completed"]


SWALLOWS = """
@workflow
def agent():
    done = []
    for n in range(3):
        try:
            done.append(send(n))
        except BaseException as error:
            line("swallows", type(error).__name__)
    {then}

try:
    agent()
except BaseException:
    line("swallowed")
line("outside")
"""


@pytest.mark.parametrize("then", ["return done", "raise ValueError(done)"])
def test_a_workflow_that_swallows_the_end_has_no_end(drained, then):
    """Code that swallows what unwinds it begins no step, and nothing that it comes to is recorded.

    It does not keep the process alive either.
    """
    lines = ["ends 0", "swallows SystemExit", "swallows SystemExit"]
    assert drained(SWALLOWS.replace("{then}", then)) == (TERM, lines)
    (run,) = stepwise.runs()
    assert run.status == "crashed"
    assert [step.status for step in run.steps] == ["completed"]


BESIDE = """
@step
async def quick(n):
    line("quick", n)

@workflow
async def agent():
    async def other():
        await quick(1)
        await stopped.wait()
        await quick(2)

    async def first():
        await asend(0)
        await asend(1)

    await asyncio.gather(first(), other())

async def main():
    global stopped
    stopped = asyncio.Event()
    run = asyncio.ensure_future(agent())
    await asyncio.sleep(0)
    while not stepwise._runtime.interrupts.sigterms.draining:
        await asyncio.sleep(0.01)
    stopped.set()
    line("drains")
    await run

asyncio.run(main())
"""


def test_a_branch_waits_for_the_step_beside_it(start):
    """A branch that reaches its next step waits, so that the step beside it ends and is kept."""
    script = start(HEAD + BESIDE)
    assert {script.hear(), script.hear()} == {"begins 0", "quick 1"}
    script.process.send_signal(signal.SIGTERM)
    assert script.hear() == "drains"
    script.tell()
    assert ended(script) == (TERM, ["ends 0"])
    (run,) = stepwise.runs()
    assert [(step.name, step.status) for step in run.steps] == [
        ("asend", "completed"),
        ("quick", "completed"),
    ]


INNER = """
@step
def inner(n):
    line("inner", n)

@step
def outer():
    send(0)
    inner(1)
    return "whole"

@workflow
def agent():
    outer()
    send(1)

agent()
"""


def test_a_step_in_flight_may_call_steps(drained):
    """What a step in flight calls belongs to it, so that it can end."""
    assert drained(INNER) == (TERM, ["ends 0", "inner 1"])
    statuses = [(step.name, step.status) for step in stepwise.runs()[0].steps]
    assert statuses == [("outer", "completed"), ("send", "completed"), ("inner", "completed")]


def test_the_last_step(drained):
    """A run that needs no other step completes."""
    assert drained("@workflow\ndef agent():\n    return send(0)\n\nagent()\n") == (
        TERM,
        ["ends 0"],
    )
    (run,) = stepwise.runs()
    assert (run.status, run.result) == ("completed", 0)


@pytest.mark.parametrize("grace", [0, 0.2, 500])
def test_the_grace_period(start, grace):
    """A step longer than the grace period is cut off, and with a second SIGTERM at once."""
    script = start(f"{HEAD}stepwise.configure(grace={grace})\n{PROGRAMS['plain']}")
    assert script.hear() == "begins 0"
    if grace == 500:
        terminate(script)
    script.process.send_signal(signal.SIGTERM)
    assert script.process.wait() == TERM
    assert [step.status for step in stepwise.runs()[0].steps] == ["in_doubt"]
    for wrong in (-1, "soon", True, float("nan")):
        with pytest.raises(stepwise.ConfigurationError, match="give 0 or more"):
            stepwise.configure(grace=wrong)


IDLE = """
@step(retries=3, backoff=600)
def fails():
    line("waits")
    raise OSError

@workflow
def agent():
    try:
        {0}
    finally:
        line("finally")

{1}
line("outside")
"""
NOTHING = {
    "body": IDLE.format('line("waits")\n        time.sleep(600)', "agent()"),
    "retry": IDLE.format("fails()", "agent()"),
    "async": IDLE.replace("def agent", "async def agent").format(
        'line("waits")\n        await asyncio.sleep(600)', "asyncio.run(agent())"
    ),
}


@pytest.mark.parametrize("how", NOTHING)
def test_nothing_in_flight(start, how):
    """Where no step is in flight, nobody waits: the workflow unwinds at once."""
    script = start(f"{HEAD}stepwise.configure(grace=500)\n{NOTHING[how]}")
    assert script.hear() == "waits"
    script.process.send_signal(signal.SIGTERM)
    assert ended(script) == (TERM, ["finally"])


OWN = """
@workflow
def agent():
    return [send(n) for n in range(2)]

def handler(*_):
    line("handled")

signal.signal(signal.SIGTERM, handler)
line(agent())
assert signal.getsignal(signal.SIGTERM) is handler
"""


def test_a_handler_of_the_program(start):
    """A program with a handler decides for itself: here, it goes on."""
    script = start(HEAD + OWN)
    assert script.hear() == "begins 0"
    script.process.send_signal(signal.SIGTERM)
    assert script.hear() == "handled"
    script.tell()
    assert [script.hear(), script.hear()] == ["ends 0", "begins 1"]
    script.tell()
    assert script.hear() == "ends 1"
    assert script.finish() == "[0, 1]"


AROUND = """
@workflow
def agent():
    line(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
    line(os.waitpid(pid, 0)[1])
    worker = subprocess.run([sys.executable, "-c", "import signal as s; "
        "print(s.getsignal(s.SIGTERM) is s.SIG_DFL, flush=True)"])

agent()
line(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_the_handler_is_there_for_runs_only(start):
    """It is ours while a run is in progress; children and what comes after have the default."""
    assert start(HEAD + AROUND).finish().split() == ["False", "0", "True", "True"]
