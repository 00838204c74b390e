"""A small model of a graph: nodes that are functions, the edges between them, and the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwise._runtime.facts import public
from stepwise._runtime.options import check_kind, check_takes, check_values
from stepwise._runtime.retries import Backoff, RetryOn
from stepwise._values import digest
from stepwise._workflows.host import label_of
from stepwise.errors import ConfigurationError


class Memory(dict[str, Any]):
    """The memory shared by a graph's nodes; each attempt of a node sees its own copy.

    Writes of a node count once the node has returned; writes of a failed attempt are dropped.

    Attributes:
        goal: the purpose of the execution.
        runtime: the object given to the executor: clients and the like.
        node_id: the node that is being executed.
        visit: number of this visit of the node on the path, from 1.
        attempt: number of this attempt of the visit, from 1.
        tokens: tokens spent by the node, which adds to the count; the result has the sum.
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
        """Return the value of a key; the same as :meth:`get`."""
        return self.get(key, default)

    def write(self, key: str, value: Any) -> None:
        """Set a key."""
        self[key] = value

    def read_all(self) -> dict[str, Any]:
        """Return the whole memory as a plain dictionary."""
        return dict(self)


NodeFunction = Callable[[Memory], Any]


@dataclass(frozen=True)
class Node:
    """A step of a graph.

    Args:
        id: the node's name in edges, records and results.
        function: plain or ``async``; takes a :class:`Memory`.  A returned dictionary is written to
            the memory key by key, any other value but ``None`` under the node's id.  Without a
            function the node only pauses or joins.
        retries: how many more attempts may follow a failed one.
        retry_on, backoff: as for ``@step``.
        pause: after the node the run waits for a human's answer, which is written to the memory.
        join: the node waits until no other branch can reach it, and is visited once for all
            branches.
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
        retried = {"retries": self.retries, "retry_on": self.retry_on, "backoff": self.backoff}
        check_values(f"node {self.id!r}", **retried)


@dataclass(frozen=True)
class Edge:
    """A connection from a node to a possible next node.

    Args:
        source, target: ids of the two nodes.
        when: a function of the memory that returns whether the edge is followed; by default it
            always is.  Each followed edge starts a branch.
        on_failure: followed instead of all others when the node has failed and its retries are
            exhausted; ``memory["failure"]`` then names the node and the error.
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
        nodes: at least one; the first is the default entry.
        edges: the connections between nodes.
        entry: id of the node to begin with.
        name: tells graphs apart; the run's id is derived from it, the goal and the input.
        max_steps: how many visits of nodes an execution may make.
        ignore: names of captured variables, defaults and attributes of the nodes' functions that do
            not tell executions apart.  By default strings, numbers, functions and classes among
            them do.

    Raises:
        ConfigurationError: an id occurs twice, an edge names an unknown node, or an argument is of
            another kind.
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
        """Return the node of that id, or ``None`` if there is none."""
        return self._by_id.get(node_id)

    def order(self, node_id: str) -> int:
        """Return the place of a node in the list of nodes; an unknown node comes last."""
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
        found = self._reach.get(source)  # asked by joins only
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
        """Digest of the structure, without the code of the functions."""
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
        success: no node has failed for good.  A paused execution counts as a success as well.
        status: ``"completed"``, ``"failed"`` or ``"paused"``.
        run_id: id of the run; empty if nothing was recorded.
        output: the memory at the end.
        error, exception: the reason of a failure, as text and as the node's exception.
        path: the visited nodes; nodes of parallel branches come in the order of the graph.
        steps_executed: the number of visits, in all processes.
        paused_at: the node at which a human has to answer.
        session_state: lets ``execute`` continue, together with the answer if the run is paused.
        recovered_from_step: number of nodes at the checkpoint where the run resumed; 0 for the
            beginning, ``None`` if the run was not resumed.
        total_tokens, total_latency_ms: sums over all visits.
        total_retries, retry_details: how many attempts followed failed ones, in total and by node.
        nodes_with_failures: the nodes with a failed attempt.
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
        """``"clean"``, ``"degraded"`` (success after a failed attempt) or ``"failed"``."""
        if not self.success:
            return "failed"
        return "degraded" if self.nodes_with_failures else "clean"

    @property
    def is_clean_success(self) -> bool:
        """True if the run and every attempt succeeded."""
        return self.execution_quality == "clean"

    @property
    def is_degraded_success(self) -> bool:
        """True if the run succeeded although an attempt failed."""
        return self.execution_quality == "degraded"


for _class in (Edge, ExecutionResult, Graph, Memory, Node):
    public(_class, "stepwise.graph")
