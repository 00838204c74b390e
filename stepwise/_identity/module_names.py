"""Module names of workflows and steps, independent of how their file was started.

A script is named by its path, a module by its dotted name.  Still, ``python agent.py``, ``python -m
agent`` and an import of the module all mean the same file.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
from typing import Any

from stepwise._values.digest import shape_of


def place_of(module: str) -> str:
    """Return the place of a module in the names of its workflows: for a script, its path."""
    if module not in ("__main__", "__mp_main__"):  # __mp_main__: the same in a worker process
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        name: str = spec.name  # python -m package.module: the name as imported
        return name
    path: str | None = getattr(main, "__file__", None)
    if path and path != _STDIN:
        return _resolved(path, "" if os.path.isabs(path) else os.getcwd())
    return os.environ.get("JPY_SESSION_NAME") or _text(os.getcwd()) + _program(vars(main))


@functools.lru_cache(maxsize=8)
def _resolved(path: str, _folder: str) -> str:
    """Return the path of a script without links, looked up once: each call asks several times."""
    return _text(os.path.realpath(path))


_STDIN = "<stdin>"
_programs: dict[int, str] = {}  # by the id of the module that is ``__main__``


def _program(names: dict[str, Any]) -> str:
    """Return a text that tells programs of one folder apart that came by ``-c`` or on stdin.

    The text is empty in a notebook or at a prompt, whose programs are one statement after another.
    """
    if id(names) not in _programs:
        frame, code = sys._current_frames().get(threading.main_thread().ident or 0), None
        while frame is not None:
            if frame.f_globals is names and frame.f_code.co_name == "<module>":
                code = frame.f_code
            frame = frame.f_back
        if code is None or code.co_filename not in ("<string>", _STDIN) or hasattr(sys, "ps1"):
            return ""
        digest = hashlib.sha256(repr(shape_of(code)).encode("utf-8", "backslashreplace"))
        _programs[id(names)] = f"/<program {digest.hexdigest()[:12]}>"
    return _programs[id(names)]


def file_of(module: str) -> str:
    """Return the file of a module of this program; empty if it has none."""
    path: str | None = getattr(sys.modules.get(module), "__file__", None)
    return _text(os.path.realpath(path)) if path and path != _STDIN else ""


def other_places(module: str) -> list[str]:
    """Return the other values of :func:`place_of` if the file is started or imported another way.

    A dotted name alone proves nothing: many files may be imported by that name.
    """
    file = file_of(module)
    stem, ending = os.path.splitext(file)
    if ending != ".py":
        return []
    names = stem.split(os.sep)
    if names[-1] == "__init__":
        names.pop()
    places, dotted = [file], ""
    for name in names[: -_DEEPEST - 1 : -1]:
        if not name.isidentifier():
            break
        dotted = f"{name}.{dotted}" if dotted else name
        places.append(dotted)
    here = place_of(module)
    return [place for place in places if place != here]


def other_names(module: str, label: str) -> list[str]:
    """Return the full names of a module's workflow if its file is started another way."""
    return [f"{place}:{label}" for place in other_places(module)]


_DEEPEST = 5  # the deepest nesting of packages


def canonical_module(module: str) -> str:
    """Return one name for a module, whether its file was started, imported, or both."""
    main = sys.modules.get("__main__")
    if module == "__mp_main__" or module == getattr(getattr(main, "__spec__", None), "name", ""):
        return "__main__"
    path: str | None = getattr(sys.modules.get(module), "__file__", None)
    started: str | None = getattr(main, "__file__", None)
    if path and started and os.path.basename(path) == os.path.basename(started):
        return "__main__" if os.path.realpath(path) == os.path.realpath(started) else module
    return module


def holds_name(module: str, name: str) -> bool:
    """Return whether a module of this program is imported and has a name.

    Only names are compared: reading an attribute of an arbitrary object in a module may run
    arbitrary code (a proxy outside of its request raises).
    """
    return module in sys.modules and name in vars(sys.modules[module])


def _text(path: str) -> str:
    """Return a path as printable text, even if the file system's bytes are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
