"""The append-only journal of a run: sealed, chained records that are read only if they verify.

Each envelope holds the link of the previous record (a hash chain) and the number of intents before
the record.  After each acknowledged batch the store keeps a *mark*, apart from the database, that
records how far the journal went.  So a damaged or missing record, a lost tail and an emptied
database are all noticed, and even then the marks show whether a side effect is concerned.  A mark
also distinguishes one history of a run from another.

The *head* of a run holds the facts for listings, so that listings need not read the journal.  The
head records where the journal ended when the head was written.  Code that decides anything asks
:func:`facts_of`, which also reads the later records.  A damaged head is rebuilt from the records.

An *anchor* keeps the last mark of a run beside the key (see ``seal``).  It is written when the
run announces a side effect, waits or ends; a plain step writes none.

The *note* of a run names its steps in progress, only for displays: a plain step is recorded when it
ends.  The note is written for every step as its body begins, without waiting for the disk.  It is a
text and a tag, since JSON in an envelope took twice as many instructions.  Notes are not encrypted,
so an encrypted store has none.

Rejected: a random id for each life of a run.  The link in a mark covers the whole history before
the mark, and so identifies the life already.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from stepwise._journal import records
from stepwise._journal.lease import Lease
from stepwise._journal.projection import effects_seen, given_up, start_of
from stepwise._journal.seal import (
    NO_LINK,
    Anchor,
    DamagedError,
    Envelope,
    FileCell,
    ForeignKeyError,
    Seal,
    anchor_cell,
    anchor_of,
    drop_anchor,
    ephemeral_seal,
    load_seal,
    named,
)
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import Once, first_of, notice, shell_word
from stepwise._runtime.system_limits import stopped
from stepwise._values.unpickling import Data
from stepwise.errors import ConfigurationError, JournalLostError, StoreError
from stepwise.stores import Batch, Head, Store
from stepwise.stores._group_commit import Chain, Commits, Share, commits_of, interrupted, refused
from stepwise.stores.base import has_words

# -- heads ----------------------------------------------------------------------------------------


def seal_head(seal: Seal, facts: records.RunFacts, last: int, link: bytes) -> Head:
    """Build the sealed head of a run for the store.

    Args:
        last, link: the number of the last record, and the link to it.
    """
    data, _ = seal.close(f"head/{facts.run_id}", [facts._asdict(), last, link.hex()])
    index, *words = seal.index(facts.workflow, *_words_of(facts))
    finished = _listed_status(facts) in _FINISHED
    return Head(facts.run_id, index, finished, bytes(data), "".join(map(_word, words)), facts.due)


_OF, _BASE = "of ", "branch of "
_FINISHED = ("completed", "cancelled", "superseded")


def _listed_status(facts: records.RunFacts) -> str:
    return "superseded" if facts.superseded else facts.status


def _word(text: str) -> str:
    return f"\n{text}\n"


def _searched(seal: Seal, texts: Iterable[str]) -> list[list[str]]:
    """Return texts as a store searches for them: each in every form that a key may have given."""
    return [[*map(_word, seal.indexes(each))] for each in texts]


def _words_of(facts: records.RunFacts) -> list[str]:
    names = dict.fromkeys((facts.workflow, facts.label))
    tags = [f"tag {name}={text}" for name, text in facts.tags.items()]
    base = [f"{_BASE}{facts.base}"] if facts.base else []
    return [*(_OF + name for name in names), f"status {_listed_status(facts)}", *tags, *base]


def is_listed(store: Store, seal: Seal, run_id: str) -> bool:
    """Return whether a run's head verifies and has the words that listings search for."""
    head = store.head(run_id)
    facts = open_head(seal, head) if head is not None and head.run_id == run_id else None
    if head is None or facts is None:
        return False
    words = _searched(seal, _words_of(facts))
    return not hasattr(store, "newest_heads") or has_words(head, words)


def words_for(
    seal: Seal, workflow: str | None, status: str | None, tags: Mapping[str, str]
) -> list[list[str]]:
    """Return the words by which a store finds the heads of some runs.

    The words are not sealed, so the caller must check each head that the store finds.

    Args:
        workflow: the full or short name of the runs' workflow.
        status: the runs' status in their heads.
        tags: the runs' tags, by name.
    """
    wanted = [_OF + workflow] if workflow is not None else []
    wanted += [f"status {status}"] if status is not None else []
    wanted += [f"tag {name}={text}" for name, text in tags.items()]
    return _searched(seal, wanted)


def open_head(seal: Seal, head: Head) -> records.RunFacts | None:
    """Return the facts in a head, or ``None`` if the head does not verify."""
    found = _opened(seal, head)
    return None if found is None else found[0]


def _opened(seal: Seal, head: Head) -> tuple[records.RunFacts, int, bytes] | None:
    try:
        kept, last, link = seal.open(f"head/{head.run_id}", head.data).header
        kept["waits"] = (*(records.RunWait(*each) for each in kept["waits"]),)
        tally = kept["tally"]
        if tally is not None:  # the tally does not cover later records
            kept["tally"] = records.Tally(*tally) if tally[0] == last else None
        return records.RunFacts(**kept), last, bytes.fromhex(link)
    except (DamagedError, LookupError, TypeError, ValueError):
        return None


def read_head(
    store: Store, seal: Seal, run_id: str, head: Head | None = None
) -> tuple[records.RunFacts, int, bytes] | None:
    """Return the facts in a run's head, and the number of and link to the last record at that time.

    Return ``None`` if the head is missing, does not verify, or belongs to another run.

    Args:
        head: the head, if it was read just now.
    """
    head = store.head(run_id) if head is None else head
    return _opened(seal, head) if head is not None and head.run_id == run_id else None


_LOOKED_AT = 10  # heads; one verified head is enough


