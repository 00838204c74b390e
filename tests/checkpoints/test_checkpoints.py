"""When checkpoints are taken, how many are kept, looking into them, and what happens without."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sys
import time
import types
import typing
import warnings

import pytest
from constructs import define
from killed import Killed, forget_process, line_of

import stepwise
from stepwise import step, tool, workflow
from stepwise._checkpoints.checkpoints import PREFIX, number_of, thinned_out
from stepwise._execution import viewer
from stepwise._values.digest import DECORATED
from stepwise._workflows import frame as _frames
from stepwise._workflows import resume
from stepwise.stores import Batch, Owner, open_store

ALL = {"retention": "all"}


done = []  # what steps did
dying = set()  # arguments of steps in which the process ends, once


def body(x):
    if x in dying:
        dying.remove(x)
        raise Killed
    done.append(x)
    return x


work = step(name="work")(body)
act = tool(name="act", side_effect=True)(body)


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
    dying.clear()


def killed(call, *arguments, at):
    """The run of a call, in a process that ended in a step."""
    dying.add(at)
    with pytest.raises(Killed):
        call(*arguments)
    forget_process()
    return stepwise.runs()[0]


def damage(run, *which):
    """Flip a bit in some of its checkpoints, counted from the oldest, or in all."""
    store = open_store(run.store.url)
    names = store.names(run.id, "checkpoint/")
    epoch = store.acquire(run.id, Owner(os.getpid(), "here", time.time(), "thread"))
    for index in which or range(len(names)):
        data = bytearray(store.get(run.id, names[index]))
        data[len(data) // 2] ^= 1
        store.write(run.id, epoch, Batch(put={names[index]: bytes(data)}))
    store.release(run.id, epoch)


def counter(**options):
    """A workflow of eight steps; the third and the sixth are side effects if asked for."""
    effects = options.pop("effects", False)

    @workflow(**options)
    def count():
        total = 0
        for n in range(1, 9):
            total += act(n) if effects and n % 3 == 0 else work(n)
        return total

    return count


def steps(run):
    return [each.step for each in run.checkpoints]


# -- when, and how many --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ALL, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"checkpoint_every": 3, **ALL}, [3, 6]),
        ({"checkpoint_every": 50, **ALL}, []),
        ({"checkpoint_every": 50, "effects": True, **ALL}, [3, 6]),
        ({"checkpoint_every": 2, "effects": True, **ALL}, [2, 3, 5, 6, 8]),
        ({"retention": "latest_only"}, [8]),
        ({"retention": "prune_old", "keep": 2}, [7, 8]),
        ({}, [6, 7, 8]),
        ({"retention": "all", "keep": 2}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"retention": "thinned", "keep": 2}, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
    ids=str,
)
def test_when_and_how_many(options, expected):
    """A checkpoint is taken after so many steps, and after every side effect whatever that is.

    Kept are the newest, the newest few, or all.
    """
    assert steps(counter(**options).execute()) == expected


@pytest.mark.parametrize("apart", [1, 2, 7, 40])
def test_thinning_keeps_the_newest_and_ever_fewer(apart):
    """The newest 20 stay; of older ones the distance grows with the age, and the oldest stays."""
    names: list[str] = []
    for number in range(1, 3000):
        names.append(f"{PREFIX}{number * apart:012d}")
        gone = thinned_out(names)
        assert names[-1] not in gone
        names = [each for each in names if each not in gone]
        numbers = [number_of(each) for each in names]
        newest = [(number - back) * apart for back in range(min(20, number))]
        assert numbers[-len(newest) :] == newest[::-1]
        assert numbers[0] == apart
        for older, younger in itertools.pairwise(numbers):
            age = numbers[-1] - older
            assert younger - older <= max(apart, age // 4) + apart
    assert len(names) < 100


def test_a_thinned_run_resumes_and_is_forked_early(tmp_path):
    """A run with thinned checkpoints resumes at its newest, and a fork begins at an old one."""

    @workflow(retention="thinned", store=f"disk:{tmp_path}")
    def count():
        total = 0
        for n in range(1, 200):
            total += work(n)
        return total

    dying.add(150)
    with pytest.raises(Killed):
        count()
    forget_process()
    run = count.execute()
    assert done == [*range(1, 200)]
    kept = steps(run)
    assert (len(kept) < 60, kept[-20:]) == (True, [*range(180, 200)])
    assert run.verify().ok
    early = next(each for each in kept if 40 < each < 80)
    assert run.locals(at=early)["total"] == sum(range(1, early + 1))
    assert run.fork(at=early, locals={"total": 0}).status == "ready"


@pytest.mark.parametrize("retention", ["all", "thinned"])
def test_a_journal_is_not_pruned_behind_checkpoints_that_stay(retention):
    """Where the oldest checkpoint stays, nothing could be pruned: that is refused at once."""
    with pytest.raises(stepwise.ConfigurationError, match="nothing would be deleted"):
        workflow(retention=retention, prune_journal=True)(counter)
    pruning = workflow(prune_journal=True)(counter)
    with pytest.raises(stepwise.ConfigurationError, match=f"retention='{retention}'"):
        pruning.options(retention=retention)


def test_the_newest_that_verifies_is_never_pruned():
    """Damaged checkpoints do not count: the newest intact one stays until there is a newer one."""
    count = counter(keep=2)
    run = killed(count, at=5)
    damage(run, -1)
    [intact] = [each.step for each in run.checkpoints if each.verified]
    assert intact == 3
    killed(count, at=5)  # the fourth step was answered, and has a checkpoint again
    assert [each.step for each in run.checkpoints if each.verified] == [3, 4]
    assert count() == 36
    assert done == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps(run) == [7, 8]


def test_what_costs_too_much_is_named(monkeypatch, told):
    """When checkpoints take more than their share of the time, the heaviest variable is named.

    No warning does it: a machine that is busy must not fail a program that makes those errors.
    """
    monkeypatch.setattr(_frames, "_SETTLED", 0.0)
    monkeypatch.setattr(_frames, "_COST", 0.0)
    monkeypatch.setattr(_frames, "_SHARE", 0.0)

    @workflow
    def heavy():
        small, large = "x", list(range(200_000))
        for n in range(3):
            work(n)
        return len(small) + len(large)

    heavy()
    (line,) = [line for line in told().splitlines() if "checkpoints take" in line]
    assert re.search(r"'large' weighs most \(0.\d MB\)", line)
    assert "checkpoint_every=10" in line


def test_a_hidden_name_is_not_shown(monkeypatch, told):
    """The notice of dear checkpoints names a loop by its line, if what it holds is large."""
    for name in ("_SETTLED", "_COST", "_SHARE"):
        monkeypatch.setattr(_frames, name, -1.0)

    @workflow
    def counts(size):
        for n in iter(list(range(size))):
            if work(n) == 2:
                break

    counts(3)
    (line,) = [line for line in told().splitlines() if "checkpoints take" in line]
    assert "weighs most" not in line
    assert "keep large data" not in line
    counts(200_000)
    (line,) = [line for line in told().splitlines() if "checkpoints take" in line]
    where = line_of(counts, "for n")
    assert f"; the iterable of the loop at {where} weighs most (0." in line
    assert "keep large data in a file" in line
    assert "@" not in line.replace("@workflow", "")


@pytest.mark.parametrize(
    ("seconds", "cost", "is_told"),
    [(8, 0.5, False), (20, 4, False), (90, 6, False), (90, 20, True)],
)
def test_what_is_not_dear(seconds, cost, is_told, told):
    """A few percent of a run's time, or a run of some seconds, are not worth a notice."""
    frame = types.SimpleNamespace(
        taken=3,
        started=time.perf_counter() - seconds,
        cost=cost,
        complaints=types.SimpleNamespace(first=lambda _: True, dear=lambda *_: said.append(1)),
        _heaviest=lambda _: ("", 0),
    )
    said = []
    _frames.WorkflowFrame._weigh(frame, {})
    assert (bool(said), told()) == (is_told, "")


