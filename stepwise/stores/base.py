"""The store protocol: bytes under a run, written in atomic batches by the run's one owner.

A store knows nothing of steps or pickles.  It keeps, for each run,

- *records*: sealed bytes under the sequence numbers 1, 2, 3, ..., only ever appended;
- *objects*: sealed bytes under a name, replaced and deleted (checkpoints);
- one *head*: what a listing needs, replaced at each change of status;
- one *mark*: a few sealed bytes kept apart from the records, that tell how far these went, so that
  a lost tail or an emptied database is noticed;
- a *lease*: who executes the run.  Its *epoch* grows with every acquisition and goes with every
  write; a store refuses a write that carries an older one, so that a paused process that wakes up
  after a takeover can write nothing (a fencing token).

Everything is drawn so that a database on another machine can serve it: a batch is one transaction,
no call holds anything open between two others but the lease, and the owner is a record of the
store, not of the operating system.  ``stepwise.testing.StoreContract`` is the executable form of
this page.

A store may have more methods.  ``changes(name)``: how often something was written under a name that
ends with a colon, by any process, since this one began to listen; ``None`` while it would not hear
of it.  Who has it need not read again and again (see ``_journal.log``).
``newest_heads(*, unfinished=False, words=())`` yields the heads in the order in which their runs
began, the newest first, so that a page of a long listing does not read all of them: those that have
one text of each group in their words.  ``count_heads()`` says how many heads there are.
``note(run_id, epoch, data)`` keeps some sealed bytes in place of the last ones, which need survive
nothing, and ``noted(run_id)`` returns them, ``b""`` if there are none: the steps in progress, for
displays.  It is called before each step, so a store on another machine lacks it.
``write_all(wanted)`` writes a batch for each of several runs at once, marked by
``_group_commit.for_several``; it returns what came of each instead.

Rejected: one method for each kind of write.  A crash between two of them is a state that somebody
has to handle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from stepwise._runtime.facts import NamedTuple
from stepwise._values.unpickling import Data
from stepwise.errors import StoreError

__all__ = ["Batch", "Head", "Owner", "Store"]

FORMAT = 5
"""The format of everything in a store: its tables, its records, its objects, its logs."""
LAST_READERS = {4: "df71dfa"}
"""The last commits that read earlier formats."""
LAST_READER = "a6ceb4d"
"""The last commit that reads the formats before these."""


def other_format(where: str, found: int) -> StoreError:
    """Return the error for a store of another format than the one that is read here."""
    if found > FORMAT:
        way_out = "use the newer version of stepwise that wrote it"
    else:
        way_out = (
            f"commit {LAST_READERS.get(found, LAST_READER)} of stepwise is the last one that "
            "reads it. Let its runs end "
            "there, and give this version another store"
        )
    return StoreError(
        f"the store {where} is of format {found}, and this version of stepwise reads format "
        f"{FORMAT}: {way_out}",
        path=where,
        errno=None,
    )


class Owner(NamedTuple):
    """The owner of a run: process, machine, start (seconds since 1970), thread or task."""

    pid: int
    host: str
    since: float
    thread: str = ""


class Head(NamedTuple):
    """One row of the listing of runs.  ``data`` is sealed; a store may index the other fields.

    ``workflow`` is an opaque string, equal for the runs of one workflow.  ``words`` is an opaque
    text, by whose parts listings look for runs.
    """

    run_id: str
    workflow: str
    finished: bool
    data: bytes
    words: str = ""


def has_words(head: Head, words: Words) -> bool:
    """Return whether a head has one text of each group in its words."""
    return all(any(text in head.words for text in group) for group in words)


Words = Sequence[Sequence[str]]
"""Groups of texts: a head that is looked for has one text of each group in its words."""


_NO_OBJECTS: Mapping[str, Data] = {}


class Batch(NamedTuple):
    """The contents of one transaction.  Either all of it is there afterwards, or none.

    Args:
        records: (sequence number, bytes).  Large ones come in pieces, which ``bytes()`` joins.
            Writing again what is there already, with the same
            bytes, is no error: a caller that does not know whether a commit happened repeats it.
        put: objects to write, by name.
        delete: names of objects to delete; a name that is not there is no error.
        prune: delete the records up to and including this sequence number (0: none).
        head: the run's new head.
        mark: written after the rest, outside the transaction and without waiting for the disk.
        durable: on stable storage when ``write`` returns.  Otherwise it survives the process but
            not a power cut, and is made durable by the next durable batch at the latest.
    """

    records: tuple[tuple[int, Data], ...] = ()
    put: Mapping[str, Data] = _NO_OBJECTS
    delete: tuple[str, ...] = ()
    prune: int = 0
    head: Head | None = None
    mark: bytes = b""
    durable: bool = True


@runtime_checkable
class Store(Protocol):
    """The storage of runs.  Every method may raise :class:`~stepwise.StoreError`.

    Methods are called from any thread, and never with two batches of one run at the same time.
    """

    @property
    def url(self) -> str:
        """The URL that opens this store again: ``disk:/path``."""

    @property
    def persistent(self) -> bool:
        """True if the store outlives the process."""

    def acquire(self, run_id: str, owner: Owner) -> int:
        """Take the lease of a run, which need not exist yet; returns the new epoch (1, 2, ...).

        Succeeds at once when the last owner's process is dead.

        Raises:
            RunOwnedError: somebody alive holds it, in this process or another.
        """

    def release(self, run_id: str, epoch: int) -> None:
        """Release the lease.  Releasing a lease that is not held is not an error."""

    def owner(self, run_id: str) -> Owner | None:
        """Return the living owner of the lease, or ``None`` if nobody has it."""

    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        """Write a batch.

        Raises:
            LeaseLostError: ``epoch`` is not that of the newest lease; nothing was written.
        """

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """The records with a number greater than ``after``, in order.

        A record that cannot be read whole comes as ``b""``: damaged is not the same as missing.
        """

    def get(self, run_id: str, name: str) -> bytes | None:
        """Return one object: ``None`` if it is missing, ``b""`` if it cannot be read whole."""

    def names(self, run_id: str, prefix: str = "") -> list[str]:
        """The names of the run's objects that begin with ``prefix``, sorted."""

    def head(self, run_id: str) -> Head | None:
        """The head of one run."""

    def marks(self, run_id: str) -> list[bytes]:
        """The last two marks of a run, in any order; a damaged or torn one may be among them."""

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        """Yield the heads of all runs, of the runs of one workflow, or of unfinished runs."""

    def delete(self, run_id: str, epoch: int) -> None:
        """Delete everything of a run but its epoch, which keeps growing; needs the lease."""

    def close(self) -> None:
        """Release connections and leases.  Not used afterwards."""
