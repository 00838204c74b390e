"""A server on one address that is killed and started again, and its readers."""

import concurrent.futures
import functools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading

import httpx2 as httpx

PROGRAMS = pathlib.Path(__file__).resolve().parent
JSON = {"content-type": "application/json"}


class Server:
    """A server on one address, whose process may be killed and started again."""

    def __init__(self, left="", **environment):
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.environment = {**os.environ, "STEPWISE_QUIET": "1", **environment}
        self.left, self.process = left, None

    def start(self):
        """Start a process, which takes the connections that wait."""
        descriptor = self.listening.fileno()
        command = [sys.executable, str(PROGRAMS / "talking.py"), str(descriptor), str(self.left)]
        self.process = subprocess.Popen(command, env=self.environment, pass_fds=[descriptor])
        return self

    def end(self, number=signal.SIGKILL):
        """End the process by a signal; return when it has ended."""
        self.process.send_signal(number)
        self.process.wait(timeout=120)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.end()
        self.listening.close()

    def client(self, **headers):
        return httpx.Client(base_url=self.address, headers={**JSON, **headers}, timeout=300)


class Reader:
    """A client of a run's events that reconnects, and applies resets as the page says."""

    def __init__(self, client, run_id):
        self.client, self.path = client, f"/runs/{run_id}/stream"
        self.items, self.last, self.end, self.connections = {}, None, None, 0
        self.known = [(None, {})]  # what it had at its connections

    def connect(self, most=10**9):
        """Read until the run ends, or the server does, or the reader has had enough events."""
        self.connections += 1
        self.known.append((self.last, dict(self.items)))
        headers = {} if self.last is None else {"last-event-id": self.last}
        try:
            with self.client.stream("GET", self.path, headers=headers) as answer:
                assert answer.status_code == 200, answer.status_code
                for count, event in enumerate(events_of(answer), 1):
                    self.note(*event)
                    if count == most:
                        return
        except httpx.TransportError:
            return

    def go_back(self, chosen):
        """Return to what the reader had at an earlier connection, as a page from a cache does."""
        self.last, items = chosen.choice(self.known[-10:])
        self.items = dict(items)

    def note(self, kind, number, data):
        """Take an event in."""
        self.last = number if kind != "end" else self.last
        if kind == "reset":
            self.items = {at: each for at, each in self.items.items() if at < data}
        elif kind == "end":
            self.end = data
        else:
            assert int(number) > max(self.items, default=-1)  # the order
            self.items[int(number)] = data

    def follow(self):
        """Reconnect until the run has ended; return all that it has said."""
        while self.end is None:
            self.connect()
        return list(self.items.values())


def events_of(answer):
    """Yield kind, id and data of each event of a response."""
    kind, number, data = "item", None, None
    for line in answer.iter_lines():
        name, _, text = line.partition(": ")
        if name == "event":
            kind = text
        elif name == "id":
            number = text
        elif name == "data":
            data = json.loads(text)
        elif not line and data is not None:
            yield kind, number, data
            kind, number, data = "item", None, None


def said(parts, words):
    """All that ``talk`` and ``read_out`` say."""
    return [
        text
        for part in range(parts)
        for text in [f"part {part}", *(f"{part}.{word}" for word in range(words))]
    ]


def together(*targets):
    """Run functions in threads; return their results."""
    with concurrent.futures.ThreadPoolExecutor(len(targets)) as threads:
        return [each.result() for each in [threads.submit(target) for target in targets]]


def storm(server, workflow, *, readers, reconnects, kills, seed):
    """Kill the server and reconnect readers of one run; each has all of it once, in order.

    Half of the reconnects return to an earlier offset.  The number of reconnects is a minimum.
    """
    parts, words = max(40, 8 * kills), 20
    with server.client() as client:
        given = {"parts": parts, "words": words}
        asked = {"accept": "application/json"}
        answer = client.post(f"/start/{workflow}?run_id=r", json=given, headers=asked)
        assert answer.status_code == 202, answer.text
    over = threading.Event()

    def killer():
        chosen = random.Random(f"{seed} kills")
        with server.client() as client:
            reader = Reader(client, "r")
            for _ in range(kills):
                reader.connect(chosen.randrange(5, 3 * words))
                assert reader.end is None  # else the run was too short for the kills
                server.end(chosen.choice((signal.SIGKILL, signal.SIGTERM)))
                server.start()
            over.set()
            return reader.follow(), reader.connections

    def reads(number):
        chosen = random.Random(f"{seed} {number}")
        with server.client() as client:
            reader = Reader(client, "r")
            while reader.end is None or reader.connections < reconnects // readers:
                reader.connect(chosen.randrange(1, 4 * words))
                if reader.connections < reconnects // readers and chosen.random() < 0.5:
                    reader.go_back(chosen)
                    reader.end = None
            return list(reader.items.values()), reader.connections

    found = together(killer, *(functools.partial(reads, number) for number in range(readers)))
    assert over.is_set()
    wanted = said(parts, words)
    wrong = [number for number, (items, _) in enumerate(found) if items != wanted]
    assert wrong == [], wrong
    assert sum(many for _, many in found) >= reconnects
