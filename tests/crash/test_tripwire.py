"""Nothing reaches an unpickler that was not sealed with the user's key, whatever is in the store.

A tripwire records all bytes that are given to an unpickler.  Rows of the store are replaced by
somebody's pickles in every kind of envelope, and the run is looked at, resumed and repaired.  With
``trust="data"`` nothing stored reaches one at all, not even what somebody with the key has sealed.
"""

import contextlib
import functools
import os
import pathlib
import pickle
import random
import shutil
import sqlite3
import tempfile

import pytest
from click.testing import CliRunner
from sweeping import SEED, WHOLE, size, some

import stepwise
import stepwise.cli as cli
from stepwise import RunStopped, StepwiseError, step, tool, workflow
from stepwise._checkpoints.checkpoints import PREFIX, State
from stepwise._journal import seal as _seal
from stepwise._journal.journal import Position, identity, mark, read_head, seal_for, seal_head
from stepwise._journal.lease import Lease
from stepwise._journal.records import Interrupted, Started, from_header, to_header
from stepwise._journal.seal import named
from stepwise._values import codec, unpickling
from stepwise._values.codec import PYTHON
from stepwise.stores import Batch
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

SLOT = 128  # bytes of marks before the draft of a checkpoint


@step
def think(n):
    return {"thought": n, "text": f"thought {n} " * 5}


@tool(side_effect=True)
def send(text):
    if text == "b":
        raise OSError("no connection")
    return text


@workflow(retention="all")
def agent(limit):
    found = [think(0), send("a")]
    with contextlib.suppress(OSError):
        send("b")
    for n in range(1, limit):
        found.append(think(n))
    return found


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Wire:
    """What was sealed or encoded here, and what an unpickler was given."""

    def __init__(self, monkeypatch):
        self.sealed, self.made, self.loaded = {}, set(), []
        close, encode, loads = _seal.Seal.close, codec._encode, pickle.loads
        begin = unpickling.Unpickler.__init__

        def closing(seal, identity, header, payload=b"", *more):
            data, link = close(seal, identity, header, payload, *more)
            self.sealed[data] = identity, header, more
            self.made.add(bytes(payload))
            return data, link

        def encoding(value):
            encoded = encode(value)
            self.made.add(encoded.data)
            return encoded

        def loading(data, **options):
            self.loaded.append(bytes(data))
            return loads(data, **options)

        def opening(unpickler, data, buffers=None):
            if unpickler.stored:
                self.loaded.append(bytes(data))
            begin(unpickler, data, buffers)

        monkeypatch.setattr(_seal.Seal, "close", closing)
        monkeypatch.setattr(codec, "_encode", encoding)
        monkeypatch.setattr(pickle, "loads", loading)
        monkeypatch.setattr(unpickling.Unpickler, "__init__", opening)

    @property
    def unverified(self):
        return [data for data in self.loaded if data not in self.made]


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


