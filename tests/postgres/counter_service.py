"""A real service with effects, over HTTP: it counts them, and writes each request down.

It is never killed, so its log says what happened.  ``python counter_service.py LOG`` prints its
port.  When its stdin is closed it ends, with the process groups that it read there.

What a client asks for happens before it is answered, after some time, so that a client that is
killed in between does not know.  Whoever asks whether an effect happened gets an answer that stays
true: requests that were sent before the question are refused from then on.
"""

import contextlib
import http.server
import json
import os
import signal
import sys
import threading
import time
import urllib.request
import zlib


def value_of(run, number, token):
    """What the service answers to an effect, or to a plain question."""
    return zlib.crc32(f"{run} {number} {token}".encode()) % 1000


class Service(http.server.ThreadingHTTPServer):
    """Counts effects by key."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, log):
        super().__init__(("127.0.0.1", 0), Answering)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._happened = {}
        self._asked = {}

    def note(self, what, asked):
        """Write a line of the log, durably."""
        line = json.dumps({"what": what, "at": time.time(), **asked})
        os.write(self._log, f"{line}\n".encode())
        os.fdatasync(self._log)

    def answer(self, path, asked):
        """Do what is asked for; return the answer."""
        value = value_of(asked["run"], asked["number"], asked["token"])
        with self._lock:
            if path == "/look":
                self.note("looked", asked)
            elif path == "/asked":
                self._asked[asked["key"]] = time.monotonic()
                self.note("asked", asked)
                return self._happened.get(asked["key"])
            elif self._asked.get(asked["key"], 0.0) > asked["sent"]:
                self.note("refused", asked)
                return None
            elif asked["once"] and asked["key"] in self._happened:
                self.note("dropped", asked)
                value = self._happened[asked["key"]]
            else:
                self._happened[asked["key"]] = value
                self.note("happened", asked)
        time.sleep(asked["seconds"])
        return value


class Answering(http.server.BaseHTTPRequestHandler):
    """One request: JSON in, JSON out."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.dumps(self.server.answer(self.path, asked)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle(self):
        try:
            super().handle()
        except ConnectionError:  # whoever asked has been killed
            self.close_connection = True

    def log_message(self, *_):
        """Be silent: the log has it."""


class Refused(Exception):
    """Somebody has asked in the meantime, and was told that this had not happened."""


def post(path, **asked):
    """Ask the service whose address is in ``CHAOS_SERVICE``; return its answer."""
    asked["sent"] = time.monotonic()  # one clock for all processes of a machine
    url = f"{os.environ['CHAOS_SERVICE']}/{path}"
    request = urllib.request.Request(url, json.dumps(asked).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    if found is None and path == "effect":
        raise Refused(asked["key"])
    return found


def main():
    service = Service(sys.argv[1])
    threading.Thread(target=service.serve_forever, daemon=True).start()
    print(service.server_address[1], flush=True)
    for group in {int(line) for line in sys.stdin}:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
