"""Workflows that give rise to reports of every kind, and reporters that are made to fail.

Each scenario gives what a user would see: results, effects, exceptions.  None of that may depend on
whether a report fails.
"""

import asyncio
import contextlib
import functools
import inspect
import io
import itertools
import logging
import os
import sys
import threading
import warnings
from unittest import mock

import stepwise
from stepwise import step, tool, workflow
from stepwise._journal import summary
from stepwise._runtime import messages
from stepwise._workflows import frame as _frames
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

effects = []


class InjectedError(Exception):
    """What a reporter is made to raise."""


@step
def say(n):
    effects.append(f"say {n}")
    return n


@tool(side_effect=True)
def send(text):
    effects.append(f"send {text}")
    return f"sent {text}"


def outcome(call, *args, **kwargs):
    """What came of a call: its value, or what it raised."""
    try:
        return call(*args, **kwargs)
    except (stepwise.StepwiseError, stepwise.RunStopped, SimulatedCrash) as error:
        return type(error).__name__  # its text shows previews
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# -- dear checkpoints, variables that cannot be recorded, what is not resumed inside -------------


@workflow
def reads_files(n):
    good = []
    for i in range(n):
        try:
            with open(os.devnull) as file:
                file.read()
            say(i)
            good.append(say(-i))
        except Exception as error:
            send(f"alarm {error!r}")
    return good


@workflow
def without_variables():
    while send("beat") and len(effects) < 4:
        say(1)


def dear():
    settings = {"_SETTLED": -1.0, "_COST": -1.0, "_SHARE": -1.0}
    with mock.patch.multiple(_frames, **settings):
        return outcome(reads_files, 2), outcome(without_variables)


@workflow
def holds_a_lock():
    lock = threading.Lock()
    with lock, contextlib.closing(io.StringIO()) as text:
        say(1)
        say(2)
    for each in (n for n in (3, 4)):
        say(each)
    del lock
    return send(text.closed)


@workflow
def in_handlers_and_loops():
    items = list(range(say(3)))
    try:
        raise ValueError("no")
    except ValueError:
        say(1)
        helper()
        say(2)
    for one, two in itertools.pairwise(items):
        say(one)
        say(two + 10)
        items.append(two)
        if len(items) > 4:
            break
    return items


def helper():
    return [say(n % 2) for n in range(21)]


def a_helper(n):
    for _ in range(n):
        say(n)


@workflow
def with_helpers():
    a_helper(21)
    return len(helper())


@workflow
async def with_tasks():
    async def idle():
        await asyncio.sleep(30)

    task = asyncio.ensure_future(idle())
    found = []
    for n in range(5):
        found.append(say(n))
        await asyncio.sleep(0)
    task.cancel()
    return found


def not_resumable():
    with crash_at(say, "before", call=25):
        begun = outcome(in_handlers_and_loops)
    return (
        begun,
        outcome(in_handlers_and_loops),
        outcome(holds_a_lock),
        outcome(with_helpers),
        outcome(lambda: asyncio.run(with_tasks())),
    )


# -- what calls change, twins, secrets, caches ---------------------------------------------------


@step
def fill(items):
    items.append(1)
    return len(items)


class Client:
    """Holds what has no digest."""

    def __init__(self):
        self.lock = threading.Lock()
        self.count = 0

    @step
    def ask(self, n):
        self.count += 1
        self.held = threading.Lock()
        return n


@functools.cache
def cached(n):
    return say(n)


@workflow
def changes():
    items = []
    fill(items)
    one, two = Client(), Client()
    return [one.ask(1), two.ask(1), one.ask(2), items, fill(items)]


@workflow(secret=("key",))
def with_secret(key):
    return tells(key)


@step(secret=("key",))
def tells(key):
    return f"Bearer {key}"


def caching(text):
    return send(text)


caching = tool(side_effect=True)(caching)
through = functools.lru_cache(caching)


