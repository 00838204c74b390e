"""The supervisor of ``stepwise up``: when it goes on with which run, and what looking costs."""

import asyncio
import collections
import time

import pytest
from harness import python, until
from supervised import Staying, once, supervisor

import stepwise
from stepwise import step, workflow
from stepwise._execution import process_memory
from stepwise._journal.journal import Journal, Position, facts_of, seal_for
from stepwise._journal.lease import Lease
from stepwise._journal.logs import Inbox
from stepwise._journal.records import Cancelling, Resumed, RunWait, Suspended
from stepwise._journal.summary import course_of, deaths_of
from stepwise._runs.messages import deliver
from stepwise._workflows import up as module
from stepwise._workflows.handles import Backlog, UnfinishedRun
from stepwise.stores import open_store

done = []


@step
def work(name):
    if name in broken:
        raise SystemExit
    done.append(name)
    return name


broken = set()


@workflow
def job(name):
    return work(name)


@workflow
async def ajob(name):
    return work(name)


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch):
    done.clear()
    broken.clear()
    # A supervisor serves all workflows of its process: schedules of other tests, too.
    mine = {name: held for name, held in process_memory._known.items() if name[0] == __name__}
    monkeypatch.setattr(process_memory, "_known", mine)


def cut_off(name):
    """Make a run that an exit of its program cut off."""
    broken.add(name)
    with pytest.raises(SystemExit):
        job(name)
    broken.discard(name)
    run_id = job.run_id_for(name)
    assert stepwise.get_run(run_id).status == "crashed"
    return run_id


def write(run_id, *records, **facts):
    """Append records to a run's journal, as its owner does, and change its head."""
    store = open_store(stepwise.get_run(run_id).store)
    seal = seal_for(store)
    lease = Lease(store, run_id).acquire()
    journal = Journal(store, seal, run_id, lease.epoch, fsync=False)
    journal.load(Position())
    head = facts_of(store, seal, run_id)._replace(**facts)
    for record in records:
        journal.append((record, b""), durable=False, head=head)
    lease.release()
    return store, seal


def suspend(name, *waits, seen=0):
    """Make a run that was suspended."""
    run_id = cut_off(name)
    write(run_id, Suspended(waits, seen, time.time()), status="suspended", waits=waits, seen=seen)
    return run_id


def a_time(seconds):
    return RunWait(1, "time", "", time.time() + seconds, time.time())


def a_signal(name, ticket=""):
    return RunWait(1, "approval" if ticket else "signal", name, None, time.time(), ticket)


def post(run_id, kind, name="", value=b"1"):
    run = stepwise.get_run(run_id)
    deliver(run.store, run._seal, run._facts(), kind, name, value)


# -- what is due -----------------------------------------------------------------------------------


def test_suspended_runs_go_on_when_their_time_has_come():
    """Of the suspended runs only those go on one of whose moments has come."""
    suspend("due", a_time(-1), a_time(3600))
    suspend("later", a_time(3600))
    suspend("never", a_signal("approved"))
    said = once()
    assert done == ["due"]
    assert [(each.kind, each.status) for each in said[1:]] == [
        ("begun", "suspended"),
        ("ended", "completed"),
        ("left", "suspended"),
        ("left", "suspended"),
    ]


def test_recover_asks_the_same():
    """``recover()`` continues the suspended runs that are due, too."""
    suspend("due", a_time(-1))
    suspend("later", a_time(3600))
    cut_off("cut")
    assert sorted(each.result() for each in stepwise.recover()) == ["cut", "due"]


def test_messages_that_are_waited_for():
    """A run goes on for a signal of its name or the answer to its question, and for no other."""
    asked, other, answered, seen = (
        suspend("asked", a_signal("yes")),
        suspend("other", a_signal("yes")),
        suspend("answered", a_signal("may I?", "ticket 1")),
        suspend("seen", a_signal("yes"), seen=1),
    )
    post(asked, "signal", "yes")
    post(other, "signal", "no")
    post(other, "answer", "yes")
    post(answered, "answer", "ticket 0")
    post(seen, "signal", "yes")
    once()
    assert done == ["asked"]
    post(answered, "answer", "ticket 1")
    post(other, "cancel")
    once()
    assert sorted(done) == ["answered", "asked"]
    assert stepwise.get_run(other).status == "cancelled"


def test_awake_at_once(monkeypatch):
    """A run goes on when its time comes or its message is sent, not at the next look at all.

    So does one that another process suspends meanwhile, for a moment or for a message.
    """
    monkeypatch.setattr(module, "_SCAN", 3600.0)
    told, soon = suspend("told", a_signal("yes")), suspend("soon", a_time(1.0))
    stepwise.configure(suspend_after=0)
    with Staying():
        assert "told" not in done
        post(told, "signal", "yes")
        until(lambda: sorted(done) == ["soon", "told"])
        with pytest.raises(stepwise.RunSuspended):
            napping("briefly")
        until(lambda: done[2:] == ["briefly"])
        late = suspend("late", a_signal("yes"))
        post(late, "signal", "yes")
        until(lambda: done[3:] == ["late"])
    assert stepwise.get_run(soon).updated_at - stepwise.get_run(soon).created_at < 3600


