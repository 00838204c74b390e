"""Tags: texts by name that a run is found by, and that are no part of its identity."""

import pytest

import stepwise
from stepwise import step, workflow


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
    """``start()`` records tags, too; a resumed run, a fork and the journal have them."""
    handle = agent.options(tags={"customer": "ann"}).start("tides")
    handle.result()
    assert handle.run.tags == {"customer": "ann"}
    handle.run.forget(1)
    assert stepwise.get_run(handle.id).tags == {"customer": "ann"}
    agent.options(run_id=handle.id)("tides")
    assert stepwise.get_run(handle.id).tags == {"customer": "ann"}
    assert handle.run.fork(at=0).tags == {"customer": "ann"}
    assert next(iter(handle.run._entries())).record.tags == {"customer": "ann"}


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
