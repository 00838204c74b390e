"""``record_locals=True``: failures are recorded with short forms of the user's local variables."""

import asyncio
import contextlib
import functools
import gc
import json
import os
import time
import weakref

import pytest
from harness import python

import stepwise
from stepwise import step, workflow
from stepwise._execution import frames
from stepwise._values.preview import HIDDEN, NotShown, PlainPreview, Secrets
from stepwise.testing import fresh_store

SECRET = "sk-S3CR3T-0123456789"
CALLED = []


@pytest.fixture(autouse=True)
def store():
    CALLED.clear()
    stepwise.configure(record_locals=True)
    with fresh_store() as opened:
        yield opened


def failed(flow, *args):
    """The run of a workflow that raises ValueError."""
    with pytest.raises(ValueError, match="no"):
        flow(*args)
    return stepwise.runs(flow)[0]


class Meta(type):
    """A metaclass that notes every question about its classes."""

    def __hash__(cls):
        CALLED.append("metaclass hash")
        return 1

    def __eq__(cls, other):
        CALLED.append("metaclass eq")
        return cls is other

    @property
    def __name__(cls):
        CALLED.append("metaclass name")
        return "Wrong"


class Curious(metaclass=Meta):
    """An object that notes every call of its code."""

    def __repr__(self):
        CALLED.append("repr")
        return "Curious"

    def __getattr__(self, name):
        CALLED.append(name)
        raise AttributeError(name)

    def __hash__(self):
        CALLED.append("hash")
        return 1

    def __eq__(self, other):
        CALLED.append("eq")
        return self is other


class Text(str):
    """A text with code of its own."""

    __slots__ = ()

    def __repr__(self):
        CALLED.append("repr of a text")
        return "text"

    __str__ = __repr__


def test_the_variables_of_a_failed_step():
    """Plain values are shown by content, other objects by type; no code of the user is called."""

    def helper(items):
        total = sum(items)
        raise ValueError(f"no {total}")

    @step
    def work(n):
        curious, text = Curious(), Text("secretly")
        box = {"n": n, "in": [curious, 1.5, None], curious: 1}
        CALLED.clear()
        helper([n, len(box), 3])
        return text

    @workflow
    def flow():
        work(4)

    run = failed(flow)
    outer, inner = run.steps[0].frames
    assert (outer.function, outer.code) == ("work", "helper([n, len(box), 3])")
    assert outer.file == __file__
    assert outer.variables == {
        "n": "4",
        "curious": "<Curious>",
        "text": "<Text>",
        "box": "{'n': 4, 'in': [<Curious>, 1.5, None], <Curious>: 1}",
        "helper": "<function>",
    }
    assert inner.variables == {"items": "[4, 3, 3]", "total": "10"}
    assert inner.code == 'raise ValueError(f"no {total}")'
    assert [each.function for each in run.frames] == ["flow", "work", "helper"]
    assert CALLED == []


def test_off_by_default(store):
    """Without the option a failure leaves nothing beside its records."""
    stepwise.configure(record_locals=False)

    @step
    def work():
        raise ValueError("no")

    @workflow
    def flow():
        work()

    run = failed(flow)
    assert (run.frames, run.steps[0].frames, run.steps[0].failures) == ((), (), {})
    assert store.names(run.id, "frames/") == []


def test_the_environment(monkeypatch):
    """``STEPWISE_RECORD_LOCALS=1`` does the same as ``configure()``."""
    stepwise.configure()
    stepwise._runtime.settings._settings.record_locals = stepwise._runtime.settings._UNSET
    monkeypatch.setenv("STEPWISE_RECORD_LOCALS", "1")

    @workflow
    def flow(n):
        raise ValueError("no")

    assert failed(flow, 5).frames[0].variables == {"n": "5"}


