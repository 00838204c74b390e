"""``stepwise.integrations.hive`` on a stand-in of hive's executor, killed at every place."""

import pytest
from harness import Lab
from sweeping import some

from stepwise.errors import ConfigurationError
from stepwise.integrations.hive import executor_class

PLACES = [
    *("one begins", "node(one) before", "node(one) after", "send(ann) before", "send(ann) after"),
    *("node(calls) before", "node(calls) after"),
    *("last begins", "node(last) before", "node(last) after"),
]
GIVEN = {"one": "one", "calls": "sent to ann", "last": "last"}
WHOLE = {"output": {"x": 1, "one.wrote": 1, "last.wrote": 1, **GIVEN}, "path": [*GIVEN]}
KILLS = [("", each) for each in some(PLACES, 5, "hive")]
KILLS += [("workers", each) for each in some(PLACES, 2, "hive workers")]
KILLS += [("reject", each) for each in ["rejects", *some(PLACES, 1, "hive rejects")]]


@pytest.mark.parametrize("mode", ["", "workers"])
def test_undisturbed(mode):
    """A node that is tried again gets what its tools returned, and the tools are not called."""
    with Lab("hive.py", *mode.split()) as lab:
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result == WHOLE
        assert list(lab.places) == PLACES
        assert set(lab.did.values()) == {1}


@pytest.mark.parametrize(("mode", "place"), KILLS)
def test_killed(mode, place):
    """Killed at any place, it ends as if undisturbed: done nodes and tools are not repeated.

    A node whose output hive rejects is tried again, and gets what its tools had returned.
    """
    with Lab("hive.py", *mode.split()) as lab:
        landed = '"sent to ann"' if place.endswith("after") else None
        assert lab.run(die_at=place).died
        doubts = lab.run_to_end(answer=lambda _: landed)
        assert lab.result == WHOLE
        assert len(doubts) == place.startswith("send")
        assert lab.did["send(ann)"] == 1
        repeated = {call for call, times in lab.did.items() if times > 1}
        assert repeated <= {place.removesuffix(" after")}


@pytest.mark.parametrize("place", ["node(side) before", "node(calls) before", "last begins"])
def test_worker_agents_side_by_side(place):
    """Worker agents that are answered at the same moment report one after the other."""
    with Lab("hive.py", "fan") as lab:
        assert lab.run(die_at=place).died
        lab.run_to_end()
        assert lab.result["output"] == {**WHOLE["output"], "side": "side", "side.wrote": 1}
        assert lab.did["send(ann)"] == 1


@pytest.mark.parametrize("mode", ["", "reject", "workers"])
def test_a_node_that_was_tried_again(mode):
    """A node that succeeded in its second attempt is done: none of its attempts is made again."""
    with Lab("hive.py", *mode.split()) as lab:
        assert lab.run(die_at="last begins").died
        lab.run_to_end()
        assert lab.result == WHOLE
        assert list(lab.log).count("executes calls") == 2


def test_a_changed_graph():
    """A graph that has changed since the crash is noticed; what is done stays done."""
    with Lab("hive.py", "changed") as lab:
        assert lab.run(die_at="node(calls) after").died
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "the graph has changed since the run began" in ended.text
        assert lab.result["path"] == ["one", "calls", "new", "last"]
        assert lab.did["send(ann)"] == lab.did["node(one)"] == 1
    with Lab("hive.py") as lab:
        assert lab.run(die_at="node(calls) after").died
        assert "the graph has changed" not in lab.run().text


def test_failed():
    """Called again after a failure, it tries again, with what its tools have returned."""
    with Lab("hive.py", "once") as lab:
        assert lab.run().code != 0
        lab.run_to_end()
        assert lab.result == WHOLE
        assert set(lab.did.values()) == {1}


def test_without_hive():
    """Without hive, the error says where to get it."""
    with pytest.raises(ConfigurationError, match=r"github\.com/aden-hive/hive"):
        executor_class()
