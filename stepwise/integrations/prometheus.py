"""Prometheus: metrics of the runs in this process and of its stores, and whether it is ready.

``stepwise up --metrics PORT`` and ``stepwise.http.app(metrics=True)`` serve them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter as Numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import Any, get_args
from wsgiref.simple_server import WSGIRequestHandler, make_server

from stepwise import errors
from stepwise._journal.lease import Lease
from stepwise._runs.maintenance import Census
from stepwise._runs.steps import RunStatus
from stepwise._runtime.event import Event, on_event
from stepwise._workflows.up import Supervisor
from stepwise.integrations._supported import require
from stepwise.stores import Store, store_for_pages
from stepwise.stores._group_commit import WriteTimes, write_times

require("prometheus_client")

from prometheus_client import (  # noqa: E402 -- the line above says what to install
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import (  # noqa: E402
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import ThreadingWSGIServer  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

__all__ = ["pages", "serve"]

Page = tuple[int, str, bytes]  # status, type of the content, content
_NAME = "up:ready"  # of the lease by which a store shows that it takes writes
_ANSWERS = 3.0  # seconds in which a store has to answer
_LOOKS = 30.0  # seconds in which the loop of a supervisor has to come round
TEXT = "text/plain; charset=utf-8"
_STEPS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)  # seconds
_MOST = 200  # names of workflows, steps or limits; the others are "other"
_FRESH = 10.0  # seconds for which the counts of a store are shown again


class ProcessMetrics:
    """The counters of this process, made from its events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="stepwise", registry=registry)
        histogram = partial(Histogram, namespace="stepwise", registry=registry)
        step = "workflow", "step"
        self._begun = counter("run_attempts", "Runs begun or resumed here.", ("workflow", "kind"))
        self._ended = counter("run_ends", "Attempts of runs that ended.", ("workflow", "status"))
        self._steps = histogram(
            "step_duration_seconds", "Steps executed here.", (*step, "status"), buckets=_STEPS
        )
        self._retries = counter("step_retries", "Further attempts of steps that ended.", step)
        self._answered = counter(
            "steps_answered", "Steps that the journal or the cache answered.", step
        )
        self._doubts = counter("steps_in_doubt", "Side effects that may have happened.", step)
        self._waits = counter("limit_waits", "Calls that got no turn at once.", ("limit",))
        self._known: dict[int, set[tuple[str, ...]]] = {}

    def on_event(self, event: Event) -> None:
        """Count an event."""
        what, _, kind = event.kind.partition("_")
        workflow = self._bounded(0, _short(event.workflow))
        if what == "run":
            begins = kind in ("started", "resumed")
            (self._begun if begins else self._ended).labels(*workflow, kind).inc()
        elif what == "step":
            self._count_step(event, kind, self._bounded(1, *workflow, event.name))

    def _count_step(self, event: Event, kind: str, step: tuple[str, ...]) -> None:
        if kind in ("completed", "failed", "cancelled"):
            self._steps.labels(*step, kind).observe(event.duration or 0.0)
            if event.attempts > 1:
                self._retries.labels(*step).inc(event.attempts - 1)
        elif kind in ("answered", "in_doubt"):
            (self._answered if kind == "answered" else self._doubts).labels(*step).inc()
        elif event.limit:
            self._waits.labels(*self._bounded(2, event.limit)).inc()

    def _bounded(self, kind: int, *names: str) -> tuple[str, ...]:
        """Return the values of labels, of which a program may make any number."""
        known = self._known.setdefault(kind, set())
        if names not in known and len(known) >= _MOST:
            return ("other",) * len(names)
        known.add(names)
        return names


def _short(workflow: str) -> str:
    return workflow.rpartition(":")[2]  # of /path/agent.py:agent


