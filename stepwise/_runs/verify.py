"""The verification of every stored byte of a run, its repair, its children, its deletion.

Nothing is unpickled.  A repair never guesses: bytes that do not verify are moved to
``quarantine/``.  Derived data (the listing) is derived again, and any other loss is reported.  If
records of side effects may be gone, only the user can say that repeating them is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from stepwise._checkpoints.checkpoints import PREFIX, load_checkpoint, number_of
from stepwise._checkpoints.references import Vault
from stepwise._execution.active_run import current_scope
from stepwise._journal import journal as journals
from stepwise._journal.lease import Lease
from stepwise._journal.logs import Bell, Inbox, SealedLog
from stepwise._journal.records import CODE, Quarantined, Restored, RunFacts
from stepwise._journal.seal import Seal, bury_anchor, lift_anchor
from stepwise._journal.stream import StreamLog
from stepwise._journal.summary import NAME, kept_summary
from stepwise._runs.steps import checkpoints_of
from stepwise._runtime.facts import public
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import count, first_of, shell_word
from stepwise.errors import ConfigurationError, RunNotFoundError
from stepwise.stores import Batch, Store

# -- children -------------------------------------------------------------------------------------


class ChildRuns:
    """The child runs of the runs in a store, as of the first look.

    Args:
        store: the store of the runs.
        seal: of the store's records.
    """

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store, self._seal = store, seal

    def of(self, run_id: str) -> list[str]:
        """Return the ids of a run's child runs.

        The journal names them.  If the journal is incomplete, all runs are searched by their
        parent.
        """
        facts = journals.facts_of(self._store, self._seal, run_id)
        if facts is None or facts.pruned:
            return self._all.get(run_id, [])
        named = dict[str, None]()
        for entry, _ in journals.read(self._store, self._seal, run_id):
            if isinstance(entry, journals.Lost):
                return self._all.get(run_id, [])
            if entry.call is not None and entry.call.child:
                named[entry.call.child] = None
        return [child for child in named if self._is_of(child, run_id)]

    def _is_of(self, child: str, run_id: str) -> bool:
        """Return whether a child run is a run's own; a fork's journal names those of its source."""
        facts = journals.facts_of(self._store, self._seal, child)
        if facts is not None:
            return facts.parent == run_id
        # A deletion that was cut off may have left its marks, which would report a loss.
        is_family = child.partition("/")[0] == run_id.partition("/")[0]
        return is_family and journals.newest_mark(self._store, self._seal, child).last > 0

    def below(self, run_id: str) -> Iterator[str]:
        """Yield the id of a run, and those of its child runs, each after the run that calls it."""
        yield run_id
        for child in self.of(run_id):
            yield from self.below(child)

    @cached
    def _all(self) -> dict[str, list[str]]:
        return journals.children_of(self._store, self._seal)


def refuse_shared(store: Store, seal: Seal, run_id: str) -> None:
    """Refuse to delete a run whose records branches share.

    Raises:
        ConfigurationError: the message names the branches.
    """
    branches = journals.branches_of(store, seal, run_id)
    if branches:
        raise ConfigurationError(
            f"run {run_id!r} stays, since its records are shared by {len(branches)} of its "
            f"branches: {first_of(branches, 5)}. Delete these first: stepwise forget "
            f"{' '.join(map(shell_word, branches[:5]))}"
        )


# -- deleting -------------------------------------------------------------------------------------


def is_over(facts: RunFacts) -> bool:
    """Return whether a run may be deleted for its age: nobody would go on with it.

    Child runs are deleted with the runs that call them.
    """
    ended = facts.status in ("completed", "cancelled") or bool(facts.superseded)
    return ended and not (facts.parent or facts.undoing)


class Deleter:
    """The deletion of ended runs of one store, or of what they said, with their child runs.

    Attributes:
        children: finds the child runs.
    """

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store, self._seal, self.children = store, seal, ChildRuns(store, seal)
        self._has_deleted = False

    def delete(self, facts: RunFacts) -> int:
        """Delete a run; return the number of deleted runs, or 0 if the run has changed since.

        Raises:
            RunBusyError: the run or a child run is being executed.
            ConfigurationError: branches share its records.
        """
        place = self._store, self._seal, facts.run_id
        deleted = delete_runs(*place, self.children, lambda: journals.facts_of(*place) == facts)
        self._has_deleted |= deleted > 0
        return deleted

    def empty(self, run_id: str) -> bool:
        """Delete what a run and its child runs have said; return whether there was something.

        Raises:
            RunBusyError: the run or a child run is being executed.
        """
        ids = [*self.children.below(run_id)]
        emptied = sum(empty_streams(self._store, self._seal, each) for each in ids) > 0
        self._has_deleted |= emptied
        return emptied

    def erase(self) -> None:
        """Remove all traces of what was deleted from the files of the store."""
        if self._has_deleted:
            erase(self._store)


def erase(store: Store) -> None:
    """Remove all traces of deleted runs from the files of a store, if the store supports that.

    Call this once after many deletions.
    """
    if hasattr(store, "erase"):
        store.erase()


def delete_runs(
    store: Store,
    seal: Seal,
    run_id: str,
    children: ChildRuns | None = None,
    is_meant: Callable[[], bool] = lambda: True,
) -> int:
    """Delete a run with its child runs, even if only its marks are left.

    Nothing is deleted if a process executes one of them.

    Args:
        children: finds the child runs; ``None`` to delete the run alone.
        is_meant: called once no process can change the run; returns whether to delete it.

    Returns:
        the number of deleted runs.

    Raises:
        RunBusyError: the run or a child run is being executed.
    """
    is_child = current_scope() is not None
    with ExitStack() as held:
        leases = [held.enter_context(Lease(store, run_id).acquire(child=is_child))]
        if not is_meant():
            return 0
        # Found under the lease: nobody begins another child run from here on.
        ids = [*children.below(run_id)] if children is not None else [run_id]
        for each in ids:
            refuse_shared(store, seal, each)
        below = (Lease(store, each).acquire(child=is_child) for each in ids[1:])
        leases += map(held.enter_context, below)  # first all of them
        beside = (journals.inbox_name(run_id), journals.stream_name(run_id))
        is_in_parts = len(ids) > 1 or any(journals.is_begun(store, each) for each in beside)
        if is_in_parts and next(iter(store.read(run_id)), None) is not None:
            # If a kill cuts the deletion off, the run is not to go on without these parts.
            mark = Batch(put={journals.DELETING: b"by stepwise forget"})
            store.write(run_id, leases[0].epoch, mark)
        for lease in reversed(leases):
            _delete_held(store, seal, lease)
    return len(ids)


def refuse_called(store: Store, seal: Seal, run_id: str) -> None:
    """Refuse to delete a child run: its caller would make the side effects of the run again.

    Raises:
        ConfigurationError: the message names the caller, with which the run is deleted.
    """
    facts = journals.facts_of(store, seal, run_id)
    if facts is not None and facts.parent and journals.facts_of(store, seal, facts.parent):
        raise ConfigurationError(
            f"run {run_id!r} stays, since it is a child run of {facts.parent!r}, which would make "
            f"its side effects again: stepwise forget {shell_word(facts.parent)} deletes both"
        )


def _delete_held(store: Store, seal: Seal, lease: Lease) -> None:
    run_id = lease.run_id
    inbox = Inbox(store, seal, run_id)
    Bell(store, seal).forget(run_id)
    inbox.delete()  # first: the next run with this id would inherit it
    log = SealedLog(store, seal, journals.stream_name(run_id))
    if journals.is_begun(store, log.name):
        with log.owned() as epoch:
            log.delete(epoch)
    store.delete(run_id, lease.epoch)
    bury_anchor(store, run_id)
    inbox.delete()  # messages that arrived since


def empty_streams(store: Store, seal: Seal, run_id: str) -> bool:
    """Delete what a run has said, without its child runs; the run itself stays.

    Returns:
        whether the run had said something.

    Raises:
        RunBusyError: the run is being executed.
    """
    log = StreamLog(store, seal, run_id)
    if not log.has_items():
        return False
    with Lease(store, run_id).acquire(child=current_scope() is not None):
        log.empty()
    return True


# -- verify ---------------------------------------------------------------------------------------


QUARANTINE = "quarantine/"
_MARKS = 4  # appends that overwrite both marks, whichever way a store uses its two slots


@public
@dataclass(frozen=True)
class Verification:
    """The result of verifying a run.

    Args:
        records, checkpoints: how many of each verify.
        lost: the numbers of the records that are damaged or missing.
        tail: how many acknowledged records are missing from the end of the journal.
        effects: how many of these records announced side effects that nothing else records.
        damaged_checkpoints: the numbers of the checkpoints that do not verify.
        listing: whether the run's entry in the listing of runs verifies.
        summary: whether the run's summary for listings verifies, or is absent.
        messages: how many messages of the inbox verify.
        lost_messages: the numbers of messages that are damaged or missing, and not given up.
        batches: how many batches of the run's streams verify.
        lost_batches: the numbers of those that are damaged or missing; readers get an error there,
            and nothing repairs them.
        damaged_steps: the numbers of the steps whose recorded arguments or frames do not verify; 0
            for the run.
        damaged_versions: how many recorded versions of steps do not verify.
    """

    run_id: str
    records: int
    checkpoints: int
    lost: tuple[int, ...] = ()
    tail: int = 0
    effects: int = 0
    damaged_checkpoints: tuple[int, ...] = ()
    listing: bool = True
    summary: bool = True
    messages: int = 0
    lost_messages: tuple[int, ...] = ()
    batches: int = 0
    lost_batches: tuple[int, ...] = ()
    damaged_steps: tuple[int, ...] = ()
    damaged_versions: int = 0

    @property
    def ok(self) -> bool:
        """True if everything verifies."""
        return not self.problems

    @property
    def _damage(self) -> Verification:
        """The same without what verifies."""
        return replace(self, records=0, checkpoints=0, messages=0, batches=0)

    @property
    def problems(self) -> list[str]:
        """The problems found, each with its consequence."""
        messages, batches = self.lost_messages, self.lost_batches
        told = {
            f"{count(len(self.lost), 'record')} unreadable ({first_of(self.lost, 10)})": self.lost,
            f"{count(self.tail, 'acknowledged record')} gone from the end": self.tail,
            f"{count(self.effects, 'announcement')} of side effects among them: find out "
            "whether they happened": self.effects,
            f"{count(len(self.damaged_checkpoints), 'checkpoint')} unreadable: the run resumes "
            "at an older one, or by replay": self.damaged_checkpoints,
            "its entry in the listing is damaged": not self.listing,
            "its summary is damaged: listings read the whole journal": not self.summary,
            f"{count(len(messages), 'message')} to it damaged or gone ({first_of(messages, 10)})": (
                messages
            ),
            f"{count(len(batches), 'batch')} of its streams damaged or gone "
            f"({first_of(batches, 10)}): readers get an error there": batches,
            "recorded arguments or local variables unreadable, of steps "
            f"{first_of(self.damaged_steps, 10)}: nothing but showing them needs them": (
                self.damaged_steps
            ),
            f"{count(self.damaged_versions, 'version')} of steps unreadable: whether these "
            "steps have changed since is not known": self.damaged_versions,
        }
        return [problem for problem, holds in told.items() if holds]


def verify(store: Store, seal: Seal, run_id: str) -> Verification:
    """Verify every record, checkpoint, mark and listing entry of a run.

    Raises:
        RunNotFoundError: the store has nothing of this run.
    """
    found = _verified(store, seal, run_id)
    # The run may go on: what was listed, and then pruned or deleted, is not listed again.
    while not found.ok and (again := _verified(store, seal, run_id))._damage != found._damage:
        found = again
    return found


def _verified(store: Store, seal: Seal, run_id: str) -> Verification:
    facts = journals.facts_of(store, seal, run_id)
    journal = journals.Journal(store, seal, run_id, 0, fsync=True)
    entries = journal.load(journals.Position(facts.pruned if facts else 0, None), tolerant=True)
    if facts is None and not entries and not journal.lost and not journal.tail:
        raise RunNotFoundError(f"run {run_id!r} has no records in {store.url}", run_id=run_id)
    found = [checkpoint for checkpoint, _ in checkpoints_of(store, seal, run_id)]
    inbox = Inbox(store, seal, run_id)
    inbox.look(tolerant=True)
    beside = _damaged_beside(store, seal, run_id)
    log = StreamLog(store, seal, run_id)
    acknowledged = log.acknowledged()  # first: the run may go on
    batches = {n: batch is None for n, batch in log.batches()}
    lost_batches, last = [n for n, is_lost in batches.items() if is_lost], max(batches, default=0)
    return Verification(
        run_id,
        records=len(entries),
        checkpoints=sum(each.verified for each in found),
        lost=tuple(journal.lost),
        tail=journal.tail,
        effects=journal.unknown_effects,
        damaged_checkpoints=tuple(each.number for each in found if not each.verified),
        listing=journals.is_listed(store, seal, run_id),
        summary=NAME not in store.names(run_id) or kept_summary(store, seal, run_id) is not None,
        messages=len(inbox.messages),
        lost_messages=tuple(inbox.all_lost()),
        batches=len(batches) - len(lost_batches),
        lost_batches=(*lost_batches, *range(last + 1, acknowledged + 1)),
        damaged_steps=tuple(sorted({call for call in beside.values() if call is not None})),
        damaged_versions=sum(name.startswith(CODE) for name in beside),
    )


def _damaged_beside(store: Store, seal: Seal, run_id: str) -> dict[str, int | None]:
    """Return the objects beside calls that do not verify, each with the number of its call.

    The versions of steps belong to no call.
    """
    vault, versions = Vault(store, seal, run_id), dict.fromkeys(store.names(run_id, CODE))
    beside = {**journals.names_beside(store, run_id), **versions}
    return {name: call for name, call in beside.items() if vault.open(name) is None}


def note_restored(store: Store, seal: Seal) -> list[str]:
    """Record in the unfinished runs of a store that the store was restored from a backup.

    The runs ask about their next side effects, unless these are recorded.  The database is the
    truth: marks of more records are overwritten.

    Returns:
        the ids of these runs.

    Raises:
        RunBusyError: one of the runs is being executed.
    """
    found = [journals.facts_of(store, seal, head.run_id) for head in store.heads()]
    for facts in filter(None, found):
        for name in (facts.run_id, journals.inbox_name(facts.run_id)):
            lift_anchor(store, name)
    unfinished = [each for each in found if each is not None and each.status != "completed"]
    for facts in unfinished:
        with journals.owned_journal(store, seal, facts.run_id) as journal:
            journal.load(journals.Position(facts.pruned, None), tolerant=True)
            append_restored(journal, facts)
            Inbox(store, seal, facts.run_id).give_up()
    return [facts.run_id for facts in unfinished]


def append_restored(journal: journals.Journal, facts: RunFacts) -> None:
    """Record in a run that it was restored from a backup, and overwrite its marks."""
    for _ in range(_MARKS):
        journal.append((Restored(time.time()), b""), head=facts._replace(restored=True))


def repair(store: Store, seal: Seal, run_id: str, *, accept_loss: bool = False) -> Verification:
    """Repair what can be repaired, and verify again.

    Args:
        accept_loss: give up lost and unreadable records.  Plain steps run again, and so do side
            effects that nothing else records.  By default such side effects stop the run.

    Raises:
        RunBusyError: the run is being executed.
    """
    before = verify(store, seal, run_id)
    if before.ok:
        return before
    if not (before.records or before.lost) and (accept_loss or not before.effects):
        # Only marks are left: the next start begins from scratch.
        delete_runs(store, seal, run_id)
        return Verification(run_id, records=0, checkpoints=0)
    with journals.owned_journal(store, seal, run_id) as journal:
        facts = journals.facts_of(store, seal, run_id)
        _set_aside(journal, before)
        journal.load(journals.Position(facts.pruned if facts else 0, None), tolerant=True)
        if not before.listing and facts is not None:
            journal.append(head=facts)
        if (before.lost or before.tail) and (accept_loss or not before.effects):
            _give_up(journal, before, facts)
        if before.lost_messages:
            Inbox(store, seal, run_id).give_up()
    return verify(store, seal, run_id)


def _set_aside(journal: journals.Journal, before: Verification) -> None:
    """Move bytes that do not verify to the quarantine."""
    store, run_id = journal.store, journal.run_id
    rows = ((number, data) for number, data in store.read(run_id) if number in before.lost)
    kept = {f"{QUARANTINE}record/{number:012d}": data for number, data in rows}
    vault = Vault(store, journal.seal, run_id)
    suspects = [
        name
        for name in store.names(run_id, PREFIX)
        if number_of(name) in before.damaged_checkpoints
    ]
    damaged = [name for name in suspects if load_checkpoint(vault, name) is None]
    damaged += [] if before.summary else [NAME]
    damaged += _damaged_beside(store, journal.seal, run_id)
    for name in damaged:
        kept[f"{QUARANTINE}{name}"] = store.get(run_id, name) or b""
    if kept or damaged:
        store.write(run_id, journal.epoch, Batch(put=kept, delete=tuple(damaged)))


def _give_up(journal: journals.Journal, before: Verification, facts: RunFacts | None) -> None:
    """Record that damaged records are given up, so that no later start reports them."""
    lift_anchor(journal.store, journal.run_id)
    record = Quarantined(before.lost, before.effects, time.time())
    if facts is not None:
        facts = facts.reopened(record.at)
    journal.append((record, b""), head=facts)
    for _ in range(_MARKS if before.tail else 0):  # overwrite the marks of the old end
        journal.append((record._replace(numbers=(), effects=0), b""))