def test_each_attempt():
    """Each failed attempt of a step has its frames; the last one's are those of the step."""
    tries = []

    @step(retries=2, backoff=0.0)
    def flaky():
        tries.append(1)
        number = len(tries)
        if number < 3:
            raise ValueError("no")
        return number

    @workflow
    def flow():
        return flaky()

    assert flow() == 3
    (tried,) = stepwise.runs(flow)[0].steps
    seen = {attempt: frames[-1].variables["number"] for attempt, frames in tried.failures.items()}
    assert (tried.attempts, seen) == (3, {1: "1", 2: "2"})
    assert tried.frames == tried.failures[2]


def test_an_asynchronous_step():
    """The frames of coroutines are recorded like those of functions."""

    async def inside(word):
        await asyncio.sleep(0)
        raise ValueError("no")

    @step
    async def fetch(n):
        await inside("word")

    @workflow
    async def flow():
        await fetch(3)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(flow())
    run = stepwise.runs(flow)[0]
    assert [each.function for each in run.steps[0].frames] == ["fetch", "inside"]
    assert run.steps[0].frames[1].variables == {"word": "'word'"}


def test_a_generator():
    """The frames of a workflow that yields are recorded when it fails."""

    @workflow
    def flow():
        seen = 7
        yield seen
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(flow())
    assert stepwise.runs(flow)[0].frames[-1].variables == {"seen": "7"}


def test_libraries_are_left_out():
    """The frames of Python's library and of installed packages are not recorded."""

    @step
    def work(text):
        json.loads(text)

    @workflow
    def flow():
        work("{no")

    with pytest.raises(ValueError, match="Expecting"):
        flow()
    run = stepwise.runs(flow)[0]
    assert [each.function for each in run.steps[0].frames] == ["work"]


def test_a_run_that_fails_again():
    """After a resume the frames are those of the last failure; a completed run has none."""
    tries = []

    @workflow
    def flow():
        tries.append(1)
        number = len(tries)
        if number < 3:
            raise ValueError("no")
        return number

    assert failed(flow).frames[-1].variables["number"] == "1"
    assert failed(flow).frames[-1].variables["number"] == "2"
    assert (flow(), stepwise.runs(flow)[0].frames) == (3, ())


def test_a_child_run():
    """A child run that fails has frames of its own, and its caller those of both."""

    @workflow
    def child(n):
        raise ValueError("no")

    @workflow
    def flow():
        child(2)

    run = failed(flow)
    (called,) = run.steps
    assert called.frames == ()
    assert [each.function for each in stepwise.get_run(called.child).frames] == ["child"]
    assert [each.function for each in run.frames] == ["flow", "child"]


# -- what is not shown -----------------------------------------------------------------------------


def test_hidden_arguments():
    """What ``secret=``, ``ignore=`` and ``redact=`` name is shown in no frame of the failure."""

    def show(name, value):
        return "a card" if name == "card" else None

    @step(secret=["key"], ignore=["client"], redact=show)
    def pay(key, client, card):
        same, copied = card, f"with {key}"
        raise ValueError(f"no {len(same)} {len(copied)}")

    def helper(name):
        pay(SECRET, ["a client"], f"4111 1111 {len(name)}")

    @step
    def outer(name):
        helper(name)

    @workflow(redact=["name"])
    def flow(name):
        outer(name)

    run = failed(flow, "ann")
    (step_frame,), (run_frame, *inside, again) = run.steps[1].frames, run.frames
    assert [each.variables["name"] for each in inside] == ["<not shown>", "<not shown>"]
    assert [each.variables for each in run.steps[0].frames[:-1]] == [
        each.variables for each in inside
    ]
    assert step_frame.variables == {
        "key": HIDDEN,
        "client": "<ignored>",
        "card": "a card",
        "same": "a card",
        "copied": f"'with {HIDDEN}'",
    }
    assert run_frame.variables["name"] == "<not shown>"
    assert again == step_frame


