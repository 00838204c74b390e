"""Sending to a run: from any process, durably, and only what the run can take."""

import dataclasses
import datetime as dt
import enum
import json
import os
import signal
import sys
import time

import pydantic
import pytest

import stepwise
from stepwise import (
    ConfigurationError,
    CorruptStoreError,
    RunEndedError,
    RunNotFoundError,
    SignalRefusedError,
    step,
    workflow,
)
from stepwise._checkpoints import checkpoints
from stepwise._journal.journal import Journal
from stepwise._journal.lease import Lease
from stepwise._journal.logs import Bell, Inbox
from stepwise._journal.records import Outcome, Refused, RunWait, Suspended, Waiting
from stepwise._runs import messages as sending
from stepwise._values import data as schemas
from stepwise.testing import SimulatedCrash, crash_at, fresh_store


@step
def think(n):
    return n


@workflow
def agent(limit):
    return [think(n) for n in range(limit)]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def run(folder):
    """A run that crashed after two steps."""
    with fresh_store(folder):
        with pytest.raises(SimulatedCrash), crash_at(think, "before", call=3):
            agent.options(run_id="job")(4)
        yield stepwise.get_run("job")


def kept(run):
    return [(each.number, each.name, each.value) for each in run.inbox]


@pytest.fixture
def record(run):
    """Append records to the journal of the run, as the process that executes it would."""

    def append(*records, **facts):
        lease = Lease(run.store, run.id).acquire()
        try:
            journal = Journal(run.store, run._seal, run.id, lease.epoch, fsync=True)
            call = next(each.call for each in journal.load() if each.call)._replace(number=50)
            items = [(each(call) if callable(each) else each, b"") for each in records]
            head = run._facts()._replace(**facts) if facts else None
            journal.append(*items, head=head)
        finally:
            lease.release()

    return append


# -- what can be sent ----------------------------------------------------------------------------


def test_a_signal_is_kept(run):
    """What is sent to a run that nobody executes is in its inbox, with who sent it and when.

    Whoever looks at the bell learns that something was sent.
    """
    bell = Bell(run.store, run._seal)
    bell.look()
    before = time.time()
    assert run.send("paid", {"amount": 3}) == 1
    assert run.send("paid") == 2
    first, second = run.inbox
    assert (first.name, first.value) == ("paid", {"amount": 3})
    assert (first.status, first.key) == ("kept", None)
    assert "@" in first.by
    assert before <= first.at <= second.at <= time.time()
    assert second.value is None
    assert json.loads(json.dumps(first.to_dict()))["value"] == {"amount": 3}
    assert bell.look() == ["job"]


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")
    at: dt.date


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ([1, "a", None, True, 1.5], [1, "a", None, True, 1.5]),
        ({"a": (1, [2])}, {"a": [1, [2]]}),
        ("\ud800 \u2028 \x00", "\ud800 \u2028 \x00"),
        (10**40, 10**40),
        (-0.0, -0.0),
        (Colour.RED, "red"),
        ([Point(1)], [{"x": 1, "y": 2}]),
        (Order(orderNumber=1, at="2026-01-02"), {"orderNumber": 1, "at": "2026-01-02"}),
    ],
)
def test_values(run, value, data):
    """Plain data comes as it is; models, dataclasses and dates come as pydantic writes them."""
    run.send("a", value)
    (found,) = run.inbox
    assert repr(found.value) == repr(data)


def holding_itself():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), "value is a object"),
        ({"a": [1, {"b": object()}]}, r"value\['a'\]\[1\]\['b'\] is a object"),
        ({1: 2}, "value has the key 1; in JSON, keys are texts"),
        ([float("nan")], r"value\[0\] is nan"),
        (holding_itself(), "holds itself"),
        ("x" * 17_000_000, "17 MB of JSON, and 16 MB are the limit"),
    ],
)
def test_values_that_are_no_data(run, value, where):
    """What has no form in JSON is refused; the error says where in the value it is."""
    with pytest.raises(SignalRefusedError, match=where):
        run.send("a", value)
    assert run.inbox == []


