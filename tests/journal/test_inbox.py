"""The inbox of a run: messages of many senders, none lost, none twice, none wrong."""

import collections
import contextlib
import sqlite3

import pytest
from hypothesis import stateful
from hypothesis import strategies as some

from stepwise import ConfigurationError, CorruptStoreError
from stepwise._journal import logs as bell
from stepwise._journal import seal
from stepwise._journal.journal import inbox_name
from stepwise._journal.logs import Bell, Inbox
from stepwise._journal.persons import this_person
from stepwise._runtime import messages
from stepwise.stores import open_store

SEAL = seal.ephemeral_seal()


@pytest.fixture
def store(tmp_path):
    opened = open_store(f"disk:{tmp_path}/store")
    yield opened
    opened.close()


def inbox(store):
    return Inbox(store, SEAL, "job")


def sent(store):
    """What a process that comes now finds."""
    found = inbox(store)
    found.look(tolerant=True)
    return [(each.number, each.name, each.load()) for each in found.messages]


# -- posting and looking -------------------------------------------------------------------------


def test_messages_come_in_the_order_in_which_they_were_sent(store):
    """Whoever looks finds all messages in order, and at the next look only the new ones."""
    reader = inbox(store)
    assert reader.look() == []
    assert inbox(store).post("signal", "a", b"1") == 1
    assert inbox(store).post("signal", "b", b'{"x":[2]}') == 2
    first, second = reader.look()
    assert (first.number, first.kind, first.name, first.load()) == (1, "signal", "a", 1)
    assert second.load() == {"x": [2]}
    assert first.by == this_person()
    assert reader.look() == []
    inbox(store).post("answer", "ticket", step=3, approved=True, note="fine", by="ann@host")
    (answer,) = reader.look()
    assert answer[3:9] == (b"", "", 3, True, "fine", "ann@host")
    assert reader.messages == [first, second, answer]


def test_a_key_is_one_message(store):
    """Messages of one kind and name with one key are one; of another name, they are two."""
    numbers = [
        inbox(store).post("signal", name, value, key=key)
        for name, value, key in [
            ("paid", b"1", "order 7"),
            ("shipped", b"2", "order 7"),
            ("paid", b"3", "order 7"),
            ("paid", b"4", "order 8"),
            ("paid", b"5", ""),
            ("paid", b"6", ""),
        ]
    ]
    assert numbers == [1, 2, 1, 3, 4, 5]
    assert [value for _, _, value in sent(store)] == [1, 2, 4, 5, 6]


def test_inboxes_are_no_runs(store):
    """No listing shows an inbox or the bell."""
    inbox(store).post("signal", "a", b"1")
    Bell(store, SEAL).ring("job")
    assert list(store.heads()) == []


def test_a_deleted_inbox_is_empty(store):
    """What was deleted is gone; numbers begin anew, and nothing counts as lost."""
    old = inbox(store)
    old.post("signal", "a", b"1", key="k")
    old.delete()
    inbox(store).look()
    assert sent(store) == []
    assert inbox(store).post("signal", "a", b"2", key="k") == 1
    inbox(store).delete()
    store.acquire = None  # deleting what is not there writes nothing
    inbox(store).delete()


# -- the model -----------------------------------------------------------------------------------

_texts = some.text(max_size=6)


class Inboxes(stateful.RuleBasedStateMachine):
    """Several processes that post and look, against a list."""

    def __init__(self):
        super().__init__()
        self.store = open_store(f"memory:{id(self)}")
        self.processes = [Inbox(self.store, SEAL, "job") for _ in range(3)]
        self.sent, self.seen = [], collections.Counter()

    which = some.integers(0, 2)

    @stateful.rule(
        which=which,
        kind=some.sampled_from(["signal", "answer"]),
        name=some.sampled_from(["a", "b"]),
        value=_texts,
        key=some.sampled_from(["", "k", "m"]),
    )
    def post(self, which, kind, name, value, key):
        value = value.encode("utf-8", "surrogatepass")
        same = [n for n, (*about, _) in enumerate(self.sent, 1) if about == [kind, name, key]]
        number = self.processes[which].post(kind, name, value, key=key)
        if key and same:
            assert number == same[0]
        else:
            self.sent.append((kind, name, key, value))
            assert number == len(self.sent)

    @stateful.rule(which=which)
    def look(self, which):
        self.processes[which].look()
        found = [(m.kind, m.name, m.key, m.value) for m in self.processes[which].messages]
        assert found == self.sent
        assert [m.number for m in self.processes[which].messages] == [*range(1, len(found) + 1)]

    @stateful.rule(which=which)
    def restart(self, which):
        self.processes[which] = Inbox(self.store, SEAL, "job")

    def teardown(self):
        self.store.close()