def check_key(store: Store, seal: Seal) -> None:
    """Refuse a store whose runs were written with another key.

    A new run under another key would break the listings of every other machine.  A store that
    already holds runs of both keys is not refused.

    Raises:
        ConfigurationError: no examined head verifies, and at least one has another key.
    """
    foreign = False
    for head in islice(store.heads(), _LOOKED_AT):
        try:
            seal.open(f"head/{head.run_id}", head.data)
        except ForeignKeyError:
            foreign = True
        except DamagedError:
            pass  # its key is unknown; ``verify`` reports the damage
        else:
            return
    if foreign:
        raise ConfigurationError(
            f"{store.url} was written with another key than the one that is set here. "
            "All machines that use a store need the same key: set STEPWISE_KEY to it"
        )


def unfinished_heads(store: Store, seal: Seal, workflow: str) -> Iterator[Head]:
    """Yield the heads of a workflow's unfinished runs, including heads indexed by an older key."""
    if next(iter(store.heads(unfinished=True)), None) is not None:  # mostly there is none
        for index in seal.indexes(workflow):
            yield from store.heads(index, unfinished=True)


def children_of(store: Store, seal: Seal) -> dict[str, list[str]]:
    """Return the ids of all child runs, by the ids of their parents."""
    found: dict[str, list[str]] = {}
    for head in list(store.heads()):
        facts = open_head(seal, head)
        if facts is not None and facts.parent:
            found.setdefault(facts.parent, []).append(facts.run_id)
    return found


SHARED = "shared"
"""The name of an object beside the records of a run that has, or had, branches."""


def branches_of(store: Store, seal: Seal, run_id: str) -> list[str]:
    """Return the ids of the branches that share records of a run."""
    return [each.run_id for each in each_branch(store, seal, run_id)]


def each_branch(store: Store, seal: Seal, run_id: str) -> Iterator[records.RunFacts]:
    """Yield the facts of the branches that share records of a run, by their heads, newest first."""
    if store.get(run_id, SHARED) is None:
        return  # else the heads of all runs are searched
    words = _searched(seal, [f"{_BASE}{run_id}"])
    newest = getattr(store, "newest_heads", None)
    for head in list(newest(words=words) if newest is not None else store.heads()):
        facts = open_head(seal, head) or facts_of(store, seal, head.run_id)
        if facts is not None and facts.base == run_id:
            yield facts


def is_half_adopted(store: Store, seal: Seal, facts: records.RunFacts) -> bool:
    """Return whether a branch goes on instead of its base, and does not know it: adopting died."""
    base = facts_of(store, seal, facts.base) if facts.base and facts.is_branch else None
    return base is not None and base.superseded == facts.run_id


def is_ready(facts: records.RunFacts) -> bool:
    """Return whether a run is a fork that nobody has executed yet."""
    # The process that executes the run updates the head when the execution begins.
    return bool(facts.forked_from) and facts.updated_at <= facts.created_at


# -- chain ----------------------------------------------------------------------------------------


INBOX = "inbox:"
"""The prefix of the names of inboxes in a store; no run id begins with it."""
STREAM = "stream:"
"""The prefix of the names of the logs of streams; see ``stream``."""

_MARK = struct.Struct("<QQ8s")
_SIZE = _MARK.size + 16


class Position(NamedTuple):
    """The end of a journal: the last record's number and link, the intents and sums up to it."""

    last: int = 0
    link: bytes | None = NO_LINK  # None: the last record cannot be read
    effects: int = 0
    sums: records.Sums = records.NO_SUMS

    def kept(self) -> list[Any]:
        """Return the position in a form that JSON can hold."""
        last, link, effects, sums = self
        return [last, (link or b"").hex(), effects, sums]

    @classmethod
    def from_kept(cls, kept: Sequence[Any]) -> Position:
        """Return the position that :meth:`kept` gave."""
        last, link, effects, sums = kept
        return cls(last, bytes.fromhex(link) or None, effects, records.Sums(*sums))


class Lost(NamedTuple):
    """A record that does not verify, or that is missing before a later record."""

    number: int


Reading = Iterator[tuple[records.Entry | Lost, Position]]
"""Records after a position, each with the position after it."""


def read(store: Store, seal: Seal, run_id: str, start: Position | None = None) -> Reading:
    """Yield the verified records after a position, each with the journal's position after it.

    Raises:
        ConfigurationError: the records were written with another key.
    """
    at = start or Position()
    return _read(store, seal, run_id, at, iter(store.read(run_id, after=at.last)))


def read_on(store: Store, seal: Seal, run_id: str, at: Position) -> Reading | None:
    """Return what :func:`read` yields after a position; ``None`` if the journal does not hold it.

    The journal holds a position if it has the same record there.
    """
    if not at.last:
        return read(store, seal, run_id)
    rows = iter(store.read(run_id, after=at.last - 1))
    first = next(rows, None)
    if first is None:
        return None
    if first[0] == at.last:
        with contextlib.suppress(DamagedError):
            if seal.open(identity(run_id, at.last), first[1]).link == at.link:
                return _read(store, seal, run_id, at, rows)
        return None
    branched = _branched(seal, run_id, first, at.last - 1)
    if branched is None or read_on(store, seal, branched.base, at) is None:
        return None
    return _read(store, seal, run_id, at, chain((first,), rows))


def _read(
    store: Store, seal: Seal, run_id: str, start: Position, rows: Iterator[tuple[int, bytes]]
) -> Reading:
    at, first = start, next(rows, None)
    if first is None:
        return
    for shared, at in _shared(store, seal, run_id, first, start):
        yield shared, at
    for number, opened, _ in verified(store, seal, run_id, chain((first,), rows), at):
        entry, at = followed(at, number, opened)
        yield entry, at


