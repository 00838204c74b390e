"""A TCP proxy before a Postgres server, to do to connections what networks do.

It understands as much of Postgres's protocol as is needed to know where a transaction ends::

    with Proxy(server.url) as proxy:
        store = open_store(proxy.url(database_url))
        proxy.cut()                      # every connection is gone; new ones are accepted
        proxy.refuse()                   # the same, and new ones are refused, until accept()
        proxy.stall()                    # a black hole, until flow(); also in one direction
        proxy.lose("answer", at={3})     # the third write is committed, and nobody hears of it
        proxy.lose("request", at={3})    # it never arrives
        proxy.lose("late", at={3})       # it arrives after deliver(), when its client is gone
"""

import contextlib
import re
import select
import socket
import struct
import threading
from urllib.parse import parse_qs, urlsplit, urlunsplit

from server import free_port

TO_SERVER, TO_CLIENT = "to the server", "to the client"
_NO_ENCRYPTION = {80877103, 80877104}  # requests of SSL and of GSSAPI: the answer is N
_CANCEL = 80877102
_SYNC = b"S\0\0\0\4"
_WRITES = re.compile(rb"\b(insert|update|delete|merge|create|alter|drop)\b", re.IGNORECASE)
_BEGIN = re.compile(rb"^\s*(begin|start transaction)\b", re.IGNORECASE)
_COMMIT = re.compile(rb"^\s*(commit|end)\b", re.IGNORECASE)
_ROLLBACK = re.compile(rb"^\s*(rollback|abort)\s*(work|transaction)?;?\s*$", re.IGNORECASE)


