"""Seals and anchors: what a person who can write a store but has no key can neither forge nor undo.

The *seal* is an envelope around every stored byte, verified before anything in it is parsed::

    0   2  magic "SW"
    2   1  the format of the store
    3   1  flags: 1 if the bytes after the MAC are encrypted; 2 if the payload has its own digest
    4   4  how many intents of side effects the journal holds before this record
    8   8  key id
    16  16 the first 16 bytes of the previous record's MAC (the hash chain), or zeros
    32  32 HMAC-SHA-256 over the identity and everything else
    64  4  length of the header, little-endian
    68  .. header (JSON), payload

With encryption (``configure(encrypt=True)``), the bytes from 64 on are a nonce and an AES-256-GCM
ciphertext.  The identity and the front are its associated data; the MAC covers the ciphertext.

The SHA-256 of a large buffer shows whether the buffer is stored already.  If that digest is known,
the MAC covers the digest instead of the payload, so that no byte is read twice.

The *identity* (run, kind, sequence number) is not stored but is part of the MAC, so a sealed record
is refused in any other place.  The key is made at first use and lives outside the store's folder.

Rejected: keyed BLAKE2b.  A step of 1 KB takes as long, values of some KB take twice as long on
processors with SHA instructions, and the algorithm is missing where FIPS rules.

An *anchor* is the last mark of a run, beside the key, in ``$STEPWISE_HOME/anchors``.  Without
anchors, a person without the key could put back old contents, marks included.  An anchor is written
without waiting for the disk.  The anchor of a deleted run records the deletion.  Anchors exist only
if the key is a file of this machine: a store that several homes use would change without an anchor
in this home.

All anchors lie in one file of small cells, found by key, instead of one small file for each run.
Creating a file took 0.7 ms on ext4; adding a cell takes a twentieth of that.  Each level of the
file is twice as long as the previous level::

    level 0    128 buckets of 8 cells
    level 1    256 buckets of 8 cells
    ...

    cell       16 bytes of the key, then the content; zeros if it is free

A key has one bucket in each level, and its cell lies in the first bucket that had a free place.
Cells never move, so readers need no lock.  Writers lock the file: the cell to replace may just have
been removed and its place reused.  A cell lies within one sector of the disk, so a power cut leaves
the whole cell or nothing.  Only a removal is flushed.

Rejected: cells in the order of their arrival, with an index in memory.  The first access of each
process would read the whole file, 13 MB for 100,000 runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import hmac
import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any

from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.system_limits import check_folder, make_private, read_trusted, unusable
from stepwise._values.unpickling import Data, Pieces
from stepwise.errors import ConfigurationError
from stepwise.stores import Store
from stepwise.stores.base import FORMAT

_MAGIC = b"SW"
_FRONT = struct.Struct("<2sBBI8s16s")
_BACK = struct.Struct("<I")
_HEX = "[0-9a-fA-F]{64}"  # a line of a key file
_MAC_AT = _FRONT.size
_BACK_AT = _MAC_AT + 32
_LEAST = _BACK_AT + _BACK.size
_ENCRYPTED, _DIGESTED = 1, 2
NO_LINK = bytes(16)
_NONCE = 12  # bytes; random (NIST SP 800-38D 8.2.2): good for 2**32 records under one key
# The headers are built here and are trees, so no check for cycles is needed.  JSONEncoder.encode()
# makes this encoder anew for each header, which is a seventh of the work.
_pieces = c_make_encoder(
    *(None, json.JSONEncoder().default, encode_basestring, None, ":", ",", False, False, True)
)
_from_json = json.JSONDecoder().raw_decode  # headers have no white space around them


def to_json(header: Any) -> bytes:
    """Return a header as JSON, encoded."""
    return "".join(_pieces(header, 0)).encode("utf-8", "surrogatepass")


class DamagedError(Exception):
    """The bytes do not verify."""


class ForeignKeyError(DamagedError):
    """The bytes were sealed with a key that is not at hand."""


class Envelope(NamedTuple):
    """A verified envelope.

    Args:
        header, payload: the contents.
        previous: the link to the previous record.
        effects: the count of earlier intents of side effects.
        link: the link for the next record.
    """

    header: Any
    payload: bytes
    previous: bytes
    effects: int
    link: bytes


class Seal:
    """A seal that closes with the first key and opens with any key; older keys come last."""

    def __init__(self, keys: tuple[bytes, ...], encrypts: bool = False) -> None:
        self.keys = keys
        self.encrypts = encrypts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seal):
            return NotImplemented
        return (self.keys, self.encrypts) == (other.keys, other.encrypts)

    def __hash__(self) -> int:
        return hash((self.keys, self.encrypts))

    @cached
    def key_id(self) -> bytes:
        """Eight bytes that tell keys apart without revealing anything about them."""
        return _key_id(self.keys[0])

    @cached
    def _begun(self) -> hmac.HMAC:
        """A MAC without data, to be copied: ``hmac.digest`` looks up the algorithm each time."""
        return _begun_with(self.keys[0])

    @property
    def key_ids(self) -> list[bytes]:
        """The ids of all keys that can open records."""
        return list(self._by_id)

    @cached
    def _by_id(self) -> dict[bytes, bytes]:
        return {_key_id(key): key for key in self.keys}

    def close(
        self,
        identity: str,
        header: dict[str, Any] | list[Any],
        payload: Data = b"",
        previous: bytes = NO_LINK,
        effects: int = 0,
        digest: bytes = b"",
    ) -> tuple[Data, bytes]:
        """Seal a header and a payload; return the sealed bytes and the link for the next record.

        Args:
            identity: the place of the record.
            header: the header, in a form that JSON can hold.
            payload: the payload.
            previous: the link to the previous record.
            effects: the count of earlier intents of side effects.
            digest: the SHA-256 of the payload, if it is known.
        """
        text = to_json(header)
        flags = _ENCRYPTED if self.encrypts else _DIGESTED if digest else 0
        front = _FRONT.pack(_MAGIC, FORMAT, flags, effects, self.key_id, previous)
        named, back = _named(identity), _BACK.pack(len(text)) + text
        if flags == _ENCRYPTED:
            back, payload = _encrypt(self.keys[0], named + front, back + bytes(payload)), b""
        begun = self._begun.copy()
        begun.update(named + front + back)
        pieces = payload.views if isinstance(payload, Pieces) else (payload,)
        for each in (digest,) if flags == _DIGESTED else pieces:
            begun.update(each)
        mac = begun.digest()
        if isinstance(payload, Pieces):
            return payload.after(front + mac + back), mac[:16]
        return b"".join((front, mac, back, payload)), mac[:16]

    def open(self, identity: str, data: bytes) -> Envelope:
        """Verify sealed bytes, then take them apart.

        Raises:
            ForeignKeyError: the bytes were sealed with another key, or the key id itself is
                damaged.
            DamagedError: the bytes are not what was sealed under this identity.
        """
        inside, start, end = self._verified(identity, data)
        _, _, _, effects, _, previous = _FRONT.unpack_from(data)
        header, _ = _from_json(inside[start:end].decode("utf-8", "surrogatepass"))
        return Envelope(header, inside[end:], previous, effects, data[_MAC_AT : _MAC_AT + 16])

    def opened(self, identity: str, data: bytes | None) -> Envelope | None:
        """Take sealed bytes apart; return ``None`` if they are missing or do not verify."""
        try:
            return self.open(identity, data) if data is not None else None
        except DamagedError:
            return None

    def payload(self, identity: str, data: bytes) -> bytes:
        """Verify sealed bytes; return the payload alone, which is faster where many are read.

        Raises:
            ForeignKeyError, DamagedError: as for :meth:`open`.
        """
        inside, _, end = self._verified(identity, data)
        return inside[end:]

    def _verified(self, identity: str, data: bytes) -> tuple[bytes, int, int]:
        """Verify sealed bytes; return what lies inside, and where its header begins and ends."""
        if len(data) < _LEAST or data[:2] != _MAGIC:
            raise DamagedError("not a sealed record")
        version, flags, key = data[2], data[3], self._by_id.get(data[8:16])
        if key is None:
            if any(_is_nearly(each, data[8:16]) for each in self._by_id):
                raise DamagedError("the key id is damaged")
            raise ForeignKeyError("sealed with another key")
        view = memoryview(data)
        covered = _digested(view[_BACK_AT:]) if flags == _DIGESTED else (view[_BACK_AT:],)
        mac = _mac(key, identity, view[:_MAC_AT], *covered)
        if not hmac.compare_digest(mac, view[_MAC_AT:_BACK_AT]):
            raise DamagedError("the digest does not match")
        if version != FORMAT or flags not in (0, _ENCRYPTED, _DIGESTED):
            raise DamagedError(f"format {version}; this version of stepwise reads {FORMAT}")
        start = _BACK_AT
        if flags & _ENCRYPTED:
            data = _decrypt(key, _named(identity) + data[:_MAC_AT], data[_BACK_AT:])
            start = 0
        (length,) = _BACK.unpack_from(data, start)
        start += _BACK.size
        return data, start, start + length

    def index(self, *names: str) -> list[str]:
        """Return the index key of each name: the name itself, or a tag that does not reveal it."""
        if not self.encrypts:
            return [*names]
        return [self.tag("index", each.encode("utf-8", "surrogatepass")).hex() for each in names]

    def indexes(self, name: str) -> list[str]:
        """Return every index key that a name may have: plain, or encrypted with any of the keys."""
        data = name.encode("utf-8", "surrogatepass")
        tags = (_mac(key, "index", data)[:16].hex() for key in self.keys)
        return list(dict.fromkeys((*self.index(name), name, *tags)))

    def tag(self, identity: str, data: bytes) -> bytes:
        """Return sixteen bytes that only an owner of the key can make for ``data``."""
        return _mac(self.keys[0], identity, data)[:16]

    def tagger(self, identity: str) -> Callable[[bytes], bytes]:
        """Return a function that makes the tags of an identity, faster than :meth:`tag`."""
        begun = self._begun.copy()
        begun.update(_named(identity))

        def tag(data: bytes) -> bytes:
            mac = begun.copy()
            mac.update(data)
            return mac.digest()[:16]

        return tag

    def is_tag(self, identity: str, data: bytes, tag: bytes) -> bool:
        """Return whether ``tag`` was made for ``data``, with any of the keys."""
        made = [_mac(key, identity, data)[:16] for key in self.keys]
        return any(map(functools.partial(hmac.compare_digest, tag), made))


def named(name: str, run_id: str) -> str:
    """Return the identity of an object of a run; the length marks the end of the object's name.

    Names and run ids may hold slashes: without the length, ``a`` of ``b/c`` would equal ``a/b`` of
    ``c``.
    """
    return f"{len(name)}:{name}/{run_id}"


def _mac(key: bytes, identity: str, *parts: bytes | memoryview) -> bytes:
    mac = _begun_with(key).copy()
    mac.update(_named(identity))
    for part in parts:
        mac.update(part)
    return mac.digest()


@functools.cache
def _begun_with(key: bytes) -> hmac.HMAC:
    """Return a MAC without data: OpenSSL's object, which ``hmac.HMAC`` would wrap in Python."""
    mac = hmac.new(key, digestmod="sha256")
    inner: hmac.HMAC | None = getattr(mac, "_hmac", None)  # it has the same methods
    return inner or mac