def _branched(
    seal: Seal, run_id: str, row: tuple[int, bytes], after: int
) -> records.Branched | None:
    """Return the beginning of a branch, if the first row after a number is one, and not the next.

    Only then rows before it are missing, so that other runs are not asked for it.
    """
    number, data = row
    if number <= after + 1:
        return None
    opened = seal.opened(identity(run_id, number), data)
    record = records.from_header(opened.header) if opened is not None else None
    return record if isinstance(record, records.Branched) else None


def beginning_of_branch(
    store: Store, seal: Seal, run_id: str
) -> tuple[int, records.Branched] | None:
    """Return the number and the record of the beginning of a branch; ``None`` for other runs."""
    row = next(iter(store.read(run_id)), None)
    branched = _branched(seal, run_id, row, 0) if row is not None else None
    return (row[0], branched) if row is not None and branched is not None else None


def _shared(
    store: Store, seal: Seal, run_id: str, first: tuple[int, bytes], at: Position
) -> Reading:
    """Yield the records after a position that a branch shares, as the branch has them.

    They are verified as records of its base.  The chain goes on in the branch: its first own
    record covers the last one that it shares.

    Args:
        first: the first own row of the run after the position.
    """
    branched = _branched(seal, run_id, first, at.last)
    if branched is None:
        return
    for entry, following in read(store, seal, branched.base, at):
        if entry.number >= first[0]:
            return
        if isinstance(entry, Lost):
            at = following
            yield entry, at
        else:
            shared = records.shared_entry(entry, branched)
            at = following._replace(sums=records.sums_after(at.sums, shared.record))
            yield shared, at


def rows_of(
    store: Store, seal: Seal, run_id: str, after: int = 0
) -> Iterator[tuple[int, bytes, str]]:
    """Yield the rows after a number, each with the name under which it is sealed.

    A branch has the rows that it shares, too.
    """
    rows = iter(store.read(run_id, after=after))
    first = next(rows, None)
    if first is None:
        return
    branched = _branched(seal, run_id, first, after)
    if branched is not None:
        for row in rows_of(store, seal, branched.base, after):
            if row[0] >= first[0]:
                break
            yield row
    for number, data in chain((first,), rows):
        yield number, data, identity(run_id, number)


def followed(
    at: Position, number: int, opened: Envelope | None
) -> tuple[records.Entry | Lost, Position]:
    """Turn a row from :func:`verified` into an entry; return the entry and the new position."""
    if number > at.last + 1:
        return Lost(number), at  # the last row: the number itself may be damaged
    if opened is None:
        return Lost(number), Position(number, None, at.effects, at.sums._replace(at_least=True))
    record = records.from_header(opened.header)
    effects = opened.effects + isinstance(record, records.ANNOUNCES)
    at = Position(number, opened.link, effects, records.sums_after(at.sums, record))
    return records.Entry(number, record, opened.payload), at


def verified(
    store: Store, seal: Seal, run_id: str, rows: Iterable[tuple[int, bytes]], start: Position
) -> Iterator[tuple[int, Envelope | None, bytes]]:
    """Open the rows after a position; yield the number, envelope and data of each row.

    The envelope is ``None`` for a missing row, and for a row that does not verify or does not
    follow the previous row.  If several damaged rows after a gap end the journal, only the last
    damaged row is yielded.

    Raises:
        ConfigurationError: the rows were written with another key.
    """
    last, link, stray = start.last, start.link, 0
    for number, data in rows:
        try:
            opened: Envelope | None = seal.open(identity(run_id, number), data)
        except ForeignKeyError:
            if read_head(store, seal, run_id) is None:
                raise foreign(store, run_id) from None
            opened = None
        except DamagedError:
            opened = None
        if opened is None and number > last + 1:
            stray = number  # the number itself may be damaged, so it does not prove a gap
            continue
        stray = 0
        for missing in range(last + 1, number):
            link = None
            yield missing, None, b""
        if opened is not None and link is not None and opened.previous != link:
            opened = None
        last, link = number, opened.link if opened is not None else None
        yield number, opened, data
    if stray:
        yield stray, None, b""


def read_entries(
    store: Store, seal: Seal, run_id: str, start: Position | None = None
) -> Iterator[records.Entry]:
    """Yield the records after a position that verify."""
    for entry, _ in read(store, seal, run_id, start):
        if isinstance(entry, records.Entry):
            yield entry


def entries_of(store: Store, seal: Seal, facts: records.RunFacts) -> Iterator[records.Entry]:
    """Yield the records of a run that verify, from the first one that was not pruned on."""
    return read_entries(store, seal, facts.run_id, Position(facts.pruned, None))


def read_one(store: Store, seal: Seal, run_id: str, number: int) -> records.Entry | None:
    """Return one record, or ``None`` if it is missing or does not verify."""
    found, _ = next(read(store, seal, run_id, Position(number - 1, None)), (None, None))
    return found if isinstance(found, records.Entry) and found.number == number else None


def read_start(
    store: Store, seal: Seal, run_id: str, number: int = 1
) -> tuple[records.Started, bytes] | None:
    """Return the record of a run's beginning and its payload, or ``None``; see :func:`read_one`."""
    entry = read_one(store, seal, run_id, number) if number else None
    return start_of([entry]) if entry is not None else None


def place_of_run(facts: records.RunFacts) -> str:
    """Return the script or module of a run's workflow."""
    return facts.workflow.removesuffix(f":{facts.label}")


def is_of_file(
    store: Store, seal: Seal, old: records.RunFacts, names: Container[str], file: str
) -> bool:
    """Return whether a run's workflow is defined in a file.

    The way in which the file was started or imported does not matter.

    Args:
        old: the facts of the run.
        names: the full names that the workflow may have had.
        file: the resolved path of the file.
    """
    if not file or old.workflow not in names:
        return False
    if place_of_run(old) == file:
        return True
    start = read_start(store, seal, old.run_id)
    if start is None or not start[0].file:
        return False
    return os.path.realpath(os.path.join(start[0].cwd, start[0].file)) == file