def test_without_pydantic(run, monkeypatch):
    """Without the extra, plain data can be sent, and the error for a model names the extra."""
    monkeypatch.setattr("stepwise._values.data._pydantic", lambda: None)
    run.send("a", [1])
    with pytest.raises(
        SignalRefusedError, match=r"value\[0\] is a Point: .*stepwise-agents\[json\]"
    ):
        run.send("a", [Point(1)])


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        *((name, None, "cannot be the name of a signal") for name in ("", " ", "a ", "a\nb", None)),
        *((name, None, "cannot be the name of a signal") for name in ("x" * 201, "\x1b[31m", 7)),
        *(("a", key, "key is") for key in ("", 7)),
    ],
)
def test_names(run, name, key, said):
    """A name that nobody can read or write is refused, and so is a key that is no text."""
    with pytest.raises(ConfigurationError, match=said):
        run.send(name, 1, key=key)


def test_the_same_key_twice_is_one_message(run, told):
    """The first message of a key counts; a notice says so if the second has another value."""
    assert run.send("paid", 1, key="order 7") == 1
    assert run.send("paid", 1, key="order 7") == 1
    assert told() == ""
    assert run.send("paid", 2, key="order 7") == 1
    assert "message 1 of run 'job' is a signal 'paid' with the key 'order 7' and another" in told()
    assert run.send("shipped", 2, key="order 7") == 2
    assert kept(run) == [(1, "paid", 1), (2, "shipped", 2)]


# -- to whom -------------------------------------------------------------------------------------


def test_to_no_run(run, monkeypatch):
    """A run that is gone, or goes while the message is on its way, gets no inbox.

    The next run of that id takes no message of the deleted one.
    """
    run.send("a", 1)
    post = Inbox.post

    def late(self, *args, **kwargs):
        run.delete()
        return post(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Inbox, "post", late)
        with pytest.raises(RunNotFoundError):
            run.send("a", 1)
    with pytest.raises(RunNotFoundError):
        run.send("a", 1)
    assert list(run.store.read("inbox:job")) == []
    agent.options(run_id="job")(2)
    assert stepwise.get_run("job").inbox == []


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_to_a_run_that_has_ended(run, record, status):
    """A run that has ended takes nothing: that is an error, which says how it ended."""
    record(Refused(0, 0, "", ""), status=status)
    with pytest.raises(RunEndedError, match=f"has ended \\({status}\\)") as caught:
        run.send("a", 1)
    assert (caught.value.run_id, caught.value.status) == ("job", status)
    assert run.inbox == []


def test_the_ids_of_inboxes(folder):
    """No run can have the name of an inbox, of the bell, or of the log of a framework."""
    with fresh_store(folder):
        for run_id in ("inbox:job", "bell:", "langgraph:a", "openai-agents:a"):
            with pytest.raises(ConfigurationError, match="does not begin with"):
                agent.options(run_id=run_id)
        agent.options(run_id="bell")(1)
        with pytest.raises(ConfigurationError, match="does not begin with"):
            stepwise.get_run("bell").fork(run_id="inbox:bell")


# -- what the run waits for ----------------------------------------------------------------------


class Card(pydantic.BaseModel):
    kind: str = pydantic.Field("card", pattern="^card$")
    number: int


class Cash(pydantic.BaseModel):
    kind: str = pydantic.Field("cash", pattern="^cash$")
    notes: tuple[int, int]


class Payment(pydantic.BaseModel):
    by: Card | Cash
    history: list["Payment"] = []


SCHEMA = json.dumps(Payment.model_json_schema())


def waits_for(name, schema):
    return lambda call: Waiting(call, "signal", name, schema=schema)


@pytest.mark.parametrize("suspended", [False, True])
def test_a_value_that_does_not_fit(run, record, suspended):
    """While the run waits for a type, a value of another form is refused, and says where.

    The waits of a suspended run are known from its head.
    """
    waits = (RunWait(50, "signal", "paid", None, 1.0),)
    more = [Suspended(waits)] if suspended else []
    facts = {"status": "suspended", "waits": waits} if suspended else {}
    record(waits_for("paid", SCHEMA), *more, **facts)
    wrong = r"\$\.by: 'number' is a required property, or \$\.by: 'notes' is a required"
    with pytest.raises(SignalRefusedError, match=wrong) as caught:
        run.send("paid", {"by": {"kind": "card"}})
    assert (caught.value.run_id, caught.value.name) == ("job", "paid")
    run.send("other", 1)
    good = {"by": {"kind": "cash", "notes": [1, 2]}, "history": [{"by": {"number": 1}}]}
    run.send("paid", good)
    with pytest.raises(SignalRefusedError):
        run.send("paid", {**good, "history": [{"by": {"kind": "cash", "notes": [1]}}]})
    assert kept(run) == [(1, "other", 1), (2, "paid", good)]