def test_hidden_arguments_inside_containers():
    """A hidden value is shown in no container, be it by its key or by the object."""

    def wrapped(function):
        @functools.wraps(function)
        def wrapper(*args, **named):
            return function(*args, **named)

        return wrapper

    @step(redact=["number", "note"])
    @wrapped
    def pay(number, note):
        box = {"number": f"4111 {len(note)}", "all": [number, (note, 1)]}
        raise ValueError(f"no {len(box)}")

    @workflow
    def flow():
        pay(f"4111 1111 {len(SECRET)}", note="for ann")

    outer, inner = failed(flow).steps[0].frames
    assert outer.variables["args"] == "(<redacted>,)"
    assert outer.variables["named"] == "{'note': <redacted>}"
    assert inner.variables["box"] == (
        "{'number': <redacted>, 'all': [<redacted>, (<redacted>, 1)]}"
    )


def test_large_hidden_objects_are_let_go():
    """The run keeps no argument alive because it is hidden, if it is shown by its type anyway."""

    class Client:
        pass

    alive = weakref.WeakSet()

    @step(ignore=["client"])
    def call(client):
        raise ValueError("no")

    @workflow
    def flow():
        for _ in range(3):
            client = Client()
            alive.add(client)
            with contextlib.suppress(ValueError):
                call(client)
            del client
        gc.collect()
        return len(alive)

    assert flow() == 0


def test_names_and_texts_of_credentials():
    """A variable or a key with a secret's name, and a text with its shape, are masked."""

    @step
    def work():
        password = "hunter"
        box = {"api_key": "abc", "text": "sk-abcdefghijklmnop1234567890ABCDEF", "n": 1}
        door_code = "1234"
        raise ValueError(f"no {len(password)} {len(box)} {door_code}")

    @workflow
    def flow():
        work()

    stepwise.configure(secret_names=["door_code"])
    shown = failed(flow).steps[0].frames[0].variables
    assert (shown["password"], shown["door_code"]) == (HIDDEN, HIDDEN)
    assert f"'api_key': {HIDDEN}" in shown["box"]
    assert "sk-abc" not in shown["box"]
    assert "'n': 1" in shown["box"]