def read_end(store: Store, seal: Seal, facts: records.RunFacts) -> records.Entry | None:
    """Return the record of a run's end, or ``None``; see :func:`read_one`."""
    entry = read_one(store, seal, facts.run_id, facts.end) if facts.end else None
    return entry if entry is not None and entry.ended is not None else None


def identity(run_id: str, number: int) -> str:
    """Return the name under which a record is sealed."""
    return f"record/{number}/{run_id}"


def inbox_name(run_id: str) -> str:
    """Return the name of a run's inbox in its store."""
    return f"{INBOX}{run_id}"


def stream_name(run_id: str) -> str:
    """Return the name of the log of a run's streams in its store."""
    return f"{STREAM}{run_id}:"


def is_begun(store: Store, name: str) -> bool:
    """Return whether anything was ever written to an inbox or a log, even if damaged or lost."""
    return bool(store.marks(name)) or next(store.read(name), None) is not None


def foreign(store: Store, run_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"run {run_id!r} in {store.url} was written with another key. Bring back the key file "
        "($STEPWISE_HOME/key), or set STEPWISE_KEY to the key it was written with; to start over "
        "with this key, use another store"
    )


# -- marks -----------------------------------------------------------------------------------------


def mark(seal: Seal, run_id: str, at: Position) -> bytes:
    """Build the mark for a position."""
    return marker(seal, run_id)(at)


def marker(seal: Seal, run_id: str) -> Callable[[Position], bytes]:
    """Return the function that builds a run's marks from positions."""
    tag = seal.tagger(f"mark/{run_id}")

    def mark(at: Position) -> bytes:
        last, link, effects, _ = at
        data = _MARK.pack(last, effects, link[:8] if link else NO_LINK[:8])
        return data + tag(data)

    return mark


def _no_mark(_: Position) -> bytes:
    return b""


class Mark(NamedTuple):
    """The end of a journal: the last record's number, the intents up to it, the link to it."""

    last: int = 0
    effects: int = 0
    link: bytes = b""


def newest_mark(store: Store, seal: Seal, run_id: str) -> Mark:
    """Return the newest mark that verifies, or zeros.

    The anchor's mark counts if it is newer than the store's marks, or if the records contradict the
    anchor's mark.  It does not count for a new store in the folder of an old store, or after the
    run was deleted.
    """
    marks, kept = store.marks(run_id), anchor_of(store, run_id)
    newest = max(_marks_in(marks, seal, run_id), default=Mark())
    if kept is None or kept.deleted:
        return newest
    for anchored in _marks_in([kept.mark], seal, run_id):
        if anchored == newest:
            break
        if anchored > newest:
            return anchored if marks or _was_there(store, seal, run_id, kept) else newest
        if is_another_history(store, seal, run_id, anchored):
            return anchored
    return newest


def _marks_in(marks: Iterable[bytes], seal: Seal, run_id: str) -> Iterator[Mark]:
    """Yield the marks that verify."""
    for each in marks:
        data, tag = each[: _MARK.size], each[_MARK.size : _SIZE]
        if len(data) == _MARK.size and seal.is_tag(f"mark/{run_id}", data, tag):
            yield Mark(*_MARK.unpack(data))


def _was_there(store: Store, seal: Seal, run_id: str, kept: Anchor) -> bool:
    """Return whether a store is the run's old store, not a new store in a folder of that name."""
    if next(iter(store.read(run_id)), None) is not None:
        return True
    opened = (open_head(seal, head) for head in store.heads())
    return any(facts is not None and facts.created_at < kept.at for facts in opened)


def is_another_history(
    store: Store, seal: Seal, run_id: str, marked: Mark, at: Position | None = None
) -> bool:
    """Return whether the database holds another record than the marked one under its number.

    This happens if an older database lies beside newer marks: for example, if a run was deleted and
    begun again since.  A missing or damaged record proves nothing.

    Args:
        at: the end of the journal, if known.
    """
    if not marked.last or marked.link == NO_LINK[:8]:
        return False
    if at is not None and at.last == marked.last:
        return at.link is not None and at.link[:8] != marked.link
    entry = next(iter(store.read(run_id, after=marked.last - 1)), None)
    if entry is None or entry[0] != marked.last:
        return False
    opened = seal.opened(identity(run_id, marked.last), entry[1])
    return opened is not None and opened.link[:8] != marked.link


# -- doing ----------------------------------------------------------------------------------------


_TAG = 16  # bytes
_MOST = 20  # calls in a note, the newest ones: a run may have thousands in progress
_FIELD, _CALL = "\x1f", "\x1e"  # separators of the fields of a call, and of calls
_LIMIT = "\x1d"  # around the name of the limit that a call waits for


def shown_call(call: records.Call) -> str:
    """Serialize a call for a note."""
    number, name, module, digest, ordinal = call[:5]
    at = int(call.at * 1e6) + 1  # formatting a float takes twenty times as long
    front = str(number), name, module, digest, str(ordinal), call.branch, str(at)
    return _FIELD.join((*front, call.site, call.arguments))


def shown_waiting(call: records.Call, limit: str) -> str:
    """Serialize a call that waits for a limit, for a note."""
    return f"{_LIMIT}{limit}{_LIMIT}{shown_call(call)}"


