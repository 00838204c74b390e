"""The version of a step: fingerprints of its code and of what the code reads of the project.

A *part* of a version has a name, such as ``body``, ``signature``, ``helper`` or ``PROMPT in
prompts.py``, and a short digest.  A step has changed if a part that both versions know differs.
A part that only one of them knows proves nothing: if the step reads something else, its own text
has changed, too.

The texts come from the source: the interpreter's code differs between versions of Python, and has
neither decorators nor the fields of a class.  A name is followed to the statement that binds it: a
function, a class, an assignment, in this module or in another one of the project.  The *text* of an
assignment counts, not its value: a value may differ in each process (a time, a path, a key of the
environment), and an object has no digest.  A text that is read from a file counts by its value.

The standard library and installed packages are not followed, nor are other steps and workflows,
whose calls are recorded themselves.  Captured variables are parts of the call; captured functions
are followed.  Of a class that is constructed, its fields and bases count, and those of its methods
whose names are read as attributes; of the instance, only the attributes that are read of it.

The source must be what is executed.  The step's own file is read when its decorator runs.  A file
of another module counts if it has not changed since this process began, or if compiling it gives
the functions that the module has.
"""

from __future__ import annotations

import linecache
import os
import sys
import time
from collections.abc import Mapping

from stepwise._rewrite.source import Source, text_digest
from stepwise._runtime.facts import NamedTuple

_BEGAN = time.time()  # the modules of the project are imported about then, or later
_NONE: Mapping[str, str] = {}


class Version(NamedTuple):
    """The version of a step.

    Args:
        id: 8 characters for all parts; empty if nothing is known of the code.
        parts: a short digest of each part, by its name.
        files: a digest of each file whose text decides about the parts; none if a value counts.
    """

    id: str
    parts: Mapping[str, str]
    files: Mapping[str, str] = _NONE

    def holds(self, source: Source | None) -> bool:
        """Return whether this is the version of a step, since no file has changed.

        Another folder may hold another version of the same modules, so each file has to be one that
        this program has imported.  If a file defines several functions of the step's name, the
        version may be of another one.

        Args:
            source: the source of the step.
        """
        if source is None or source.filename not in self.files:
            return False
        if "".join(source.lines).count(f"def {source.name}(") != 1:
            return False
        others = self.files.keys() - {source.filename}
        if others and not others <= {getattr(m, "__file__", "") for m in [*sys.modules.values()]}:
            return False
        return all(
            text_digest("".join(lines_of(file, source) or ())) == digest
            for file, digest in self.files.items()
        )


UNKNOWN = Version("", _NONE)


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the parts that both versions know and that differ."""
    return tuple(name for name, digest in new.items() if old.get(name, digest) != digest)


def lines_of(file: str, source: Source | None) -> list[str] | None:
    """Return the lines of a file if they are what is executed, else ``None``."""
    if source is not None and source.filename == file:
        return source.lines
    linecache.checkcache(file)
    try:
        if os.stat(file).st_ctime >= _BEGAN:
            return None
    except OSError:
        return linecache.getlines(file)  # a notebook cell, whose text never changes
    return linecache.getlines(file)
