"""Branches on Postgres: they share the records of their base there, too."""

from __future__ import annotations

import pytest

import stepwise
from stepwise import step, tool, workflow

pytest.importorskip("psycopg", reason="needs the extra test-cluster")

sent = []


@step
def think(text):
    return f"about {text}"


@tool(side_effect=True)
def send(text):
    sent.append(text)
    return text


@workflow(retention="all")
def agent(topic, model="a"):
    first = think(topic)
    second = think(f"{model} {first}")
    return send(second)


def test_branches_share_their_base(postgres, tmp_path):
    """Branches share records, make no side effect, keep their base, and take it along."""
    stepwise.configure(store=postgres)
    run = agent.execute("tides")
    sent.clear()
    branches = run.branch(
        at=1,
        variations=[{"model": "b"}, {"model": "c"}],
        effects=lambda call: f"said {call.arguments['text']}",
    )
    assert [each.result for each in branches] == [f"said about {m} about tides" for m in "bc"]
    assert all(each.run.verify().ok for each in branches)
    assert min(number for number, _ in run.store.read(branches[0].run.id)) > 1
    with pytest.raises(stepwise.ConfigurationError, match=branches[0].run.id):
        run.delete()
    copy = branches[0].run.copy_to(f"disk:{tmp_path / 'copy'}")
    assert copy.verify().ok
    [collected] = run.branch(at=1, effects="collect")
    collected.adopt()
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended, match=collected.run.id):
        agent.options(run_id=run.id)("tides")
    assert sent == []
    assert [each.id for each in stepwise.runs(status="superseded")] == [run.id]
    [question] = collected.run.questions
    run.approve(question.step, question.ticket)
    assert agent.options(run_id=run.id)("tides") == "about a about tides"
    assert sent == ["about a about tides"]