def test_a_ring_that_was_lost(monkeypatch):
    """A message whose ring was lost is found by looking into the inboxes, a few at a time."""
    monkeypatch.setattr(module, "_SCAN", 0.05)
    monkeypatch.setattr(module, "_SWEPT", 1)
    ids = [suspend(str(number), a_signal("yes")) for number in range(4)]
    run = stepwise.get_run(ids[2])
    with Staying():
        Inbox(run.store, run._seal, run.id).post("signal", "yes", b"1")
        until(lambda: done == ["2"])


@workflow
def napping(name):
    stepwise.sleep(1.0)
    return work(name)


def test_a_run_that_cannot_be_read_stops_no_other(monkeypatch):
    """A run whose records or messages are damaged is reported; the others go on."""
    bad, other = suspend("bad", a_signal("yes")), suspend("other", a_signal("yes"))
    for run_id in (bad, other):
        post(run_id, "signal", "yes")
    original = UnfinishedRun.has_message

    def damaged(run):
        if run.facts.run_id == bad:
            raise stepwise.CorruptStoreError("message 1 is damaged")
        return original(run)

    monkeypatch.setattr(UnfinishedRun, "has_message", damaged)
    said = once()
    assert done == ["other"]
    assert ("problem", bad, "it cannot be read: message 1 is damaged") in [
        (each.kind, each.facts.run_id if each.facts else "", each.detail) for each in said
    ]
    recovered = stepwise.recover()
    assert [(run.id, why) for run, why in recovered.left] == [(bad, "message 1 is damaged")]


@pytest.mark.parametrize("made", [job, ajob])
def test_a_run_that_is_deleted_before_it_is_begun(made, monkeypatch):
    """A run that is deleted after the supervisor looked is not begun anew, and stops no other."""
    gone = made.submit("gone")
    made.submit("other")
    begin = module.Supervisor._begin

    def deleted_before(supervisor, plan, turn=None):
        if plan.run.facts.run_id == gone.id:
            gone.delete()
        begin(supervisor, plan, turn)

    monkeypatch.setattr(module.Supervisor, "_begin", deleted_before)
    said = once()
    assert done == ["other"]
    assert ("ended", gone.id, "deleted") in [
        (each.kind, each.facts.run_id, each.status) for each in said if each.facts
    ]
    assert [run.status for run in stepwise.runs()] == ["completed"]


def test_recover_begins_no_deleted_run(monkeypatch):
    """The handle of a run that was deleted after ``recover()`` looked raises that it is gone."""
    run = stepwise.get_run(cut_off("gone"))
    again = UnfinishedRun.again

    def deleted_behind(found):
        top = again(found)
        run.delete()
        return top

    monkeypatch.setattr(UnfinishedRun, "again", deleted_behind)
    (handle,) = stepwise.recover()
    with pytest.raises(stepwise.RunNotFoundError, match="it was deleted"):
        handle.result(60)
    assert (done, stepwise.runs()) == ([], [])


def test_runs_that_are_to_be_cancelled_go_on():
    """A run whose end somebody asked for goes on, suspended or not, so that it unwinds."""
    run_id = suspend("stopped", a_signal("yes"))
    write(run_id, Cancelling("me", "enough"), cancelling="me: enough")
    store = stepwise.get_run(run_id).store
    assert [each.why() for each in Backlog(store).look()] == ["cancelling"]


def test_at_most_so_many(monkeypatch):
    """No more than ``most`` runs are executed at the same time, the oldest first."""
    names = [str(number) for number in range(6)]
    for name in names:
        cut_off(name)
    made, _ = supervisor(once=True, most=2)
    begun = []
    begin = made._begin
    monkeypatch.setattr(
        made, "_begin", lambda plan: (begun.append(len(made._jobs)), begin(plan))[1]
    )
    with made._here._output:
        made.run()
    assert max(begun) == 1
    assert sorted(done) == names


def test_coroutine_workflows_share_an_event_loop():
    """Coroutine workflows are executed by one event loop, each in a task."""
    for name in "ab":
        broken.add(name)
        with pytest.raises(SystemExit):
            asyncio.run(ajob(name))
    broken.clear()
    said = once()
    assert sorted(done) == ["a", "b"]
    assert [each.status for each in said if each.kind == "ended"] == ["completed"] * 2


# -- deaths ----------------------------------------------------------------------------------------


def look_at(run_id):
    run = stepwise.get_run(run_id)
    return UnfinishedRun(run.store, run._seal, run._facts())


