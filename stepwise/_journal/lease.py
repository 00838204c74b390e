"""The lease of a run, which gives the run one owner: take it, name its owner, release it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from stepwise._runtime import asyncio_state
from stepwise._runtime.interrupts import Uninterrupted
from stepwise.errors import RunBusyError, RunOwnedError
from stepwise.stores import Owner, Store

_SHORTEST, _LONGEST = 0.0005, 0.05  # seconds between two tries


class Lease:
    """The right to execute a run, held by this process from :meth:`acquire` to :meth:`release`.

    The object is made before the lease is acquired, so that after a Ctrl-C somebody can always
    release the lease.
    """

    epoch = 0  # the epoch of a lease that is not held

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self._pid = os.getpid()
        self._owner: Owner | None = None

    def acquire(self, *, child: bool = False, patience: float = 0.0) -> Lease:
        """Take the lease; return this object, whose block ends with the release.

        Args:
            child: the code of a run asks for the lease, and must not continue without it.
            patience: seconds to wait at most while another owner holds the lease.

        Raises:
            RunBusyError: a living owner holds the lease.  The message names the process, the
                machine and the time, and the thread or task if the owner is this process.
            RunOwnedError: the same, for a ``child``.
        """
        until, pause = time.monotonic() + patience, _SHORTEST
        while True:
            try:
                return self._take(child=child)
            except (RunBusyError, RunOwnedError):
                if time.monotonic() >= until:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)

    def _take(self, *, child: bool) -> Lease:
        self._owner = owner = Owner(self._pid, os.uname().nodename, time.time(), here())
        try:
            with Uninterrupted():
                self.epoch = self.store.acquire(self.run_id, owner)
        except RunOwnedError as error:
            refusal = RunOwnedError if child else RunBusyError
            raise refusal(
                f"run {self.run_id!r} is being executed {describe_owner(error.owner)}; "
                "wait for it, or give this run another id: .options(run_id=...)",
                run_id=self.run_id,
                owner=error.owner,
            ) from None
        except KeyboardInterrupt:
            self.release()
            raise
        return self

    @property
    def since(self) -> float:
        """When the lease was acquired, in seconds since 1970; 0 before that."""
        return self._owner.since if self._owner is not None else 0.0

    def is_ours(self) -> bool:
        """Return whether the store still has this owner of the lease."""
        return self._owner is not None and self.store.owner(self.run_id) == self._owner

    def __enter__(self) -> Lease:  # noqa: PYI034 -- it is no base class
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        """Release a lease that a Ctrl-C kept from its caller."""
        if not sys.is_finalizing():
            self.release()

    def release(self) -> None:
        """Release the lease if held, but not in a forked child: the parent still uses the lease."""
        if self.epoch and self._pid == os.getpid():
            with Uninterrupted():
                epoch, self.epoch = self.epoch, 0
                self.store.release(self.run_id, epoch)


def here() -> str:
    """Return the names of the current thread and asyncio task."""
    name = f"thread {threading.current_thread().name}"
    task = asyncio_state.current()
    return name if task is None else f"task {task.get_name()} in {name}"


def _stopped(owner: Owner) -> str:
    """Return a note if an owner on this machine is stopped, with a way out; else an empty text."""
    if owner.host != os.uname().nodename:
        return ""
    with contextlib.suppress(OSError), open(f"/proc/{owner.pid}/stat", "rb") as file:
        if file.read().rpartition(b")")[2].split()[0] in (b"T", b"t"):  # no such file outside Linux
            return f", which is stopped (Ctrl-Z?): kill -CONT {owner.pid} lets it go on"
    return ""


def describe_owner(owner: Owner | None) -> str:
    """Return the owner in words: ``by process 123 on host since 12:00:00``."""
    if owner is None:
        return "by another process"
    since = ""
    if owner.since:
        with contextlib.suppress(ValueError, OverflowError, OSError):  # a damaged row
            since = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(owner.since))
    if owner.pid == os.getpid() and owner.host == os.uname().nodename:
        return f"by this process, in {owner.thread or 'another thread'},{since}"
    process = f"process {owner.pid}" if owner.pid else "another process"
    return f"by {process} on {owner.host}{since}{_stopped(owner)}"


# -- supervisors ---------------------------------------------------------------------------------


def supervisor_name(workflow: str, code: str = "") -> str:
    """Return the name of the lease that the supervisor of a workflow's runs holds.

    Args:
        workflow: the full name of the workflow.
        code: the fingerprint of the workflow's code, for the supervisor that has this code.
    """
    return f"up:{workflow} {code}" if code else f"up:{workflow}"


def is_served(store: Store, workflow: str) -> bool:
    """Return whether a lasting supervisor continues the runs of a workflow."""
    return store.owner(supervisor_name(workflow)) is not None
