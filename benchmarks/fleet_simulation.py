"""A million runs at once on many nodes and several PostgreSQL servers, with failures: simulated.

Every run is an entry of an array, with the time of its next step's end.  Each tick takes the steps
that end in it, in their order, to the server that has the run (by a hash of the run's id, so at
random), where they wait for those before them.  Nodes and servers fail at random, and once on
purpose: a node, then a server, so that it can be seen how long it takes to make that good.

What a step and a takeover cost was measured by ``postgres_step.py``, and is read from
``results/postgres_step.json``; how soon a dead node is noticed was measured with Ray.  The other
constants are assumptions (`Fleet`).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import common
import numpy as np

MEASURED = common.HERE / "results" / "postgres_step.json"
_AT_ONCE = "64 runs at once"


class Costs(NamedTuple):
    """Measured by ``postgres_step.py``, in seconds of one processor, or bytes, for one of each."""

    server_step: float
    client_step: float
    server_takeover: float
    client_takeover: float
    log_bytes: float
    kept_bytes: float

    @classmethod
    def read(cls) -> Costs:
        """What the last measurement has left."""
        rows = json.loads(MEASURED.read_text("utf-8"))["rows"]
        found = {row["what"]: row["ours"][0] for row in rows}
        step, taken = f"a step, {_AT_ONCE}", "a takeover after 20 steps: processor time of"
        return cls(
            server_step=found[f"{step}: processor time of the server"] / 1e3,
            client_step=found[f"{step}: processor time of our process"] / 1e3,
            server_takeover=found[f"{taken} the server"] / 1e3,
            client_takeover=found[f"{taken} our process"] / 1e3,
            log_bytes=found[f"{step}: bytes of the write-ahead log"],
            kept_bytes=found[f"{step}: bytes of tables and indexes"],
        )


class Fleet(NamedTuple):
    """Assumptions: what nobody measured here, since it depends on the user."""

    runs: int = 1_000_000
    step_seconds: float = 20.0  # a model's answer, a tool: the mean of a log-normal distribution
    spread: float = 1.0  # its sigma
    steps: int = 100  # of a run; one that has ended is followed by a new one
    node_runs: int = 2_000
    node_cores: int = 16
    server_cores: int = 32
    busy: float = 0.5  # of a server's processors, at most, while nothing fails
    noticed: tuple[float, float] = (20.0, 29.0)  # seconds until Ray calls a node dead: measured
    lease: float = 30.0
    failover: float = 30.0  # until another server answers in the place of a lost one
    node_years: float = 0.25  # of service between two failures
    server_years: float = 1.0
    seconds: float = 600.0
    tick: float = 0.25
    lost_node: float = 150.0
    lost_server: float = 350.0

    @property
    def nodes(self) -> int:
        return math.ceil(self.runs / self.node_runs)

    @property
    def rate(self) -> float:
        """Steps that end in a second, if nothing fails and nothing waits."""
        return self.runs / self.step_seconds

    def servers(self, costs: Costs) -> int:
        """How many are needed for that rate."""
        return math.ceil(self.rate * costs.server_step / (self.server_cores * self.busy))


@dataclass
class Seen:
    """What happened."""

    steps: int = 0
    repeated: int = 0
    takeovers: list[tuple[float, float]] = field(default_factory=list)  # when lost, when resumed
    waits: list[np.ndarray] = field(default_factory=list)
    peak: int = 0  # takeovers in a second
    drained: float = 0.0  # seconds from the lost server until nothing waits longer than before
    failures: dict[str, int] = field(default_factory=lambda: {"nodes": 0, "servers": 0})


class Simulation:
    """The fleet, tick by tick; all times in seconds since its beginning."""

    def __init__(self, fleet: Fleet, costs: Costs, seed: int) -> None:
        self.fleet, self.costs, self.seen = fleet, costs, Seen()
        self.random = np.random.default_rng(seed)
        self.servers = fleet.servers(costs)
        self.capacity = fleet.server_cores / costs.server_step  # steps a second of one server
        self.node = np.arange(fleet.runs) % fleet.nodes
        self.server = self.random.integers(0, self.servers, fleet.runs)
        self.next = self.random.exponential(fleet.step_seconds, fleet.runs)
        self.resuming = np.zeros(fleet.runs, dtype=bool)
        self.free = np.zeros(self.servers)  # when each server has done what it was given
        self.lost_at = np.zeros(fleet.runs)
        self.second: dict[int, int] = {}

    def run(self) -> Seen:
        """Simulate it."""
        fleet = self.fleet
        year = 365.25 * 86400.0
        node_rate = fleet.nodes / (fleet.node_years * year) * fleet.tick
        server_rate = self.servers / (fleet.server_years * year) * fleet.tick
        for number in range(int(fleet.seconds / fleet.tick)):
            now = number * fleet.tick
            lost = self.random.poisson(node_rate) + (now == fleet.lost_node)
            for node in self.random.integers(0, fleet.nodes, lost):
                self._lose_node(now, int(node))
            lost = self.random.poisson(server_rate) + (now == fleet.lost_server)
            for server in self.random.integers(0, self.servers, lost):
                self._lose_server(now, int(server))
            self._tick(now + fleet.tick)
        self.seen.peak = max(self.second.values(), default=0)
        return self.seen

    def _durations(self, count: int) -> np.ndarray:
        """How long so many steps take."""
        sigma = self.fleet.spread
        mu = math.log(self.fleet.step_seconds) - sigma * sigma / 2
        return self.random.lognormal(mu, sigma, count)

    def _lose_node(self, now: float, node: int) -> None:
        """Its runs are noticed, and spread over the other nodes; steps in progress begin anew."""
        self.seen.failures["nodes"] += 1
        runs = np.flatnonzero(self.node == node)
        noticed = now + self.random.uniform(*self.fleet.noticed)
        others = (node + 1 + np.arange(len(runs))) % self.fleet.nodes
        others[others == node] = (node + 1) % self.fleet.nodes
        # each of the others resumes a few, one after the other on each of its processors
        turn = np.arange(len(runs)) // max(1, (self.fleet.nodes - 1) * self.fleet.node_cores)
        self.node[runs] = others
        self.next[runs] = noticed + (turn + 1) * self.costs.client_takeover
        self.resuming[runs] = True
        self.lost_at[runs] = now
        self.seen.repeated += len(runs)

    def _lose_server(self, now: float, server: int) -> None:
        """It answers nobody until it is up; owners keep their runs, and wait with their steps."""
        self.seen.failures["servers"] += 1
        up = now + self.fleet.failover
        self.free[server] = max(self.free[server], up)
        # while a lease cannot be judged, nothing is taken over
        held = self.resuming & (self.server == server)
        self.next[held] = np.maximum(self.next[held], up + self.fleet.lease)
        self.seen.drained = -up

    def _tick(self, end: float) -> None:
        """The steps and takeovers that come to their servers before ``end``."""
        due = np.flatnonzero(self.next < end)
        due = due[np.argsort(self.next[due], kind="stable")]
        arrived, server = self.next[due], self.server[due]
        resuming = self.resuming[due]
        factor = self.costs.server_takeover / self.costs.server_step
        work = np.where(resuming, factor, 1.0) / self.capacity
        done = np.empty_like(arrived)
        for one in range(self.servers):
            mine = np.flatnonzero(server == one)
            if not len(mine):
                continue
            # a queue: each begins when it has come and the one before it is done
            total = np.cumsum(work[mine])
            begin = np.maximum.accumulate(arrived[mine] - (total - work[mine]))
            done[mine] = np.maximum(begin, self.free[one]) + total
            self.free[one] = done[mine][-1]
        self._note(end, due, done, done - arrived, resuming)
        self.next[due] = done + self._durations(len(due))
        self.resuming[due] = False

    def _note(
        self,
        end: float,
        due: np.ndarray,
        done: np.ndarray,
        waits: np.ndarray,
        resuming: np.ndarray,
    ) -> None:
        seen = self.seen
        seen.steps += int((~resuming).sum())
        if len(waits):
            seen.waits.append(waits[:: max(1, len(waits) // 200)].astype(np.float32))
        for run, at in zip(due[resuming], done[resuming], strict=True):
            seen.takeovers.append((float(self.lost_at[run]), float(at)))
            self.second[int(at)] = self.second.get(int(at), 0) + 1
        if seen.drained < 0 and end > -seen.drained and bool((self.free < end).all()):
            seen.drained = end + seen.drained


def _row(what: str, values: list[float], unit: str, note: str = "") -> common.Row:
    return common.Row(what, common.Spread.of(values), unit, note=note)


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    """Simulate the fleet, once for each round with another seed."""
    costs = Costs.read()
    fleet = Fleet(runs=20_000, seconds=450.0) if arguments.quick else Fleet()
    took, found = [], []
    for seed in range(arguments.rounds):
        began = common.now()
        found.append(Simulation(fleet, costs, seed).run())
        took.append(common.now() - began)
    nodes = [
        [at - lost for lost, at in seen.takeovers if lost == fleet.lost_node] for seen in found
    ]
    servers = fleet.servers(costs)
    waits = [np.concatenate(seen.waits) for seen in found]
    wanted = f"{fleet.runs} runs, a step of {fleet.step_seconds:g} s on average"
    return [
        _row("steps a second that are wanted", [fleet.rate], "1/s", wanted),
        _row(
            "steps a second that were made",
            [seen.steps / fleet.seconds for seen in found],
            "1/s",
            f"{fleet.nodes} nodes of {fleet.node_runs} runs; with the failures",
        ),
        _row(
            "steps a second of one server, at most",
            [fleet.server_cores / costs.server_step],
            "1/s",
            f"{fleet.server_cores} processors, {costs.server_step * 1e3:.2g} ms a step",
        ),
        _row(
            "PostgreSQL servers that are needed",
            [servers],
            "",
            f"at most {fleet.busy:.0%} busy while nothing fails",
        ),
        _row(
            "log that each server writes",
            [fleet.rate / servers * costs.log_bytes / 1e6],
            "MB/s",
            f"{costs.log_bytes:.0f} bytes a step",
        ),
        _row(
            "growth of all tables in a day, if nothing is pruned",
            [fleet.rate * costs.kept_bytes * 86400 / 1e12],
            "TB",
        ),
        _row(
            "a step waits for its server, p50",
            [float(np.quantile(each, 0.5)) * 1e3 for each in waits],
            "ms",
            "the disk's and the network's time comes on top",
        ),
        _row(
            "a step waits for its server, p99",
            [float(np.quantile(each, 0.99)) * 1e3 for each in waits],
            "ms",
        ),
        _row("takeovers in a second, at most", [seen.peak for seen in found], "1/s"),
        _row(
            "takeovers in a second, over a year",
            [fleet.nodes * fleet.node_runs / (fleet.node_years * 365.25 * 86400)],
            "1/s",
            f"each node fails every {fleet.node_years * 12:g} months",
        ),
        _row(
            "a lost node: until half of its runs continue",
            [float(np.median(each)) for each in nodes],
            "s",
            f"{fleet.node_runs} runs; noticed after {fleet.noticed[0]:g} to {fleet.noticed[1]:g} s",
        ),
        _row("a lost node: until all of its runs continue", [max(each) for each in nodes], "s"),
        _row(
            "a lost node: steps that begin anew",
            [float(len(each)) for each in nodes],
            "",
            "those that were in progress; side effects among them are in doubt",
        ),
        _row(
            "a lost server: from its replica's first answer until its queue is empty",
            [seen.drained for seen in found],
            "s",
            f"away for {fleet.failover:g} s; owners keep their runs and wait, nothing is lost",
        ),
        _row("the simulation takes", took, "s"),
    ]


if __name__ == "__main__":
    common.main(measure, "A million runs at once, simulated")