def noter(
    store: Store, seal: Seal, run_id: str, epoch: int
) -> Callable[[dict[int, str]], None] | None:
    """Return a function that notes a run's calls in progress, or ``None`` if notes are not kept.

    Notes need a store with a ``note`` method, and no encryption.

    A note holds as many calls as a display shows.  While all of these calls are in progress, a new
    call needs no new note: with 200 calls in progress, a note for each new call was a tenth of its
    processor time.
    """
    keep, tag = getattr(store, "note", None), seal.tagger(_identity(run_id))
    if keep is None or seal.encrypts:
        return None
    noted: frozenset[int] = frozenset()

    def note(calls: dict[int, str]) -> None:
        nonlocal noted
        texts: Iterable[str] = calls.values()
        if len(calls) != 1:
            if len(noted) == _MOST and noted <= calls.keys():
                return
            newest = [*calls][-_MOST:]
            noted = frozenset(newest)
            texts = filter(None, map(calls.get, newest))  # other threads may end some meanwhile
        data = _CALL.join(texts).encode("utf-8", "surrogatepass")
        keep(run_id, epoch, tag(data) + data)

    return note


def noted_calls(store: Store, seal: Seal, run_id: str, since: float) -> list[records.Entry]:
    """Return the calls of the last note that began since a moment, in their order.

    Some calls may have ended after the note.  Each call is an entry with the number 0.

    Args:
        since: seconds since 1970.
    """
    noted = getattr(store, "noted", None)
    note: bytes = noted(run_id) if noted is not None else b""
    tag, data = note[:_TAG], note[_TAG:]
    if not seal.is_tag(_identity(run_id), data, tag):  # the note is torn, or of another run
        return []
    calls = map(_noted, data.decode("utf-8", "surrogatepass").split(_CALL))
    begun = [each for each in calls if each is not None and each.call.at >= since]
    return [records.Entry(0, each, b"") for each in begun]


def _noted(text: str) -> records.Intent | records.Waiting | None:
    """Return the record that a call in progress would have."""
    limit, text = text[1:].split(_LIMIT, 1) if text.startswith(_LIMIT) else ("", text)
    call = _call(text)
    if call is None:
        return None
    return records.Waiting(call, "limit", limit, at=call.at) if limit else records.Intent(call)


def _call(text: str) -> records.Call | None:
    fields = text.split(_FIELD, 8)
    if len(fields) < 9:
        return None  # a user's text with the separator in it
    number, name, module, digest, ordinal, branch, at, site, arguments = fields
    made = records.Call(
        int(number), name, module, digest, int(ordinal), branch=branch, at=int(at) / 1e6
    )
    return made._replace(site=site, arguments=arguments)


def _identity(run_id: str) -> str:
    return f"doing/{run_id}"


# -- journal --------------------------------------------------------------------------------------


INPUTS, FRAMES = "inputs/", "frames/"
"""The prefixes of the objects beside the records of a call: its arguments, and its failures."""


def names_beside(store: Store, run_id: str) -> dict[str, int]:
    """Return the objects beside the records of calls, each with the number of its call."""
    return _beside(store.names(run_id))


def _beside(names: Iterable[str]) -> dict[str, int]:
    return {name: int(name.split("/")[1]) for name in names if name.startswith((INPUTS, FRAMES))}


def recorded_versions(
    store: Store,
    seal: Seal,
    run_id: str,
    version: str = "",
    *,
    names: Iterable[str] | None = None,
) -> list[records.RecordedVersion]:
    """Return the versions of the steps of a run, or only those with this id.

    A damaged object is left out: it only says what has changed.

    Args:
        names: the names of the objects with the versions, if they are known.
    """
    found = []
    for name in store.names(run_id, records.CODE + version) if names is None else names:
        opened = seal.opened(named(name, run_id), store.get(run_id, name))
        if opened is not None:
            recorded = records.RecordedVersion(*opened.header)
            found.append(recorded._replace(differs=(*recorded.differs,)))
    return found


_MOST_BESIDE = 8 << 20  # bytes of objects that wait for a record
COPYING = "copying"
"""The name of an object beside the records of a run whose copy is not complete yet."""
DELETING = "deleting"
"""The name of an object beside the records of a run that is being deleted in several parts."""
_ephemeral = ephemeral_seal()
_NO_OBJECTS: Mapping[str, Data] = {}


class Records(Share):
    """A share of records, to be appended to a journal.

    Args:
        items: records with their payloads.
        durable: True if the caller relies on the records.
        head: the facts for the run's new head.

    Attributes:
        numbers: the numbers of the records, once they are sealed.
        end: the position of the journal after the records.
        anchors: True if the write is followed by a new anchor.
    """

    __slots__ = ("anchors", "durable", "end", "head", "items", "journal", "numbers")
    numbers: list[int]
    end: Position
    anchors: bool

    def __init__(
        self,
        journal: Journal,
        items: tuple[tuple[records.Record, Data], ...],
        durable: bool,
        head: records.RunFacts | None = None,
        future: Any = None,
    ) -> None:
        super().__init__(future)
        self.journal = journal
        self.items = items
        self.durable = durable
        self.head = head

    def join(self, commits: Commits) -> None:
        """Seal the records after the last sealed record, and queue the share in that order."""
        self.journal.enter(self, commits)

    def ended(self) -> None:
        if self.error is None:
            self.journal.reached(self)
        else:
            super().ended()