def test_the_last_step_that_a_replay_answers_has_its_checkpoint():
    """Killed behind a record, before its checkpoint, a run has that checkpoint after its replay."""
    drawn = []

    def draw():
        drawn.append(len(drawn))
        if drawn == [0]:
            raise Killed
        return drawn[-1]

    @workflow(run_id="r", **ALL)
    def flow():
        work("first")
        number = draw()
        work("second")
        return number

    with pytest.raises(Killed):
        flow()
    forget_process()
    killed(flow, at="second")
    assert flow() == 1
    assert done == ["first", "second"]
    [branch] = stepwise.get_run("r").branch(at=1)
    assert branch.run.status == "completed"


def test_none_while_a_task_is_alive():
    """While another task of the run is unfinished, no checkpoint is taken; it is named once."""

    async def main(exempt):
        release = asyncio.Event()

        @workflow(**ALL)
        async def flow(exempt):
            if exempt:
                with stepwise.background():
                    task = asyncio.create_task(release.wait(), name="bystander")
            else:
                task = asyncio.create_task(release.wait(), name="bystander")
            tasks.append(task)
            del task
            for n in range(5):
                work(n)
            release.set()
            await tasks[-1]
            return work("end")

        return await flow.execute(exempt)

    tasks = []
    with pytest.warns(stepwise.RunWarning, match=r"the task 'bystander' \(Event.wait\)") as caught:
        run = asyncio.run(main(exempt=False))
    assert len(caught) == 1
    assert steps(run) == [5]
    assert steps(asyncio.run(main(exempt=True)))[:6] == [0, 1, 2, 3, 4, 5]