class StoreCollector(Collector):
    """The runs of stores by status, the writes of this process, and the state of a supervisor.

    Each scrape counts at most once in ten seconds.
    """

    def __init__(self, stores: Iterable[Store], supervisor: Supervisor | None) -> None:
        self._censuses, self._supervisor = [*map(Census, stores)], supervisor
        self._mutex = threading.Lock()
        self._counted, self._found = -_FRESH, list[Metric]()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape; counts are missing if a store does not answer."""
        with self._mutex:
            if time.monotonic() >= self._counted + _FRESH:
                self._found, self._counted = list(self._of_stores()), time.monotonic()
            yield from self._found
        yield _of_writes()
        if self._supervisor is not None:
            yield from _of_supervisor(self._supervisor)

    def _of_stores(self) -> Iterator[Metric]:
        try:
            found = [each.count() for each in self._censuses]
        except (errors.StepwiseError, errors.RunStopped):
            found = []
        yield GaugeMetricFamily("stepwise_store_up", "1 if all stores can be read.", bool(found))
        if found:
            numbers = Numbers(dict.fromkeys(get_args(RunStatus), 0))
            for each in found:
                numbers.update(each.by_status)
            yield _labelled(GaugeMetricFamily, "stepwise_runs", "status", numbers)
            late = max(each.late for each in found)
            yield GaugeMetricFamily("stepwise_oldest_due_run_age_seconds", "How late.", late)


def _of_writes() -> Metric:
    """Return how long the writes of this process took, since its start."""
    bounds = (*map(str, WriteTimes.BOUNDS), "+Inf")
    buckets = [*zip(bounds, accumulate(write_times.counts), strict=True)]
    name = "stepwise_store_write_duration_seconds"
    text, took = "Writes of records to a store.", write_times.seconds
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=took)


def _of_supervisor(supervisor: Supervisor) -> Iterator[Metric]:
    used, deleted = supervisor.slots_in_use, supervisor.retention.deleted
    yield GaugeMetricFamily("stepwise_up_slots", "Runs that may be executed.", supervisor.most)
    yield GaugeMetricFamily("stepwise_up_slots_in_use", "Runs that are being executed.", used)
    yield _labelled(CounterMetricFamily, "stepwise_run_deaths", "workflow", supervisor.deaths)
    yield CounterMetricFamily("stepwise_runs_deleted", "Runs that retention deleted.", deleted)


def _labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, label: str, by: Numbers[str]
) -> Metric:
    numbers = Numbers[str]()
    for place, (value, number) in enumerate(list(by.items())):
        numbers[_short(value) if place < _MOST else "other"] += number
    family = kind(name, f"By {label}.", labels=(label,))
    for value, number in numbers.items():
        family.add_metric((value,), number)
    return family


# -- health ---------------------------------------------------------------------------------------


class Health:
    """The health of a process.

    Args:
        stores: each of them has to take a write within three seconds.
        supervisor: its loop has to come round.
    """

    def __init__(self, stores: Sequence[Store], supervisor: Supervisor | None = None) -> None:
        self._stores, self._supervisor = stores, supervisor
        self._asking: dict[str, threading.Thread] = {}
        self._answers: dict[str, str] = {}

    def ready(self) -> Page:
        """Return the page ``/readyz``: 503 with the reasons if the process is not ready."""
        found = "".join(f"{problem}\n" for problem in self._problems())
        return (503 if found else 200), TEXT, (found or "ready\n").encode()

    def _problems(self) -> Iterator[str]:
        if self._supervisor is not None:
            silent = time.monotonic() - self._supervisor.looked
            if self._supervisor.is_stopped:
                yield "up is ending"
            elif silent > _LOOKS:
                yield f"up has not looked for due runs for {silent:.0f} seconds"
        for store in self._stores:
            asking = self._asking.get(store.url)
            if asking is None or not asking.is_alive():  # else an earlier question is open
                self._answers[store.url] = f"the store {store.url} has not answered yet"
                asking = threading.Thread(target=self._ask, args=(store,), daemon=True)
                self._asking[store.url] = asking
                asking.start()
            asking.join(_ANSWERS)
            if self._answers[store.url]:
                yield self._answers[store.url]

    def _ask(self, store: Store) -> None:
        answer = ""
        try:
            Lease(store, _NAME).acquire().release()
        except errors.RunBusyError:  # another process asks, too
            answer = ""
        except (errors.StepwiseError, errors.RunStopped) as error:
            answer = str(error)
        self._answers[store.url] = answer


class _Server6(ThreadingWSGIServer):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = 10  # seconds that a client may take to ask

    def log_message(self, *_: Any) -> None:
        """Log nothing: each request is usual."""


# -- pages ----------------------------------------------------------------------------------------


def pages(
    stores: Iterable[Store], supervisor: Supervisor | None = None
) -> dict[str, Callable[[], Page]]:
    """Count the events of this process from now on; return its pages, each made when called.

    Args:
        stores: of the runs that are counted.
        supervisor: of ``stepwise up``.
    """
    registry = CollectorRegistry()
    # They give up early on a server that is away.
    quick = [store_for_pages(each, to_read=False) for each in stores]
    metrics = ProcessMetrics(registry)
    registry.register(StoreCollector(quick, supervisor))
    on_event(metrics.on_event)
    return {
        "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
        "/healthz": lambda: (200, TEXT, b"alive\n"),
        "/readyz": Health(quick, supervisor).ready,
    }


def serve(address: str, stores: Iterable[Store], supervisor: Supervisor) -> str:
    """Serve the pages of a process in threads, until it ends; return the URL of the server.

    Args:
        address: ``PORT`` for this machine alone, or ``HOST:PORT``; port 0 for any free one.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    known = pages(stores, supervisor)

    def answer(environ: Mapping[str, Any], start: Callable[..., object]) -> list[bytes]:
        page = known.get(environ["PATH_INFO"])
        status, kind, content = page() if page is not None else (404, TEXT, b"no such page\n")
        start(f"{status} {HTTPStatus(status).phrase}", [("content-type", kind)])
        return [content]

    host, _, port = address.rpartition(":")
    kind, plain = _Server6 if ":" in host else ThreadingWSGIServer, host.strip("[]")
    try:
        server = make_server(plain or "127.0.0.1", int(port), answer, kind, _Quiet)
    except (ValueError, OSError, OverflowError) as error:
        raise errors.ConfigurationError(
            f"metrics cannot be served at {address!r} ({error}): write PORT, or HOST:PORT for "
            "other machines: 9464, 0.0.0.0:9464, [::]:9464"
        ) from error
    threading.Thread(target=server.serve_forever, name="stepwise metrics", daemon=True).start()
    return f"http://{host or '127.0.0.1'}:{server.server_port}"
