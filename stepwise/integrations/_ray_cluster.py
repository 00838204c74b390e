"""The Ray cluster: the connection, its nodes, the task that executes an order."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepwise._workflows.elsewhere import Order, Reply, carry_out
from stepwise.errors import ConfigurationError
from stepwise.stores import Store

__all__ = [
    "check_options",
    "check_reach",
    "connected",
    "job",
    "knows_deaths",
    "loaded",
    "place_here",
    "sent",
    "watch",
]

_OURS = ("num_returns", "retry_exceptions", "name")
_PATIENCE = 10.0  # seconds for a cluster to answer
_OF_A_FOLDER = ("disk:", "sqlite:")


def loaded() -> Any:
    """Return the module ``ray``.

    Raises:
        ConfigurationError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(
            "stepwise.integrations.ray needs Ray: pip install 'stepwise-agents[ray]'"
        ) from error
    return ray


def connected(address: str | None = None) -> Any:
    """Return the module ``ray``, connected to a cluster.

    Args:
        address: of the cluster, if the program has not connected yet; ``None`` as ``ray.init()``
            chooses it: ``RAY_ADDRESS``, else a new one on this machine.

    Raises:
        ConfigurationError: Ray is not installed, or there is no such cluster.
    """
    ray = loaded()
    if not ray.is_initialized():
        try:
            _knock(address or "")
            ray.init(address=address)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"there is no Ray cluster at {address or 'RAY_ADDRESS'}: {error}"
            ) from error
    return ray


def _knock(address: str) -> None:
    """Raise OSError if nothing answers at HOST:PORT: Ray would try for minutes, then abort."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def job() -> str:
    """Return the id of this process's connection to a cluster; empty if it has none."""
    ray = loaded()
    return str(ray.get_runtime_context().get_job_id()) if ray.is_initialized() else ""


def check_options(resources: Mapping[str, Any]) -> None:
    """Refuse options of Ray's tasks that would change what a task is.

    Raises:
        ConfigurationError: one of these.
    """
    for option in _OURS:
        if option in resources:
            raise ConfigurationError(
                f"submit({option}=...): stepwise sets this option of the task itself; give those "
                "that say where it is executed: num_cpus, num_gpus, resources, runtime_env, ..."
            )


def check_reach(store: Store, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a store that other nodes of the cluster cannot use.

    Args:
        nodes: as ``ray.nodes()`` lists them.

    Raises:
        ConfigurationError: it is in memory; or in a folder, and nodes are on other machines.
    """
    url = store.url
    if not store.persistent:
        raise ConfigurationError(
            f"the store {url} is in the memory of this process, where no worker of Ray reaches it: "
            "choose another one with STEPWISE_STORE: postgresql://..."
        )
    if not url.startswith(_OF_A_FOLDER):
        return
    mine = os.uname().nodename
    others = sorted({str(each["NodeManagerHostname"]) for each in nodes if each["Alive"]} - {mine})
    if others:
        raise ConfigurationError(
            f"the store {url} is a folder of this machine, and the cluster has nodes on others "
            f"({', '.join(others[:5])}), which have no such runs: choose a store that all of them "
            "reach, with STEPWISE_STORE: postgresql://..."
        )


def sent(order: Order, resources: Mapping[str, Any]) -> Any:
    """Submit the task of an order; return Ray's reference to its reply."""
    ray = loaded()
    options = {"max_retries": -1, **resources}
    options |= {"retry_exceptions": False, "name": f"stepwise {order.run_id}"}
    return ray.remote(execute).options(**options).remote(order)


def watch(ref: Any, ended: Callable[[Any], None]) -> None:
    """Call ``ended`` with Ray's future in a thread of Ray's, once a task has ended."""
    ref.future().add_done_callback(ended)


def execute(order: Order) -> Reply:
    """Execute an order.  This is what Ray calls in its worker processes."""
    return carry_out(order, place_here(order.store))


def place_here(url: str) -> str:
    """Return where this process is, in words, and let a store know the node that it is on.

    Args:
        url: of the store that is about to be opened.
    """
    node: str = loaded().get_runtime_context().get_node_id()
    knows_deaths(url, node)
    return f"on node {node[:12]} ({os.uname().nodename})"


def knows_deaths(url: str, node: str = "") -> None:
    """Let a store that many machines share take Ray's word for the death of a node.

    Args:
        url: of the store.
        node: the id of the node of this process; empty if it executes no runs.
    """
    if not url.startswith("postgresql:"):
        return  # the system knows which processes of this machine are alive
    from stepwise.stores import _postgres_presence as presence

    if node:
        presence.set_node(node)
    if _is_dead not in presence.proofs:
        presence.proofs.append(_is_dead)


def _is_dead(process: Any) -> bool:
    """Return whether Ray says that the node of a process died; an unknown node may be alive."""
    ray, node = loaded(), process.node
    if not node or not ray.is_initialized():
        return False
    return any(each["NodeID"] == node and not each["Alive"] for each in ray.nodes())
