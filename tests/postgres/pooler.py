"""A pooler in transaction mode, as PgBouncer is one: each transaction gets another connection.

PgBouncer itself is in no package registry of Python.  This does what matters of it to a client:

- a client is answered by the pooler, which gives it a process id that no server process has;
- each transaction is executed by whichever server connection is free, and the next by another one
  (``SET``, ``LISTEN``, prepared statements and session locks stay on a connection, or are lost);
- with ``reset=True``, a connection forgets its session after each transaction (``DISCARD ALL``);
- notifications do not reach clients.

What it lacks: SSL, passwords, cancelling, ``COPY``, limits of any kind.
"""

import contextlib
import itertools
import select
import socket
import struct
import threading
from urllib.parse import urlsplit, urlunsplit

import psycopg
from proxy import _NO_ENCRYPTION, _exactly, _message, _reset
from server import free_port


class Pooler:
    """A pooler on a port of its own, before one database, with a few server connections.

    Args:
        url: of the database.
        size: how many server connections there are.
        reset: connections forget their sessions after each transaction.
    """

    def __init__(self, url, size=3, *, reset=False):
        self._url, self._reset = url, reset
        self.port = free_port()
        self.transactions = 0
        self._free = []
        self._changed = threading.Condition()
        self._pids = itertools.count(1)
        self._sockets = set()
        self._parameters = b""
        for _ in range(size):
            self._free.append(self._connected())
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, **options):
        """The URL of the database by way of this pooler."""
        from server import with_options

        parts = urlsplit(self._url)
        user = parts.netloc.rpartition("@")[0] or "postgres"
        url = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}"))
        return with_options(url, **options)

    def _connected(self):
        """The socket of a new server connection, which has told its parameters."""
        parts = urlsplit(self._url)
        server = socket.create_connection((parts.hostname, parts.port))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        words = ["user", parts.username or "postgres", "database", parts.path.lstrip("/"), "", ""]
        body = struct.pack("!i", 196608) + "\0".join(words[:-1]).encode() + b"\0"
        server.sendall(struct.pack("!i", len(body) + 4) + body)
        self._sockets.add(server)
        parameters = b""
        while True:
            kind, message = _message(server)
            assert kind != b"E", message
            if kind == b"S":
                parameters += message
            if kind == b"Z":
                self._parameters = parameters
                return server

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.add(client)
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._welcome(client)
            while True:
                select.select([client], [], [])
                server = self._take()
                if self._transaction(client, server):
                    self._give_back(server)
                else:  # the client went away in the middle
                    _reset(server)
                    self._give_back(self._connected())
                    break
        _reset(client)
        self._sockets.discard(client)

    def _welcome(self, client):
        while True:
            size, code = struct.unpack("!ii", _exactly(client, 8))
            if code not in _NO_ENCRYPTION:
                break
            client.sendall(b"N")
        _exactly(client, size - 8)
        welcome = b"R" + struct.pack("!ii", 8, 0) + self._parameters
        welcome += b"K" + struct.pack("!iii", 12, next(self._pids), 0)
        client.sendall(welcome + b"Z" + struct.pack("!i", 5) + b"I")

    def _transaction(self, client, server):
        """Carry messages in both directions until a transaction has ended; False at an end."""
        due, status = 0, b"I"
        while True:
            readable, _, _ = select.select([client, server], [], [], 60)
            if server in readable:
                kind, message = _message(server)
                if kind != b"A":  # of a LISTEN that somebody left there
                    client.sendall(message)
                if kind == b"Z":
                    due, status = due - 1, message[5:]
                if due == 0 and status == b"I" and kind == b"Z":
                    self.transactions += 1
                    return True
            elif client in readable:
                try:
                    kind, message = _message(client)
                except (EOFError, OSError):
                    return due == 0 and status == b"I"
                if kind == b"X":
                    return due == 0 and status == b"I"
                if kind in (b"S", b"Q"):
                    due += 1
                server.sendall(message)

    def _take(self):
        with self._changed:
            while not self._free:
                self._changed.wait()
            return self._free.pop(0)

    def _give_back(self, server):
        if self._reset:
            text = b"DISCARD ALL\0"
            server.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
            while _message(server)[0] != b"Z":
                pass
        with self._changed:
            self._free.append(server)  # last: the next transaction gets another one
            self._changed.notify()

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            _reset(each)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def is_pooled(url):
    """Whether two transactions of one client are executed by different server processes."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        pids = [connection.execute("SELECT pg_backend_pid()").fetchone()[0] for _ in range(3)]
        return len(set(pids)) > 1
