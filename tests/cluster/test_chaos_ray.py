"""A Ray cluster whose nodes are killed, and whose submitters are, while workflows act."""

import pytest
from chaos import Chaos, runs_of
from ray_cluster import KEY, TestCluster
from server import with_options
from sweeping import SEED, WHOLE, size

KILLING = 600 if WHOLE else 30  # seconds, at most
LEASE = 3  # seconds


class RayNode:
    """The place of a worker node, which has another one after each kill."""

    def __init__(self, cluster, number):
        self._cluster, self._number = cluster, number
        self.kind = "node of the cluster"

    def kill(self):
        """Remove the node without a word, and end its workers."""
        self._cluster.kill(self._cluster.nodes[self._number % len(self._cluster.nodes)])

    def start(self):
        """Nothing: only the main thread can add a node."""

    def wait(self):
        """Nothing: the cluster ends its nodes."""


@pytest.fixture
def database(server_of_session):
    """The URL of a fresh database on a server that may be killed."""
    if not server_of_session.own:
        pytest.skip("the server of STEPWISE_TEST_POSTGRES is not ours to kill")
    yield server_of_session.create_database()
    server_of_session.start()


def test_every_run_ends_and_nothing_happens_twice(
    tmp_path, database, server_of_session, monkeypatch, tally
):
    """Runs that a cluster executes outlive its nodes, those who submit them, and the server."""
    monkeypatch.setenv("STEPWISE_KEY", KEY)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    url = with_options(database, lease_seconds=LEASE)
    runs = runs_of(size(8, 50), f"any-{SEED}-9")
    trial = Chaos(tmp_path, url, runs, server=server_of_session, pace=5 if WHOLE else 3)
    cluster = None
    try:
        for name, value in trial.environment.items():
            monkeypatch.setenv(name, value)  # the workers of the cluster inherit it
        cluster = TestCluster()
        words = ("--ray", cluster.address)
        submitters = [trial.node(f"node{number}", words=words) for number in range(2)]
        places = [RayNode(cluster, number) for number in range(2)]
        trial.nodes = [places[0], submitters[0], places[1], submitters[1]]
        trial.tend = cluster.restore
        trial.begin()
        trial.go_on(KILLING, every=(4.0, 8.0))
        found = trial.judged()
        assert not found.wrong, "\n".join([*found.wrong, trial.story()])
        assert found.figures["resumed"] > len(runs)
        assert trial.kills["node of the cluster"], trial.kills
        assert trial.kills["node"], trial.kills
    finally:
        trial.close()
        if cluster is not None:
            cluster.close()
    tally(
        "chaos on Ray",
        found.figures["steps"],
        kills_of_a_node_of_the_cluster=trial.kills["node of the cluster"],
        kills_of_a_submitter=trial.kills["node"],
        kills_of_the_server=trial.kills["server"],
        resumed_in_the_middle=found.figures["resumed"],
        effects_once=found.figures["effects"],
        settled_by_a_person=len(trial.settled),
    )