def test_two_waits_of_one_name(run, record):
    """What one of two waits can take may be sent; a wait that is over asks for nothing."""
    record(waits_for("a", '{"type":"integer"}'))
    record(lambda call: Waiting(call._replace(number=51), "signal", "a", schema='{"type":"null"}'))
    run.send("a", 1)
    run.send("a", None)
    with pytest.raises(SignalRefusedError):
        run.send("a", "text")
    record(
        lambda call: Outcome(call, message=1), lambda c: Outcome(c._replace(number=51), message=2)
    )
    run.send("a", "text")


def test_many_records(folder, monkeypatch):
    """An open wait is found in a long journal as well."""
    with fresh_store(folder):
        with pytest.raises(SimulatedCrash), crash_at(think, "before", call=1_100):
            agent.options(run_id="job", checkpoint_every=10_000)(1_200)
        run = stepwise.get_run("job")
        assert run.store.get(run.id, "summary")
        lease = Lease(run.store, run.id).acquire()
        journal = Journal(run.store, run._seal, run.id, lease.epoch, fsync=True)
        call = next(e.call for e in journal.load() if e.call)._replace(number=2_000)
        journal.append((Waiting(call, "signal", "a", schema='{"type":"null"}'), b""))
        lease.release()
        with pytest.raises(SignalRefusedError):
            run.send("a", 1)


def test_without_jsonschema(run, record, monkeypatch):
    """Where a value is to be checked and jsonschema is missing, the error names the extra."""
    record(waits_for("paid", SCHEMA))
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigurationError, match=r"stepwise-agents\[json\]"):
        run.send("paid", 1)
    run.send("other", 1)


def test_schemas_that_cannot_be_applied():
    """A schema of which a part cannot be applied here refuses nothing, and fetches nothing."""
    assert schemas.misfit('{"pattern": "(?<a>x)\\\\z"}', "text") == ""
    assert schemas.misfit('{"$ref": "https://example.invalid/schema"}', "text") == ""
    assert schemas.misfit('{"prefixItems": [{"type": "null"}]}', [1]).startswith("$[0]: ")


# -- what became of it ---------------------------------------------------------------------------


def test_what_became_of_messages(run, record):
    """The inbox shows which call took a message, which were refused and why, and which are kept."""
    for value in range(3):
        run.send("a", value)
    record(lambda call: Outcome(call, message=2), Refused(1, 50, "a", "it is no text"))
    assert [(each.status, each.step, each.why) for each in run.inbox] == [
        ("refused", 50, "it is no text"),
        ("taken", 50, ""),
        ("kept", None, ""),
    ]


def test_a_fork_has_the_messages(run):
    """A fork that would take signals of its source, too, is refused, or meant and gets a copy."""
    run.send("a", 1, key="k")
    with pytest.raises(ConfigurationError, match=r"twice: the signal 'a' \(message 1\)"):
        run.fork(at=1, run_id="fork")
    fork = run.fork(at=1, run_id="fork", messages=True)
    assert kept(fork) == [(1, "a", 1)]
    run.send("b", 2)
    fork.send("c", 3)
    assert fork.send("a", 1, key="k") == 1
    run.delete()
    assert kept(fork) == [(1, "a", 1), (2, "c", 3)]
    assert fork.verify().ok


def test_verifying(run, told):
    """Verifying names lost messages, and repairing gives them up."""
    for value in range(3):
        run.send("a", value)
    assert run.verify().ok
    assert run.verify().messages == 3
    damage(run, 3)
    verified = run.verify()
    assert verified.lost_messages == (3,)
    assert verified.problems == ["1 message to it damaged or gone (3)"]
    with pytest.raises(CorruptStoreError, match="stepwise verify job --repair"):
        Inbox(run.store, run._seal, run.id).look()
    assert run.repair().ok
    Inbox(run.store, run._seal, run.id).look()
    assert kept(run) == [(1, "a", 0), (2, "a", 1)]


