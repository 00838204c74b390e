"""The contract of every store, kept by the one on a Postgres server."""

import pytest

pytest.importorskip("psycopg", reason="needs the extra postgres")

from stepwise.stores.postgres import PostgresStore
from stepwise.testing import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres):
        self.url = postgres

    def make_store(self, tmp_path):
        return PostgresStore(self.url)

    def reopen(self, store):
        store.close()
        return PostgresStore(store.url)
