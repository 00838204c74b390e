"""Prometheus: metrics of the runs in this process, and of the stores.

``stepwise up --metrics PORT`` and ``stepwise.http.app(metrics=True)`` serve them.  In a server of
your own, :func:`instrument` adds them to a registry of prometheus-client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stepwise._runtime import settings
from stepwise._runtime.events import listen
from stepwise.integrations._supported import require
from stepwise.stores import Store, open_store
from stepwise.stores._group_commit import observe_writes

if TYPE_CHECKING:
    from stepwise._workflows.up import Supervisor
    from stepwise.integrations._health import Page

__all__ = ["instrument"]


def instrument(
    registry: Any = None, *, store: Any = None, supervisor: Supervisor | None = None
) -> Callable[[], None]:
    """Add the metrics of this process and a store to a registry; call it once per process.

    Args:
        registry: of prometheus-client; by default its global one.
        store: a URL, path or store object, or several; by default the configured store.
        supervisor: of ``stepwise up``, whose places are shown.

    Returns:
        a function that stops counting.

    Raises:
        ConfigurationError: ``prometheus-client`` is not installed, or too old.
    """
    require("prometheus_client")
    from prometheus_client import REGISTRY

    from stepwise.integrations._health import impatient
    from stepwise.integrations._prometheus_metrics import Metrics, StoreCollector

    registry = REGISTRY if registry is None else registry
    if not isinstance(store, (list, tuple)):
        store = [impatient(open_store(settings.store() if store is None else store))]
    metrics, collector = Metrics(registry), StoreCollector(store, supervisor)
    registry.register(collector)
    ends = [listen(metrics.on_event), observe_writes(metrics.writes.observe)]

    def end() -> None:
        for each in ends:
            each()

    return end


def pages(
    stores: Iterable[Store], supervisor: Supervisor | None = None
) -> dict[str, Callable[[], Page]]:
    """Return the pages ``/metrics``, ``/healthz`` and ``/readyz`` of a process.

    Raises:
        ConfigurationError: ``prometheus-client`` is not installed, or too old.
    """
    require("prometheus_client")
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    from stepwise.integrations._health import Health, impatient

    quick, registry = [impatient(store) for store in stores], CollectorRegistry()
    instrument(registry, store=quick, supervisor=supervisor)
    health = Health(quick, supervisor)
    return {
        "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
        "/healthz": health.alive,
        "/readyz": health.ready,
    }