@workflow(prune_journal=True)
def listener(count):
    found = []
    think("begun")
    for n in range(count):
        found.append(stepwise.wait_for("a"))
        think(n)
    return found


def test_a_pruned_journal(folder, monkeypatch):
    """Of a run whose journal is pruned, too, the inbox shows which messages were taken."""
    monkeypatch.setattr(checkpoints, "_PRUNE_AT_LEAST", 5)
    with fresh_store(folder):
        with pytest.raises(SimulatedCrash), crash_at(think, "before"):
            listener.options(run_id="job")(9)
        run = stepwise.get_run("job")
        for n in range(11):
            run.send("a", n)
        assert listener.options(run_id="job")(9) == [*range(9)]
        assert run._facts().pruned
        assert [each.status for each in run.inbox] == ["taken"] * 9 + ["kept"] * 2


def damage(run, number):
    """Change a message of a run's inbox."""
    with Inbox(run.store, run._seal, run.id)._log.owned():
        rows = run.store._opened()
        with rows.transaction(durable=True):
            rows.put_record(f"inbox:{run.id}", number, b"damaged")


@workflow
def hasty():
    think(0)
    try:
        found = stepwise.wait_for("a")
    except Exception:
        found = "something else"
    think(found)
    return found


def test_a_run_takes_nothing_from_a_damaged_inbox(folder):
    """A wait that finds a message damaged stops the run, past except; given up, the next counts."""
    with fresh_store(folder):
        with pytest.raises(SimulatedCrash), crash_at(think, "before"):
            hasty.options(run_id="job")()
        run = stepwise.get_run("job")
        run.send("a", "first")
        run.send("a", "second")
        damage(run, 1)
        for _ in range(2):
            with pytest.raises(CorruptStoreError, match="stepwise verify job --repair"):
                hasty.options(run_id="job")()
        assert run.steps[-1].status == "waiting"
        run.repair()
        assert hasty.options(run_id="job")() == "second"
        assert [(each.number, each.status) for each in run.inbox] == [(2, "taken")]


# -- processes -----------------------------------------------------------------------------------


def in_child(act):
    """Start a process that does something; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        act()
        code = 0
    finally:
        os._exit(code)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_processes_send_at_once(run):
    """Four processes that send at the same time: each message is there, those with one key once."""

    def send():
        for number in range(10):
            run.send("own", os.getpid())
            run.send("same", number, key=f"key {number}")

    pids, reader = [in_child(send) for _ in range(4)], Inbox(run.store, run._seal, run.id)
    while len(reader.messages) < 50:  # whoever looks meanwhile misses nothing
        reader.look()
    assert [exit_code(pid) for pid in pids] == [0] * 4
    found = kept(run)
    assert [each.number for each in reader.messages] == [number for number, _, _ in found]
    assert [number for number, _, _ in found] == [*range(1, 51)]
    own = [value for _, name, value in found if name == "own"]
    assert sorted(own) == sorted(pids * 10)
    assert sorted(value for _, name, value in found if name == "same") == [*range(10)]
    assert run.verify().ok


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(6))
def test_a_killed_sender(run, folder, moment, number):
    """A sender that is killed at any write has sent its message wholly or not at all.

    What it acknowledged is there; sent again with its key, it is there once.
    """
    run.send("a", "before")
    acknowledged = folder.parent / "acknowledged"

    def send():
        calls = iter(range(100))

        def dying(do):
            def called(*args, **kwargs):
                here = next(calls) == number
                if here and moment == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                result = do(*args, **kwargs)
                if here:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return called

        for name in ("acquire", "write", "release"):
            setattr(run.store, name, dying(getattr(run.store, name)))
        acknowledged.write_text(str(run.send("a", "x" * 10_000, key="k")))

    assert exit_code(in_child(send)) in (0, -signal.SIGKILL)
    found = [each.value for each in run.inbox]
    assert found in (["before"], ["before", "x" * 10_000])
    assert not acknowledged.exists() or len(found) == 2
    assert run.verify().ok
    assert run.send("a", "x" * 10_000, key="k") == 2
    assert [each.value for each in run.inbox] == ["before", "x" * 10_000]
    assert sending.LARGEST == 16_000_000
