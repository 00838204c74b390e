"""Copying runs, and logs that belong to no run, from one store into another.

A run is copied with its child runs and their inboxes, under the leases of both stores, so that
nobody executes it meanwhile.  Everything is compared first: where something keeps a run from being
copied, nothing of it is written.  A copy that was cut off is continued by the next one.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from stepwise._execution.active_run import current_scope
from stepwise._journal.chain import inbox_name, is_begun
from stepwise._journal.heads import check_key, children_of
from stepwise._journal.inbox import Inbox
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.lease import Lease, describe_owner
from stepwise._journal.log import LOG_KINDS, LogIndex, LogKind
from stepwise._journal.records import RunFacts
from stepwise._runs.transfer import Transfer
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, shell_word
from stepwise.errors import (
    ConfigurationError,
    CorruptStoreError,
    RunBusyError,
    RunNotFoundError,
    RunOwnedError,
    RunStopped,
    StepwiseError,
    StoreError,
)
from stepwise.stores import Store

__all__ = ["Copied", "Copier", "Outcome", "log_kind_of"]

Outcome = Literal["copied", "there", "busy", "refused"]
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_SHORTEST, _LONGEST = 0.05, 0.5  # seconds between two looks at who has a run
_PATIENCE = 60.0  # seconds for which a log is waited for, whose lease is held for one write


class Copied(NamedTuple):
    """The result of copying a run with its child runs, or a log.

    Args:
        id: of the run; the name of the log.
        outcome: it was copied, or was there already; somebody executes it; or it was refused.
        records, size: how many records were copied, and bytes of records and objects.
        children: how many child runs of it were copied.
        problem: what kept it from being copied.
    """

    id: str
    outcome: Outcome
    records: int = 0
    size: int = 0
    children: int = 0
    problem: str = ""


class _RunCopy(NamedTuple):
    """One run on its way, with its inbox."""

    run: Transfer
    inbox: Transfer | None
    restored: bool

    @property
    def is_whole(self) -> bool:
        inbox = self.inbox is None or self.inbox.lack.nothing
        return self.run.lack.nothing and inbox and not self.restored

    @property
    def lacks(self) -> tuple[int, int]:
        """The records and bytes that are missing."""
        both = [each.lack for each in (self.run, self.inbox) if each is not None]
        return sum(each.records for each in both), sum(each.size for each in both)


class Copier:
    """Copies from one store into another one.

    Args:
        restored: mark the unfinished runs as restored from a backup.
        wait: wait for runs that somebody executes.
        dry_run: only compare.
        tell: called with the numbers of records and bytes just written.

    Raises:
        ConfigurationError: one of them ends with the process, both are the same store, or they were
            written with different keys.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        restored: bool = False,
        wait: bool = False,
        dry_run: bool = False,
        tell: Callable[[int, int], None] = lambda _records, _size: None,
    ) -> None:
        self.source, self.target = source, target
        self._restored, self._wait, self._dry_run, self._tell = restored, wait, dry_run, tell
        for store in (source, target):
            if not store.persistent:
                raise ConfigurationError(
                    f"{store.url} ends with its process: copy between stores that last, such as "
                    "disk:, sqlite: and postgresql:"
                )
        if source is target or source.url == target.url:
            raise ConfigurationError(f"source and target are the same store, {source.url}")
        self._seal = seal_for(source)
        check_key(self.target, self._seal)

    def copy_each(
        self, run_ids: Iterable[str], children: Mapping[str, list[str]] | None = None
    ) -> Iterator[Copied]:
        """Copy runs and logs; yield what became of each.

        The first failure of a store itself is raised behind the item that tells of it.

        Args:
            run_ids: of runs, whose child runs come along, or names of logs.
            children: the child runs of each run.
        """
        known = children_of(self.source, self._seal) if children is None else children
        for run_id in run_ids:
            try:
                yield self.copy(run_id, known)
            except (RunBusyError, RunOwnedError) as problem:
                yield Copied(run_id, "busy", problem=str(problem))
            except (StepwiseError, RunStopped) as problem:
                yield Copied(run_id, "refused", problem=str(problem))
                is_of_store = isinstance(problem, StoreError)
                if is_of_store and not isinstance(problem, CorruptStoreError):
                    raise

    def copy(self, run_id: str, children: Mapping[str, list[str]] | None = None) -> Copied:
        """Copy one run with its child runs, or one log.

        Raises:
            RunBusyError: somebody executes it.
            RunConflictError: the target holds another history of it.
            CorruptStoreError: it is damaged, here or there.
            RunNotFoundError: there is nothing of it.
        """
        kind = log_kind_of(run_id)
        if kind is not None:
            return self._copy_log(run_id, kind)
        facts = facts_of(self.source, self._seal, run_id)
        if facts is None:
            return self._copy_objects(run_id)
        known = children_of(self.source, self._seal) if children is None else children
        with self._held(self.source, run_id), self._held(self.target, run_id) as epoch:
            parts = [self._compared(each) for each in _tree(run_id, known)]
            lacking = [each for each in parts if not each.is_whole]
            records, size = (sum(each) for each in zip(*(p.lacks for p in parts), strict=True))
            if not lacking:
                return Copied(run_id, "there")
            if not self._dry_run:
                self._copy_tree(parts[0], [each for each in lacking if each is not parts[0]], epoch)
        below = len(lacking) - (lacking[0] is parts[0])
        return Copied(run_id, "copied", records, size, below)

    def _copy_tree(self, top: _RunCopy, below: list[_RunCopy], epoch: int) -> None:
        """Write a run and its child runs.

        The run is there first, not whole: nobody begins it anew.  It is whole when its child runs
        are.
        """
        top.run.begin(epoch)
        for part in reversed(below):
            run_id = part.run.name
            # Nobody executes it without the top run; a command may hold it for a moment.
            held = [self._held(each, run_id, _PATIENCE) for each in (self.source, self.target)]
            with held[0], held[1] as of_child:
                part.run.begin(of_child)
                self._copy_rest(part, of_child)
        self._copy_rest(top, epoch)

    def _copy_rest(self, part: _RunCopy, epoch: int) -> None:
        if part.inbox is not None:
            self._copy_leased(part.inbox)
        part.run.copy(epoch)
        part.run.finish(epoch, restored=part.restored)

    def _compared(self, run_id: str) -> _RunCopy:
        """Compare a run with its copy; both are held, or the run that called it is."""
        facts = facts_of(self.source, self._seal, run_id)
        if facts is None:
            raise RunNotFoundError(f"run {run_id!r} is gone from {self.source.url}", run_id=run_id)
        run = self._transfer(run_id, facts)
        ahead = run.compare().ahead
        name = inbox_name(run_id)
        inbox = None
        if is_begun(self.source, name):
            self._check_inbox(run_id)
            inbox = self._transfer(name, inbox=True)
            inbox.compare()
        return _RunCopy(run, inbox, self._restored and facts.status != "completed" and not ahead)

    def _check_inbox(self, run_id: str) -> None:
        inbox = Inbox(self.source, self._seal, run_id)
        inbox.look(tolerant=True)
        lost = inbox.all_lost()
        if lost:
            raise CorruptStoreError(
                f"run {run_id!r} is not copied, since {count(len(lost), 'message')} to it are "
                f"damaged or gone in {self.source.url}. Repair it, then copy again: "
                f"stepwise verify {shell_word(run_id)} --repair",
                path=self.source.url,
                errno=None,
            )

    def _transfer(
        self, name: str, facts: RunFacts | None = None, *, inbox: bool = False
    ) -> Transfer:
        tell = self._tell
        return Transfer(self.source, self.target, self._seal, name, facts, inbox=inbox, tell=tell)

    # -- what is no run --------------------------------------------------------------------------

    def logs(self) -> list[str]:
        """Return the names of the logs in the source that belong to no run."""
        return [
            f"{kind.prefix}{each}"
            for kind in LOG_KINDS
            for each in LogIndex(self.source, self._seal, kind).ids()
            if each is not None
        ]

    def _copy_log(self, name: str, kind: LogKind) -> Copied:
        copied = self._copy_objects(name)
        index = LogIndex(self.target, self._seal, kind)
        which = name.removeprefix(kind.prefix)
        if not self._dry_run and not index.has(which):
            index.add(which)
        return copied

    def _copy_objects(self, name: str) -> Copied:
        """Copy what has no place in a listing."""
        if next(self.source.read(name), None) is None and not self.source.names(name):
            raise RunNotFoundError(f"there is no run {name!r} in {self.source.url}", run_id=name)
        transfer = self._transfer(name)
        if self._dry_run:
            transfer.compare()
        else:
            self._copy_leased(transfer)
        lack = transfer.lack
        return Copied(name, "there" if lack.nothing else "copied", lack.records, lack.size)

    def _copy_leased(self, transfer: Transfer) -> None:
        """Copy an entry whose lease others hold for one write only."""
        name = transfer.name
        held = self._held(self.source, name, _PATIENCE), self._held(self.target, name, _PATIENCE)
        with held[0], held[1] as epoch:
            if not transfer.compare().nothing:
                transfer.begin(epoch)
                transfer.copy(epoch)
                transfer.finish(epoch)

    # -- leases and listings ---------------------------------------------------------------------

    @contextmanager
    def _held(self, store: Store, name: str, patience: float = 0.0) -> Iterator[int]:
        """Hold the lease of an entry; gives its epoch.

        A comparison only looks who holds it, and a source that cannot be written is read without.
        """
        if self._dry_run:
            self._refuse_owned(store, name)
            yield 0
            return
        lease = Lease(store, name)
        self._acquire(lease, time.monotonic() + patience)
        try:
            yield lease.epoch
        finally:
            lease.release()

    def _acquire(self, lease: Lease, until: float) -> None:
        pause = _SHORTEST
        while True:
            try:
                lease.acquire(child=current_scope() is not None)
            except (RunBusyError, RunOwnedError):
                if not self._wait and time.monotonic() > until:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            except StoreError as error:
                if lease.store is not self.source or error.errno not in _READ_ONLY:
                    raise
                self._refuse_owned(lease.store, lease.run_id)
                return
            else:
                return

    def _refuse_owned(self, store: Store, name: str) -> None:
        owner = store.owner(name)
        if owner is not None:
            raise RunBusyError(
                f"run {name!r} is being executed {describe_owner(owner)}, in {store.url}",
                run_id=name,
                owner=owner,
            )


def log_kind_of(name: str) -> LogKind | None:
    """Return the kind of a log that belongs to no run; ``None`` for any other name."""
    return next((each for each in LOG_KINDS if name.startswith(each.prefix)), None)


def _tree(run_id: str, children: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a run, and the runs below it."""
    yield run_id
    for child in children.get(run_id, ()):
        yield from _tree(child, children)