TestInboxes = Inboxes.TestCase


# -- senders side by side ------------------------------------------------------------------------


def test_a_message_that_comes_during_a_look_is_not_lost(store, monkeypatch):
    """A look that a send overtakes between its two reads finds nothing missing."""
    reader = inbox(store)
    reader.look()
    read = reader._log.read

    def overtaken(end):
        found = read(end)
        inbox(store).post("signal", "a", b"1")
        return found

    monkeypatch.setattr(reader._log, "read", overtaken)
    assert reader.look() == []
    assert reader.all_lost() == []
    monkeypatch.undo()
    assert [each.load() for each in reader.look()] == [1]


# -- damage --------------------------------------------------------------------------------------


def sql(store, text, *parameters):
    with contextlib.closing(sqlite3.connect(f"{store.path}/cache.db")) as database, database:
        return database.execute(text, parameters).fetchall()


def rows(store):
    """The rows of the inbox: key and sealed bytes."""
    return sql(store, "SELECT key, value FROM Cache WHERE key LIKE 'r/%' ORDER BY key")


def put(store, key, value):
    sql(store, "UPDATE Cache SET value = ? WHERE key = ?", value, key)


def drop(store, *keys):
    for key in keys:
        sql(store, "DELETE FROM Cache WHERE key = ?", key)