def test_a_secret_in_a_line_of_source(tmp_path, monkeypatch):
    """A credential that the failing line itself contains is masked."""
    script = tmp_path / "lined.py"
    script.write_text(
        "import stepwise\n"
        "@stepwise.workflow\n"
        "def flow():\n"
        '    raise ValueError("no", dict(password="hunter2-4711"))\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    import lined

    with pytest.raises(ValueError, match="no"):
        lined.flow()
    (frame,) = stepwise.runs(lined.flow)[0].frames
    assert "hunter2" not in frame.code
    assert frame.code.startswith("raise ValueError(")


# -- bounds ----------------------------------------------------------------------------------------


def test_sizes_are_bounded(store):
    """Many frames, many variables and huge values take a bounded part of the store."""
    many = {}
    lines = [f"    v{k} = 'z' * 500" for k in range(500)]
    exec("\n".join(["def fail():", *lines, "    raise ValueError('no')"]), globals(), many)

    def deep(n):
        huge, long, wide = (
            "x" * 10_000_000,
            list(range(100_000)),
            dict.fromkeys(range(999), "y" * 999),
        )
        if n == 0:
            many["fail"]()
        deep(n - 1)
        return huge, long, wide

    @step
    def work():
        deep(40)

    @workflow
    def flow():
        work()

    run = failed(flow)
    (failure,) = store.names(run.id, f"frames/{1:012d}/")
    assert len(store.get(run.id, failure)) < 50_000
    shown = run.steps[0].frames
    assert len(shown) == 20
    assert len(shown[-1].variables) == 51
    assert shown[-2].variables["n"] == "0"
    assert shown[-2].variables["huge"] == "<a text of 10,000,000 characters>"
    assert all(len(text) <= 200 for each in shown for text in each.variables.values())


def test_time_is_bounded(monkeypatch):
    """When its time is over, the rest of the variables is left out."""
    monkeypatch.setattr(frames, "_SECONDS", -1.0)

    @workflow
    def flow(n):
        raise ValueError("no")

    assert failed(flow, 1).frames[0].variables == {"...": "..."}


def test_a_value_past_its_time_is_cut():
    """Inside a value, too, the time is looked at."""
    text = PlainPreview(str, lambda *_: "", time.thread_time() - 1).of([1, 2])
    assert text == "..."


def test_large_bytes_are_not_read():
    """To see that large bytes are no secret, no more of them is decoded than a secret has."""

    class Large(bytes):
        def __getitem__(self, part):
            taken.append(part)
            return super().__getitem__(part)

        def decode(self, *_):
            raise AssertionError

    taken: list = []
    secrets = Secrets()
    secrets.add({"key": "clé-4711"})
    assert not secrets.holds(Large("clé-4711".encode().ljust(1000)))
    assert taken == [slice(None, 33)]
    assert secrets.holds("clé-4711".encode())
    assert secrets.holds(bytearray("clé-4711", "utf-8"))


def test_deep_and_cyclic_values():
    """A value that holds itself, or is nested deeply, is shown as far as it goes."""
    cyclic: list = []
    cyclic.append(cyclic)
    shows = PlainPreview(str, lambda *_: "", time.perf_counter() + 9)
    assert shows.of(cyclic) == "[[[[[...]]]]]"
    assert shows.of(object()) == "<object>"
    assert (
        shows.of({"a": {1, 2}, "b": (b"x", 3.5, None)}) == "{'a': {1, 2}, 'b': (b'x', 3.5, None)}"
    )


# -- damage, the command line ----------------------------------------------------------------------


def test_damaged_frames(store):
    """Frames whose seal does not verify are refused, and ``verify`` names the step."""

    @step
    def work():
        raise ValueError("no")

    @workflow
    def flow():
        work()

    run = failed(flow)
    for name in store.names(run.id, "frames/"):
        data = bytearray(store.get(run.id, name))
        data[-30] ^= 1
        store._runs[run.id].objects[name] = bytes(data)
    with pytest.raises(stepwise.UnreadableValueError, match="step 1"):
        _ = run.steps[0].frames
    with pytest.raises(stepwise.UnreadableValueError, match="the run"):
        _ = run.frames
    assert run.verify().damaged_steps == (0, 1)
    assert run.repair().ok
    assert (run.frames, run.steps[0].frames) == ((), ())


def test_the_command_line(tmp_path):
    """``show RUN`` prints the frames of the run, ``show RUN STEP`` those of each attempt."""
    script = tmp_path / "main.py"
    script.write_text(
        "import stepwise\n"
        "@stepwise.step(retries=1, backoff=0.0)\n"
        "def work(n):\n"
        "    half = n / 2\n"
        "    raise ValueError('no')\n"
        "@stepwise.workflow\n"
        "def flow():\n"
        "    work(9)\n"
        "flow()\n"
    )
    environment = {**os.environ, "STEPWISE_HOME": str(tmp_path / "home")}
    python(script, cwd=tmp_path, env={**environment, "STEPWISE_RECORD_LOCALS": "1"})
    shown = python("-m", "stepwise", "show", "flow", env=environment).stdout
    assert "the run failed here" in shown
    assert "half = 4.5" in shown
    told = python("-m", "stepwise", "show", "flow", "1", env=environment).stdout
    assert [told.count(f"attempt {n} failed here") for n in (1, 2)] == [1, 1]
    facts = json.loads(
        python("-m", "stepwise", "show", "flow", "1", "--json", env=environment).stdout
    )
    assert facts["failures"]["2"][0]["variables"] == {"n": "9", "half": "4.5"}
    assert facts["inputs"] is None


def test_placeholders_are_equal_by_their_text():
    """Placeholders of the same text are equal, so that inputs can be compared."""
    assert NotShown("<secret>") == NotShown("<secret>") != NotShown("<ignored>")
    assert len({NotShown("a"), NotShown("a")}) == 1
