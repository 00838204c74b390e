"""The metrics of a process and of its stores, in the types of prometheus-client."""

from __future__ import annotations

import threading
import time
from collections import Counter as Numbers
from collections.abc import Iterable, Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from stepwise._runs.census import Census
from stepwise._runtime.event import Event
from stepwise._workflows.up import Supervisor
from stepwise.errors import RunStopped, StepwiseError
from stepwise.stores import Store

_STEPS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)  # seconds
_WRITES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2, 10)  # seconds
_MOST = 200  # names of workflows, steps or limits; the others are "other"
_FRESH = 10.0  # seconds for which the counts of a store are shown again
_STATUSES = (
    *("running", "suspended", "crashed", "stuck", "ready", "interrupted"),
    *("failed", "cancelled", "completed"),
)


class _Names:
    """The names of one label, of which a programmer or a user may make any number."""

    def __init__(self) -> None:
        self._known: set[tuple[str, ...]] = set()

    def bounded(self, *names: str) -> tuple[str, ...]:
        if names not in self._known and len(self._known) >= _MOST:
            return ("other",) * len(names)
        self._known.add(names)
        return names


class Metrics:
    """What this process does, counted from its events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        of_workflow, of_step = ("workflow",), ("workflow", "step")
        self._begun = Counter(
            "stepwise_run_attempts", "Runs begun or resumed here.",
            (*of_workflow, "kind"), registry=registry,
        )  # fmt: skip
        self._ended = Counter(
            "stepwise_run_ends", "Attempts of runs that ended here, by status.",
            (*of_workflow, "status"), registry=registry,
        )  # fmt: skip
        self._steps = Histogram(
            "stepwise_step_duration_seconds", "Duration of steps executed here, by status.",
            (*of_step, "status"), registry=registry, buckets=_STEPS,
        )  # fmt: skip
        self._retries = Counter(
            "stepwise_step_retries", "Attempts after the first one, of steps that have ended.",
            of_step, registry=registry,
        )  # fmt: skip
        self._answered = Counter(
            "stepwise_steps_answered", "Steps that the journal answered.",
            of_workflow, registry=registry,
        )  # fmt: skip
        self._doubts = Counter(
            "stepwise_steps_in_doubt", "Side effects that may or may not have happened.",
            of_step, registry=registry,
        )  # fmt: skip
        self._waits = Counter(
            "stepwise_limit_waits", "Calls that waited for their turn of a limit.",
            ("limit",), registry=registry,
        )  # fmt: skip
        self.writes = Histogram(
            "stepwise_store_write_duration_seconds", "Duration of the store's writes of records.",
            registry=registry, buckets=_WRITES,
        )  # fmt: skip
        self._of_steps, self._of_limits, self._of_workflows = _Names(), _Names(), _Names()

    def on_event(self, event: Event) -> None:
        """Count an event."""
        kind = event.kind.partition("_")[2]
        (workflow,) = self._of_workflows.bounded(_short(event.workflow))
        if event.kind == "checkpoint_taken":
            return
        if event.kind.startswith("run_"):
            begins = kind in ("started", "resumed")
            (self._begun if begins else self._ended).labels(workflow, kind).inc()
            return
        step = self._of_steps.bounded(workflow, event.name)
        if kind in ("completed", "failed", "cancelled"):
            self._steps.labels(*step, kind).observe(event.duration or 0.0)
            if event.attempts > 1:
                self._retries.labels(*step).inc(event.attempts - 1)
        elif kind == "answered":
            self._answered.labels(workflow).inc()
        elif kind == "in_doubt":
            self._doubts.labels(*step).inc()
        elif kind == "waiting" and event.detail.startswith(_LIMIT):
            name = event.detail[len(_LIMIT) :].strip("'\"").partition("[")[0]
            self._waits.labels(*self._of_limits.bounded(name)).inc()


_LIMIT = "for the limit "


def _short(workflow: str) -> str:
    return workflow.rpartition(":")[2]  # of /path/agent.py:agent


class StoreCollector(Collector):
    """The runs of stores by status, and the state of a supervisor.

    Each scrape counts at most once in ten seconds.
    """

    def __init__(self, stores: Iterable[Store], supervisor: Supervisor | None) -> None:
        self._censuses = [Census(store) for store in stores]
        self._supervisor = supervisor
        self._mutex = threading.Lock()
        self._counted, self._found = -_FRESH, list[Metric]()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape; those of a store that does not answer are missing."""
        with self._mutex:
            if time.monotonic() >= self._counted + _FRESH:
                self._found = list(self._of_stores())
                self._counted = time.monotonic()
            yield from self._found
        if self._supervisor is not None:
            yield from _of_supervisor(self._supervisor)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering reads no store."""
        return []

    def _of_stores(self) -> Iterator[Metric]:
        numbers, late, away = Numbers(dict.fromkeys(_STATUSES, 0)), 0.0, 0
        for each in self._censuses:
            try:
                found = each.count()
            except (StepwiseError, RunStopped):
                away += 1
            else:
                numbers.update(found.by_status)
                late = max(late, found.late)
        yield GaugeMetricFamily("stepwise_stores_away", "Stores that cannot be read.", away)
        if away:
            return
        runs = GaugeMetricFamily("stepwise_runs", "Runs in the stores.", labels=("status",))
        for status, number in numbers.items():
            runs.add_metric((status,), number)
        yield runs
        text = "Seconds since the run that has been due for longest became due."
        yield GaugeMetricFamily("stepwise_oldest_due_run_age_seconds", text, late)


def _of_supervisor(supervisor: Supervisor) -> Iterator[Metric]:
    used = supervisor.slots_in_use
    yield GaugeMetricFamily("stepwise_up_slots", "Runs that may be executed.", supervisor.most)
    yield GaugeMetricFamily("stepwise_up_slots_in_use", "Runs that are being executed.", used)
    deaths = CounterMetricFamily(
        "stepwise_run_deaths", "Runs whose process was found dead.", labels=("workflow",)
    )
    for workflow, number in list(supervisor.deaths.items()):
        deaths.add_metric((_short(workflow),), number)
    yield deaths
    deleted = supervisor.retention.deleted
    yield CounterMetricFamily("stepwise_runs_deleted", "Runs that retention deleted.", deleted)
