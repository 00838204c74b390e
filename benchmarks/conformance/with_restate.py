"""Restate: a workflow whose effects are ``ctx.run``; a gate is a durable promise.

The server keeps the journal, stays up while the worker is dead, and calls it again.  The key of an
effect is made by ``ctx.uuid()``, as its documentation says.
"""

import asyncio
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import hypercorn.asyncio
import hypercorn.config
import restate
from world import BAD, FOLDER, RUN, TWO_GATES, Waits, effect, main

SERVER = pathlib.Path(sys.prefix, "server", "bin", "restate-server")
INGRESS, ADMIN, NODE, WORKER = 28080, 29070, 25122, 29080
flow = restate.Workflow("order")


@flow.main()
async def run(ctx: restate.WorkflowContext, order: str) -> list[str]:
    keys = [str(ctx.uuid()) for _ in range(3)]
    said = await ctx.run_typed("reserve", reserve, key=keys[0])
    ctx.set("asked", 1)
    value = await ctx.promise("charge").value()
    said.append(await ctx.run_typed("charge", charge, value=value, key=keys[1]))
    if TWO_GATES:
        ctx.set("asked", 2)
        await ctx.promise("notify").value()
    said.append(await ctx.run_typed("notify", notify, key=keys[2]))
    return said


def reserve(key: str) -> list[str]:
    said = effect("reserve", key=key)
    return [None] if BAD else [said]


def charge(value: str, key: str) -> str:
    return effect("charge", value, key)


def notify(key: str) -> str:
    return effect("notify", key=key)


@flow.handler()
async def approve(ctx: restate.WorkflowSharedContext, given: dict) -> None:
    await ctx.promise(given["gate"]).resolve(given["value"])


@flow.handler()
async def asked(ctx: restate.WorkflowSharedContext) -> int:
    return await ctx.get("asked") or 0


def call(path, data=None, port=INGRESS, method="POST", seconds=5):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}",
        None if data is None else json.dumps(data).encode(),
        {"content-type": "application/json"} if data is not None else {},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=seconds) as reply:
        return json.loads(reply.read() or b"null")


def retried(ask):
    error = None
    for _ in range(100):
        try:
            return ask()
        except OSError as failed:
            error = failed
            time.sleep(0.1)
    said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else error
    raise RuntimeError(f"the server does not answer: {said}")


def serve_store():
    """Start the server of this folder, which the harness ends."""
    names = {"BIND_PORT": NODE, "INGRESS__BIND_PORT": INGRESS, "ADMIN__BIND_PORT": ADMIN}
    others = {"BIND_IP": "127.0.0.1", "LISTEN_MODE": "tcp", "DISABLE_TELEMETRY": "true"}
    settings = {f"RESTATE_{name}": str(each) for name, each in {**names, **others}.items()}
    command = [SERVER, "--base-dir", FOLDER / "server", "--node-name", "node", "--no-logo"]
    with open(FOLDER / "server.log", "w") as log:
        server = subprocess.Popen(
            command,
            env={**os.environ, **settings, "RESTATE_LOG_FILTER": "error"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (FOLDER / "service.pid").write_text(str(server.pid))
    retried(lambda: call("restate/health", method="GET"))
    time.sleep(2)  # its partitions elect their leaders


def worker(then):
    """Serve the handlers in a thread, unless another process does, while ``then`` is done."""
    with socket.socket() as probe:
        free = probe.connect_ex(("127.0.0.1", WORKER)) != 0
    if free:
        threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    return then()


async def serve():
    config = hypercorn.config.Config()
    config.bind, config.loglevel = [f"127.0.0.1:{WORKER}"], "CRITICAL"
    never = asyncio.Event()
    await hypercorn.asyncio.serve(restate.app([flow]), config, shutdown_trigger=never.wait)


def follow(gate):
    """Wait for the end of the workflow, or for its question with this number."""
    while True:
        try:
            return call(f"restate/workflow/order/{RUN}/output", method="GET")
        except urllib.error.HTTPError as error:
            if error.code != 470:  # not ready
                raise RuntimeError(error.read().decode()) from error
        try:
            if call(f"order/{RUN}/asked") == gate:
                raise Waits(f"gate {gate}")
        except OSError:
            pass
        time.sleep(0.1)


def start():
    def begin():
        uri = {"uri": f"http://127.0.0.1:{WORKER}", "force": True}
        retried(lambda: call("deployments", uri, ADMIN))
        call(f"order/{RUN}/run/send", "order")
        return follow(1)

    serve_store()
    return worker(begin)


def resume():
    answered = (FOLDER / "answered").exists()
    return worker(lambda: follow(2 if answered else 1))


def approve_once(given):
    try:
        call(f"order/{RUN}/approve", given)
    except urllib.error.HTTPError as error:
        if error.code != 409:  # the promise was already completed
            raise


def answer(value):
    def deliver():
        given = {"gate": "charge", "value": value}
        retried(lambda: approve_once(given))
        (FOLDER / "answered").touch()
        return follow(2)

    return worker(deliver)


main({"start": start, "resume": resume, "answer": answer, "replay": answer})
