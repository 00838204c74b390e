"""The runs in ``tests/data/format-N.tar.xz``: one for each way in which a store holds a run.

``python golden.py`` writes the archive of the present format.  The archive of a released format
stays as it is, and so do these workflows: every later version has to finish its runs.
"""

import contextlib
import os
import pathlib
import sqlite3
import subprocess
import sys
import tarfile
import tempfile

import stepwise
from stepwise import current_step, step, tool, workflow

DATA = pathlib.Path(__file__).parents[1] / "data"
KEY = "the key of the archives, which everybody knows"


@step
def plain(number):
    print(f"plain {number}")
    if os.environ.get("DIE_AT") == f"plain {number}":
        os._exit(9)
    return {"number": number, "square": number * number}


@step(retries=2, backoff=0)
def shaky(text):
    print("shaky")
    if current_step().attempt == 1:
        raise ConnectionError("the line is bad")
    return text.upper()


@step
def large(size):
    print("large")
    return "a" * size


@step
def fails():
    print("fails")
    raise ValueError("no such city")


@step
def adds(messages):
    print("adds")
    messages.append({"role": "tool", "content": "42"})
    return len(messages)


@tool(side_effect=True)
def send(text):
    print(f"send {text}")
    if os.environ.get("DIE_AT") == "send":
        os._exit(9)
    return f"sent {text}"


def give_back(call):
    print(f"give back {call.result}")


@tool(side_effect=True, compensate=give_back)
def book(city):
    print("book")
    return f"{city}-1"


@tool(side_effect=True, approve=True)
def pay(cents):
    print("pay")
    return f"paid {cents}"


@workflow
def inner(number):
    return plain(number)["square"]


@workflow
def whole(texts):
    """Most of what a run can record, to its end."""
    found = [shaky(text) for text in texts]
    messages = [{"role": "user", "content": texts[0]}]
    found.append(adds(messages))
    try:
        fails()
    except ValueError as error:
        found.append(str(error))
    found.append(inner(3))
    stepwise.emit("almost done")
    found.append(len(large(1 << 20)))
    found.append(send("a letter"))
    found.append(stepwise.wait_for("answer"))
    return found, messages


WHOLE = (
    ["TIDES", "WINDS", 2, "no such city", 9, 1 << 20, "sent a letter", 42],
    [{"role": "user", "content": "tides"}, {"role": "tool", "content": "42"}],
)


@workflow
def loop(count):
    """Killed in its last step."""
    total, seen = 0, []
    for number in range(count):
        found = plain(number)
        seen.append(found)
        total += found["square"]
    return total, len(seen)


@workflow
def letter(text):
    """Killed in its side effect."""
    first = plain(1)
    return send(text), first["square"]


@workflow
def payment(cents):
    """Waits for a person."""
    plain(cents)
    return pay(cents)


@workflow
def question():
    return stepwise.wait_for("answer") + 1


@workflow
def failure():
    return fails()


@workflow(compensate_on_failure=True)
def trip(city):
    """Cancelled while it waits: what it booked is undone."""
    return book(city), stepwise.wait_for("go")


@workflow
def later(number):
    """Submitted, and not begun."""
    return plain(number)


def suspended(call, *arguments):
    try:
        call(*arguments)
    except stepwise.RunSuspended:
        return
    raise AssertionError(f"{call} did not wait")


def make_whole():
    run = whole.options(run_id="whole")
    suspended(run, ["tides", "winds"])
    stepwise.get_run("whole").send("answer", 42)
    run(["tides", "winds"])


def make_waiting():
    """The message that it waits for has come, and no process has taken it."""
    suspended(question.options(run_id="waiting"))
    stepwise.get_run("waiting").send("answer", 7)


def make_loop():
    loop.options(run_id="killed")(4)


def make_letter():
    letter.options(run_id="in doubt")("a parcel")


def make_payment():
    suspended(payment.options(run_id="asking"), 900)


def make_failure():
    try:
        failure.options(run_id="failed", tags={"team": "blue"})()
    except ValueError:
        stepwise.get_run("whole").fork()


def make_trip():
    suspended(trip.options(run_id="cancelled"), "Rome")
    stepwise.get_run("cancelled").cancel("it rains")
    with contextlib.suppress(stepwise.RunCancelled):
        trip.options(run_id="cancelled")("Rome")


def make_later():
    later.options(run_id="submitted").submit(5)


STORIES = (
    ("make_whole", ""),
    ("make_waiting", ""),
    ("make_letter", "send"),
    ("make_payment", ""),
    ("make_failure", ""),
    ("make_trip", ""),
    ("make_later", ""),
    ("make_loop", "plain 3"),  # the last one: its log stays
)


def begin(name):
    """Make the runs of a story, on a machine without a name."""
    sys.executable = "python"
    system, _, *others = os.uname()
    os.uname = lambda: os.uname_result((system, "machine", *others))
    stepwise.configure(suspend_after=0)
    globals()[name]()


def main():
    """Write the archive: each story in a process of its own."""
    from stepwise.stores.base import FORMAT

    with tempfile.TemporaryDirectory(prefix="golden-", dir="/tmp") as folder:
        pathlib.Path(folder, "golden.py").write_text(pathlib.Path(__file__).read_text("utf-8"))
        environment = {**os.environ, "STEPWISE_HOME": f"{folder}/home", "STEPWISE_KEY": KEY}
        environment |= {"STEPWISE_STORE": f"disk:{folder}/store", "LOGNAME": "ann"}
        for name, dies in STORIES:
            text = f"import golden; golden.begin({name!r})"
            done = subprocess.run(
                [sys.executable, "-c", text],
                cwd=folder,
                env={**environment, "DIE_AT": dies},
                check=False,
            )
            assert done.returncode == 9 * bool(dies), name
        with contextlib.closing(sqlite3.connect(f"{folder}/store/cache.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        DATA.mkdir(exist_ok=True)
        path = DATA / f"format-{FORMAT}.tar.xz"
        with tarfile.open(path, "w:xz") as file:
            for each in sorted(pathlib.Path(folder, "store").rglob("*")):
                file.add(each, each.relative_to(folder), recursive=False, filter=_nobody)
        print(path, path.stat().st_size)


def _nobody(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
