"""Listings of many runs: a page costs what it shows, however many runs there are."""

import collections
import json
import threading
import time

import pytest
from click.testing import CliRunner
from killed import forget_process
from store_tools import ME, edit

import stepwise
from stepwise import RunSuspended, step, tool, workflow
from stepwise._journal import journal as heads
from stepwise._journal.seal import Seal
from stepwise._runs import verify as children
from stepwise._runs.maintenance import delete_each, old_runs
from stepwise._runs.run import find_run, listed
from stepwise.cli import main
from stepwise.errors import ConfigurationError, RunNotFoundError
from stepwise.stores import Batch, open_store
from stepwise.stores._rows import hashed
from stepwise.testing import fresh_store

MANY = 80


def run(*arguments):
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@step
def look(number):
    return number


@tool(side_effect=True)
def send(number):
    raise OSError(number)


@workflow
def agent(number):
    return look(number)


@workflow
def family(number):
    first = agent(number)
    return first, look(number)


@workflow
def waiting(number):
    return stepwise.wait_for("go", type=str)


@workflow
def failing(number):
    look(number)
    return send(number)


@workflow
def retrying(number):
    look(number)
    if not is_well:
        raise ValueError(number)
    return look(number + 1)


@workflow
def stopping(number):
    stepwise.current_run().cancel()
    return look(number) + look(number)


is_well = []


def arguments_of(runs):
    return [each.to_dict()["arguments"] for each in runs]


class Counted:
    """A store that counts the rows that are read from it."""

    def __init__(self, store):
        self._store = store
        self.read_rows = collections.Counter()

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args, **kwargs):
            answer = found(*args, **kwargs)
            if name in ("read", "heads", "newest_heads"):
                return self._counted(name, answer)
            self.read_rows[name] += 1
            return answer

        return call

    def _counted(self, name, rows):
        for row in rows:
            self.read_rows[name] += 1
            yield row


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    """A store of each kind with many runs, the newest 20 of which are real."""
    with fresh_store("memory:many" if request.param == "memory" else tmp_path / "store") as made:
        real = agent.execute(0)
        seal, facts = real._seal, real._facts()
        for number in range(MANY):
            copied = facts._replace(run_id=f"copy {number}", created_at=float(number))
            epoch = made.acquire(copied.run_id, ME)
            made.write(copied.run_id, epoch, Batch(head=heads.seal_head(seal, copied, 0, b"")))
            made.release(copied.run_id, epoch)
        for number in range(1, 20):
            agent(number)
        yield made


@pytest.fixture
def opened(monkeypatch):
    """The names of what this thread verifies, in order; a watcher may be at its last look."""
    found, mine = [], threading.current_thread()
    original = Seal.open

    def note(self, what, data):
        if threading.current_thread() is mine:
            found.append(what)
        return original(self, what, data)

    monkeypatch.setattr(Seal, "open", note)
    return found


def test_a_page_reads_and_verifies_the_heads_that_it_shows(store, opened):
    """``runs(limit=)`` verifies no more heads than it returns, which are the newest."""
    found = stepwise.runs(limit=5)
    assert [what.partition("/")[0] for what in opened] == ["head"] * 5
    assert arguments_of(found) == [f"number={number}" for number in range(19, 14, -1)]
    assert [each.id for each in stepwise.runs()][:5] == [each.id for each in found]
    assert len(stepwise.runs()) == MANY + 20
    assert [each.id for each in stepwise.runs(limit=MANY + 99)] == [e.id for e in stepwise.runs()]


def test_a_page_reads_no_journals(store, opened):
    """``stepwise runs -n`` reads the heads of ended runs alone, which say what journals say."""
    counted = Counted(store)
    stepwise.configure(store=counted)
    shown = json.loads(run("runs", "--json", "-n", "3").stdout)
    assert [each["counts"] for each in shown] == [{"completed": 1}] * 3
    assert counted.read_rows["newest_heads"] <= 4
    assert counted.read_rows["heads"] == 0
    assert counted.read_rows["read"] == 0
    assert shown == [each.to_dict() for each in stepwise.runs(limit=3)]
    assert counted.read_rows["read"] > 0


