"""The workloads, from the parent's side: stores and services made, children run, figures kept."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from importlib import metadata

from harness import (
    FLUSHES,
    JOBS,
    Figures,
    Job,
    Peer,
    answer,
    count_flushes,
    fresh_id,
    now,
    tree_bytes,
)


class Bench:
    """One workload of one variant of a peer."""

    def __init__(self, peer: type[Peer], arguments: argparse.Namespace) -> None:
        self.peer, self.arguments, self.variant = peer, arguments, arguments.variant

    @contextlib.contextmanager
    def store(self) -> Iterator[tuple[pathlib.Path, Job]]:
        """A folder for a store, with the services that it needs."""
        with tempfile.TemporaryDirectory(
            dir=os.environ.get("BENCH_FOLDER"), ignore_cleanup_errors=True
        ) as name:
            root = pathlib.Path(name)
            root.chmod(0o755)  # PostgreSQL runs as a user of its own
            (root / "store").mkdir()
            with self.peer.services(self.variant, root / "store") as service:
                yield root, service

    def child(
        self,
        root: pathlib.Path,
        service: Job,
        kind: str,
        *,
        wrap: Sequence[str] = (),
        expect: int = 0,
        name: str = "answer",
        **more: object,
    ) -> Figures:
        found = root / f"{name}.json"
        found.unlink(missing_ok=True)
        job = {
            "kind": kind,
            "variant": self.variant,
            "store": str(root / "store"),
            "service": service,
            "answer": str(found),
            "json_only": self.peer.json_only,
            "n": self.arguments.n,
            "bytes": self.arguments.bytes,
            "warm": True,
            **more,
            "began": now(),
        }
        # Into a file: a helper process of the peer may outlive the child, and hold a pipe open.
        with open(root / f"{name}.output", "w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                [*wrap, sys.executable, sys.argv[0], json.dumps(job)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = process.wait(self.arguments.timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if code != expect:
            said = (root / f"{name}.output").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{kind}: exit {code}\n{said[-1500:]}")
        return json.loads(found.read_text(encoding="utf-8")) if expect == 0 else {}

    def w1(self) -> Figures:
        with self.store() as (root, service):
            return self.child(root, service, "loop")

    def w2(self) -> Figures:
        run = fresh_id()
        with self.store() as (root, service):
            self.child(root, service, "crash", expect=9, run=run)
            time.sleep(self.peer.lease)
            return self.child(root, service, "resume", run=run)

    def w3(self) -> Figures:
        with self.store() as (root, service):
            before = self.peer.disk_bytes(self.variant, root / "store", service)
            figures = self.child(root, service, "agent")
            after = self.peer.disk_bytes(self.variant, root / "store", service)
        own = self.arguments.n * self.arguments.bytes
        return {**figures, "disk_mb": (after - before) / 1e6, "disk_ratio": (after - before) / own}

    def w4(self) -> Figures:
        with self.store() as (root, service):
            return self.child(root, service, "save")

    def w5(self) -> Figures:
        def start(code: str) -> float:
            began = now()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            return (now() - began) * 1e3

        start(self.peer.imports)  # makes the bytecode
        bare, full = start("pass"), start(self.peer.imports)
        tools = {"pip", "setuptools", "wheel"}
        found = [d for d in metadata.distributions() if d.metadata["Name"].lower() not in tools]
        files = {pathlib.Path(str(d.locate_file(f))) for d in found for f in d.files or ()}
        size = sum(path.stat().st_size for path in files if path.is_file())
        size += sum(tree_bytes(path) for path in (pathlib.Path(sys.prefix, "server"),))
        return {"ms": full - bare, "distributions": len(found), "mb": size / 1e6}

    def w6(self) -> Figures:
        with self.store() as (root, service):
            return self.child(root, service, "fanout")

    def w10(self) -> Figures:
        run, live = fresh_id(), self._live()
        with self.store() as (root, service):
            self.child(root, service, "wait_and_die", expect=9, run=run)
            sent = {}
            if self.peer.sends_to_nobody:
                sent = self.child(root, service, "send", run=run)
            time.sleep(self.peer.lease)
            later = self.child(root, service, "go_on", run=run)
        figures = {"ms": later["ms"], "ran_again": later["ran_again"], **live}
        return figures | ({"send_ms": sent["ms"]} if sent else {})

    def _live(self) -> Figures:
        """From the send in one process to the statement after the wait in another."""
        run = fresh_id()
        if not self.peer.sends_to_nobody:
            with self.store() as (root, service):
                return self.child(root, service, "in_place", run=run)
        with self.store() as (root, service), futures.ThreadPoolExecutor(1) as pool:
            ready = root / "ready"
            how = {"name": "listener", "run": run, "ready": str(ready)}
            listener = pool.submit(self.child, root, service, "listen", **how)
            while not (ready.exists() or listener.done()):
                time.sleep(0.01)
            sent = self.child(root, service, "send", run=run)
            return {"live_ms": (listener.result()["at"] - sent["at"]) * 1e3}

    def flushes(self) -> Figures:
        """Per step: what a run of 3n steps has more than one of n, over 2n."""
        few, many = (self._flushes_of(count) for count in (self.arguments.n, 3 * self.arguments.n))
        return {"flushes": max(0.0, round((many - few) / (2 * self.arguments.n), 2))}

    def _flushes_of(self, count: int) -> int:
        with self.store() as (root, service):
            trace, before = root / "trace", self.peer.service_flushes(service)
            wrap = ("strace", "-f", "-e", f"trace={FLUSHES}", "-o", str(trace))
            self.child(root, service, "loop", wrap=wrap, n=count, warm=False)
            return count_flushes(trace) + self.peer.service_flushes(service) - before


_DEFAULTS = {
    "w1": (1000, 1024),
    "w2": (100, 1024),
    "w3": (500, 2048),
    "w4": (1, 10_000_000),
    "w5": (1, 1),
    "w6": (200, 1024),
    "w10": (100, 1024),
    "flushes": (100, 1024),
}


def main(peer: type[Peer]) -> None:
    """The command line of a peer's script, or the job of its child process."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        job = json.loads(sys.argv[1])
        one = peer(job["variant"], pathlib.Path(job["store"]), job["service"])
        answer(job, JOBS[job["kind"]](one, job))
        os._exit(0)  # no exit handlers: close() was the orderly end
    parser = argparse.ArgumentParser(description=peer.__doc__)
    parser.add_argument("workload", choices=_DEFAULTS)
    parser.add_argument("--variant", choices=peer.variants, default=peer.variants[0])
    parser.add_argument("--n", type=int)
    parser.add_argument("--bytes", type=int)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a child process")
    arguments = parser.parse_args()
    count, size = _DEFAULTS[arguments.workload]
    arguments.n, arguments.bytes = arguments.n or count, arguments.bytes or size
    peer.resuming = arguments.workload in ("w2", "w10")
    why = peer.refusal(arguments.variant, arguments.workload)
    said: dict[str, object] = {"survives": peer.survives.get(arguments.variant, "")}
    try:
        said["version"] = metadata.version(peer.distribution) if peer.distribution else ""
        measure = getattr(Bench(peer, arguments), arguments.workload)
        said.update({"skipped": why} if why else measure())
    except Exception as error:
        said["failed"] = f"{type(error).__name__}: {error}"
    print(json.dumps(said), flush=True)
