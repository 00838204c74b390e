"""A real Ray cluster for the tests of this folder, and a database on a real Postgres for each.

Where an extra is not installed, the tests are skipped with its name.
"""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "postgres"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import ray_cluster
import server

import stepwise

HERE = pathlib.Path(__file__).resolve().parent


def pytest_collection_modifyitems(items):
    if reason := ray_cluster.missing() or server.missing():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def ray_cluster_of_session():
    """The cluster of this worker of pytest."""
    if reason := ray_cluster.missing():
        pytest.skip(reason)
    made = ray_cluster.TestCluster()
    yield made
    made.close()


@pytest.fixture(scope="module")
def connected(ray_cluster_of_session):
    """The cluster, and this process connected to it; other modules have clusters of their own."""
    import ray

    with ray_cluster.as_on_a_node():
        address = ray_cluster_of_session.address
        ray.init(address=address, log_to_driver=False, logging_level="error")
    yield ray_cluster_of_session
    ray.shutdown()


@pytest.fixture
def cluster(connected, monkeypatch):
    """A cluster with two nodes that execute."""
    monkeypatch.setenv("STEPWISE_KEY", ray_cluster.KEY)
    connected.restore()
    yield connected
    connected.restore()


@pytest.fixture(scope="session")
def server_of_session():
    """The database server of this worker of pytest."""
    if reason := server.missing():
        pytest.skip(reason)
    made = server.open_server()
    yield made
    if made.own:
        made.close()


@pytest.fixture
def store(server_of_session, cluster):
    """The URL of a fresh store that all nodes reach, which is the configured one."""
    url = server_of_session.create_database()
    stepwise.configure(store=url)
    yield url
    server_of_session.drop_database(url)


@pytest.fixture
def world(tmp_path):
    """A folder in which jobs leave marks, and look for them."""
    return str(tmp_path)
