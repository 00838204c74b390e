"""Batches of the tests of what is posted and lost."""

import contextlib
import os
import socket

from stepwise.stores import Batch, Owner

ME = Owner(os.getpid(), socket.gethostname(), 1.5, "thread a")


def draft(name, data=b"locals", **more):
    """A checkpoint, which is not waited for."""
    return Batch(put={name: data}, durable=False, **more)


def record(number, **more):
    """A record, with its mark."""
    return Batch(((number, b"record %d" % number),), mark=b"mark %d" % number, **more)


@contextlib.contextmanager
def impatient(store):
    """While it lasts, a server that is silent for a second has gone away.

    Only where that is awaited: a busy machine may stand still for a second at any time.
    """
    connections = store._connections
    before, connections.patience = connections.patience, 1
    try:
        yield
    finally:
        connections.patience = before
