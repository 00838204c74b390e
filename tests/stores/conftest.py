"""What a test of stores leaves open is closed after it."""

import contextlib

import pytest

from stepwise import StoreError
from stepwise.stores.disk import DiskStore


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """Close what a test leaves open: there is a limit of open files, and Python 3.13 warns."""
    made, begin = [], DiskStore.__init__

    def kept(store, *args, **options):
        begin(store, *args, **options)
        made.append(store)

    monkeypatch.setattr(DiskStore, "__init__", kept)
    yield
    for store in made:
        with contextlib.suppress(StoreError):
            store.close()
