"""Restate: its server, and a worker process that the server drives over HTTP/2.

The server keeps the journal; it stays up while the worker is dead, and tries again by its default
policy.  The binary is that of the npm package ``@restatedev/restate-server-linux-x64``, which
``environments.py`` lays beside the virtual environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import harness
import hypercorn.asyncio
import hypercorn.config
import restate
import workloads
from harness import Peer, abody, body

_SERVER = pathlib.Path(sys.prefix, "server", "bin", "restate-server")
_INGRESS, _ADMIN, _NODE, _WORKER = 18080, 19070, 15122, 19080

flow = restate.Workflow("peer")


async def act(number):
    return body(number)


@flow.main()
async def run(context: restate.WorkflowContext, job: dict) -> None:
    if job["kind"] == "fanout":
        calls = (context.run_typed("step", abody, restate.RunOptions(), n) for n in range(job["n"]))
        await restate.gather(*calls)
        return
    messages = []
    for number in range(job["n"]):
        messages.append(await context.run_typed("step", act, restate.RunOptions(), number))


def call(method, url, data=None):
    request = urllib.request.Request(
        url,
        None if data is None else json.dumps(data).encode(),
        {"content-type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return reply.read()


class Restate(Peer):
    """The server's log is flushed in batches before a step is acknowledged."""

    name = "restate"
    distribution = "restate-sdk"
    imports = "import restate, hypercorn.asyncio"
    json_only = True
    survives = {"default": harness.POWER}

    def drive(self, kind, run_id, count):
        """Serve the handlers while one workflow is submitted, or attached to again, and awaited."""

        async def main():
            config = hypercorn.config.Config()
            config.bind, config.loglevel = [f"127.0.0.1:{_WORKER}"], "ERROR"
            stop = asyncio.Event()
            serving = hypercorn.asyncio.serve(
                restate.app([flow]), config, shutdown_trigger=stop.wait
            )
            server = asyncio.create_task(serving)
            await asyncio.sleep(0)
            await asyncio.to_thread(self.submit, kind, run_id, count)
            stop.set()
            await server

        asyncio.run(main())

    def submit(self, kind, run_id, count):
        registered = self.store / "registered"
        if not registered.exists():
            _retried(
                lambda: call(
                    "POST",
                    f"http://127.0.0.1:{_ADMIN}/deployments",
                    {"uri": f"http://127.0.0.1:{_WORKER}", "force": True},
                )
            )
            registered.touch()
        base = f"http://127.0.0.1:{_INGRESS}"
        with contextlib.suppress(urllib.error.HTTPError):  # 409: it was submitted before
            call("POST", f"{base}/peer/{run_id}/run/send", {"kind": kind, "n": count})
        call("GET", f"{base}/restate/workflow/peer/{run_id}/attach")

    def loop(self, run_id, count):
        self.drive("loop", run_id, count)

    def agent(self, run_id, count):
        self.drive("agent", run_id, count)

    def fanout(self, run_id, count):
        self.drive("fanout", run_id, count)

    @classmethod
    def refusal(cls, variant, workload):
        if workload != "w5" and not _SERVER.exists():
            return "no server: npm could not fetch @restatedev/restate-server-linux-x64"
        return super().refusal(variant, workload)

    @classmethod
    @contextlib.contextmanager
    def services(cls, variant, store):
        environment = {
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_PORT": str(_NODE),
            "RESTATE_INGRESS__BIND_PORT": str(_INGRESS),
            "RESTATE_ADMIN__BIND_PORT": str(_ADMIN),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
            "DO_NOT_TRACK": "1",
        }
        with open(store.parent / "server.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(
                [_SERVER, "--base-dir", store / "server", "--node-name", "peer", "--no-logo"],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _retried(lambda: call("GET", f"http://127.0.0.1:{_INGRESS}/restate/health"))
            _retried(lambda: call("GET", f"http://127.0.0.1:{_ADMIN}/health"))
            time.sleep(2)  # its partitions elect their leaders
            yield {"pid": server.pid}
        finally:
            server.terminate()
            server.wait(60)


def _retried(ask):
    """The server's answer, once it is up."""
    for _ in range(300):
        with contextlib.suppress(OSError):
            return ask()
        time.sleep(0.1)
    raise RuntimeError("the Restate server did not come up")


if __name__ == "__main__":
    workloads.main(Restate)
