"""Tags: texts by name that a run is found by, and that are no part of its identity."""

import pathlib

import pytest
from harness import unpack

import stepwise
from stepwise import step, workflow
from stepwise._journal import records

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


@step
def think(topic):
    return f"about {topic}"


@workflow(tags={"team": "sea"})
def agent(topic):
    return think(topic)


@workflow
def family(topic):
    return agent(topic)


@workflow
def secretive(token):
    return think("x")


def test_tags_of_a_run():
    """A run has the tags of its workflow; those of ``options()`` replace them."""
    assert agent.execute("tides").tags == {"team": "sea"}
    tagged = agent.options(tags={"customer": "ann", "kind": "trial"}).execute("winds")
    assert tagged.tags == {"customer": "ann", "kind": "trial"}
    assert stepwise.get_run(tagged.id).tags == tagged.tags
    assert family.execute("tides").tags == {}


def test_tags_are_no_identity():
    """The same call with other tags is the same run, which keeps the tags that it started with."""
    first = agent.options(tags={"customer": "ann"}, run_id="one").execute("tides")
    again = agent.options(tags={"customer": "bob"}, run_id="one").execute("tides")
    assert again == first
    assert again.tags == {"customer": "ann"}
    assert agent.run_id_for("winds") == agent.options(tags={"a": "b"}).run_id_for("winds")


def test_finding_by_tags():
    """``runs(tags=...)`` gives the runs that have all of these tags."""
    ann = agent.options(tags={"customer": "ann", "kind": "trial"}).execute("tides")
    agent.options(tags={"customer": "ann"}).execute("winds")
    agent.execute("currents")
    assert len(stepwise.runs(tags={"customer": "ann"})) == 2
    assert stepwise.runs(tags={"customer": "ann", "kind": "trial"}) == [ann]
    assert stepwise.runs(tags={"customer": "nobody"}) == []
    assert len(stepwise.runs(agent, tags={})) == 3


def test_a_started_run_has_tags():
    """``start()`` records tags, too, and a resumed run keeps them."""
    handle = agent.options(tags={"customer": "ann"}).start("tides")
    handle.result()
    assert handle.run.tags == {"customer": "ann"}
    handle.run.forget(1)
    assert stepwise.get_run(handle.id).tags == {"customer": "ann"}
    agent.options(run_id=handle.id)("tides")
    assert stepwise.get_run(handle.id).tags == {"customer": "ann"}


def test_a_fork_has_the_tags():
    """A fork has the tags of its original."""
    run = agent.options(tags={"customer": "ann"}).execute("tides")
    assert run.fork(at=0).tags == {"customer": "ann"}


def test_a_damaged_listing_keeps_the_tags():
    """Tags are in the journal: a listing that is repaired has them again."""
    run = agent.options(tags={"customer": "ann"}).execute("tides")
    found = [entry.record for entry in run._entries()]
    assert found[0].tags == {"customer": "ann"}


def test_old_records_have_no_tags():
    """A start that an earlier version recorded is read, without tags."""
    started = records.Started("m:f", "digest", "x=1")
    header = records.to_header(started)[:-1]
    assert records.from_header(header).tags == {}


def test_a_secret_in_a_tag_is_masked():
    """The value of a secret argument is not stored as a tag."""
    flow = workflow(secret=("token",), tags={"by": "key s3cret-token"})(secretive.__wrapped__)
    assert "s3cret" not in str(flow.execute("s3cret-token").tags)


@pytest.mark.parametrize(
    "tags",
    [["a"], "customer=ann", {"n": 1}, {1: "n"}, {"": "x"}, {"a": ""}, {"a=b": "c"}, None]
    + [{"a": "x" * 501}, {str(n): "x" for n in range(51)}, {"a": "\0"}],
)
def test_bad_tags(tags):
    """What is no tag is refused where it is written, with an example."""
    for refused in (lambda: agent.options(tags=tags), lambda: workflow(tags=tags)):
        with pytest.raises(stepwise.ConfigurationError, match=r"tags=.*'customer': 'ann'"):
            refused()(lambda: None)
    if tags is not None:
        with pytest.raises(stepwise.ConfigurationError, match=r"of runs\(\): .*'customer': 'ann'"):
            stepwise.runs(tags=tags)


def test_an_old_store_is_listed(tmp_path, monkeypatch):
    """The runs of a store that version a6cd4d2 wrote have no tags, and their steps are counted."""
    unpack(DATA / "a6cd4d2-sqlite.tar.xz", tmp_path)
    monkeypatch.setenv("STEPWISE_KEY", "ab" * 32)  # see old_records.py
    found = stepwise.runs(store=f"sqlite:{tmp_path / 'store'}")
    assert found
    assert all(run.to_dict()["tags"] == {} and sum(run.counts.values()) for run in found)
    assert stepwise.runs(tags={"customer": "ann"}, store=f"sqlite:{tmp_path / 'store'}") == []
