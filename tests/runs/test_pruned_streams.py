"""Deleting what runs have said: ``stepwise prune --streams`` keeps the runs."""

import json
import sqlite3
import time

import pytest
from click.testing import CliRunner

import stepwise
from stepwise import cli, emit, step, workflow
from stepwise._journal.stream import StreamLog
from stepwise._runs.maintenance import delete_each, old_runs
from stepwise.errors import ConfigurationError
from stepwise.stores._rows import hashed


@step
def answer(question):
    for word in ("the", "moon", question):
        emit(word)
    return question


@workflow
def below(question):
    emit(f"below {question}", "progress")
    return answer(question)


@workflow
def chat(question):
    emit({"asked": question})
    answer(question)
    below.options(run_id="below")("deep")
    emit("bye")
    return answer("again")


def run(*words):
    return CliRunner().invoke(cli.main, words, prog_name="stepwise")


def pruned():
    """Delete the streams of all ended runs; return the ids of the runs."""
    found = old_runs(time.time() + 1, keep=0, streams=True)
    done = [*delete_each(found, streams=True)]
    assert [problem for _, problem in done if problem] == []
    return [each.run.id for each, _ in done]


def items(made, after=None, stream="main"):
    """Return what a reader shows in the end that has seen everything up to an offset."""
    shown = dict(seen[stream][: after + 1] if after is not None else ())
    for each in made.stream(after, stream, follow=False):
        if each.kind == "item":
            assert each.offset not in shown
            shown[each.offset] = each.value
        elif each.kind == "reset":
            shown = {offset: value for offset, value in shown.items() if offset < each.value}
    return [*shown.values()]


seen = {}


@pytest.fixture
def made(request):
    """A completed run with a child run; all its items are known."""
    every = getattr(request, "param", 1)
    found = chat.options(run_id="tides", checkpoint_every=every).execute("tides")
    seen["main"] = [(each.offset, each.value) for each in found.stream()][:-1]
    return found


def stored(found):
    return b"".join(data for _, data in found.store.read(f"stream:{found.id}:"))


def test_the_items_go_and_the_run_stays(made):
    """The items of a run and of its child runs are deleted; its result and its steps are not."""
    assert b"moon" in stored(made)
    assert "1 run completed so far: streams would be deleted" in (
        run("prune", "--older-than", "0s", "--streams", "--dry-run").stdout
    )
    assert b"moon" in stored(made)
    told = json.loads(run("prune", "--older-than", "0s", "--streams", "--json").stdout)
    assert [each["id"] for each in told["runs"]] == ["tides"]
    assert b"moon" not in stored(made)
    assert b"below" not in stored(stepwise.get_run("below"))
    assert chat.options(run_id="tides")("tides") == "again"
    assert [each.name for each in made.steps] == ["answer", "below", "answer"]
    assert "0 runs" in run("prune", "--older-than", "0s", "--streams").stdout


def test_verify_calls_it_no_loss(made):
    """A run whose streams were deleted verifies, with its child run."""
    pruned()
    assert made.verify().problems == stepwise.get_run("below").verify().problems == []
    assert run("verify").exit_code == 0


def test_what_readers_get(made):
    """A reader that lacks items gets an error that names the way out, one that has all the end."""
    last = len(seen["main"]) - 1
    reading = iter(made.stream())
    next(reading)
    pruned()
    for after in (None, -1, 0, last - 1):
        with pytest.raises(ConfigurationError, match=rf"was deleted .* give after={last}$"):
            made.stream(after)
    assert [(each.offset, each.kind) for each in made.stream(last)] == [(last, "end")]
    assert [each.kind for each in made.stream(stream="another")] == ["end"]
    shown = run("watch", "tides", "--stream", "main")
    assert shown.exit_code == 1
    assert "stepwise prune --streams" in str(shown.exception)
    with pytest.raises(ConfigurationError, match="last offset"):
        made.stream(last + 1)


@pytest.mark.parametrize("how", ["failed", "running"])
def test_runs_that_have_not_ended_keep_theirs(how):
    """Streams of failed runs and of runs in progress stay."""
    found = []

    @workflow(run_id="r")
    def agent():
        emit("x")
        if how == "running":
            found.extend(pruned())
        else:
            raise ValueError(how)

    if how == "failed":
        with pytest.raises(ValueError, match="failed"):
            agent()
        found = pruned()
    else:
        agent()
    assert found == []
    assert [each.value for each in stepwise.get_run("r").stream()][:1] == ["x"]


@pytest.mark.parametrize("made", [1, 100], indirect=True)
@pytest.mark.parametrize("question", ["tides", "again"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_executed_again(made, request, question, times):
    """Readers show what the run says again once; one that lacks a deleted item gets an error.

    A run that is executed from its top says its own items again; a recorded step does not.
    """
    known = [value for _, value in seen["main"]]
    again = chat.options(run_id="tides", checkpoint_every=request.node.callspec.params["made"])
    for _ in range(times):
        assert pruned() == ["tides"]
        (number,) = (each.number for each in made.steps if question in each.arguments)
        made.forget(number)
        assert again("tides") == "again"
        assert made.verify().problems == []
    lacking = [after for after in range(-1, len(known)) if not is_there(made, after)]
    whole = known[:5] if question == "tides" else known
    if not lacking and question == "again":  # from the top
        whole = [*known[:1], *known[4:]]
    assert lacking == [*range(-1, len(lacking) - 1)]
    for after in range(-1, len(known)):
        if after not in lacking:
            assert items(made, after) == whole
    said = [each.offset for each in made.stream(len(known) - 1)]
    assert sorted(said) == said
    assert said[0] >= len(known)


def is_there(made, after):
    """Return whether a reader that has an offset lacks nothing that was deleted."""
    try:
        made.stream(after)
    except ConfigurationError as problem:
        assert "was deleted" in str(problem)
        return False
    return True


def test_a_copy_of_the_emptied_log(made, tmp_path):
    """A copy has what is left, also where the target has the items already."""
    target = f"disk:{tmp_path / 'target'}"
    made.copy_to(target)
    pruned()
    copy = made.copy_to(target)
    assert not StreamLog(copy.store, copy._seal, "tides").has_items()
    assert copy.verify().ok
    assert [each.kind for each in copy.stream(len(seen["main"]) - 1)] == ["end"]


def test_offsets_after_a_lost_end(made):
    """An offset of a lost batch is not given again once the log was emptied."""
    log = StreamLog(made.store, made._seal, "tides")
    before = [batch for _, batch in log.batches()][-1].after()["main"]
    made.store.close()
    with sqlite3.connect(f"{made.store.path}/cache.db") as database:
        keys = "SELECT key FROM Cache WHERE key LIKE 'r/%' AND length(value) > 0 ORDER BY key"
        rows = [row for row in database.execute(keys) if hashed("stream:tides:") in row[0]]
        database.execute("DELETE FROM Cache WHERE key = ?", rows[-1])
    pruned()
    (left,) = (batch for _, batch in log.batches())
    assert left.firsts["main"] >= before
