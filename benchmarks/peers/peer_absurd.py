"""Absurd: durable tasks on nothing but PostgreSQL.

A crashed task can be taken over when its lease has run out (120 s by default).  Where a run
resumes, the lease is 3 s, and the resuming process starts after it, so that the wait is not in the
figures.
"""

from __future__ import annotations

import asyncio
import contextlib

import absurdctl
import harness
import postgres
import workloads
from absurd_sdk import Absurd, AsyncAbsurd
from harness import Peer, abody, body

_LEASE = 3


class AbsurdPeer(Peer):
    """Each step commits to PostgreSQL."""

    name = "absurd"
    distribution = "absurd-sdk"
    imports = "import absurd_sdk"
    json_only = True
    lease = _LEASE + 0.5
    survives = {"default": harness.POWER}

    def open(self):
        self.app = app = Absurd(self.service["url"], queue_name="default")

        @app.register_task("loop", default_max_attempts=1000)
        def loop(task, context):
            for number in range(task["n"]):
                context.step(f"step{number}", lambda: body(number))
            app.stop_worker()

        @app.register_task("agent", default_max_attempts=1000)
        def agent(task, context):
            messages = []
            for number in range(task["n"]):
                messages.append(context.step(f"say{number}", lambda: body(number)))
            app.stop_worker()

    def close(self):
        self.app.close()

    def work(self, name, run_id, count):
        self.app.spawn(name, {"n": count}, queue="default", idempotency_key=run_id)
        self.app.start_worker(claim_timeout=_LEASE if self.service["resuming"] else 120)

    def loop(self, run_id, count):
        self.work("loop", run_id, count)

    def agent(self, run_id, count):
        self.work("agent", run_id, count)

    def fanout(self, run_id, count):
        async def call():
            app = AsyncAbsurd(self.service["url"], queue_name="default")

            @app.register_task("fanout")
            async def fanout(task, context):
                steps = (context.step(f"step{n}", lambda n=n: abody(n)) for n in range(task["n"]))
                await asyncio.gather(*steps)
                app.stop_worker()

            await app.spawn("fanout", {"n": count}, queue="default", idempotency_key=run_id)
            await app.start_worker()
            await app.close()

        asyncio.run(call())

    @classmethod
    def refusal(cls, variant, workload):
        return postgres.missing() or super().refusal(variant, workload)

    @classmethod
    @contextlib.contextmanager
    def services(cls, variant, store):
        with postgres.database() as name:
            postgres.query(absurdctl.BUNDLED_SCHEMA_SQL, name)
            app = Absurd(postgres.url(name), queue_name="default")
            app.create_queue("default")
            app.close()
            yield {"database": name, "url": postgres.url(name), "resuming": cls.resuming}

    @classmethod
    def disk_bytes(cls, variant, store, service):
        return postgres.size(service["database"])

    @classmethod
    def service_flushes(cls, service):
        return postgres.flushes()


if __name__ == "__main__":
    workloads.main(AbsurdPeer)