def _digested(view: memoryview) -> tuple[memoryview, bytes]:
    """Return the header with its length, and the digest of the bytes after it."""
    (length,) = _BACK.unpack_from(view)
    end = _BACK.size + length
    return view[:end], hashlib.sha256(view[end:]).digest()


def _named(identity: str) -> bytes:
    text = identity.encode("utf-8", "surrogatepass")
    return _BACK.pack(len(text)) + text


@functools.cache
def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"stepwise key id" + key).digest()[:8]


def _is_nearly(key_id: bytes, found: bytes) -> bool:
    """Return whether half of the bytes are equal, which never happens with another key."""
    return sum(a == b for a, b in zip(key_id, found, strict=True)) >= len(key_id) // 2


# -- the key -------------------------------------------------------------------------------------


def ephemeral_seal() -> Seal:
    """Return a seal for data that does not outlive the process."""
    return Seal((os.urandom(32),))


def load_seal() -> Seal:
    """Return the user's seal: from ``STEPWISE_KEY``, else from the key file, made at first use.

    Raises:
        ConfigurationError: the key is unusable; the message says why and what to do.
        StoreError: the key file cannot be read or made.
    """
    text = os.environ.get("STEPWISE_KEY")
    if text:
        parts = [part.strip() for part in text.split(",")]
        # The text of a key file works as a key too, and verifies whatever the file's key has
        # signed.
        of_a_file = [bytes.fromhex(part) for part in parts if re.fullmatch(_HEX, part)]
        return _seal((*map(_from_text, parts), *of_a_file), settings.encrypt())
    path = os.path.join(settings.home(), "key")
    try:
        keys: tuple[bytes, ...] = ()
        with contextlib.suppress(FileNotFoundError):
            keys = _keys_in(path, read_trusted(path))
        if not keys:
            _make(path)
            keys = _keys_in(path, read_trusted(path))
    except OSError as error:
        way = "set STEPWISE_HOME to a folder of yours, or STEPWISE_KEY to a secret"
        raise unusable("key file", path, error, way) from error
    return _seal(keys, settings.encrypt())