class Proxy:
    """A proxy on a port of its own; it works in threads of this process.

    Args:
        url: of the server.

    Attributes:
        commits: how many transactions that write have been sent, over all connections.
        lost: how many of them were treated as :meth:`lose` says.
    """

    def __init__(self, url):
        self._server = _address(url)
        self.port = free_port()
        self.commits = self.lost = 0
        self._lose = ("", lambda number: False, re.compile(b""))
        self._late_by, self._due = 0, set()
        self._lock = threading.RLock()
        self._links = set()
        self._held = []
        self._gates = {TO_SERVER: threading.Event(), TO_CLIENT: threading.Event()}
        self._listener = None
        self.closed = False
        self.flow()
        self.accept()

    def url(self, url):
        """The same URL by way of this proxy."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0] or "postgres"
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}"))

    # -- what networks do ------------------------------------------------------------------------

    def cut(self):
        """End every connection (with a reset), on both sides; new ones are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def refuse(self):
        """Cut, and refuse new connections, until :meth:`accept`."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut()

    def accept(self):
        """Accept connections again."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=200)
                listens = threading.Thread(target=self._accept, args=[self._listener], daemon=True)
                listens.start()

    def stall(self, *directions):
        """Forward nothing, as a network does that drops packets; the connections stay.

        Args:
            directions: ``TO_SERVER``, ``TO_CLIENT``; by default both.
        """
        for each in directions or (TO_SERVER, TO_CLIENT):
            self._gates[each].clear()

    def flow(self):
        """Forward again, and first what has been held back."""
        for gate in self._gates.values():
            gate.set()

    def lose(self, what, at=None, of="", late_by=0):
        """Lose something of transactions that write, and the connection with it.

        Args:
            what: ``"answer"`` (committed; nobody hears of it), ``"request"`` (never sent),
                ``"late"`` (sent at :meth:`deliver`), or ``""`` for nothing from now on.
            at: which of them, by number from 1 on, from now on; by default all.
            of: a regular expression that their SQL has to match.
            late_by: a late request is sent just before this many-th one after it, by itself.
        """
        with self._lock:
            self.commits = self.lost = 0
            self._late_by, self._due = late_by, set()
            chosen = (lambda number: True) if at is None else set(at).__contains__
            self._lose = (what, chosen, re.compile(of.encode(), re.IGNORECASE | re.DOTALL))

    def deliver(self):
        """Send the late requests to the server at last; return how many."""
        with self._lock:
            held, self._held = self._held, []
        for server, data in held:
            with contextlib.suppress(OSError):
                server.sendall(data)
                _read_to_end_of_answer(server)
            server.close()
        return len(held)

    def close(self):
        """End all of it."""
        self.closed = True
        self.lose("")
        self.flow()
        self.refuse()
        for server, _ in self._held:
            server.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    # -- its threads -----------------------------------------------------------------------------

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            server = None
            with contextlib.suppress(OSError):
                server = _connect(self._server)
            if server is None:  # the server is down: as if nobody listened
                _reset(client)
                continue
            link = _Link(self, client, server)
            with self._lock:
                wanted = self._listener is listener  # refused meanwhile, it is cut by nobody else
                if wanted:
                    self._links.add(link)
            if wanted:
                link.start()
            else:
                link.cut()

    def _fate(self, group):
        """What is to become of a group of messages that ends a transaction which writes."""
        with self._lock:
            what, chosen, of = self._lose
            if not of.search(group):
                return ""
            self.commits += 1
            if self.commits in self._due:
                self.deliver()
            if what and chosen(self.commits):
                self.lost += 1
                self._due.add(self.commits + self._late_by)
                return what
            return ""

    def _forward(self, direction, sock, data):
        self._gates[direction].wait()
        sock.sendall(data)

    def _forget(self, link):
        with self._lock:
            self._links.discard(link)

    def _hold(self, server, data):
        with self._lock:
            self._held.append((server, data))


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy, client, server):
        self._proxy, self._client, self._server = proxy, client, server
        self._texts = {}  # the SQL of statements that the client has prepared
        self._idle = True  # outside of an explicit transaction, as far as was sent
        self._wrote = False
        self._answers = 1  # how many times the server is to say that it is ready
        self._lost = 0  # after which of them an answer is lost: the number of it
        self._ready = 0
        self._lock = threading.Lock()
        self._given_away = False
        self._cut = False

    def start(self):
        for work in (self._upward, self._downward):
            threading.Thread(target=self._work, args=[work], daemon=True).start()

    def _work(self, work):
        try:
            work()
        except (OSError, EOFError, ValueError):  # an end, on either side
            self.cut()

    def cut(self):
        with self._lock:
            if self._cut:
                return
            self._cut = True
        self._proxy._forget(self)
        _reset(self._client)
        if not self._given_away:
            _reset(self._server)

    def _upward(self):
        """From the client to the server, in groups that end where an answer is due."""
        while True:
            head = _exactly(self._client, 8)
            size, code = struct.unpack("!ii", head)
            if code not in _NO_ENCRYPTION:
                break
            self._client.sendall(b"N")
        rest = _exactly(self._client, size - 8)
        self._proxy._forward(TO_SERVER, self._server, head + rest)
        if code == _CANCEL:
            raise EOFError
        group, texts = b"", []
        while True:
            kind, message = _message(self._client)
            group += message
            texts += filter(None, [self._sql(kind, message)])
            # What a client posts ends with a COMMIT, and only later is there an answer.
            posted = kind == b"E" and texts and _COMMIT.match(texts[-1])
            if kind in b"PBDECd" and not posted:  # more follows (except after Flush)
                continue
            self._send(kind, group, texts)
            group, texts = b"", []

    def _sql(self, kind, message):
        """The SQL that a message executes or prepares, or ``None``."""
        body = message[5:]
        if kind == b"Q":
            return body.rstrip(b"\0")
        if kind == b"P":
            name, text = body.split(b"\0")[:2]
            self._texts[name] = text
            return None
        if kind == b"B":
            return self._texts.get(body.split(b"\0")[1])
        return None

    def _send(self, kind, group, texts):
        inside = not self._idle
        for text in texts:
            if _BEGIN.match(text):
                inside = True
            elif _COMMIT.match(text):
                inside = False
            elif _ROLLBACK.match(text):
                inside = self._wrote = False
            elif _WRITES.search(text):
                self._wrote = True
        self._idle = not inside
        fate = ""
        if kind in b"ESQ" and self._wrote and self._idle:
            self._wrote = False
            fate = self._proxy._fate(b"\n".join(texts))
        if fate == "request":
            raise EOFError
        if fate == "late":
            self._given_away = True
            self._proxy._hold(self._server, group + (_SYNC if kind == b"E" else b""))
            raise EOFError
        with self._lock:
            if kind in (b"S", b"Q"):
                self._answers += 1
            if fate == "answer":
                self._lost = self._answers + (kind == b"E")
        self._proxy._forward(TO_SERVER, self._server, group)
        if kind == b"X":
            raise EOFError

    def _downward(self):
        """From the server to the client, except an answer that is to be lost."""
        while True:
            if self._given_away:
                return
            readable, _, _ = select.select([self._server], [], [], 0.05)
            if not readable or self._given_away:
                if self._cut:
                    return
                continue
            kind, message = _message(self._server)
            with self._lock:
                lost = self._lost and self._ready == self._lost - 1
                if kind == b"Z":
                    self._ready += 1
            if lost:
                if kind == b"Z":
                    raise EOFError  # committed, and nobody hears of it
                continue
            self._proxy._forward(TO_CLIENT, self._client, message)


def _address(url):
    parts = urlsplit(url)
    host = parts.hostname or parse_qs(parts.query).get("host", [""])[0]
    port = parts.port or int(parse_qs(parts.query).get("port", ["5432"])[0])
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host or "127.0.0.1", port)


def _connect(address):
    if isinstance(address, str):
        made = socket.socket(socket.AF_UNIX)
        made.connect(address)
        return made
    made = socket.create_connection(address, timeout=10)
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _exactly(sock, size):
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _message(sock):
    head = _exactly(sock, 5)
    return head[:1], head + _exactly(sock, struct.unpack("!i", head[1:])[0] - 4)


def _read_to_end_of_answer(server):
    server.settimeout(10)
    with contextlib.suppress(EOFError):
        while _message(server)[0] != b"Z":
            pass


def _reset(sock):
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)  # wakes the thread that reads
    sock.close()
