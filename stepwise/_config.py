"""Settings: what the environment says, and what :func:`configure` set on top of it.

=====================  ==============================================================
``STEPWISE_HOME``      folder of the default store and the key (default ``~/.stepwise``)
``STEPWISE_STORE``     URL of the store (default ``disk:$STEPWISE_HOME/store``)
``STEPWISE_KEY``       secret that signs the records, instead of ``$STEPWISE_HOME/key``
``STEPWISE_ENCRYPT``   ``1``: encrypt what is stored (extra ``encryption``)
``STEPWISE_RESUME``    id of a run: the first call that could be it, means it (``stepwise resume``)
``STEPWISE_FRESH``     ``1``: every workflow called from outside a run starts a new run
``STEPWISE_PROGRESS``  ``1``: runs show what they are doing, on the terminal or in the notebook
``STEPWISE_QUIET``     ``1``: no notices on stderr
=====================  ==============================================================

The environment is read when a value is needed, never at import.  Imports: errors only.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from typing import Any

from stepwise.errors import ConfigurationError

__all__ = [
    "configure",
    "encrypt",
    "fresh",
    "home",
    "injected",
    "progress",
    "quiet",
    "resume",
    "store",
    "strict",
]


class _Settings:
    def __init__(self) -> None:
        self.store: Any = None
        self.strict = False
        self.quiet: bool | None = None
        self.encrypt: bool | None = None
        self.injected: frozenset[str] = frozenset()


_settings = _Settings()


def configure(
    *,
    store: Any = None,
    strict: bool | None = None,
    quiet: bool | None = None,
    encrypt: bool | None = None,
    injected: Iterable[str] | None = None,
) -> None:
    """Set defaults for this process; what is not given stays as it is.

    Args:
        store: a URL (``"disk:/path"``, ``"memory:"``), a path, or a store object.  Runs in
            progress keep the store they started on.
        strict: digest the arguments of every step before and after it, to notice that it
            changed them (instead of only comparing the lengths of containers).
        quiet: print no notices on stderr.
        encrypt: encrypt what is stored from now on, with a key derived from that of the records
            (``pip install 'stepwise-agents[encryption]'``).  Run ids, sizes, times and process
            numbers stay readable; what was stored before stays as it is.
        injected: full names of classes (``"mypackage.Context"``) whose instances a framework
            injects as arguments: parameters annotated with them do not tell calls apart.

    Raises:
        ConfigurationError: ``store`` is neither of these.
    """
    if store is not None:
        is_store = isinstance(store, (str, os.PathLike)) or hasattr(store, "acquire")
        if not is_store:
            raise ConfigurationError(
                f"configure(store=...) takes a URL, a path or a store object, not {store!r}: "
                'write configure(store="disk:/path/to/folder")'
            )
        _settings.store = store
    if strict is not None:
        _settings.strict = strict
    if quiet is not None:
        _settings.quiet = quiet
    if encrypt is not None:
        _settings.encrypt = encrypt
    if injected is not None:
        names = (injected,) if isinstance(injected, str) else injected
        _settings.injected = frozenset(names)


def injected() -> frozenset[str]:
    """Full names of further classes that a framework injects."""
    return _settings.injected


def home() -> pathlib.Path:
    """The folder that holds the default store and the key, absolute; it need not exist."""
    return pathlib.Path(os.environ.get("STEPWISE_HOME") or "~/.stepwise").expanduser().absolute()


def store() -> Any:
    """The store to use where none is given: a URL, a path or a store object."""
    if _settings.store is not None:
        return _settings.store
    return os.environ.get("STEPWISE_STORE") or f"disk:{home() / 'store'}"


def strict() -> bool:
    """Whether argument digests are compared before and after each step."""
    return _settings.strict


def fresh() -> bool:
    """Whether every workflow called from outside a run starts a new run."""
    return _flag("STEPWISE_FRESH")


def resume() -> str:
    """The id of the run that is to be resumed whatever id the program would derive; or empty."""
    return os.environ.get("STEPWISE_RESUME", "")


def progress() -> bool | None:
    """Whether runs show what they are doing, on a terminal or in a notebook; if it is said."""
    return _flag("STEPWISE_PROGRESS") if os.environ.get("STEPWISE_PROGRESS", "").strip() else None


def encrypt() -> bool:
    """Whether what is stored is encrypted."""
    return _flag("STEPWISE_ENCRYPT") if _settings.encrypt is None else _settings.encrypt


def quiet() -> bool:
    """Whether notices stay off stderr."""
    return _flag("STEPWISE_QUIET") if _settings.quiet is None else _settings.quiet


def _flag(name: str) -> bool:
    text = os.environ.get(name, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise ConfigurationError(f"{name}={text!r} is neither yes nor no: set it to 1 or 0")
