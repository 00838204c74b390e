"""A small model of a graph: nodes that are functions, the edges between them, and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwise._runtime.facts import public
from stepwise._runtime.options import check_kind, check_takes, check_values
from stepwise._runtime.retries import Backoff, RetryOn, check_retries
from stepwise._values import digest
from stepwise._workflows.host import label_of
from stepwise.errors import ConfigurationError


class Memory(dict[str, Any]):
    """The shared memory of a graph's nodes, as one attempt of a node sees it: its own copy.

    What the node writes counts once it has returned; what a failed attempt wrote is gone.

    Attributes:
        goal: what the execution is for.
        runtime: the object that the executor was given: clients and the like.
        node_id: of the node that is being executed.
        visit: how many-th time this path comes to the node, from 1.
        attempt: how many-th attempt of the visit this is, from 1.
        tokens: how many the node spent; it adds to it, and the result has the sum.
    """

    def __init__(
        self,
        items: Mapping[str, Any],
        goal: Any = None,
        runtime: Any = None,
        node_id: str = "",
        visit: int = 1,
        attempt: int = 1,
    ) -> None:
        super().__init__(items)
        self.goal = goal
        self.runtime = runtime
        self.node_id = node_id
        self.visit = visit
        self.attempt = attempt
        self.tokens = 0

    def read(self, key: str, default: Any = None) -> Any:
        """The value of a key; the same as :meth:`get`."""
        return self.get(key, default)

    def write(self, key: str, value: Any) -> None:
        """Set a key."""
        self[key] = value

    def read_all(self) -> dict[str, Any]:
        """All of it, as a plain dictionary."""
        return dict(self)


NodeFunction = Callable[[Memory], Any]


@dataclass(frozen=True)
class Node:
    """A step of a graph.

    Args:
        id: what edges, records and results call it.
        function: plain or ``async``, of a :class:`Memory`.  What it returns is written to the
            memory: a dictionary key by key, anything else but ``None`` under the node's id.
            Without a function the node only pauses or joins.
        retries: how many more attempts may follow a failed one.
        retry_on, backoff: as for ``@step``.
        pause: after it the run waits for a human's answer, which is written to the memory.
        join: it waits until no other branch can reach it, and is visited once for all of them.
    """

    id: str
    function: NodeFunction | None = None
    retries: int = 0
    retry_on: RetryOn = Exception
    backoff: Backoff = None
    pause: bool = False
    join: bool = False

    def __post_init__(self) -> None:
        check_values("a node", id=self.id)
        if self.function is not None:
            check_takes(f"the function of node {self.id!r}", self.function, "memory")
        check_retries(self.retries, self.retry_on, self.backoff, f"node {self.id!r}")


@dataclass(frozen=True)
class Edge:
    """A connection from a node to a possible next node.

    Args:
        when: a function of the memory that says whether it is followed; always, by default.  All
            edges that are followed lead to a branch of their own.
        on_failure: followed instead of all others when the node has failed and its retries are
            exhausted; ``memory["failure"]`` then says which node, and why.
    """

    source: str
    target: str
    when: Callable[[Memory], Any] | None = None
    on_failure: bool = False

    def __post_init__(self) -> None:
        if self.when is not None:
            check_takes(f"when of the edge from {self.source!r}", self.when, "memory")


@dataclass(frozen=True)
class Graph:
    """Nodes and edges.

    Args:
        nodes: at least one; the first is the entry, if none is named.
        entry: id of the node to begin with.
        name: tells graphs apart; with the goal and the input it makes the run's id.
        max_steps: how many visits of nodes an execution may take.
        ignore: names of captured variables, defaults and attributes of the nodes' functions that do
            not tell executions apart; texts, numbers, functions and classes among them else do.

    Raises:
        ConfigurationError: an id is there twice, an edge names a node that is not there, or an
            argument is of another kind.
    """

    nodes: Iterable[Node]
    edges: Iterable[Edge] = ()
    entry: str = ""
    name: str = "graph"
    max_steps: int = 1000
    ignore: Iterable[str] = ()
    _by_id: dict[str, Node] = field(init=False, repr=False, compare=False)
    _order: dict[str, int] = field(init=False, repr=False, compare=False)
    _from: dict[str, list[Edge]] = field(init=False, repr=False, compare=False)
    _asking: set[str] = field(init=False, repr=False, compare=False)
    _reach: dict[str, set[str]] = field(init=False, repr=False, compare=False)
    _fingerprint: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nodes, edges = tuple(self.nodes), tuple(self.edges)
        for node in nodes:
            check_kind("each of the nodes", node, Node, "write Node('name', function)")
        for edge in edges:
            check_kind("each of the edges", edge, Edge, "write Edge('from', 'to')")
        check_values("a graph", name=self.name, max_steps=self.max_steps)
        by_id = {node.id: node for node in nodes}
        ids = ", ".join(map(repr, by_id))
        if not nodes:
            raise ConfigurationError(f"graph {self.name!r} has no nodes; it needs at least one")
        twice = [node for node, times in Counter(node.id for node in nodes).items() if times > 1]
        if twice:
            raise ConfigurationError(f"graph {self.name!r} has two nodes called {twice[0]!r}")
        entry = self.entry or nodes[0].id
        for named in (entry, *(name for edge in edges for name in (edge.source, edge.target))):
            if named not in by_id:
                raise ConfigurationError(f"graph {self.name!r} has no node {named!r}; it has {ids}")
        order = {node.id: number for number, node in enumerate(nodes)}
        leaving: dict[str, list[Edge]] = {node: [] for node in by_id}
        for edge in edges:
            leaving[edge.source].append(edge)
        facts: dict[str, Any] = {"nodes": nodes, "edges": edges, "entry": entry, "_from": leaving}
        facts["ignore"] = (self.ignore,) if isinstance(self.ignore, str) else tuple(self.ignore)
        facts |= {"_by_id": by_id, "_order": order, "_reach": {}, "_fingerprint": ""}
        facts["_asking"] = {edge.source for edge in edges if edge.when is not None}
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def get_node(self, node_id: str) -> Node | None:
        """The node of that id."""
        return self._by_id.get(node_id)

    def order(self, node_id: str) -> int:
        """The place of a node in the list of nodes; behind all of them if it is not there."""
        return self._order.get(node_id, len(self._order))

    def asks(self, node_id: str) -> bool:
        """Return whether a condition decides which nodes follow a node that succeeded."""
        return node_id in self._asking

    def following(self, node_id: str, memory: Memory) -> list[str]:
        """Return the nodes that follow a node that succeeded."""
        return list(
            dict.fromkeys(
                edge.target
                for edge in self._from.get(node_id, ())
                if not edge.on_failure and (edge.when is None or edge.when(memory))
            )
        )

    def following_failure(self, node_id: str) -> list[str]:
        """Return the nodes that follow a node that failed."""
        return list(
            dict.fromkeys(edge.target for edge in self._from.get(node_id, ()) if edge.on_failure)
        )

    def reaches(self, source: str, target: str) -> bool:
        """Return whether the second node may be visited after the first."""
        found = self._reach.get(source)  # only a join asks
        if found is None:
            found = self._reach[source] = self._reachable(source)
        return target in found

    def _reachable(self, source: str) -> set[str]:
        found: set[str] = set()
        todo = [source]
        while todo:
            for edge in self._from.get(todo.pop(), ()):
                if edge.target not in found:
                    found.add(edge.target)
                    todo.append(edge.target)
        return found

    @property
    def fingerprint(self) -> str:
        """Return the digest of the structure, without the code of the functions."""
        if not self._fingerprint:
            nodes = [[n.id, _label(n.function), n.retries, n.pause, n.join] for n in self.nodes]
            edges = [[e.source, e.target, _label(e.when), e.on_failure] for e in self.edges]
            found = digest.digest([self.entry, nodes, edges])
            object.__setattr__(self, "_fingerprint", found)
        return self._fingerprint


def _label(function: Any) -> str:
    if function is None or not hasattr(function, "__qualname__"):
        return type(function).__qualname__
    return label_of(function)


@dataclass
class ExecutionResult:
    """The result of an execution.

    Args:
        success: no node has failed for good.  A paused execution counts as a success, too.
        status: ``"completed"``, ``"failed"`` or ``"paused"``.
        run_id: of the run; empty if nothing was recorded.
        output: the memory at the end.
        error, exception: why it failed: as text, and what the node raised.
        path: the nodes that were visited, those of parallel branches in the order of the graph.
        steps_executed: how many visits there were, whoever made them.
        paused_at: the node at which a human is to answer.
        session_state: what ``execute`` goes on with, together with the answer if it is paused.
        recovered_from_step: of the checkpoint at which it went on; 0 for the beginning, ``None``
            if it was not resumed.
        total_tokens, total_latency_ms: of all visits.
        total_retries, retry_details: how many attempts followed failed ones; by node.
        nodes_with_failures: those with a failed attempt.
    """

    success: bool
    status: Literal["completed", "failed", "paused"] = "completed"
    run_id: str = ""
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    exception: BaseException | None = None
    path: list[str] = field(default_factory=list)
    steps_executed: int = 0
    paused_at: str | None = None
    session_state: dict[str, Any] = field(default_factory=dict)
    recovered_from_step: int | None = None
    total_tokens: int = 0
    total_latency_ms: int = 0
    total_retries: int = 0
    retry_details: dict[str, int] = field(default_factory=dict)
    nodes_with_failures: list[str] = field(default_factory=list)

    @property
    def had_partial_failures(self) -> bool:
        """True if an attempt of any node failed."""
        return bool(self.nodes_with_failures)

    @property
    def execution_quality(self) -> Literal["clean", "degraded", "failed"]:
        """``"degraded"`` if it succeeded, but not every attempt did."""
        if not self.success:
            return "failed"
        return "degraded" if self.nodes_with_failures else "clean"

    @property
    def is_clean_success(self) -> bool:
        """Return whether the run and every attempt succeeded."""
        return self.execution_quality == "clean"

    @property
    def is_degraded_success(self) -> bool:
        """Return whether the run succeeded although an attempt failed."""
        return self.execution_quality == "degraded"


for _class in (Edge, ExecutionResult, Graph, Memory, Node):
    public(_class, "stepwise.graph")