# -- looking into them ---------------------------------------------------------------------------


class Note:
    def __init__(self, text):
        self.text = text


@stepwise.resource
def connect(url):
    done.append(f"connected to {url}")
    return Note(url)


@workflow(**ALL)
def writing(title):
    notes = [Note(title)]
    line = connect("db")
    for n in range(3):
        notes.append(work(n))
    return len(notes) + len(line.text)


def test_the_list_of_checkpoints():
    """Each tells the steps done, its place, size, time, and whether it is intact."""
    before = time.time()
    run = killed(writing, "hi", at=2)
    damage(run, 0)
    first, _, second = run.checkpoints
    assert (first.step, first.verified, second.verified) == (0, False, True)
    assert (second.step, second.position) == (2, line_of(writing, "notes.append"))
    assert 100 < second.size < 5000
    assert first.number < second.number
    assert before <= second.created_at <= time.time()


def test_locals():
    """The variables at a checkpoint can be looked at, and nothing is called to do so."""
    run = killed(writing, "hi", at=2)
    done.clear()
    shown = run.locals()
    assert sorted(shown) == ["line", "n", "notes", "title"]
    assert (shown["n"], shown["title"], shown["notes"][1:]) == (
        2,
        "hi",
        [0, 1],
    )  # where it was killed
    assert shown["notes"][0].text == "hi"
    assert repr(shown["line"]) == "<resource connect 'db'>"
    assert run.locals(at=1)["notes"][1:] == [0]
    assert run.locals(at=7)["n"] == 2
    assert run.locals(at=0)["notes"][1:] == []
    assert done == []
    with pytest.raises(stepwise.StepNotFoundError, match=r"some after steps 0, 1, 2"):
        run.locals(at=-1)
    damage(run, 2)
    assert run.locals()["n"] == 1


def test_locals_of_classes_that_are_gone(monkeypatch):
    """What the program does not define stands as a placeholder that shows what is known."""
    run = killed(writing, "hi", at=2)
    monkeypatch.delitem(globals(), "Note")
    assert repr(run.locals()["notes"][0]).endswith("test_checkpoints.Note text='hi'>")


def test_locals_of_a_method():
    """Objects of the caller are shown with what they held then."""

    class Agent:
        def __init__(self):
            self.notes = ["start"]

        @workflow
        def go(self, given):
            for n in range(3):
                self.notes.append(work(n))
                given[n] = self.notes
            return

    run = killed(Agent().go, {}, at=2)
    shown = run.locals()
    assert shown["self"].notes == ["start", 0, 1]
    assert shown["given"] == {n: ["start", 0, 1] for n in (0, 1)}
    assert shown["given"][0] is shown["self"].notes


# -- without them --------------------------------------------------------------------------------


def test_the_one_before(told):
    """Of a damaged checkpoint it is said that it does not verify, and the one before is used."""
    count = counter()
    run = killed(count, at=5)
    damage(run, -1)
    told()
    assert count() == 36
    assert done == [1, 2, 3, 4, 5, 6, 7, 8]
    where = line_of(count, "for ")
    assert told().splitlines()[-1] == (
        f"stepwise: {run.id} resumes at {where}, after 3 steps "
        "(the newest checkpoint does not verify)"
    )
    assert run.resumed_from_step == 3


def test_none_is_left(told):
    """With no intact checkpoint it starts at step 0, and no recorded step is done again."""
    count = counter(effects=True)
    run = killed(count, at=5)
    damage(run)
    told()
    assert count() == 36
    assert done == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "replays from the top, 4 steps answered by the journal" in told()
    assert run.resumed_from_step == 0


def test_another_version_of_python(monkeypatch, told):
    """What another Python version wrote is not loaded: it replays, and says why."""
    count = counter()
    run = killed(count, at=5)
    told()
    with monkeypatch.context() as patch:
        patch.setattr(viewer, "PYTHON", "3.99")
        with pytest.raises(stepwise.UnreadableValueError, match="was written by Python 3"):
            run.locals()
    monkeypatch.setattr(resume, "PYTHON", "3.99")
    assert count() == 36
    assert done == [1, 2, 3, 4, 5, 6, 7, 8]
    assert re.search(
        r"replays from the top.*\(the checkpoint at .* was written by Python 3", told()
    )