def listed_and_read(run_id):
    """What a listing says of a run, whether its head said it, and what its journal says."""
    (found,) = (each for each in listed() if each.run.id == run_id)
    return found.to_dict(), found.facts.tally is not None, found.run.to_dict()


def failed(flow, error, number=1):
    with pytest.raises(error):
        flow(number)
    return flow.run_id_for(number)


def test_a_head_says_what_its_journal_says():
    """However a first attempt ended, a listing counts by the head as by the journal."""
    stepwise.configure(suspend_after=0)
    in_doubt = failed(failing, OSError)
    resumed = failed(retrying, ValueError)
    suspended = failed(waiting, RunSuspended)
    family(3)
    for each in stepwise.runs():
        shown, by_head, read = listed_and_read(each.id)
        assert (shown, by_head) == (read, True)
    assert stepwise.get_run(in_doubt).counts == {"completed": 1, "in_doubt": 1}
    is_well.append(True)
    try:
        retrying(1)
        forget_process()
        stepwise.get_run(suspended).send("go", "now")
        assert waiting(1) == "now"
    finally:
        is_well.clear()
    for run_id, steps in ((resumed, 2), (suspended, 1)):
        shown, by_head, read = listed_and_read(run_id)
        assert (shown, by_head) == (read, False)  # nothing is read at the end of a resumed run
        assert shown["counts"] == {"completed": steps}


def test_what_is_settled_after_the_end_is_listed():
    """A doubt that a person settles counts in the next listing, though the run had ended before."""
    run_id = failed(failing, OSError)
    assert listed_and_read(run_id)[0]["counts"] == {"completed": 1, "in_doubt": 1}
    stepwise.get_run(run_id).resolve("send", landed=1)
    shown, by_head, read = listed_and_read(run_id)
    assert (shown, by_head) == (read, False)
    assert shown["counts"] == {"completed": 2}


def test_what_is_given_up_after_the_end_is_listed():
    """A run whose end was lost and given up has spent at least what is left, in listings, too."""
    run_id = failed(stopping, stepwise.RunCancelled)
    store, last = open_store(stepwise.get_run(run_id).store.url), f"r/{hashed(run_id)}/%"
    edit(store, "DELETE FROM Cache WHERE key = (SELECT max(key) FROM Cache WHERE key LIKE ?)", last)
    stepwise.get_run(run_id).repair(accept_loss=True)
    shown, by_head, read = listed_and_read(run_id)
    assert (shown, by_head) == (read, False)
    assert shown["status"] == "cancelled"
    assert shown["spent"]["at_least"]


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_rare_tag_is_found_by_its_word(store, opened, encrypt):
    """Of many runs, only the heads that have the words of a search are read; each is checked."""
    stepwise.configure(encrypt=encrypt)
    tagged = agent.options(tags={"kind": "rare", "who": "ann"}).execute(90)
    agent.options(tags={"kind": "rarer"})(91)
    counted = Counted(store)
    stepwise.configure(store=counted)
    for choice in ({"kind": "rare"}, {"who": "ann", "kind": "rare"}):
        assert [each.id for each in stepwise.runs(tags=choice)] == [tagged.id]
        assert [each.id for each in stepwise.runs("agent", tags=choice)] == [tagged.id]
    assert stepwise.runs("other", tags={"kind": "rare"}) == []
    assert stepwise.runs(status="failed", tags={"kind": "rare"}) == []
    assert counted.read_rows["newest_heads"] <= 4
    forged = store.head(tagged.id)._replace(words=store.head(tagged.id).words + "\ntag a=b\n")
    epoch = store.acquire(tagged.id, ME)
    store.write(tagged.id, epoch, Batch(head=forged))
    assert stepwise.runs(tags={"a": "b"}) == []


def test_the_beginning_of_an_id_is_found_among_many(store, opened):
    """Of many runs, only the heads whose ids begin like that are read."""
    counted = Counted(store)
    stepwise.configure(store=counted)
    newest = stepwise.runs(limit=1)[0].id
    counted.read_rows.clear()
    opened.clear()
    assert find_run(newest[:-1]).id == newest
    assert find_run("copy 17").id == "copy 17"
    assert counted.read_rows["newest_heads"] == 1
    assert counted.read_rows["heads"] == 0
    with pytest.raises(RunNotFoundError, match=f"{MANY} runs begin with 'copy '"):
        find_run("copy ")


