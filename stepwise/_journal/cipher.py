"""AES-256-GCM for stored data, if the user turns encryption on.

The only module that knows ``cryptography``, an extra, imported on use.
"""

from __future__ import annotations

import functools
import hmac
import os
from typing import Any

from stepwise.errors import ConfigurationError

__all__ = ["decrypt", "encrypt"]

_NONCE = 12  # bytes; random, as NIST SP 800-38D 8.2.2 has it: good for 2**32 records under one key


def encrypt(key: bytes, associated: bytes, data: bytes) -> bytes:
    """Encrypt ``data``: a nonce, then the ciphertext with its tag.

    Args:
        key: 32 bytes; what encrypts is derived from it.
        associated: what the data belongs to; it decrypts nowhere else.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    nonce = os.urandom(_NONCE)
    return nonce + bytes(_cipher(key).encrypt(nonce, data, associated))


def decrypt(key: bytes, associated: bytes, data: bytes) -> bytes:
    """The inverse of :func:`encrypt`, for data whose digest was verified before.

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
