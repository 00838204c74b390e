"""The page of a store's runs: see them, answer them, steer them.  Needs the extra ``ui``.

``stepwise ui`` serves it on this machine.  :func:`app` makes an ASGI application of it, for any
prefix of another application::

    app.mount("/runs", stepwise.ui.app(authorize=lambda request: request.user.name))

The modules, each importing only from those before it::

    _access _events _reading _actions _live _shell _pages _run_page _app _server
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwise.errors import ConfigurationError

__all__ = ["app"]


def app(
    store: Any = None, *, authorize: Callable[[Any], Any] | None = None, read_only: bool = False
) -> Any:
    """Return an ASGI application with the page of a store's runs, to be mounted under any prefix.

    Args:
        store: a URL, path or store object; by default the configured store.
        authorize: called with each request (a ``starlette.requests.Request``); returns the name of
            the person, which is recorded with what she does, or ``True`` for the user of this
            process, or ``False`` for a page with status 403.  It may be a coroutine function.  By
            default, a notice on stderr shows a token, and the page opens with ``?token=...``.
        read_only: True for a page without actions, which opens the store to read only.

    Raises:
        ConfigurationError: the extra ``ui`` is not installed, or the store cannot be opened.
    """
    try:
        from stepwise.ui._app import mounted  # imported on use: the extra may be missing
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return mounted(store, authorize, read_only=read_only)


def serve(place: tuple[str, int], ready: Callable[[str, str], None], **how: Any) -> None:
    """Serve the page of the configured store; see :func:`._server.serve`.

    Raises:
        ConfigurationError: as there; or the extra ``ui`` is not installed.
    """
    try:
        from stepwise.ui import _server  # imported on use: the extra may be missing
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    _server.serve(place, ready, **how)


def _missing(error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(
        f"the page of runs needs {error.name}: pip install 'stepwise-agents[ui]'"
    )
