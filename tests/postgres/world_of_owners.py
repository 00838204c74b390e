"""Processes that own one run, one after the other, and what they left behind."""

import json
import pathlib

import psycopg
from owner import RUN
from server import with_options

HERE = str(pathlib.Path(__file__).parent)
SOURCE = f"import sys\nsys.path.insert(0, {HERE!r})\nimport owner\nowner.main()\n"
TABLES = ("runs", "records", "objects")


class Owners:
    """One run in one database, and processes that execute it.

    Args:
        start: the fixture.
        url: of the database, with a short lease.
    """

    def __init__(self, start, url, folder, *, lease_seconds=2, steps=6):
        self.url = with_options(url, lease_seconds=lease_seconds)
        self.lease_seconds, self.steps = lease_seconds, steps
        self._start, self._direct = start, url
        self.log_file = folder / "owners.log"
        self.log_file.touch()

    def process(self, name, *, proxy=None, **settings):
        """Start a process called so; it connects directly, or through a proxy."""
        store = proxy.url(self.url) if proxy is not None else self.url
        settings = {"steps": self.steps, "store": store, **settings, "name": name}
        return self._start(SOURCE, json.dumps({**settings, "log": str(self.log_file)}))

    def stopped_at(self, name, place, **settings):
        """The same, when it has come to a place."""
        process = self.process(name, stops=[place], **settings)
        assert process.hear() == f"at {place}"
        return process

    # -- what happened ---------------------------------------------------------------------------

    @property
    def lines(self):
        return self.log_file.read_text(encoding="utf-8").splitlines()

    def did(self, name=""):
        """What was done, in order, by a process or by all."""
        found = [line.split() for line in self.lines]
        return [
            f"{what} {n}" for who, did, what, n, _ in found if did == "did" and name in ("", who)
        ]

    def moments(self, event, what):
        """When something was logged: seconds since 1970."""
        found = [line.rpartition(" ") for line in self.lines]
        return [float(at) for text, _, at in found if text.endswith(f" {event} {what}")]

    @property
    def whole(self):
        """What an undisturbed run does."""
        return [f"{'act' if number % 2 else 'think'} {number}" for number in range(self.steps)]

    def run(self):
        """The run, as it is in the store now."""
        import stepwise

        return stepwise.get_run(RUN, store=self.url)

    def check(self):
        """The run is completed and verifies; every completed step was done once."""
        run = self.run()
        assert run.status == "completed", run.status
        assert run.result == self.whole
        assert run.verify().ok, run.verify()
        assert [each.status for each in run.steps] == ["completed"] * self.steps

    def sql(self, text, *parameters):
        with psycopg.connect(self._direct, autocommit=True) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def rows(self):
        """Everything that is stored of runs; not which process holds them, nor its beat."""
        return {
            table: sorted(map(repr, self.sql(f"SELECT * FROM stepwise.{table}")))
            for table in TABLES
        }

    def epoch(self):
        """The largest epoch of a lease."""
        return self.sql("SELECT max(epoch) FROM stepwise.leases")[0][0]


def held_until(owners):
    """When the lease of the last process that beat has run out, by the server's clock."""
    text = (
        "SELECT extract(epoch FROM max(greatest(beat, pg_postmaster_start_time()) "
        "+ make_interval(secs => lease_seconds)))::float FROM stepwise.processes"
    )
    return owners.sql(text)[0][0]
