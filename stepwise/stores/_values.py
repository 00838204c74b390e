"""Large values, each in a file of its own beside the database, on the disk before the commit.

A row holds the file's name.  What cannot be read whole is ``b""``, which never verifies; and a row
that somebody changed leads to no other file.
"""

from __future__ import annotations

import contextlib
import os
import re

from stepwise._values.buffers import Data
from stepwise.stores._folder import write_file

__all__ = ["IN_FILES", "Values"]

IN_FILES = 1 << 20  # bytes; from here on a flushed file is faster than a row (measured)
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")


class Values:
    """The value files of a folder, and which of them the open transaction made or gave up."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fresh: list[str] = []
        self._doomed: list[object] = []

    def write(self, value: Data) -> str:
        """Write a new file, durably; its name."""
        digits = os.urandom(16).hex()
        name = f"{digits[:2]}/{digits[2:4]}/{digits[4:]}.val"
        self._fresh.append(name)
        write_file(os.path.join(self._folder, name), value, self._folder)
        return name

    def read(self, name: object, size: object) -> bytes:
        """The bytes of a file; ``b""`` if it is missing, is of another size, or no such file."""
        if _is_ours(name):
            with contextlib.suppress(OSError):
                with open(os.path.join(self._folder, str(name)), "rb") as file:
                    data = file.read()
                return data if len(data) == size else b""
        return b""

    def give_up(self, name: object) -> None:
        """No row names this file after the commit."""
        self._doomed.append(name)

    def begin(self) -> None:
        """A transaction begins."""
        self._fresh, self._doomed = [], []

    def keep(self) -> None:
        """The transaction was committed."""
        self._fresh = []
        while self._doomed:
            self._remove(self._doomed.pop())

    def undo(self) -> None:
        """Undo a transaction: delete its new value files, and keep the replaced ones."""
        self._doomed = []
        while self._fresh:
            self._remove(self._fresh.pop())

    def _remove(self, name: object) -> None:
        if _is_ours(name):
            path = os.path.join(self._folder, str(name))
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):  # its folders hold other files
                os.removedirs(os.path.dirname(path))


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
