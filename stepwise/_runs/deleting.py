"""Deleting one run: its records, its marks, and what was sent to it."""

from __future__ import annotations

from stepwise._execution.active_run import current_scope
from stepwise._journal.inbox import Inbox
from stepwise._journal.lease import Lease
from stepwise._journal.seal import Seal
from stepwise.stores import Store

__all__ = ["delete_run"]


def delete_run(store: Store, seal: Seal, run_id: str) -> None:
    """Delete a run without its child runs, also one of which only marks are left.

    Raises:
        RunBusyError: the run is being executed.
    """
    lease = Lease(store, run_id).acquire(child=current_scope() is not None)
    inbox = Inbox(store, seal, run_id)
    try:
        inbox.delete()  # first: one without its run would be the inbox of the next such run
        store.delete(run_id, lease.epoch)
        inbox.delete()  # what somebody sent meanwhile
    finally:
        lease.release()
