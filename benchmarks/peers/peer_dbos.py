"""DBOS Transact on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib

import harness
import postgres
import workloads
from dbos import DBOS, DBOSClient, SetWorkflowID
from harness import Peer, abody, body, passed, waited


@DBOS.step()
def step(number):
    return body(number)


@DBOS.step()
def say(messages, number):
    return body(number)


@DBOS.step()
async def astep(number):
    return await abody(number)


@DBOS.workflow()
def loop(count):
    for number in range(count):
        step(number)


@DBOS.workflow()
def agent(count):
    messages = []
    for number in range(count):
        messages.append(say(messages, number))


@DBOS.workflow()
async def fanout(count):
    await asyncio.gather(*(astep(n) for n in range(count)), return_exceptions=True)


@DBOS.workflow()
def waiting(count):
    for number in range(count):
        passed(number)
        step(number)
    DBOS.recv("go", timeout_seconds=3600)
    waited()


class Dbos(Peer):
    """The defaults of both databases: SQLite's rollback journal, PostgreSQL's fsync."""

    name = "dbos"
    variants = ("sqlite", "postgres")
    distribution = "dbos"
    imports = "import dbos"
    survives = dict.fromkeys(variants, harness.POWER)

    def url(self):
        return self.service.get("url") or f"sqlite:///{self.store}/dbos.sqlite"

    def open(self):
        DBOS(config={"name": "peer", "system_database_url": self.url(), "log_level": "ERROR"})
        DBOS.launch()

    def close(self):
        DBOS.destroy()

    def loop(self, run_id, count):
        with SetWorkflowID(run_id):
            loop(count)

    def agent(self, run_id, count):
        with SetWorkflowID(run_id):
            agent(count)

    def fanout(self, run_id, count):
        async def call():
            with SetWorkflowID(run_id):
                await fanout(count)

        asyncio.run(call())

    def waiting(self, run_id, count):
        with SetWorkflowID(run_id):
            waiting(count)

    def sender(self, run_id):
        client = DBOSClient(system_database_url=self.url())
        return lambda: client.send(run_id, {"number": 1}, "go")

    @classmethod
    def refusal(cls, variant, workload):
        missing = postgres.missing() if variant == "postgres" else None
        return missing or super().refusal(variant, workload)

    @classmethod
    @contextlib.contextmanager
    def services(cls, variant, store):
        if variant == "sqlite":
            yield {}
            return
        with postgres.database() as name:
            yield {"database": name, "url": postgres.url(name, "postgresql+psycopg")}

    @classmethod
    def disk_bytes(cls, variant, store, service):
        if variant == "sqlite":
            return super().disk_bytes(variant, store, service)
        return postgres.size(service["database"])

    @classmethod
    def service_flushes(cls, service):
        return postgres.flushes() if service else 0


if __name__ == "__main__":
    workloads.main(Dbos)