class Journal:
    """The journal of one run, for the run's only owner.

    Args:
        epoch: the epoch of the lease, which every write carries.
        fsync: True if an acknowledged record must survive a power cut.
        marks: False to leave no mark or anchor, for a run that has not begun.

    Attributes:
        position: the end of the written journal.
        calls: the highest number of a call so far.
        lost: the numbers of unreadable records.
        tail: the number of acknowledged records that are missing from the end.
        unknown_effects: the number of lost records that may be intents of side effects which no
            other record shows.
        note: notes the calls in progress for displays; ``None`` if notes are not kept.
    """

    def __init__(
        self,
        store: Store,
        seal: Seal,
        run_id: str,
        epoch: int,
        *,
        fsync: bool,
        marks: bool = True,
    ) -> None:
        self.store = store
        self.seal = seal
        self.run_id = run_id
        self.epoch = epoch
        self.calls = 0
        self.lost: list[int] = []
        self.tail = 0
        self.unknown_effects = 0
        self.fsync = fsync
        self._lock = threading.RLock()
        self._sealing: Any = threading.RLock()
        self._commits = commits_of(store, fsync=fsync)
        self._chain = Chain()
        self._mark = marker(seal, run_id) if marks else _no_mark
        self.note = noter(store, seal, run_id, epoch)
        self.position = self._next = Position()  # the ends of the written and of the sealed records
        self._head: records.RunFacts | None = None  # the newest facts for the head
        self._beside: Mapping[str, Data] = _NO_OBJECTS  # to write with the next record
        self._names: list[str] | None = None
        self._is_first = Once()
        self._tolerant = False
        self._other = False  # the marks belong to another history

    def names(self, *prefixes: str) -> list[str]:
        """Return the names of the objects beside the records that begin with one of these texts.

        The store is asked once for all of them, until this journal writes or deletes an object.
        """
        if self._names is None:
            self._names = self.store.names(self.run_id)
        return [name for name in self._names if name.startswith(prefixes)]

    def load(self, start: Position | None = None, *, tolerant: bool = False) -> list[records.Entry]:
        """Read and verify the records after ``start``.

        Args:
            tolerant: only count the lost records; raise and report nothing.

        Raises:
            JournalLostError: acknowledged records of side effects are lost.
            StoreError: the run is an incomplete copy, or its deletion was cut off.
        """
        place, self._tolerant = (self.store, self.seal, self.run_id), tolerant
        marked = newest_mark(*place)  # first: its owner may write
        return self._take(start or Position(), marked, read(*place, start))

    def load_on(self, start: Position) -> list[records.Entry] | None:
        """Load the records after ``start``; return ``None`` if the journal does not hold it."""
        place, self._tolerant = (self.store, self.seal, self.run_id), False
        marked, found = newest_mark(*place), read_on(*place, start)
        return None if found is None else self._take(start, marked, found)

    def _take(self, start: Position, marked: Mark, found: Reading) -> list[records.Entry]:
        self.position, self.lost, entries = start, [], list[records.Entry]()
        self.tail = self.unknown_effects = 0
        self._other = False
        for entry, at in found:
            self.position = at
            if isinstance(entry, Lost):
                self.lost.append(entry.number)
            else:
                entries.append(entry)
                self.count(entry)
        if not (self.position.last or self.lost):
            self._names = []  # objects are written after the first record
        # A call that was cut off may have left objects: its number is not given to another call.
        self.calls = max(self.calls, *_beside(self.names(INPUTS, FRAMES)).values(), 0)
        self._begin_chain()
        known = given_up(entries)
        self.lost = [number for number in self.lost if number not in known]
        if not self._tolerant and self.position.last:
            self._refuse_half()
        self._compare_marks(marked)
        if self.lost or self.tail:
            self._assess(entries, start, marked)
        return entries

    def count(self, entry: records.Entry) -> None:
        """Raise the highest call number to a recorded call's number."""
        call = entry.call
        if call is not None:
            self.calls = max(self.calls, call.number, call.unwinding or 0)

    def append(
        self,
        *items: tuple[records.Record, Data],
        durable: bool = True,
        head: records.RunFacts | None = None,
    ) -> list[int]:
        """Append records in one transaction, and return their numbers.

        Args:
            items: records with their payloads.
            durable: True if the caller relies on the records; they are then acknowledged with the
                run's durability.
            head: the facts for the run's new head.
        """
        share = Records(self, items, durable, head)
        self._commits.write(share)
        return share.numbers

    def submit(self, *items: tuple[records.Record, Data], durable: bool, future: Any) -> Records:
        """Append records as :meth:`append` does, but in another thread.

        Args:
            future: an event loop's future, resolved when the records are written or have failed.
        """
        share = Records(self, items, durable, future=future)
        self._commits.submit(share)
        return share

    def enter(self, share: Records, commits: Commits) -> None:
        """Seal records and queue them for writing; no other records come between."""
        self._refuse_inside()
        with self._sealing:
            if self._chain.error is not None:
                commits.alone(self._catch_up)
            at, chain, durable = self._next, self._chain, share.durable
            try:
                sealed, end = self._follow(at, share.items)
            except MemoryError as error:
                raise stopped("a record was sealed", error, path=self.store.url) from None
            head = self._sealed(share.head, end) if share.head is not None else None
            marked = self._mark(end) if durable else b""
            beside = self._beside
            # The constructor of a batch is a Python function.
            share.wanted = (
                self.run_id,
                self.epoch,
                tuple.__new__(
                    Batch, (tuple(sealed), beside, (), 0, head, marked, durable and self.fsync)
                ),
            )
            share.numbers = [*range(at.last + 1, end.last + 1)]
            # The anchor remembers side effects even if the store forgets them.
            share.anchors = marked != b"" and (head is not None or end.effects != at.effects)
            share.chain, share.end = chain, end
            try:
                commits.join(share)
                self._next = end
                if beside:
                    self._beside = _NO_OBJECTS
            except BaseException:  # the share may be queued or not
                chain.error = interrupted(self.store.url)
                raise

    def _refuse_inside(self) -> None:
        """Raise ``StoreError`` if this thread is sealing or writing already."""
        if self._sealing._is_owned():
            raise refused(self.store.url)

    def reached(self, share: Records) -> None:
        """Advance the journal's end past written records, and write their anchor if needed."""
        self.position = share.end
        if share.anchors:
            drop_anchor(self._anchor, share.wanted[2].mark)

    def _begin_chain(self) -> None:
        """Begin a new chain after the last written record."""
        self._next, self._chain = self.position, Chain()

    @cached
    def _anchor(self) -> FileCell | None:
        return anchor_cell(self.store, self.run_id)

    def _follow(
        self, at: Position, items: Iterable[tuple[records.Record, Data]]
    ) -> tuple[list[tuple[int, Data]], Position]:
        """Seal records as successors of a position; return them and the new position."""
        sealed: list[tuple[int, Data]] = []
        number, link, effects, sums = at
        for record, payload in items:
            number += 1
            name, header = identity(self.run_id, number), records.to_header(record)
            data, link = self.seal.close(name, header, payload, link or NO_LINK, effects)
            effects += type(record) in records.ANNOUNCES
            sums = records.sums_after(sums, record)
            sealed.append((number, data))
        # The constructor is a Python function.
        return sealed, tuple.__new__(Position, (number, link, effects, sums))

    def begin_with(
        self,
        items: Iterable[tuple[records.Record, Data]],
        put: Callable[[list[Position]], dict[str, Data]],
        head: records.RunFacts,
    ) -> None:
        """Write the first records of a run and objects beside them, in one transaction.

        Args:
            items: records with their payloads.
            put: a function that returns the sealed objects, by name.  Its argument is the list of
                positions: before the first record, then after each record.
            head: the facts for the run's head.
        """
        sealed: list[tuple[int, Data]] = []
        positions = [self.position]
        for item in items:
            following, at = self._follow(positions[-1], (item,))
            sealed += following
            positions.append(at)
        batch = Batch(
            tuple(sealed),
            put=put(positions),
            head=self._sealed(head, positions[-1]),
            mark=self._mark(positions[-1]),
            durable=self.fsync,
        )
        self._chain.error = interrupted(self.store.url)  # until the write has returned
        self._put(batch)
        self.position = positions[-1]
        self._begin_chain()
        drop_anchor(self._anchor, batch.mark)

    def put(
        self,
        name: str,
        header: Any,
        payload: Data,
        *,
        also: Mapping[str, Data] | None = None,
        delete: tuple[str, ...] = (),
        prune: int = 0,
        head: records.RunFacts | None = None,
        durable: bool = False,
        renew: bool = False,
    ) -> int:
        """Write an object beside the records, and return its sealed size in bytes.

        Args:
            also: further objects to write, already sealed, by name.
            delete: names of objects to delete.
            prune: delete the records up to and including this number (0: none).
            head: the facts for the run's new head.
            durable: True if the caller relies on the write.
            renew: write the unchanged head again, so that few records come after it.
        """
        data, _ = self.seal.close(named(name, self.run_id), header, payload)
        put = {**also, name: data} if also else {name: data}
        head_row = self._sealed(head, self.position) if head is not None else None
        facts = ((), put, delete, prune, head_row, b"", durable and self.fsync)
        self._put(tuple.__new__(Batch, facts), renew=renew)  # the constructor is Python's
        return len(data)

    def _sealed(self, head: records.RunFacts, at: Position) -> Head:
        self._head = head
        return seal_head(self.seal, head, at.last, at.link or b"")

    def put_with_next(self, name: str, header: Any, payload: bytes) -> None:
        """Write an object beside the records, in the batch of the run's next record or earlier."""
        data, _ = self.seal.close(named(name, self.run_id), header, payload)
        with self._sealing:
            self._names, beside = None, {**self._beside, name: data}
            is_much = sum(map(len, beside.values())) > _MOST_BESIDE
            self._beside = _NO_OBJECTS if is_much else beside
        if is_much:  # many calls may begin before one of them ends
            self._put(Batch(put=beside, durable=False))

    def drop(self, names: tuple[str, ...]) -> None:
        """Delete objects beside the records."""
        self._put(Batch(delete=names, durable=False))

    def _put(self, batch: Batch, *, renew: bool = False) -> None:
        self._refuse_inside()
        with Uninterrupted(), self._sealing:
            self._names = None
            if self._next is not self.position or self._chain.error is not None:
                # Records are queued, or their outcome is unknown: wait for the running write, since
                # a store takes only one batch of a run at a time.
                self._commits.alone(self.store.write, self.run_id, self.epoch, batch)
                return
            if renew and self._head is not None:
                batch = batch._replace(head=self._sealed(self._head, self.position))
            self.store.write(self.run_id, self.epoch, batch)

    def own(self, epoch: int) -> None:
        """Begin to write under a lease that was acquired after the journal was read."""
        self.epoch = epoch
        self.note = noter(self.store, self.seal, self.run_id, epoch)

    def disown(self) -> None:
        """Make the journal useless in a forked child, where the parent's threads are missing.

        The store refuses every write, since no lease has the epoch 0.
        """
        self.epoch = 0
        self._lock, self._sealing = threading.RLock(), threading.RLock()
        self._commits = Commits(self.store)

    def next_call(self) -> int:
        """Return the number for a new call."""
        with self._lock:
            self.calls += 1
            return self.calls

    def _catch_up(self) -> None:
        """Read the journal after a failed write, to learn whether the write succeeded."""
        for entry, at in read(self.store, self.seal, self.run_id, self.position):
            if isinstance(entry, records.Entry):
                self.count(entry)
            self.position = at
        self._begin_chain()

    def _refuse_half(self) -> None:
        """Raise ``StoreError`` for a run that is not whole: the missing steps would repeat."""
        if self.names(DELETING):
            raise half_deleted(self.store, self.run_id)
        if self.names(COPYING):
            run = shell_word(self.run_id)
            raise StoreError(
                f"run {self.run_id!r} in {self.store.url} is a copy that is not whole: stepwise "
                "copy was cut off. Give the same command again, which copies the rest; or delete "
                f"the copy: stepwise forget {run}",
                path=self.store.url,
            )

    # -- lost records ----------------------------------------------------------------------------

    def _compare_marks(self, marked: Mark) -> None:
        at = self.position
        last, effects, _ = marked
        self.tail = max(0, last - at.last)
        if not self.tail and is_another_history(self.store, self.seal, self.run_id, marked, at):
            self.tail, self._other = last, True  # the records here were not the acknowledged ones
            if not self._tolerant:
                raise self._effects_lost(
                    f"run {self.run_id!r}: {self.store.url} holds another history of it than the "
                    f"one that was acknowledged, up to record {last}: an older copy, perhaps of a "
                    "run that was deleted since. Nothing shows which side effects are missing"
                )
        if not self.tail:
            return
        where = f"run {self.run_id!r}: the journal in {self.store.url} ends at record {at.last}"
        if effects > at.effects and not self._tolerant:
            raise self._effects_lost(
                f"{where}, but records up to {last} were acknowledged, and {effects - at.effects} "
                "of the missing ones announced a side effect"
            )
        self._tell(f"{where}, though {last} were acknowledged; the missing steps run again")

    def _assess(self, entries: list[records.Entry], start: Position, marked: Mark) -> None:
        """Count the lost intents that have no outcome and that no person has given up."""
        seen = effects_seen(entries)
        total = max(self.position.effects, marked.effects) - start.effects
        self.unknown_effects = max(int(self._other), total - seen)
        if not self.lost:
            return
        if not marked.last and (self.position.link is None or self.lost[-1] > self.position.last):
            self.unknown_effects += 1  # the kind of the last record is unknown
        self._tell(
            f"run {self.run_id}: {len(self.lost)} of its records in {self.store.url} cannot be "
            f"read ({first_of(self.lost, 10)}); plain steps among them run again"
        )

    def _tell(self, text: str) -> None:
        if not self._tolerant and self._is_first(text):
            notice(text)

    def refuse_effect(self, name: str) -> JournalLostError:
        """Return the error for a new side effect that a lost record may have announced."""
        return self._effects_lost(
            f"run {self.run_id!r}: {name} would run, but {self.unknown_effects} of the records "
            f"that cannot be read in {self.store.url} announced a side effect, perhaps this one"
        )

    def _effects_lost(self, what: str) -> JournalLostError:
        run = shell_word(self.run_id)
        return JournalLostError(
            f"{what}; continuing could repeat it. Find out what happened. If repeating the missing "
            "steps is harmless, continue with the remaining records: "
            f"stepwise verify {run} --repair --accept-loss; or start over: "
            f"stepwise forget {run}. To use a backup: put the whole folder back, then run "
            "stepwise restore; a run that the backup has then asks about each side effect that the "
            "backup lacks",
            run_id=self.run_id,
            path=self.store.url,
        )


