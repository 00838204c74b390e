"""The store protocol: bytes under a run, written in atomic batches by the run's one owner.

A store knows nothing of steps or pickles.  For each run, a store keeps

- *records*: sealed bytes under the sequence numbers 1, 2, 3, ..., only ever appended;
- *objects*: sealed bytes under a name, replaced and deleted (checkpoints);
- one *head*: what a listing needs, replaced at each change of status;
- one *mark*: a few sealed bytes, apart from the records, that record how far the records went.  A
  mark reveals a lost tail or an emptied database;
- a *lease*: the process that executes the run.  The lease's *epoch* grows with every acquisition,
  and every write carries the epoch.  A store refuses a write with an older epoch (a fencing token):
  a paused process that wakes up after a takeover can write nothing.

A database on another machine can implement the protocol: a batch is one transaction, only the lease
stays open between two calls, and the store itself records the owner.
``stepwise.testing.StoreContract`` is the executable form of this page.

A store may have more methods:

- ``changes(name)`` returns how often any process wrote under a name that ends with a colon, since
  this process began to listen.  The result is ``None`` while the store would miss such a write.
  With this method, a caller need not poll (see ``_journal.logs``).
- ``newest_heads(*, unfinished=False, words=(), before="", prefix="")`` yields the heads, newest run
  first, so that a page of a long listing does not read all of them.  With ``words``, it yields only
  the heads that have one text of each group in their words.  With ``before``, it begins after the
  head of that run; without such a head, it yields none.  With ``prefix``, it yields only the heads
  of runs whose ids begin with that text.
- ``last_owner(run_id)`` returns the process that last took the lease, even if it is gone, so that
  displays can name the process and the machine that died; ``None`` if it is unknown.
- ``due_heads(workflow)`` yields the heads of a workflow's runs that have a ``due``, the earliest
  first, and of equal ones the run that was written first.  ``heads(unfinished=True)`` and
  ``newest_heads(unfinished=True)`` leave these heads out.  A store without this method ignores
  ``due``: such a head is then one of the unfinished ones.
- ``first_due_heads()`` returns of these heads the earliest one of each workflow, so that runs that
  nobody serves are found among any number of others.
- ``count_heads(words=())`` returns the number of heads that have these words.
- ``used(above)`` returns the bytes of all data, without the free space that deleted runs left; or
  any number up to ``above`` if the data are not larger than that.
- ``note(run_id, epoch, data)`` replaces the run's note, a few sealed bytes that need not survive
  anything; ``noted(run_id)`` returns the note, or ``b""`` if there is none.  Displays read the
  steps in progress from it.  ``note`` is called before each step, so a store on another machine
  lacks these methods.
- ``for_pages(*, to_read)`` returns the store object that the pages of ``stepwise ui`` read: it
  gives up early on a server that is away.  With ``to_read`` it cannot write, whoever wants that.
- ``now()`` returns seconds by the clock of the store's server, for processes on several machines.
- ``write_all(wanted)`` writes a batch for each of several runs at once.  It is marked by
  ``_group_commit.for_several``, and returns the error of each batch, or ``None``.

Rejected: one method for each kind of write.  Each crash between two writes would leave a state that
needs handling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from stepwise._runtime.facts import NamedTuple
from stepwise._values.unpickling import Data
from stepwise.errors import StoreError

__all__ = ["Batch", "Head", "Owner", "Store"]

FORMAT = 8
"""The format of everything in a store: its tables, its records, its objects, its logs."""
LAST_READERS = {4: "df71dfa", 5: "e9d3d30", 6: "f273785", 7: "51976d4"}
"""The last commit that reads each earlier format."""
LAST_READER = "a6ceb4d"
"""The last commit that reads all formats before those in ``LAST_READERS``."""


def other_format(where: str, found: int) -> StoreError:
    """Return the error for a store whose format this version does not read.

    Args:
        where: the URL of the store.
        found: the format of the store.
    """
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
    )


class Owner(NamedTuple):
    """The owner of a run: process, machine, start (seconds since 1970), thread or task."""

    pid: int
    host: str
    since: float
    thread: str = ""


class Head(NamedTuple):
    """One row of the listing of runs.  ``data`` is sealed; a store may index the other fields.

    ``workflow`` is an opaque string, equal for all runs of one workflow.  ``words`` is an opaque
    text that listings search for parts.  ``due`` is when a run that has not begun is to begin, in
    seconds since 1970; ``None`` for a run that has begun.
    """

    run_id: str
    workflow: str
    finished: bool
    data: bytes
    words: str = ""
    due: float | None = None


def has_words(head: Head, words: Words) -> bool:
    """Return whether the words of a head contain one text of each group."""
    return all(any(text in head.words for text in group) for group in words)


Words = Sequence[Sequence[str]]
"""Groups of texts: a wanted head has at least one text of each group in its words."""


def to_bytes(text: str) -> bytes:
    """Encode a text as bytes; lone surrogates are allowed."""
    return text.encode("utf-8", "surrogatepass")


_NO_OBJECTS: Mapping[str, Data] = {}


class Batch(NamedTuple):
    """The contents of one transaction: a store writes the whole batch or nothing.

    Args:
        records: pairs of a sequence number and bytes.  A large record comes in pieces, which
            ``bytes()`` joins.  Writing a record again with the same bytes is not an error: a caller
            repeats a commit whose outcome is unknown.
        put: objects to write, by name.
        delete: names of objects to delete; a missing object is not an error.
        prune: delete the records up to and including this sequence number (0: none).
        head: the run's new head.
        mark: written after the rest, outside the transaction and without waiting for the disk.
        durable: on stable storage when ``write`` returns.  A batch that is not durable survives the
            process but not a power cut, until the next durable batch makes it durable.
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
        """Take the lease of a run, which need not exist yet.

        The call succeeds at once if the last owner's process is dead.

        Returns:
            the new epoch (1, 2, ...).

        Raises:
            RunOwnedError: a living owner holds the lease, in this process or another.
        """

    def release(self, run_id: str, epoch: int) -> None:
        """Release the lease.  Releasing a lease that is not held is not an error."""

    def owner(self, run_id: str) -> Owner | None:
        """Return the living owner of the lease, or ``None`` if the lease is free."""

    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        """Write a batch.

        Raises:
            LeaseLostError: ``epoch`` is not the newest lease's epoch; nothing was written.
        """

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the records with a number greater than ``after``, in order.

        A damaged record is yielded as ``b""``, since damaged is not the same as missing.
        """

    def get(self, run_id: str, name: str) -> bytes | None:
        """Return one object: ``None`` if it is missing, ``b""`` if it is damaged."""

    def names(self, run_id: str, prefix: str = "") -> list[str]:
        """Return the sorted names of the run's objects that begin with ``prefix``."""

    def head(self, run_id: str) -> Head | None:
        """Return the head of one run, or ``None`` if the run has none."""

    def marks(self, run_id: str) -> list[bytes]:
        """Return the last two marks of a run, in any order; either may be damaged or torn."""

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        """Yield the heads of all runs, of the runs of one workflow, or of unfinished runs."""

    def delete(self, run_id: str, epoch: int) -> None:
        """Delete everything of a run except its epoch, which keeps growing; needs the lease.

        Raises:
            LeaseLostError: ``epoch`` is not the newest lease's epoch; nothing was deleted.
        """

    def close(self) -> None:
        """Release connections and leases.  The store is not used afterwards."""
