"""The persons who act on runs: who is recorded, and answers signed with an approver's own key.

Neither the run nor its agent has the key of an approver.  An approver is a public key in the
program's text: ``ed25519:BASE64 NAME``.  The signature covers everything that the person was shown
and said, and the question.  Only ``cryptography`` from the extra ``approvers`` verifies signatures;
it is imported on use.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from stepwise._journal.records import Waiting
from stepwise._journal.seal import to_json
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import ConfigurationError

_acting: ContextVar[str] = ContextVar("person whom stepwise records", default="")


@contextlib.contextmanager
def acting_as(who: str) -> Iterator[None]:
    """Record this person, within the block, for what is sent, answered, settled and asked for."""
    token = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(token)


def this_person() -> str:
    """Return who acts: the person of :func:`acting_as`, else ``user@host`` of this process."""
    if _acting.get():
        return _acting.get()
    try:
        import getpass  # imported on use: it loads a terminal's module

        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, in a container
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


# -- approvers -------------------------------------------------------------------------------------

_KIND = "ed25519:"


class Approver(NamedTuple):
    """A person who may answer.

    Args:
        key: the public key, as ``ed25519:BASE64``.
        name: in words; may be empty.
    """

    key: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.key[:20]}...)" if self.name else self.key


def approvers_of(texts: Iterable[str], what: str = "") -> tuple[Approver, ...]:
    """Read public keys as a program lists them.

    Args:
        texts: the public keys.
        what: the tool that lists the keys, for messages.

    Raises:
        ConfigurationError: a text is no public key, or the extra is not installed.
    """
    found = tuple(_approver(text, what) for text in texts)
    if found:
        _ed25519()
    return found


def _approver(text: str, what: str) -> Approver:
    key, _, name = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
    try:
        raw = base64.b64decode(key.removeprefix(_KIND), validate=True)
    except binascii.Error:
        raw = b""
    if not key.startswith(_KIND) or len(raw) != 32:
        raise ConfigurationError(
            f"approvers= of {what} holds {text!r}, which is no public key. Make a key with "
            "stepwise approver-key FILE, and list the line that it prints: "
            "approvers=['ed25519:... ann']"
        )
    return Approver(key, name.strip())


def statement(run_id: str, waiting: Waiting, *, approved: bool, note: str) -> bytes:
    """Return the bytes that an approver signs: the answer, the question, and everything shown."""
    shown = to_json([waiting.name, waiting.details])
    digests = [hashlib.sha256(each).hexdigest() for each in (shown, waiting.digest.encode())]
    said = [run_id, waiting.call.number, waiting.call.name, waiting.ticket, *digests]
    return to_json(["stepwise approval", 1, *said, approved, note])


def why_unsigned(approvers: Iterable[Approver], said: bytes, signature: str) -> str:
    """Return why no approver's signature fits a statement; an empty text if one fits.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    key, _, encoded = signature.partition(" ")
    if not encoded:
        return "it is not signed by an approver"
    if all(each.key != key for each in approvers):
        return "its key is none of approvers="
    public = _ed25519().Ed25519PublicKey.from_public_bytes(_raw(key))
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(base64.b64decode(encoded, validate=True), said)
    except (InvalidSignature, binascii.Error):
        return "its signature is of another answer, or of the answer to another call"
    return ""


def signer(approvers: Iterable[Approver], signature: str) -> str:
    """Return who signed, in words; an empty text if none of the approvers did."""
    key = signature.partition(" ")[0]
    return next((str(each) for each in approvers if each.key == key), "")


def _raw(key: str) -> bytes:
    return base64.b64decode(key.removeprefix(_KIND))


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigurationError(
            "approvers= needs the extra 'approvers': pip install 'stepwise-agents[approvers]'"
        ) from error
    return ed25519


# -- private keys --------------------------------------------------------------------------------


def sign(key: Any, said: bytes, passphrase: Callable[[], str] | None = None) -> tuple[str, str]:
    """Sign a statement.

    Args:
        key: the file of a private key, or an object with the methods ``sign`` and ``public_key``.
        said: the statement.
        passphrase: asks for the passphrase, if the file has one.

    Returns:
        the public key, and the signature, which names it.

    Raises:
        ConfigurationError: the file holds no such key, others may read it, or the passphrase is
            missing or wrong.
    """
    private = _load(key, passphrase) if isinstance(key, (str, os.PathLike)) else key
    public = _public(private)
    return public, f"{public} {base64.b64encode(private.sign(said)).decode()}"


def make_key(path: str, passphrase: str = "", name: str = "") -> str:
    """Make a private key in a new file that only its owner may read; return its public line.

    Raises:
        ConfigurationError: the extra is not installed.
        OSError: the file exists, or cannot be written.
    """
    private = _ed25519().Ed25519PrivateKey.generate()
    from cryptography.hazmat.primitives import serialization as forms

    secret = passphrase.encode()
    encryption = forms.BestAvailableEncryption(secret) if secret else forms.NoEncryption()
    text = private.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, encryption)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
    return f"{_public(private)} {name}".strip()


def _public(private: Any) -> str:
    raw = private.public_key().public_bytes_raw()
    return f"{_KIND}{base64.b64encode(raw).decode()}"


def _load(path: str | os.PathLike[str], passphrase: Callable[[], str] | None) -> Any:
    kind = _ed25519().Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with open(path, "rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise ConfigurationError(f"the key {path} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"the key {path} is not used, since others may read it ({stat.S_IMODE(mode):o}): "
            f"chmod 600 {path}"
        )
    locked = b"ENCRYPTED PRIVATE KEY" in text
    if locked and passphrase is None:
        raise ConfigurationError(f"the key {path} has a passphrase, and nobody can be asked for it")
    secret = passphrase().encode() if locked and passphrase is not None else None
    try:
        private = load_pem_private_key(text, secret)
    except (ValueError, TypeError) as error:
        why = "the passphrase is wrong" if locked else "it holds no private key"
        raise ConfigurationError(f"the key {path} cannot be used: {why}") from error
    if not isinstance(private, kind):
        raise ConfigurationError(
            f"the key {path} is of another kind; stepwise approver-key FILE makes one"
        )
    return private