def test_every_flipped_byte_is_detected(store):
    """Whichever byte of a message is changed: the message is lost, the others are not."""
    for value in (b"1", b'"second"', b"3"):
        inbox(store).post("signal", "a", value)
    key, whole = rows(store)[1]
    for at in range(len(whole)):
        put(store, key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = inbox(store)
        found.look(tolerant=True)
        assert [each.load() for each in found.messages] == [1, 3], at
        assert found.all_lost() == [2]
        with pytest.raises(CorruptStoreError, match=r"lacks messages .* \(number 2\)"):
            found.look()
    put(store, key, whole)
    inbox(store).look()


def test_messages_cannot_change_places(store):
    """A message in the place of another one, or of another run, is damaged."""
    for value in (b"1", b"2"):
        inbox(store).post("signal", "a", value)
    (first, one), (second, two) = rows(store)
    put(store, first, two)
    put(store, second, one)
    found = inbox(store)
    found.look(tolerant=True)
    assert (found.messages, found.all_lost()) == ([], [1, 2])


@pytest.mark.parametrize("gone", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_lost_messages_are_noticed(store, gone):
    """Acknowledged messages that are gone are named, wherever they were, until given up."""
    for value in (b"0", b"1", b"2"):
        inbox(store).post("signal", "a", value)
    drop(store, *[rows(store)[each][0] for each in gone])
    numbers = [each + 1 for each in gone]
    found = inbox(store)
    with pytest.raises(CorruptStoreError, match=f"number {', '.join(map(str, numbers))}"):
        found.look()
    # What is sent now gets a number of its own, and covers nothing up.
    assert inbox(store).post("signal", "a", b"9") == 4
    assert [value for _, _, value in sent(store)] == [n for n in range(3) if n not in gone] + [9]
    with pytest.raises(CorruptStoreError):
        found.look()
    inbox(store).give_up()
    found.look()
    inbox(store).look()
    assert inbox(store).post("signal", "a", b"10") == 6
    assert [value for _, _, value in sent(store)][-2:] == [9, 10]


def test_a_wrong_key(store):
    """With another key, no message counts as damaged: who looks and who sends get an error."""
    inbox(store).post("signal", "a", b"1")
    other = Inbox(store, seal.ephemeral_seal(), "job")
    with pytest.raises(ConfigurationError, match="another key"):
        other.look()
    with pytest.raises(ConfigurationError, match="another key"):
        other.post("signal", "a", b"2")
    assert sent(store) == [(1, "a", 1)]


def test_an_encrypted_inbox(store):
    """An encrypted message shows neither its name nor its value."""
    encrypting = seal.Seal(SEAL.keys, encrypts=True)
    Inbox(store, encrypting, "job").post("signal", "secret name", b'"secret value"')
    ((_, data),) = rows(store)
    assert b"secret" not in data
    assert sent(store) == [(1, "secret name", "secret value")]


# -- copies --------------------------------------------------------------------------------------


def test_a_copy_has_the_same_numbers(store):
    """The copy for a fork has the signals under their numbers, and no answer or request."""
    source = inbox(store)
    source.post("signal", "a", b"1", key="k")
    source.post("answer", "ticket", step=2, approved=True)
    source.post("cancel", note="enough")
    source.post("signal", "b", b"4")
    copy = Inbox(store, SEAL, "fork")
    copy.post("signal", "of an earlier attempt to fork", b"0")
    source.copy_to(copy)
    found = Inbox(store, SEAL, "fork")
    found.look()
    assert [(each.number, each.name, each.load()) for each in found.messages] == [
        (1, "a", 1),
        (4, "b", 4),
    ]
    assert found.messages[0].at == source.messages[0].at
    assert found.post("signal", "a", b"9", key="k") == 1
    assert found.post("signal", "a", b"9") == 5


def test_a_damaged_inbox_is_not_copied(store):
    """A fork of a run whose messages are damaged is refused."""
    for value in (b"1", b"2"):
        inbox(store).post("signal", "a", value)
    drop(store, rows(store)[0][0])
    with pytest.raises(CorruptStoreError):
        inbox(store).copy_to(Inbox(store, SEAL, "fork"))


# -- the bell ------------------------------------------------------------------------------------


def test_the_bell(store):
    """A look gives the runs rung since the last one, each once; the first look gives none."""
    mine, other = Bell(store, SEAL), Bell(store, SEAL)
    other.ring("before")
    assert mine.look() == []
    assert mine.look() == []
    for run_id in ("a", "b", "a"):
        other.ring(run_id)
    assert mine.look() == ["a", "b"]
    assert mine.look() == []


def test_the_bell_stays_short(store, monkeypatch):
    """However often it is rung, it holds some records only, and whoever looks misses nothing."""
    monkeypatch.setattr(bell, "_MANY", 5)
    slow, fast, ringing = (Bell(store, SEAL) for _ in range(3))
    slow.look()
    fast.look()
    for number in range(23):
        ringing.ring(f"run {number}")
        assert f"run {number}" in fast.look()
        assert len(list(store.read(bell.BELL))) <= 6
    assert {f"run {number}" for number in range(19, 23)} <= set(slow.look())
    assert slow.look() == fast.look() == []


@pytest.fixture
def reported(told, monkeypatch):
    """What was reported; a report that fails is told of once in a process."""
    monkeypatch.setattr(messages, "_told", set())
    return told


def test_a_ring_that_fails_is_a_notice(store, monkeypatch, reported):
    """Where the bell cannot be rung, nothing is raised."""
    monkeypatch.setattr(type(store), "write", lambda *_: 1 / 0)
    Bell(store, SEAL).ring("job")
    assert "ZeroDivisionError in Bell.ring" in reported()


def test_a_held_bell_delays_a_ring_shortly(store, monkeypatch, reported):
    """A process that stopped while it rang does not keep others from sending."""
    monkeypatch.setattr(bell, "_RING_PATIENCE", 0.01)
    with Bell(store, SEAL)._log.owned():
        Bell(store, SEAL).ring("job")
    assert "RunBusyError in Bell.ring" in reported()


def test_the_names_in_a_store():
    """The name of an inbox begins so that no run can have it."""
    assert inbox_name("job") == "inbox:job"