@contextlib.contextmanager
def owned_journal(
    store: Store, seal: Seal, run_id: str, *, fsync: bool = True, child: bool = False
) -> Iterator[Journal]:
    """Yield the journal of a run, whose lease is held meanwhile.

    Args:
        fsync: whether an acknowledged record must survive a power cut.
        child: see :meth:`stepwise._journal.lease.Lease.acquire`.

    Raises:
        RunBusyError, RunOwnedError: a living owner holds the lease.
    """
    with Lease(store, run_id).acquire(child=child) as lease:
        yield Journal(store, seal, run_id, lease.epoch, fsync=fsync)


def half_deleted(store: Store, run_id: str) -> JournalLostError:
    """Return the error for a run whose deletion was cut off."""
    return JournalLostError(
        f"run {run_id!r} in {store.url} is not whole: its deletion was cut off, and child runs, "
        f"messages or streams may be gone. Delete the rest: stepwise forget {shell_word(run_id)}",
        run_id=run_id,
        path=store.url,
    )


def seal_for(store: Store) -> Seal:
    """Return the seal for a store's records."""
    return load_seal() if store.persistent else _ephemeral


_seen: dict[tuple[str, str], tuple[bytes, Position]] = {}
"""The run that was read last: the link in its head, and the known end of its journal."""


