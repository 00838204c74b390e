"""Eight processes against a provider that counts: never over the limit, and how much of it is used.

``python benchmarks/limits.py`` starts the provider and the processes, kills one of them now and
then, and prints what the provider counted by its own clock.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import http.server
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import stepwise
from stepwise import Limit, step, workflow

PROCESSES, REQUESTS, TOKENS, PER = 8, 500, 51_000, 10.0
SMALL, LARGE = 50, 150  # tokens of an answer


class Provider:
    """A small HTTP server that notes when each request came, and what it cost."""

    def __init__(self) -> None:
        self.came: list[tuple[float, int, str]] = []
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                came = time.monotonic()
                run = self.path.rpartition("/")[2]
                tokens = random.Random(len(provider.came)).randint(SMALL, LARGE)
                provider.came.append((came, tokens, run))
                body = json.dumps({"tokens": tokens}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                with contextlib.suppress(ConnectionError):  # the process was killed
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def over(self, requests: int, per: float) -> int:
        """Return how many requests were too many, in any window."""
        times = sorted(came for came, _, _ in self.came)
        return sum(
            later - earlier < per for earlier, later in zip(times, times[requests:], strict=False)
        )

    def used(self, requests: int, per: float, begun: float) -> float:
        """Return the part of the limit that is used: the ideal over the real time of so many."""
        times = sorted(came for came, _, _ in self.came)
        found = [
            later - earlier
            for earlier, later in zip(times, times[requests:], strict=False)
            if later >= begun
        ]
        return per * len(found) / sum(found)

    def most_tokens(self, per: float) -> int:
        """Return the most tokens that any window has seen."""
        found, most, first, spent = sorted(self.came), 0, 0, 0
        for came, tokens, _ in found:
            spent += tokens
            while found[first][0] <= came - per:
                spent -= found[first][1]
                first += 1
            most = max(most, spent)
        return most

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


def work(port: int, store: str, limit: Limit, runs: int, calls: int) -> None:
    """Execute runs in threads, whose steps ask the provider in turns of the limit."""
    stepwise.configure(store=store, suspend_after=None)

    @step(limit=limit)
    def ask(name: str, number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", f"/{name}")
            tokens: int = json.loads(connection.getresponse().read())["tokens"]
        stepwise.spend(tokens=tokens)
        return number

    @workflow(checkpoint_every=1_000_000, durability="os")
    def agent(name: str) -> int:
        return sum(ask(name, number) for number in range(calls))

    threads = [
        threading.Thread(target=agent.options(fresh=True), args=(f"{n}-{time.time()}",))
        for n in range(runs)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def start(port: int, store: str, limit: Limit, runs: int, calls: int) -> subprocess.Popen[bytes]:
    """Start a process that works, until it has made its calls or is killed."""
    figures = [limit.requests, limit.tokens, limit.per, limit.concurrent]
    words = json.dumps([port, store, figures, runs, calls])
    return subprocess.Popen([sys.executable, __file__, "--work", words])


def main(seconds: float) -> None:
    """Print what the provider counted, with kills in between."""
    provider, limit = Provider(), Limit("fake", requests=REQUESTS, tokens=TOKENS, per=PER)
    with tempfile.TemporaryDirectory() as folder:
        store = str(pathlib.Path(folder) / "store")
        processes = [start(provider.port, store, limit, 4, 100_000) for _ in range(PROCESSES)]
        while len(provider.came) < REQUESTS:
            time.sleep(0.1)
            assert all(each.poll() is None for each in processes), "a process has ended"
        begun, kills = time.monotonic(), 0
        while (now := time.monotonic()) < begun + seconds:
            time.sleep(min(3.0, begun + seconds - now))
            processes[kills % PROCESSES].send_signal(signal.SIGKILL)
            processes[kills % PROCESSES].wait()
            processes[kills % PROCESSES] = start(provider.port, store, limit, 4, 100_000)
            kills += 1
        for each in processes:
            each.kill()
            each.wait()
    print(f"{PROCESSES} processes, {kills} kills, {len(provider.came):,} requests")
    print(f"over the limit in any window: {provider.over(REQUESTS, PER)} requests")
    print(f"most tokens in any window: {provider.most_tokens(PER):,} of {TOKENS:,}")
    print(f"used: {provider.used(REQUESTS, PER, begun):.0%} of the requests")
    provider.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=40.0)
    given = parser.parse_args()
    if given.work:
        port, store, (requests, tokens, per, concurrent), runs, calls = json.loads(given.work)
        work(port, store, Limit("fake", requests, tokens, per, concurrent), runs, calls)
    else:
        main(given.seconds)