def test_deaths_are_counted_from_the_journal():
    """Attempts that ended without a word are deaths; without progress, deaths at one step."""
    run_id = cut_off("a")
    assert deaths_of(*look_at(run_id)).attempts == 0  # it ended in good order
    code = course_of(*look_at(run_id)).code
    write(run_id, Resumed(2, "again", 0, code=code, at=5.0))
    assert deaths_of(*look_at(run_id))[:2] == (1, 1)
    write(run_id, Resumed(3, "again", 0, code=code, at=6.0))
    assert deaths_of(*look_at(run_id))[:2] == (2, 2)
    write(run_id, Resumed(4, "again", 0, code="other", at=7.0))
    assert deaths_of(*look_at(run_id))[:2] == (1, 1)  # what died was another program
    assert deaths_of(*look_at(run_id), code="edited")[:2] == (0, 0)
    write(run_id, Suspended((), 0, 8.0))
    write(run_id, Resumed(5, "again", 0, code="other", at=9.0))
    assert deaths_of(*look_at(run_id))[:2] == (1, 1)


def test_versions_that_take_turns_count_their_deaths():
    """The deaths of each code are counted, also in turns; a step that ends is progress."""
    run_id = cut_off("a")
    for attempt, code in enumerate(["old", "new"] * 3):
        write(run_id, Resumed(2 + attempt, "again", 0, code=code, at=5.0 + attempt))
    for code in ("old", "new", ""):
        assert deaths_of(*look_at(run_id), code=code)[:2] == (3, 3)
        assert deaths_of(*look_at(run_id), code=code).are_deadly
    assert deaths_of(*look_at(run_id), code="edited")[:2] == (0, 0)
    write(run_id, _step_ended(run_id, 20.0))
    assert deaths_of(*look_at(run_id), code="old")[:2] == (3, 0)
    assert deaths_of(*look_at(run_id), code="new")[:2] == (3, 1)
    write(run_id, Suspended((), 0, 30.0))
    assert deaths_of(*look_at(run_id), code="old")[:2] == (0, 0)


def test_backoff():
    """After so many deaths in a row a run waits 1, 2, 4, ... seconds, and never more than 300."""
    run_id = cut_off("a")
    made, _ = supervisor()
    waits = []
    code = job.definition.code
    for attempt in range(12):
        at = time.time() + attempt
        write(run_id, Resumed(2 + attempt, "again", 0, code=code, at=at))
        run = look_at(run_id)
        made._agenda.plans.clear()
        made._left.clear()
        made._plan_after_death(run, code)
        waits += [round(plan.at - at, 3) for plan in made._agenda.plans.values()]
        write(run_id, _step_ended(run_id, at))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def _step_ended(run_id, at):
    from stepwise._journal.records import Call, Outcome

    return Outcome(Call(1, "work", __name__, "d", 1, at=at), at=at)


def test_children_that_get_on_are_progress(tmp_path):
    """A run whose child run does a step more in each attempt is not stuck."""
    source = tmp_path / "nested.py"
    source.write_text(
        "import os, sys\nfrom stepwise import step, workflow\n"
        "@step\ndef one(number):\n    return number\n"
        "@step\ndef last():\n    os._exit(9)\n"
        "@workflow\ndef child(n):\n    for k in range(n):\n        one(k)\n    last()\n"
        "@workflow\ndef parent():\n    child(2)\n"
    )
    for _ in range(4):
        python("-c", "import nested; nested.parent()", cwd=tmp_path)
    parents = [each for each in stepwise.runs() if not each.parent]
    (run,) = parents
    assert deaths_of(*look_at(run.id)).stuck == 4  # the child is stuck, too
    (child,) = [each for each in stepwise.runs() if each.parent]
    write(child.id, _step_ended(child.id, time.time()))
    assert deaths_of(*look_at(run.id)).stuck == 1


# -- what looking costs ----------------------------------------------------------------------------


class Counting:
    """A store that counts how often its methods are called."""

    def __init__(self, store):
        self._store = store
        self.calls = collections.Counter()

    def __getattr__(self, name):
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def counted(*given, **named):
            self.calls[name] += 1
            return value(*given, **named)

        return counted


def idle_calls(number, monkeypatch, tmp_path):
    """The calls of the store per look at all runs, with so many waiting ones."""
    counting = Counting(open_store(f"disk:{tmp_path}/{number}"))
    stepwise.configure(store=counting)
    for each in range(number):
        suspend(f"{number}-{each}", a_signal("yes"), a_time(3600))
    made, said = supervisor()
    looks = []

    def look(backlog, original=Backlog.look):
        looks.append(counting.calls.copy())
        if len(looks) == 5:
            made.stop()
        return original(backlog)

    with monkeypatch.context() as patch, made._here._output:
        patch.setattr(module, "_SCAN", 0.1)
        patch.setattr(Backlog, "look", look)
        made.run()
    assert [each.kind for each in said] == ["ready"]
    return looks[4] - looks[2]


def test_idle_costs_do_not_grow_with_the_runs_that_wait(monkeypatch, tmp_path):
    """What an idle supervisor asks of the store is the same for any number of waiting runs."""
    few, many = (idle_calls(number, monkeypatch, tmp_path) for number in (10, 30))
    assert few["heads"] == many["heads"] == 2
    assert sum(many.values()) <= 1.5 * sum(few.values())
    assert many["read"] <= 2 * (3 * 20 + 10)