@workflow
def through_a_cache():
    return through("cached")


def made_cached():
    return tool(side_effect=True)(functools.cache(lambda text: text))("x")


def changing():
    with crash_at(fill, "before", call=2):
        first = outcome(changes)
    return (
        first,
        outcome(changes),
        outcome(with_secret, "k" * 20),
        outcome(through_a_cache),
        outcome(made_cached),
    )


# -- resuming: unused records, runs beside others, other arguments, replay -----------------------

version = {"steps": [1, 2, 3], "text": "one"}
total = 0


@workflow
def edited(n):
    for each in version["steps"]:
        say(each)
    send(version["text"])
    return say(n)


@workflow
def assigns(n):
    global total
    total += say(n)
    return say(total)


replays = workflow(eval("lambda n: say(n) + say(n)"))


def resuming():
    global total
    version.update(steps=[1, 2, 3], text="one")
    found = []
    for each, arguments in ((edited, (1,)), (assigns, (2,)), (replays, (3,))):
        with crash_at(say, "before", call=2):
            found.append(outcome(each, *arguments))
    found.append(outcome(edited, 2))
    total += 1
    version.update(steps=[1], text="one")
    found += [outcome(edited, 1), outcome(assigns, 2), outcome(replays, 3)]
    total = 0
    return found


@workflow
def changed_text(n):
    return send(f"at {version['text']}")


def other_arguments():
    version["text"] = "one"
    with crash_at(send, "recorded"):
        first = outcome(changed_text, 1)
    version["text"] = "two"
    return first, outcome(changed_text, 1)


# -- started, recovered, outside of the run, many records ----------------------------------------


@workflow
def fails(n):
    say(n)
    raise ValueError("no")


@workflow
def many(n):
    for each in range(n):
        say(each)
    return n


def started():
    handle = fails.start(1)
    found = [outcome(handle.result)]
    with crash_at(say, "before"):
        found.append(outcome(many.options(run_id="left"), 3))
    found.append(outcome(lambda: len(stepwise.recover().left)))
    return found


@workflow
def unseen():
    outside = []
    thread = _real_thread(target=lambda: outside.append(say(1)))
    thread.start()
    thread.join()
    return outside


class _real_thread(threading.Thread):
    """A thread that the run is not carried into."""

    def run(self):
        import contextvars

        contextvars.Context().run(super().run)


def summarised():
    with mock.patch.object(summary, "EVERY", 3):
        return outcome(many, 7), outcome(unseen)


# -- runs that ask and wait ----------------------------------------------------------------------


@tool(side_effect=True, approve=True, key=("to",))
def pay(to, names):
    effects.append(f"pay {names}")
    names.append(to)
    return names


@workflow(run_id="asks")
def asks():
    return pay("ann", [version["text"]]), stepwise.wait_for("tick")


def steered():
    stepwise.configure(suspend_after=0)  # until the store of the scenario is gone
    found = []
    for version["text"] in ("one", "two"):
        found.append(outcome(asks))
    run = stepwise.get_run("asks")
    for each in run.questions:
        each.approve("yes")
    found += [run.send("tick", n, key="k") for n in (1, 2)]
    return [*found, outcome(asks), [each.status for each in run.inbox]]