@pytest.fixture
def place(tmp_path):
    """A folder, in memory if there is such a place: nothing here is about the disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(prefix="stepwise-", dir=memory) as folder:
        yield pathlib.Path(folder)


@pytest.fixture
def crashed(wire, place):
    """The store of a run that crashed."""
    path = place / "crashed"
    with fresh_store(path), pytest.raises(SimulatedCrash), crash_at(think, "before", call=4):
        agent.options(run_id="job")(6)
    wire.sealed = {data: facts for data, facts in wire.sealed.items() if data in all_of(path)}
    assert len(wire.sealed) > 10
    return path


def all_of(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return b"".join(path.read_bytes() for path in files)


def forgeries(data, facts, evil):
    """Envelopes that hold somebody's pickle, made by one who knows everything but the key."""
    identity, header, more = facts
    foreign, _ = _seal.Seal((b"f" * 32,)).close(identity, header, evil, *more)
    front, mac, head = data[:32], data[32:64], foreign[64 : -len(evil)]
    yield "a foreign key", foreign
    yield "a foreign key under our id", front + foreign[32:]
    yield "the digest of another content", front + mac + head + evil
    yield "no digest", front + bytes(32) + head + evil
    yield "an older format", front[:2] + b"\0" + front[3:] + mac + head + evil
    yield "said to be encrypted", front[:3] + b"\1" + front[4:] + mac + head + evil
    yield "no envelope", evil
    yield "a header and no digest", head + evil
    chance = random.Random(f"{SEED} {identity}")
    for _ in range(size(2, 200)):
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        yield f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def put(folder, old, new):
    """Put other sealed bytes in the place of some, in the database and beside it."""
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database:
        for table in ("Cache", "Heads"):
            for row, value in database.execute(f"SELECT rowid, value FROM {table}").fetchall():
                if isinstance(value, bytes) and old in value:
                    changed = value.replace(old, new)
                    database.execute(
                        f"UPDATE {table} SET value = ? WHERE rowid = ?", (changed, row)
                    )
        database.commit()
    for path in (folder / "marks").iterdir():
        marks = path.read_bytes()
        if old in marks:
            length = int.from_bytes(marks[SLOT + 8 : SLOT + 12], "little")
            front = marks[: SLOT + 12] + len(new).to_bytes(4, "little")
            path.write_bytes(front + marks[SLOT + 16 : SLOT + 16 + length] + new)


def use(folder, accepted):
    """Look at the run, resume it, repair it, and resume it again; errors of ours are accepted."""
    with fresh_store(folder):
        for act in (
            lambda: list(stepwise.runs()),
            lambda: stepwise.get_run("job").steps,
            lambda: stepwise.get_run("job").locals(),
            lambda: stepwise.get_run("job").verify(),
            lambda: agent.options(run_id="job")(6),
            lambda: stepwise.get_run("job").repair(accept_loss=True),
            lambda: agent.options(run_id="job")(6),
            lambda: stepwise.get_run("job").result,
        ):
            with contextlib.suppress(RunStopped, *accepted):
                act()


def attack(crashed, wire, place, *accepted, rows=5):
    """Put each forgery in the place of each row; how many there were."""
    evil, trials = pickle.dumps(Evil(place / "canary")), 0
    for data, facts in some(wire.sealed.items(), rows, "rows"):
        for _, forged in forgeries(data, facts, evil):
            folder = place / "attacked"
            shutil.copytree(crashed, folder)
            put(folder, data, forged)
            use(folder, accepted)
            shutil.rmtree(folder)
            trials += 1
    wire.made.discard(evil)  # the forger has sealed it, with keys that are not ours
    return trials


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
def test_unverified_bytes_reach_no_unpickler(crashed, wire, place, tally):
    """Rows that were exchanged, sealed with another key, or not sealed at all are never loaded."""
    trials = attack(crashed, wire, place, StepwiseError)
    tally(
        "a forged row",
        trials,
        loads=len(wire.loaded),
        unverified=len(wire.unverified),
    )
    assert wire.loaded
    assert wire.unverified == []
    assert not (place / "canary").exists()


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
def test_the_tripwire_sees(crashed, wire, place, monkeypatch):
    """With digests that nobody compares, the same rows do reach an unpickler."""
    monkeypatch.setattr(_seal.hmac, "compare_digest", lambda one, other: True)
    attack(crashed, wire, place, Exception, rows=10)  # what was not verified can be anything
    assert wire.unverified
    assert (place / "canary").exists()


# -- trust="data": the forger has the key ----------------------------------------------------------


@step
def count(n: int) -> int:
    return n + 1


@workflow(codec="json", run_id="job")
def counting(n: int) -> int:
    a = count(n)
    last()
    return count(a)


@step
def last() -> None: ...


