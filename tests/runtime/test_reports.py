"""What only reports never reaches the run: notices, warnings, events, progress, previews."""

import ast
import contextlib
import importlib
import logging
import pathlib
import random
import re
import sys
import threading

import pytest
import reporting
from sweeping import SEED, WHOLE, many

import stepwise
from stepwise import ArgumentMutatedWarning, RunWarning, StoreError, step, tool, workflow
from stepwise._runtime import messages
from stepwise._workflows import frame
from stepwise.testing import fresh_store

ROOT = pathlib.Path(stepwise.__file__).parent
TRIALS = 12 if WHOLE else 3  # of each scenario
PAIRS = [
    (name, what)
    for row, name in enumerate(reporting.SCENARIOS)
    for column, what in enumerate(reporting.PRIMITIVES)
    if WHOLE or (row + column) % len(reporting.PRIMITIVES) < 2  # each scenario, each primitive
]


@pytest.fixture(autouse=True)
def outspoken(monkeypatch):
    monkeypatch.setenv("STEPWISE_QUIET", "0")
    logging.getLogger("stepwise").setLevel(logging.DEBUG)
    yield
    logging.getLogger("stepwise").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each scenario gives, and how many calls there are in its reporters."""
    found = {}

    def of(name):
        if name not in found:
            with reporting.Failing() as counting:
                seen = reporting.run(name, tmp_path_factory.mktemp(name) / "store")
            found[name] = seen, counting.calls, counting.met
        return found[name]

    return of


def trials(name, calls, sample=TRIALS):
    chosen = random.Random(f"{SEED} {name}")
    return sorted(chosen.sample(range(1, calls + 1), many(min(sample, calls), calls)))


# -- the sweep -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reporting.SCENARIOS)
def test_a_reporter_that_fails(name, undisturbed, tmp_path, tally):
    """Whatever call inside of a reporter raises, results, effects and errors stay what they are."""
    expected, calls, _ = undisturbed(name)
    chosen = trials(name, calls)
    for nth in chosen:
        error = reporting.InjectedError if nth % 2 else stopped
        with reporting.Failing(nth, error):
            seen = reporting.run(name, tmp_path / str(nth))
        assert seen == expected, nth
    tally("a reporter that fails", len(chosen))


def stopped(text):
    return StoreError(text, path="", errno=None)


@pytest.mark.parametrize(("name", "what"), PAIRS)
def test_what_reports_are_made_with_fails(name, what, undisturbed, tmp_path, tally):
    """A log, a callback, stderr, the warnings or a ``repr`` that always raises changes nothing."""
    expected = undisturbed(name)[0]
    with reporting.failing_primitives(what):
        assert reporting.run(name, tmp_path / "store") == expected
    tally("a reporter that fails", 1)


def test_the_sweep_sees_a_reporter_without_a_guard(undisturbed, tmp_path, monkeypatch):
    """Where the guard lets through what it caught, the sweep sees runs that went another way."""

    def let_through(what, error):
        raise error

    monkeypatch.setattr(messages, "_failed", let_through)
    expected, calls, _ = undisturbed("dear")
    seen = []
    for nth in trials("dear", calls, 12):
        with reporting.Failing(nth), contextlib.suppress(reporting.InjectedError):
            seen.append(reporting.run("dear", tmp_path / str(nth)) == expected)
    assert False in seen


def test_every_reporter_is_in_the_sweep(undisturbed):
    """Each function that only reports is met by a scenario, or has a test that is named here."""
    elsewhere = {
        "stepwise._calls.call._tell_waiting": "test_stopped_calls.py",
        "stepwise._calls.call._tell_open": "test_instrument.py",
        "stepwise._calls.call._warn_unmet": "test_retried_steps.py",
        "stepwise._calls.call._tell_retry_waits": "test_retried_steps.py",
        "stepwise._calls.edits.tell": "test_edited_steps.py",
        "stepwise._calls.cached._tell_untold": "test_cached.py",
        "stepwise._journal.cache._tell": "test_cached.py",
        "stepwise._execution.changes._tell_lost": "test_random_changes.py",
        "stepwise._calls.limited._tell_figures": "test_limited.py",
        "stepwise._calls.limited._settle": "test_limited.py",
        "stepwise._journal.ledger._tell_damaged": "test_limited.py",
        "stepwise._calls.call._tell_failure": "test_instrument.py",
        "stepwise._workflows.frame.Complaints.no_memory": "test_limits.py",
        "stepwise._execution.tasks._report": "test_sigterm.py",
        "stepwise._execution.message_watcher._call": "test_message_watcher.py",
        "stepwise._runtime.event._tell_once": "test_what_reports_are_made_with_fails",
        "stepwise._workflows.begin.Starting.warn_of_another": "test_starts.py",
        "stepwise._workflows.submitted._tell_of_memory": "test_submitted.py",
        "stepwise._workflows.submitted._tell_of_script": "test_submitted.py",
        "stepwise._workflows.engines.RunOutput._note": "test_up.py",
        "stepwise._runtime.observers.leave": "test_opentelemetry.py",
    }
    for path in ROOT.glob("_*/*.py"):
        importlib.import_module(f"stepwise.{path.parent.name}.{path.stem}")
    met = set().union(*(undisturbed(name)[2] for name in reporting.SCENARIOS))
    ours = {name for name in messages.reporters if name.startswith("stepwise._")}
    assert {name for name in ours if name not in met} <= elsewhere.keys()


def test_texts_are_made_under_the_guard():
    """What is put together for a notice or a warning calls nothing that could raise outside it."""
    harmless = {
        "count",
        "preview",
        "error_text",
        "join",
        "describe_owner",
        "noun",
        "shell_word",
        "_forget",
        "_told",
        "_named",  # of a thread: its id and the URL of its store
        "_when",  # it writes a time
        "type",
        "len",
    }
    found = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text("utf-8")
        if not re.search(r"\b(notice|warn)\(", text):
            continue
        tree = ast.parse(text)
        guarded = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and any(
                isinstance(each, ast.Name) and each.id == "reports" for each in node.decorator_list
            )
        ]
        inside = {id(each) for node in guarded for each in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("notice", "warn"):
                calls = [each.func for each in ast.walk(node.args[0]) if isinstance(each, ast.Call)]
                names = {getattr(each, "id", getattr(each, "attr", "?")) for each in calls}
                if id(node) not in inside and names - harmless:
                    found.append(f"{path.name}:{node.lineno}: {names - harmless}")
    assert found == []


# -- what users saw ------------------------------------------------------------------------------


@step
def fetch(n):
    return n


@tool(side_effect=True)
def alarm(why):
    raise AssertionError(why)


@workflow
def reads(n):
    try:
        with open(__file__) as file:
            file.read(1)
        fetch(n)
        fetch(-n)
    except Exception as error:
        alarm(repr(error))
    return n


@workflow
def beats():
    while fetch(1) and fetch(0):
        pass
    fetch(2)


def test_the_notice_of_dear_checkpoints(told, monkeypatch):
    """The notice names the heaviest variable, though one beside it cannot be recorded, or none.

    What failed in a report is named on stderr, once, and the run continues.
    """
    for name in ("_SETTLED", "_COST", "_SHARE"):  # every checkpoint costs more than it should
        monkeypatch.setattr(frame, name, -1.0)
    assert reads(2) == 2
    assert re.search("checkpoints take .* weighs most", told())
    assert beats() is None
    assert re.search("of run '.*'. Take fewer", told())

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(messages, "_told", set())
    monkeypatch.setattr(frame.WorkflowFrame, "_heaviest", fails)
    assert reads(3) == reads(4) - 1
    assert told().count("a report failed (ZeroDivisionError in WorkflowFrame._weigh)") == 1


def test_a_changed_argument_is_warned_of_once(recwarn):
    """A step that changes its argument in a way that is not recorded is named once in a run."""
    import warnings

    @step(ignore=("notes",))
    def note(notes, line):
        notes.append(each for each in [line])

    @workflow
    def notes():
        found = []
        note(found, 1)
        note(found, 2)
        for n in (3, 4):
            note(found, n)
        return found

    warnings.simplefilter("always")
    assert [[*each] for each in notes()] == [[1], [2], [3], [4]]
    (only,) = [each for each in recwarn if each.category is ArgumentMutatedWarning]
    assert str(only.message).startswith("'note' changed notes, which is never recorded")


def test_a_warning_that_is_an_error(recwarn):
    """Who makes our warnings errors gets them raised."""
    import warnings

    @workflow
    def locked():
        lock = threading.Lock()
        fetch(1)
        fetch(2)
        return lock

    warnings.simplefilter("error", RunWarning)
    with pytest.raises(RunWarning, match="lock"):
        locked()


def test_no_stderr(monkeypatch, capfd):
    """Without a stderr, notices do not appear among what the program prints."""
    monkeypatch.setattr(sys, "stderr", None)
    messages.notice("something")
    assert capfd.readouterr().out == ""


def test_an_error_without_text():
    """An exception whose text cannot be made is recorded, and raised as it is."""

    class Wordless(Exception):
        def __str__(self):
            raise ZeroDivisionError

    @step
    def breaks():
        raise Wordless

    @workflow
    def agent():
        breaks()

    with fresh_store(), pytest.raises(Wordless):
        agent()


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "step", "1 step"),
        (0, "step", "0 steps"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (3, "batch", "3 batches"),
        (4000, "more row", "4,000 more rows"),
    ],
)
def test_a_number_and_its_noun_agree(number, noun, text):
    """A counted noun is singular for one, and plural for any other number."""
    assert messages.count(number, noun) == text