class Terminal(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def shown():
    terminal = Terminal()
    with mock.patch.multiple(sys, stdout=terminal, stderr=terminal):
        found = outcome(many.options(progress=True), 2)
        print("done")
    return found


# -- arguments and variables that are recorded ---------------------------------------------------


@step(retries=1, backoff=0.0, redact=["text"])
def breaks(text, items, lock):
    items.append(1)
    raise ValueError(f"no {len(items)}")


@workflow
def recording():
    fill([say(1)])
    breaks("hidden", [say(2)], threading.Lock())


def recorded():
    stepwise.configure(record_arguments=True, record_locals=True)
    try:
        return outcome(recording)
    finally:
        stepwise.configure(record_arguments=False, record_locals=False)


SCENARIOS = {
    each.__name__: each
    for each in (
        dear, not_resumable, changing, resuming, other_arguments, started, summarised, shown,
        steered, recorded,
    )
}  # fmt: skip


# -- running them --------------------------------------------------------------------------------


def run(name, folder):
    """One scenario in a store of its own: what it gave, and the effects that there were."""
    effects.clear()
    through.cache_clear()
    heard = []
    end = stepwise.on_event(heard.append)
    try:
        with fresh_store(folder), warnings.catch_warnings(record=True), quiet_stderr():
            warnings.simplefilter("always")
            return SCENARIOS[name](), list(effects)
    finally:
        end()


@contextlib.contextmanager
def quiet_stderr():
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        yield text


class Failing:
    """Makes the ``nth`` call inside the guard of a reporter raise; counts them.

    Args:
        nth: 0: none.
    """

    def __init__(self, nth=0, error=InjectedError):
        self.nth = nth
        self.error = error
        self.calls = 0
        self.met = set()
        self._here = threading.local()
        self._before = None

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._watch)
        threading.setprofile(self._watch)
        return self

    def __exit__(self, *_):
        sys.setprofile(self._before)
        threading.setprofile(None)

    def _watch(self, frame, event, argument):
        inside = vars(self._here).setdefault("inside", [])
        if frame.f_code is _GUARD and event in ("call", "return"):
            if event == "call":
                function = frame.f_locals["function"]
                self.met.add(f"{function.__module__}.{function.__qualname__}")
                inside.append(frame)
            elif inside and inside[-1] is frame:
                inside.pop()
            return
        if inside and _can_fail(frame, event, argument):
            self.calls += 1
            if self.calls == self.nth:
                inside.clear()
                raise self.error("a reporter fails")


_GUARD = messages.notice.__code__
_OURS = os.path.dirname(stepwise.__file__) + os.sep


def _can_fail(frame, event, argument):
    """Whether it is a call that stepwise makes: inside of others, locks would stay locked.

    What the garbage collector calls meanwhile (``__del__``, the end of a generator) is no part of a
    report, and an error of it reaches nobody.
    """
    if event == "c_call" and argument.__name__ in ("__exit__", "release"):
        return False
    if event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
        return False
    above = frame
    while above is not None and above.f_code is not _GUARD:
        if above.f_code.co_name == "__del__":
            return False
        above = above.f_back
    caller = {"call": frame.f_back, "c_call": frame}.get(event)
    return caller is not None and caller.f_code.co_filename.startswith(_OURS)


def failing_primitives(name):
    """What reports are made with, each failing."""

    def refuse(*_, **__):
        raise InjectedError(name)

    class Refusing(logging.Handler):
        def emit(self, record):
            raise InjectedError(name)

    @contextlib.contextmanager
    def a_log():
        logger, handler = logging.getLogger("stepwise"), Refusing()
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)

    @contextlib.contextmanager
    def a_callback():
        def stop(event):
            raise stepwise.StoreError("of a callback", path="", errno=None)

        ends = [stepwise.on_event(refuse), stepwise.on_event(stop)]
        try:
            yield
        finally:
            for end in ends:
                end()

    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    @contextlib.contextmanager
    def a_closed_stderr():
        def closed():
            return contextlib.redirect_stderr(Closed())

        with mock.patch(f"{__name__}.quiet_stderr", closed):
            yield

    return {
        "a log": a_log,
        "a callback": a_callback,
        "a closed stderr": a_closed_stderr,
        "showing a warning": lambda: mock.patch.object(warnings, "_showwarnmsg", refuse),
        "a preview": lambda: mock.patch("stepwise._values.preview._Repr.repr1", refuse),
    }[name]()


PRIMITIVES = ("a log", "a callback", "a closed stderr", "showing a warning", "a preview")