def facts_of(
    store: Store, seal: Seal, run_id: str, head: Head | None = None
) -> records.RunFacts | None:
    """Return a run's facts according to its journal: the head's facts, updated by later records.

    Return ``None`` if there is no such run.

    Args:
        head: the head of the run, if it was read just now.
    """

    def derived(
        start: Position | None = None, facts: records.RunFacts | None = None
    ) -> records.RunFacts | None:
        from stepwise._journal.run_facts import derive_facts  # imported on use: few heads need it

        return derive_facts(run_id, read_entries(store, seal, run_id, start), facts)

    found = read_head(store, seal, run_id, head)
    if found is None:
        return derived()
    facts, last, link = found
    start, seen = _seen.get((store.url, run_id), (link, Position(last, link)))
    if start != link:
        seen = Position(last, link)
    before = Position(max(0, seen.last - 1), None)
    held, turned, other = last <= facts.pruned, False, False
    rows = store.read(run_id, before.last)
    for number, opened, _ in verified(store, seal, run_id, rows, before):
        if opened is not None and number == seen.last:
            held = opened.link == seen.link
            other = not held  # the head belongs to another history
        elif opened is not None:
            turned = turned or opened.header[0] in records.TURNS
            seen = Position(number, opened.link)
    if held and not turned:
        _seen.clear()
        _seen[store.url, run_id] = link, seen
        return facts
    whole = derived() if not held else None
    # If the head's last record is damaged or missing, the head of this life of the run knows more.
    if whole is None or (not other and whole.created_at == facts.created_at):
        return derived(Position(last, None), facts)
    return whole._replace(pruned=facts.pruned, codec=facts.codec)