def forge(store, evil):
    """Seal the run anew with the key: all payloads, and a checkpoint, are somebody's pickles."""
    seal, lease = seal_for(store), Lease(store, "job").acquire()
    at, rows = Position(), []
    for number, data in store.read("job"):
        opened = seal.open(identity("job", number), data)
        record = from_header(opened.header)
        if isinstance(record, Interrupted):
            continue
        form = PYTHON if isinstance(record, Started) else None
        record = record._replace(form=form) if hasattr(record, "form") else record
        if getattr(record, "command", ()):
            record = record._replace(command=(shutil.which("mkdir"), evil.path), cwd="/")
        name, payload = identity("job", at.last + 1), pickle.dumps(evil)
        sealed, link = seal.close(name, to_header(record), payload, at.link, opened.effects)
        at = Position(at.last + 1, link, opened.effects)
        rows.append((at.last, bytes(sealed)))
    place = State(
        "body[0]", 1, "", "", (), 1, 1, {}, (), [*at.kept()], [], {}, PYTHON, 1.0, 0.0, {}
    )
    name = f"{PREFIX}{at.last:012d}"
    checkpoint, _ = seal.close(named(name, "job"), place.header(), pickle.dumps(evil))
    facts, *_ = read_head(store, seal, "job")
    facts = facts._replace(codec="", status="running", error="")
    head = seal_head(seal, facts, at.last, at.link)
    batch = Batch(tuple(rows), put={name: checkpoint}, head=head, mark=mark(seal, "job", at))
    for _ in range(2):  # there are two marks: the older one is of the records that are replaced
        store.write("job", lease.epoch, batch)
    lease.release()


def command(words, _):
    return CliRunner().invoke(cli.main, words.split(), catch_exceptions=False)


LOOKS = {
    "inputs": lambda run: run.inputs,
    "result": lambda run: run.result,
    "error": lambda run: run.error,
    "steps": lambda run: [each.result for each in run.steps],
    "locals": lambda run: run.locals(),
    "checkpoints": lambda run: [each.locals() for each in run.checkpoints],
    "page": lambda run: run._repr_html_(),
    "call": lambda _: counting(1),
    "start": lambda _: counting.start(1).result(),
    "resume": lambda run: run.resume().result(),
    "recover": lambda _: [each.result() for each in stepwise.recover()],
    "fork": lambda run: run.fork(at=1, run_id="other").resume().result(),
    "diff": lambda run: run.diff(run),
    "compensate": lambda run: run.compensate(),
    **{
        f"stepwise {words}": functools.partial(command, words)
        for words in (
            "runs", "show job", "show job --locals", "locals job", "export job",
            "export job --json", "diff job job", "verify job", "resume job",
        )
    },
}  # fmt: skip
WAYS = [  # a run that was stopped, or has ended; in a sample one or the other
    (how, ended)
    for number, how in enumerate(LOOKS)
    for ended in ((False, True) if WHOLE else (number % 2 == 1,))
]


def looked(folder, how, evil, *, ended, trust):
    """Whether somebody's pickle or command was executed by one way to look or to go on."""
    with fresh_store(folder) as store:
        dying = contextlib.nullcontext() if ended else crash_at(last)
        with contextlib.suppress(SimulatedCrash), dying:
            counting(1)
        forge(store, evil)
        stepwise.configure(trust=trust)
        with contextlib.suppress(Exception, RunStopped):
            LOOKS[how](stepwise.get_run("job"))
    return os.path.exists(evil.path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("how", "ended"), WAYS)
def test_no_sealed_pickle_is_loaded_either(how, ended, place):
    """With ``trust="data"`` nothing that looks or goes on loads a pickle, or starts a command."""
    evil = Evil(place / "canary")
    assert not looked(place / "store", how, evil, ended=ended, trust="data")


@pytest.mark.filterwarnings("ignore")
def test_the_looks_see_pickles(place):
    """Without it most of these ways do: the sweep would see what it looks for."""
    seen = {
        how
        for number, how in enumerate(LOOKS)
        if looked(place / f"{number}", how, Evil(place / f"c{number}"), ended=False, trust="all")
    }
    assert seen >= {"inputs", "steps", "locals", "call", "resume", "recover", "stepwise resume job"}