def test_unfinished_runs_are_found_among_many(store, opened):
    """A status that no finished run has is looked for among the unfinished runs alone."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(RunSuspended):
        waiting(1)
    run_id = waiting.run_id_for(1)
    opened.clear()
    assert [each.id for each in stepwise.runs(status="suspended")] == [run_id]
    assert len(opened) == 1


@pytest.mark.parametrize("limit", [0, -1, "3", True, 1.5])
def test_a_limit_is_a_positive_number(limit):
    """``runs(limit=)`` refuses what is no number of runs."""
    with pytest.raises(ConfigurationError, match="positive number"):
        stepwise.runs(limit=limit)


def test_a_terminal_gets_a_page(store, monkeypatch):
    """On a terminal, ``stepwise runs`` shows 50 runs and says how to see the others."""
    for number in range(20, 60):
        agent(number)
    monkeypatch.setattr("stepwise.cli.look._page", lambda: 50)
    done = run("runs")
    assert len(done.stdout.splitlines()) == 51
    assert f"the newest 50 of {MANY + 60} runs" in done.stderr
    assert "-n 500" in done.stderr
    done = run("runs", "--workflow", "agent")
    assert "the newest 50 like that" in done.stderr
    assert "the newest" not in run("runs", "-n", "1000").stderr


def test_prune_begins_before_it_has_seen_all_runs(store, opened):
    """The first deletion needs no look at the other runs, nor does a limited one.

    ``prune --limit`` deletes so many runs, and the next one the next.
    """
    first = next(delete_each(old_runs(time.time(), keep=0)))
    assert first[1] is None
    assert len(opened) < 20
    opened.clear()
    assert len([*delete_each(old_runs(time.time(), keep=0, limit=10))]) == 10
    assert len(opened) < 10 * 20
    assert len(stepwise.runs()) == MANY + 20 - 11
    done = json.loads(run("prune", "--older-than", "0s", "--limit", "3", "--json").stdout)
    assert len(done["runs"]) == 3
    assert len(stepwise.runs()) == MANY + 20 - 14


def test_child_runs_are_found_by_the_journal(store, opened, monkeypatch):
    """Deleting a run deletes its child runs, and looks at no other run for that."""
    parent = family.execute("x")
    (child,) = [each for each in stepwise.runs(limit=2) if each.id != parent.id]
    opened.clear()
    monkeypatch.setattr(children.journals, "children_of", None)  # which would look at all of them
    parent.delete()
    assert all(parent.id in each for each in opened)
    assert len(opened) < 40  # once for branches that share their records, once to delete them
    assert not {parent.id, child.id} & {each.id for each in stepwise.runs()}


def test_a_store_without_an_order(tmp_path):
    """A user's store without ``newest_heads`` lists its runs, the newest first, too."""

    class Plain:
        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            if name in ("newest_heads", "count_heads", "free", "compact", "changes"):
                raise AttributeError(name)
            return getattr(self._store, name)

    stepwise.configure(store=Plain(open_store(f"disk:{tmp_path}/store")))
    for number in range(4):
        agent(number)
    assert arguments_of(stepwise.runs(limit=2)) == ["number=3", "number=2"]


@pytest.mark.parametrize("encrypt", [False, True])
def test_words_that_are_damaged_are_mended(encrypt):
    """Damage of the words by which listings look for a run is found by verify, and repaired."""
    stepwise.configure(encrypt=encrypt)
    found = agent.options(tags={"kind": "rare"}).execute(90)
    assert found.verify().ok
    for words in ("replace(words, x'0a0a', x'0a20')", "x'ff'", "NULL"):
        edit(open_store(found.store.url), f"UPDATE Heads SET words = {words}")
        assert found.verify().problems == ["its entry in the listing is damaged"]
        assert found.repair().ok
        for choice in ({"tags": {"kind": "rare"}}, {"status": "completed"}, {"workflow": "agent"}):
            assert stepwise.runs(**choice) == [found]
