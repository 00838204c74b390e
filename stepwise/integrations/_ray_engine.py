"""The engine of ``stepwise up --ray``: it decides, Ray places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepwise._values.codec import decode_error
from stepwise._workflows.elsewhere import Continuation, Reply, carry_on, continuation
from stepwise._workflows.engines import Underway
from stepwise.integrations import _ray_cluster as cluster
from stepwise.stores import Store

__all__ = ["RayEngine"]


class RayEngine:
    """Executes each run in a task of a Ray cluster.

    Args:
        address: of the cluster; ``"auto"`` finds the one of this machine.
        modules: that the workers import.
        logs: a folder, on the machine that executes a run, for what the run prints.

    Raises:
        ConfigurationError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str, modules: Sequence[str], logs: str = "") -> None:
        self._ray = cluster.connected(address)
        self._modules, self._logs = tuple(modules), logs
        self._refs: dict[str, Any] = {}

    def check(self, stores: Iterable[Store]) -> None:
        """Refuse stores that other nodes cannot use.

        Raises:
            ConfigurationError: one is in a folder, and nodes are on other machines.
        """
        for store in stores:
            cluster.check_reach(store, self._ray.nodes())
            cluster.knows_deaths(store.url)

    def begin(self, job: Underway) -> str:
        """Submit a run; see :class:`stepwise._workflows.engines.Engine`."""
        run_id = job.run.facts.run_id
        order = continuation(job.run, self._modules, self._logs)
        # The supervisor waits before it tries a run again whose process died: Ray does not try.
        options = {"max_retries": 0, "retry_exceptions": False, "name": f"stepwise {run_id}"}
        ref = self._refs[run_id] = self._ray.remote(execute).options(**options).remote(order)
        cluster.watch(ref, lambda future: self._ended(job, future))
        return "on the cluster"

    def drain(self) -> None:
        """Let no step begin on the cluster; see :class:`stepwise._workflows.engines.Engine`."""
        for ref in list(self._refs.values()):
            self._ray.cancel(ref, force=False, recursive=False)

    def _ended(self, job: Underway, future: Any) -> None:
        self._refs.pop(job.run.facts.run_id, None)
        error = future.exception()
        if error is not None:
            job.end(error, lost=True)
            return
        reply: Reply = future.result()
        job.end(decode_error(reply.data) if reply.data else None, refused=reply.refused)


def execute(order: Continuation) -> Reply:
    """Continue a run.  This is what Ray calls in its worker processes."""
    return carry_on(order, cluster.place_here(order.store))