_seal = functools.lru_cache(8)(Seal)  # each run asks, and a seal remembers what it computed


def _from_text(text: str) -> bytes:
    if len(text) < 16:
        raise ConfigurationError(
            "STEPWISE_KEY is shorter than 16 characters; make one with: "
            "python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return hashlib.sha256(os.fsencode(text)).digest()  # the text need not be UTF-8


@functools.lru_cache(8)
def _keys_in(path: str, data: bytes) -> tuple[bytes, ...]:
    lines = data.decode("ascii", "replace").split()
    try:
        keys = tuple(bytes.fromhex(line) for line in lines)
    except ValueError:
        keys = ()
    if not keys or any(len(key) != 32 for key in keys):
        raise ConfigurationError(
            f"the key file {path} is damaged: it should hold 64 hexadecimal digits. Restore it "
            "from a backup; without it the runs in the store cannot be verified"
        )
    return (*keys, *map(_from_text, lines))  # also for records that STEPWISE_KEY has signed


def _make(path: str) -> None:
    """Create the key file whole or not at all, and only once, however many processes try."""
    home = os.path.dirname(path)
    make_private(home)
    check_folder(home)
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(32).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was first: its key is the key
    finally:
        os.unlink(draft)
    folder = os.open(home, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- encryption ------------------------------------------------------------------------------------


def _encrypt(key: bytes, associated: bytes, data: bytes) -> bytes:
    """Encrypt ``data``: a nonce, then the ciphertext with its tag.

    Args:
        key: 32 bytes, from which the encryption key is derived.
        associated: the place of the data; the data decrypts nowhere else.
        data: the plain text.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    nonce = os.urandom(_NONCE)
    return nonce + bytes(_cipher(key).encrypt(nonce, data, associated))


def _decrypt(key: bytes, associated: bytes, data: bytes) -> bytes:
    """Decrypt the output of :func:`_encrypt`, whose digest was verified before.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    return bytes(_cipher(key).decrypt(data[:_NONCE], data[_NONCE:], associated))


@functools.lru_cache(8)
def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigurationError(
            "encryption needs the extra 'encryption': pip install 'stepwise-agents[encryption]'"
        ) from error
    return AESGCM(hmac.digest(key, b"stepwise encryption", "sha256"))


# -- anchors --------------------------------------------------------------------------------------

_FORM = struct.Struct("<40sd?")


class Anchor(NamedTuple):
    """The last mark of a run, when the anchor was written, and whether the run was deleted."""

    mark: bytes
    at: float
    deleted: bool


def drop_anchor(cell: FileCell | None, mark: bytes, *, deleted: bool = False) -> None:
    """Keep the last mark of a run in its anchor; an error of the system is ignored."""
    if cell is None:
        return
    data = _FORM.pack(mark, time.time(), deleted)
    with contextlib.suppress(OSError):
        try:
            cell.put(data)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another process created it just now
                os.mkdir(os.path.dirname(cell.path), 0o700)
            cell.put(data)


def anchor_of(store: Store, run_id: str) -> Anchor | None:
    """Return the anchor of a run, or ``None`` if it is missing or unreadable."""
    cell = anchor_cell(store, run_id)
    with contextlib.suppress(OSError):
        data = cell.get() if cell is not None else b""
        if data:
            return Anchor(*_FORM.unpack_from(data))
    return None


def bury_anchor(store: Store, run_id: str) -> None:
    """Record in the anchor that a run was deleted, if the run has an anchor.

    A run of the same id that began before the deletion is then known to be an old copy.  A run that
    begins later is a new run without losses.
    """
    kept = anchor_of(store, run_id)
    if kept is not None:
        drop_anchor(anchor_cell(store, run_id), kept.mark, deleted=True)


def lift_anchor(store: Store, run_id: str) -> None:
    """Remove the anchor of a run, once a person has restored the run or accepted its loss."""
    cell = anchor_cell(store, run_id)
    if cell is not None:
        with contextlib.suppress(OSError):
            cell.remove()


def anchor_cell(store: Store, run_id: str) -> FileCell | None:
    """Return the cell for the anchor of a run, or ``None`` if anchors are not kept."""
    if not store.persistent or os.environ.get("STEPWISE_KEY"):
        return None
    name = f"{store.url}\0{run_id}".encode("utf-8", "surrogatepass")
    path = os.path.join(settings.home(), "anchors", "cells")
    return FileCell(path, hashlib.blake2b(name, digest_size=CELL_KEY).digest())


# -- the file of anchors ---------------------------------------------------------------------------

CELL_KEY = 16  # bytes
_CELL = 128  # bytes; a sector holds a whole number of cells
_BUCKET = 8 * _CELL
_FIRST = 128  # buckets of level 0
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class FileCell:
    """The cell of a key in a file.  The first cell creates the file.

    Methods raise the system's ``OSError``; nothing stays open between two calls.

    Args:
        path: the path of the file; adding a cell needs an existing folder.
        key: 16 bytes, not all of them zero.
    """

    def __init__(self, path: str, key: bytes) -> None:
        self.path = path
        self._key = key
        self._at = -1  # the last known offset of the cell

    def get(self) -> bytes:
        """Return the content, padded with zeros, or ``b""`` if the cell is missing."""
        try:
            file = os.open(self.path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return b""
        try:
            at = _found(file, self._key)
            cell = os.pread(file, _CELL, at) if at >= 0 else b""
            # The file may end within the cell, or another key may have taken its place meanwhile.
            return cell[CELL_KEY:] if len(cell) == _CELL and cell.startswith(self._key) else b""
        finally:
            os.close(file)

    def put(self, content: bytes) -> None:
        """Replace the content, or add the cell.

        Raises:
            ValueError: the content is longer than a cell has room for.
        """
        cell = (self._key + content).ljust(_CELL, b"\0")
        if len(cell) > _CELL:
            raise ValueError(len(content))
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._at < 0 or os.pread(file, CELL_KEY, self._at) != self._key:
                self._at = _found(file, self._key, or_free=True)
            os.pwrite(file, cell, self._at)
        finally:
            _close_locked(file)

    def remove(self) -> None:
        """Remove the cell durably; do nothing if the cell is missing."""
        from stepwise.stores._files import flush  # on use: it loads SQLite

        try:
            file = os.open(self.path, os.O_RDWR | _FLAGS)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            at = _found(file, self._key)
            if at >= 0:
                os.pwrite(file, bytes(_CELL), at)
                flush(file)
        finally:
            _close_locked(file)


def _close_locked(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child forked just now has the file open, too
    finally:
        os.close(file)


def _buckets(file: int, key: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the buckets of a key: the offset of each, and its bytes as far as the file goes."""
    start, count = 0, _FIRST
    while True:
        at = start + int.from_bytes(key[:8], "big") % count * _BUCKET
        data = os.pread(file, _BUCKET, at)
        yield at, data
        if not data:  # the file ends before this bucket, and so before the next level
            return
        start, count = start + count * _BUCKET, 2 * count


def _found(file: int, key: bytes, *, or_free: bool = False) -> int:
    """Return the offset of a key's cell; without one, -1, or that of the first free place for it.

    There is always one: a bucket past the end of the file is free.
    """
    free = -1
    for at, data in _buckets(file, key):
        for place in range(0, _BUCKET if data else _CELL, _CELL):
            if data.startswith(key, place):
                return at + place
            if or_free and free < 0 and not any(data[place : place + CELL_KEY]):
                free = at + place
    return free
