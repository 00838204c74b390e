"""Prefect: flows and tasks with persisted results, found by their inputs; a local server.

A process that calls the flow again finds the results of the tasks that were completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request


def _settings(store, url):
    return {
        "PREFECT_API_URL": url,
        "PREFECT_HOME": str(pathlib.Path(store) / "home"),
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


if sys.argv[-1].startswith("{"):  # Prefect reads its settings when it is imported
    _job = json.loads(sys.argv[-1])
    os.environ.update(_settings(_job["store"], _job["service"]["url"]))

import harness  # noqa: E402
import workloads  # noqa: E402
from harness import Peer, abody, body  # noqa: E402
from prefect import flow, task  # noqa: E402
from prefect.cache_policies import INPUTS  # noqa: E402


@task(cache_policy=INPUTS, persist_result=True)
def step(run_id, number):
    return body(number)


@task(cache_policy=INPUTS, persist_result=True)
def say(run_id, messages, number):
    return body(number)


@task(cache_policy=INPUTS, persist_result=True)
async def astep(run_id, number):
    return await abody(number)


@flow
def loop(run_id, count):
    for number in range(count):
        step(run_id, number)


@flow
def agent(run_id, count):
    messages = []
    for number in range(count):
        messages.append(say(run_id, messages, number))


@flow
async def fanout(run_id, count):
    await asyncio.gather(*(astep(run_id, number) for number in range(count)))


class Prefect(Peer):
    """Results in files that are never flushed; states in SQLite, synchronous NORMAL."""

    name = "prefect"
    distribution = "prefect"
    imports = "from prefect import flow, task"
    survives = {"default": harness.PROCESS}

    def loop(self, run_id, count):
        loop(run_id, count)

    def agent(self, run_id, count):
        agent(run_id, count)

    def fanout(self, run_id, count):
        asyncio.run(fanout(run_id, count))

    @classmethod
    @contextlib.contextmanager
    def services(cls, variant, store):
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        url = f"http://127.0.0.1:{port}/api"
        command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        with open(store.parent / "server.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **_settings(store, url)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _await(f"{url}/health", server, store.parent / "server.log")
            yield {"url": url, "pid": server.pid}
        finally:
            server.terminate()
            server.wait(30)


def _await(url, server, log):
    """Until the server answers, or has ended."""
    for _ in range(600):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=2).read()
            return
        if server.poll() is not None:
            break
        time.sleep(0.2)
    raise RuntimeError(f"the server did not come up: {log.read_text()[-800:]}")


if __name__ == "__main__":
    workloads.main(Prefect)
