"""Runs and their streams over HTTP: start, follow, rejoin, cancel.  Needs the extra ``http``.

:func:`app` makes an ASGI application, for any prefix of another application::

    app.mount("/agents", stepwise.http.app(workflows=[chat], authorize=user_of))

The modules, each importing only from those before it::

    _following _ai_sdk _app
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stepwise.errors import ConfigurationError

__all__ = ["app"]


def app(
    store: Any = None,
    *,
    workflows: Iterable[Any],
    authorize: Callable[[Any, str | None, str], Any],
    format: Callable[[Any], Any] | None = None,  # noqa: A002
    cancel_when_left: float | None = None,
    metrics: bool = False,
) -> Any:
    """Return an ASGI application that starts runs and streams what they say.

    Its addresses, under the prefix where it is mounted:

    - ``POST /start/WORKFLOW?run_id=ID``: start a run with the arguments in the body, a JSON object,
      and follow it.  Without ``run_id``, the run gets an id, which the header ``x-run-id`` says.
      The same id again is the same run.
    - ``GET /runs/ID/stream?stream=main&after=OFFSET``: rejoin the run.
    - ``GET /runs/ID``: its status, and its result or error once it has ended.
    - ``POST /runs/ID/cancel``: cancel it; the body is ``{}`` or ``{"reason": "..."}``.
    - ``POST /ai-sdk/WORKFLOW`` and ``GET /ai-sdk/WORKFLOW/CHAT/stream``: for ``useChat`` of the AI
      SDK.
    - with ``metrics``: ``GET /metrics`` for Prometheus, ``/healthz`` and ``/readyz``.

    A run is followed by server-sent events; with ``Accept: application/json``, the first two
    addresses answer with JSON instead.

    Args:
        store: a URL, path or store object; by default the configured store.
        workflows: what a request may start: workflows, or modules that define them.
        authorize: called with each request (a ``starlette.requests.Request``), the id of the run or
            ``None``, and ``"start"``, ``"read"``, ``"cancel"`` or ``"metrics"``.  It returns the
            name of the user, who then has the runs that she started and no others; or ``True`` for
            any run; or ``False``.  It may be a coroutine function, and raise Starlette's
            ``HTTPException``.
        format: called with each ``StreamItem`` of an event stream; returns the ``bytes`` to send,
            the text or the plain data of an event, or ``None`` to leave the item out.
        cancel_when_left: the seconds after which a run is cancelled when the last reader that this
            application has served left it; ``None`` for never.
        metrics: also serve the metrics of this process (extra ``metrics``), to whom ``authorize``
            answers ``True`` for ``"metrics"``; and to anybody whether it is alive and ready.

    Raises:
        ConfigurationError: the extra ``http`` or ``metrics`` is not installed, the store cannot be
            opened, or a workflow cannot be started by a request.
    """
    try:
        from stepwise.http._app import HttpApp  # imported on use: the extra may be missing
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"runs over HTTP need {error.name}: pip install 'stepwise-agents[http]'"
        ) from error
    return HttpApp(store, workflows, authorize, format, cancel_when_left, metrics=metrics)