def test_no_source():
    """Without source it replays, and one warning says why and what to do."""
    namespace = {"workflow": workflow, "work": work, "__name__": __name__}
    exec("@workflow\ndef flow():\n    return [work(n) for n in (1, 2)] + [work(3)]\n", namespace)
    flow = namespace["flow"]
    with pytest.warns(
        stepwise.RunWarning, match="cannot be resumed in the middle.*put it into a file"
    ):
        run = killed(flow, at=3)
    assert run.checkpoints == []
    assert flow() == [1, 2, 3]
    assert done == [1, 2, 3]
    assert run.resumed_from_step == 0


UNEVALUATED = """
from test_checkpoints import work
from stepwise import workflow

@workflow
def flow():
    def twice(n: Known) -> Known:
        return 2 * n

    found = [work(1), work(2)]
    return twice(found[0]), twice(work(3))
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="earlier Pythons evaluate annotations")
def test_an_annotation_without_a_value(monkeypatch):
    """A local function whose annotation only type checkers know is recorded all the same."""
    monkeypatch.setitem(sys.modules, "test_checkpoints", sys.modules[__name__])
    flow = define(UNEVALUATED).flow
    killed(flow, at=3)
    assert flow() == (2, 6)
    assert stepwise.runs()[0].resumed_from_step == 2


def test_a_generator():
    """A generator as a workflow replays: it yields again what it yielded, from the journal."""

    @workflow
    def numbers():
        for n in (1, 2, 3):
            yield work(n)

    dying.add(3)
    seen = []
    with pytest.raises(Killed):
        seen += numbers()
    assert list(numbers()) == [1, 2, 3]
    assert done == [1, 2, 3]


def test_variables_that_cannot_be_loaded(told):
    """A class that is gone: the checkpoint is of no use, and it is said why."""
    run = killed(writing, "hi", at=2)
    note = globals().pop("Note")
    told()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stepwise.RunWarning)
            with pytest.raises(NameError, match="Note"):
                writing("hi")
    finally:
        globals()["Note"] = note
    assert "cannot be loaded (AttributeError: " in told()
    assert writing("hi") == 6
    assert [each for each in done if isinstance(each, int)] == [0, 1, 2]
    assert run.status == "completed"


# -- helpers -------------------------------------------------------------------------------------


def research(count):
    return [work(n) for n in range(count)]


def halves(count):
    return research(count // 2) + research(count // 2)


@pytest.mark.parametrize("every", [1, 100])
def test_a_helper_with_many_steps_is_named(every):
    """After 20 steps of one helper in one statement, one warning says where and what to do."""

    @stepwise.workflow(checkpoint_every=every)
    def agent():
        halves(30)
        return len(halves(40))

    line = agent.__wrapped__.__code__.co_firstlineno + 2
    told = r"20 steps were called in halves\(\) \(test_checkpoints.py:\d+\) by one statement of"
    with pytest.warns(stepwise.RunWarning, match=told) as caught:
        assert agent() == 40
    (only,) = caught
    assert f"(test_checkpoints.py:{line})" in str(only.message)
    assert "Decorate halves() with @workflow" in str(only.message)
    assert only.filename == __file__


@stepwise.workflow
def by_itself():
    found = [work(n) for n in range(30)]
    found += list(map(work, range(30, 60)))
    found += sorted(range(60, 90), key=lambda n: -work(n))
    return len(found + stepwise.map(work, range(90, 120)))


@stepwise.workflow(checkpoint_every=100)
def by_small_helpers():
    for _ in range(30):
        research(3)


@stepwise.workflow
def by_decorated_helpers():
    return stepwise.workflow(research)(30)


@pytest.mark.parametrize("agent", [by_itself, by_small_helpers, by_decorated_helpers])
def test_what_cannot_be_helped_is_not_told(agent):
    """A statement's own steps, a few at each boundary, or a decorated helper's need no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent()


class Proxy:
    """An object whose attributes are made by code of the user."""

    looked: typing.ClassVar[list[str]] = []

    def __getattr__(self, name):
        self.looked.append(name)
        raise AttributeError(name)


proxy = Proxy()


@step
def told(answer):
    return answer


def test_no_code_of_an_object_that_a_statement_names_is_called():
    """Whether a statement calls a step is found without asking the objects that it names."""

    @workflow
    def naming():
        for _ in range(3):
            told(proxy is None)

    naming()
    assert DECORATED not in Proxy.looked
