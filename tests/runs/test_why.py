"""Why a run stands where it stands; the history of a variable; the search for a moment."""

import dataclasses
import json
import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_tools import ME

import stepwise
from stepwise import step, tool, workflow
from stepwise._checkpoints.variables import Surroundings, dump_values
from stepwise._journal.seal import named
from stepwise._runs import why as why_module
from stepwise._runs.steps import newest_checkpoint
from stepwise.errors import ConfigurationError, StepNotFoundError
from stepwise.stores.base import Batch

PROGRAM = """
import os, signal, sys, time
from stepwise import step, tool, workflow, wait_for
import stepwise

stepwise.configure(record_locals=bool(os.environ.get("LOCALS")), suspend_after=0)

@step
def price(item):
    return {"tea": 3, "cake": 4}[item]

@step
def slow(number):
    print("slow", flush=True)
    sys.stdin.readline()
    return number

@tool(side_effect=True)
def charge(amount):
    os.kill(os.getpid(), signal.SIGKILL)

def total(prices):
    lowest = min(prices)
    return sum(prices) - lowest["discount"]

@workflow(retention="all")
def order(items, how="fail"):
    prices = []
    for item in items:
        prices.append(price(item))
    count = len(prices)
    if how == "fail":
        return total(prices)
    if how == "slow":
        return slow(count)
    if how == "doubt":
        charge(count)
    if how == "wait":
        return wait_for("payment")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return prices

if __name__ == "__main__":
    order(["tea", "cake"], sys.argv[1])
"""


@pytest.fixture
def stopped(tmp_path, fork):
    """Run the program until it stops; return its run, and the file."""
    path = tmp_path / "order.py"
    path.write_text(PROGRAM)

    def run(how):
        script = fork(path, how)
        script.process.stdin.close()
        script.process.stdout.read()
        script.process.wait()
        return stepwise.runs()[0]

    run.path = path
    return run


def line_of(text):
    """The number of the program's line with this text."""
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


# -- what happened --------------------------------------------------------------------------------


def test_a_failure(stopped, monkeypatch):
    """A failed run shows the line that raised, the user's frames, its variables and the way on."""
    monkeypatch.setenv("LOCALS", "1")
    run = stopped("fail")
    why = run.why()
    assert (why.status, why.error) == ("failed", "TypeError: 'int' object is not subscriptable")
    assert why.place.line == line_of('lowest["discount"]')
    assert why.place.function == "total"
    assert why.place.statement == 'return sum(prices) - lowest["discount"]'
    assert f"> {why.place.line}  " in why.place.numbered
    assert len(why.place.lines) == 11
    assert [each.function for each in why.frames] == ["order", "total"]
    assert why.frames[-1].variables["lowest"] == "3"
    shown = {each.name: each.text for each in why.variables}
    assert shown["prices"] == "[3, 4]"
    assert why.step == 2
    assert {each.path: each.new for each in why.changes} == {"prices[1]": "4", "item": "'cake'"}
    assert why.commands == (
        (f"stepwise resume {run.id}", "mend the code, then go on from there"),
        (f"stepwise debug {run.id}", "look at its frame, mend it, go on"),
    )
    assert "It failed at order.py:" in str(why)
    assert why.place.statement in str(why)
    assert len(str(why).splitlines()) < 50


def test_a_failure_without_recorded_locals(stopped):
    """Without ``record_locals`` the frames come from the recorded traceback."""
    why = stopped("fail").why()
    assert [each.function for each in why.frames] == ["order", "total"]
    assert why.place.line == line_of('lowest["discount"]')
    assert why.frames[-1].code == 'return sum(prices) - lowest["discount"]'
    assert {each.name: each.text for each in why.variables}["prices"] == "[3, 4]"


def test_a_kill(stopped):
    """A killed run shows the statement at which it died, and the process that is gone."""
    why = stopped("die").why()
    assert why.status == "crashed"
    assert why.said.startswith("Process ")
    assert f"on {os.uname().nodename} died or lost its machine at order.py:" in why.said
    assert why.place.function == "order"
    assert "go on from there" in why.commands[0][1]


def test_a_doubt(stopped):
    """A side effect in doubt is named, with both answers."""
    run = stopped("doubt")
    why = run.why()
    assert "it is in doubt whether step 3 charge(" in why.said
    assert why.place.statement == "charge(count)"
    commands = [command for command, _ in why.commands]
    assert f"stepwise resolve {run.id} 3 --landed JSON" in commands
    assert f"stepwise resolve {run.id} 3 --did-not-happen" in commands
    assert [each.status for each in why.steps] == ["in_doubt"]


def test_a_wait(stopped):
    """A suspended run says what it waits for, and how that is sent."""
    run = stopped("wait")
    why = run.why()
    assert why.said.startswith("It waits for the signal 'payment'")
    assert why.commands[0][0] == f"stepwise send {run.id} payment JSON"
    assert why.place.statement == 'return wait_for("payment")'


def test_a_completed_run(stopped):
    """A completed run shows its result and its last variables."""
    why = stopped("well").why()
    assert why.result == "[3, 4]"
    assert why.said.startswith("It completed in")
    assert why.commands[0][0].startswith("stepwise fork")


def test_a_run_in_progress(stopped, fork):
    """A run in progress is looked at: its step, and the variables of its last checkpoint."""
    script = fork(stopped.path, "slow")
    assert script.hear() == "slow"
    why = stepwise.runs()[0].why()
    assert why.status == "running"
    assert f"process {script.pid}" in why.said
    assert "in step 3 slow(" in why.said
    assert why.place.statement == "return slow(count)"
    assert {each.name: each.text for each in why.variables}["prices"] == "[3, 4]"
    assert why.commands[0][0].startswith("stepwise watch")
    script.tell()
    script.finish()


# -- source ---------------------------------------------------------------------------------------


def test_a_line_that_moved(stopped):
    """Where the file was edited since, the line is found where it is now, and that is said."""
    run = stopped("fail")
    stopped.path.write_text("# a comment\n" + PROGRAM)
    why = run.why()
    assert why.place.line == line_of('lowest["discount"]') + 1
    assert why.place.note == f"the file was edited since: this was line {why.place.line - 1}"
    stopped.path.write_text(PROGRAM.replace('["discount"]', '["rebate"]'))
    why = run.why()
    assert why.place.statement == 'return sum(prices) - lowest["discount"]'
    assert "the file was edited since: line" in why.place.note
    assert why.place.lines == ()


def test_code_that_changed(stopped):
    """Where the workflow was edited, it is said whether its checkpoint still fits."""
    run = stopped("die")
    stopped.path.write_text(PROGRAM.replace("return prices", "return prices[::-1]"))
    assert run.why().place.note == "the function was edited since"
    stopped.path.write_text(PROGRAM.replace("prices = []", "prices = list()"))
    assert "a resume begins at the top" in run.why().place.note


def test_source_that_is_missing(stopped):
    """Without the file, all but the lines is shown, and that is said."""
    for how in ("fail", "die"):
        stopped.path.write_text(PROGRAM)
        run = stopped(how)
        stopped.path.unlink()
        why = run.why()
        assert why.place.note == "the file is not on this machine"
        assert why.place.lines == ()
        assert {each.name: each.text for each in why.variables}["prices"] == "[3, 4]"


# -- child runs -----------------------------------------------------------------------------------


@step
def look(key):
    return {"a": 1}[key]


@workflow
def child(key):
    found = look("a")
    return found + look(key)


@workflow
def parent(key):
    return child(key)


def test_a_child_that_failed():
    """A run that failed because of its child run leads to the child's failing step."""
    with pytest.raises(KeyError):
        parent("b")
    why = stepwise.runs("parent")[0].why()
    (inner,) = why.children
    assert inner.id == why.steps[0].child
    assert inner.steps[0].name == "look"
    assert inner.steps[0].arguments == "key='b'"
    assert inner.place.statement == 'return {"a": 1}[key]'
    assert why.to_dict()["children"][0]["steps"][0]["arguments"] == "key='b'"
    assert inner.id in str(why)


@tool(side_effect=True, approve=True)
def pay(amount):
    return amount


@workflow
def payer():
    return pay(5)


def test_an_approval():
    """A run that asks a person shows both answers."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        payer()
    why = stepwise.runs()[0].why()
    assert why.commands[0][0].startswith(f"stepwise approve {why.id} 1 ")
    assert why.commands[1][0].startswith(f"stepwise deny {why.id} 1 ")


def test_a_cancelled_run():
    """A cancelled run can go on where it stopped, or from an earlier step as a new run."""

    @stepwise.workflow
    def cancelled():
        stepwise.current_run().cancel("enough")
        stepwise.sleep(60)

    with pytest.raises(stepwise.RunCancelled):
        cancelled()
    why = stepwise.runs()[0].why()
    assert [command for command, _ in why.commands] == [
        f"stepwise resume {why.id}",
        f"stepwise fork {why.id} --at STEP",
    ]


def test_a_failure_of_a_cause():
    """The exceptions that led to a failure are shown with their lines."""

    @workflow
    def chained():
        look("a")
        try:
            look("b")
        except KeyError as error:
            raise ValueError("no such key") from error

    with pytest.raises(ValueError, match="no such key"):
        chained()
    why = stepwise.runs()[0].why()
    assert why.error == "ValueError: no such key"
    assert why.because[0].startswith("KeyError: 'b', at ")
    assert why.because[0].endswith('return {"a": 1}[key]')


# -- values ---------------------------------------------------------------------------------------


@workflow(redact=["name"], secret=["key"])
def hidden(name, key, pin):
    look("a")
    return look("b")


def test_what_is_hidden():
    """Arguments that are hidden or secret are in no answer."""
    with pytest.raises(KeyError):
        hidden("Erika Mustermann", "sesame-open", 4)
    run = stepwise.runs()[0]
    why = run.why()
    for text in (str(why), json.dumps(why.to_dict()), why._repr_html_()):
        assert "Mustermann" not in text
        assert "sesame" not in text
    assert "Mustermann" not in str(run.history("name"))
    with pytest.raises(ConfigurationError):
        run.history("name[0]")


def test_a_class_that_is_gone(fork):
    """Objects of a class that this program lacks are shown by what they hold."""
    source = (
        "import stepwise\n"
        "class Basket:\n"
        "    def __init__(self):\n"
        "        self.items = ['tea']\n"
        "@stepwise.step\n"
        "def buy(item):\n"
        "    return item\n"
        "@stepwise.workflow\n"
        "def shop():\n"
        "    basket = Basket()\n"
        "    buy('cake')\n"
        "    return 1 / 0\n"
        "try:\n"
        "    shop()\n"
        "except ZeroDivisionError:\n"
        "    pass\n"
    )
    fork(source).finish()
    (basket,) = (each for each in stepwise.runs()[0].why().variables if each.name == "basket")
    assert "items=['tea']" in basket.text


def test_without_the_key(stopped, tmp_path, monkeypatch):
    """An encrypted store without its key is a sentence."""
    monkeypatch.setenv("STEPWISE_ENCRYPT", "1")
    run = stopped("fail")
    url, run_id = run.store.url, run.id
    run.store.close()
    monkeypatch.setenv("STEPWISE_KEY", "ab" * 32)
    with pytest.raises((stepwise.StepwiseError, stepwise.RunStopped), match="key"):
        stepwise.get_run(run_id, store=url).why()


# -- bounded --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Deep:
    inner: object
    text: str = "\U0001f600" * 300


@workflow(retention="all")
def hostile():
    look("a")
    everything = {f"k{n}" * 20: "\U0001f600" * 10_000 for n in range(200)}
    deep = None
    for _ in range(50):
        deep = Deep(deep)
    names = [["\x00" * 1000] * 100] * 100
    look("a")
    raise ValueError("\U0001f600" * 100_000 + str(len(everything)) + str(len(names)))


def test_the_json_is_bounded():
    """The JSON has at most 8,000 characters, whatever a run holds, and cut values have paths."""
    stepwise.configure(record_locals=True)
    with pytest.raises(ValueError, match="\U0001f600"):
        hostile()
    run = stepwise.runs()[0]
    facts = run.why().to_dict()
    assert len(json.dumps(facts, indent=2)) <= 8000
    assert "stepwise locals" in facts["more"]
    cut = [path for each in facts["variables"] for path in each.get("cut", ())]
    assert cut
    values = run.locals()
    for path in cut:
        why_module.short(stepwise._runs.paths.find(values, path), path)
    assert len(run.why()._repr_html_()) < 100_000


_ODD = st.sampled_from(["\U0001f600", "\x00", '"', "\\", "x"])
_TEXT = st.text(max_size=100) | st.builds(str.__mul__, _ODD, st.integers(0, 3000))


@settings(max_examples=25)
@given(st.lists(_TEXT, min_size=1, max_size=40))
def test_any_facts_are_bounded(texts):
    """Facts with any texts are JSON of at most 8,000 characters."""
    many = tuple(texts)
    variables = [why_module.VariableShown(t, t, 1, 1, t, (t,)) for t in many]
    changes = [stepwise.VariableChange(1, t, t, t, t, t, (t,)) for t in many]
    frames = [stepwise.RecordedFrame(t, 1, t, t, {each: each for each in many}) for t in many]
    place = stepwise.CodePlace(many[0], 1, many[0], many[0], 1, many, many[0])
    why = stepwise.Why(
        many[0], many[0], "failed", many[0], place, many[-1], tuple(frames), many, (), (), (),
        many[0], {"failed": 1}, stepwise.Spent(), 0.0, 0.0, 1, 1, many[0], 1,
        tuple(variables), 0, tuple(changes), tuple((t, t) for t in many), many,
    )  # fmt: skip
    outer = dataclasses.replace(why, children=(why, why))
    assert len(json.dumps(outer.to_dict(), indent=2)) <= 8000
    str(outer)


def test_the_facts_are_pickled():
    """The facts survive a pickle: they hold no key of the store."""
    with pytest.raises(KeyError):
        parent("b")
    why = stepwise.runs("parent")[0].why()
    assert pickle.loads(pickle.dumps(why)).to_dict() == why.to_dict()


# -- history --------------------------------------------------------------------------------------


@step
def add(number):
    return number


@workflow(retention="all")
def counting(upto):
    total = 0
    notes = []
    for number in range(upto):
        total += add(number)
        if number % 3 == 0:
            notes.append({"n": number})
    return total, notes


def test_a_history():
    """The history of a variable names each change: the step, the statement, old and new."""
    run = counting.execute(5)
    found = run.history("total")
    assert [(each.step, each.old, each.new) for each in found] == [
        (1, None, "0"),
        (2, "0", "1"),
        (3, "1", "3"),
        (4, "3", "6"),
        (5, "6", "10"),
    ]
    assert {each.statement for each in found} == {"total += add(number)"}
    assert found[0].position.startswith("test_why.py:")
    assert [(each.path, each.new) for each in run.history("notes")[1:]] == [
        ("notes[0]", "{'n': 0}"),
        ("notes[1]", "{'n': 3}"),
    ]
    assert [each.new for each in run.history("notes[1].n")] == ["3"]
    assert [(each.old, each.new) for each in run.history("upto")] == []
    assert run.history("total", limit=2).note.startswith("3 older checkpoints not looked at")
    assert "total: 6 -> 10" in str(found)
    with pytest.raises(ConfigurationError, match="there is no totl; there is"):
        run.history("totl")


@workflow(retention="all")
def lowering(code):
    done = []
    while len(done) < 3:
        done.append(add(len(done)))
        code = code.lower()
        if len(done) == 2:
            done[0] = 7
    return code


def test_the_statement_that_changed_it():
    """A change names the statement of the code between two checkpoints that can have made it."""
    run = lowering.execute("ABC")
    (change,) = run.history("code")
    assert (change.old, change.new) == ("'ABC'", "'abc'")
    assert change.statement == "code = code.lower()"
    statements = {each.statement for each in run.history("done")}
    assert statements == {"done.append(add(len(done)))", "(before) while len(done) < 3:"}


def test_the_newest_steps_at_an_earlier_moment():
    """At an earlier checkpoint the newest steps are those that had been made by then."""
    run = counting.execute(5)
    assert [each.number for each in run.why().newest] == [1, 2, 3, 4, 5]
    assert [each.number for each in run.why(at=2).newest] == [1, 2]


def test_few_are_kept():
    """Where few checkpoints were kept, a sentence says so."""
    run = counting.options(retention="latest_only").execute(5)
    assert "the run keeps 1 checkpoint" in run.history("total").note
    assert "the run keeps 1 checkpoint" in run.bisect("total == 10").note


# -- bisect ---------------------------------------------------------------------------------------


def test_bisect():
    """The first checkpoint at which an expression is true is found, with its statement and step."""
    run = counting.execute(60)
    found = run.bisect("total > 100")
    first = next(n for n in range(60) if sum(range(n + 1)) > 100)
    assert found.step == first + 1
    assert found.statement == "total += add(number)"
    assert [(each.path, each.old, each.new) for each in found.changes] == [("total", "91", "105")]
    assert "total > 100 is true after step 15" in str(found)
    assert run.bisect("len(notes) == 9").exact is False
    assert run.bisect("len(notes) == 9", every=True).exact


def test_bisect_says_what_it_cannot():
    """Never true, true from the start, no expression, no checkpoint: a sentence each."""
    run = counting.execute(5)
    nowhere = run.bisect("total > 1000")
    assert nowhere.step is None
    assert str(nowhere).startswith("total > 1000 is true at no kept checkpoint of 5")
    assert "NameError" in str(run.bisect("totl > 1"))
    assert "from the oldest kept checkpoint on" in run.bisect("total >= 0").note
    with pytest.raises(ConfigurationError, match="is not an expression of Python"):
        run.bisect("total >")
    with pytest.raises(StepNotFoundError, match="has no checkpoint"):
        empty.execute().bisect("True")


@workflow
def empty():
    return 1


def test_bisect_10000_checkpoints():
    """Of 10,000 kept checkpoints fewer than 70 are looked at, which takes about a second."""
    run = counting.execute(2)
    loaded = newest_checkpoint(run.store, run._seal, run.id)
    put = {}
    for number in range(100, 10_100):
        state = loaded.state._replace(step=number, journal=[number, *loaded.state.journal[1:]])
        name = f"checkpoint/{number:012d}"
        payload = dump_values({"total": number * number}, Surroundings())
        put[name] = run._seal.close(named(name, run.id), state.header(), payload)[0]
    epoch = run.store.acquire(run.id, ME)
    run.store.write(run.id, epoch, Batch(put=put))
    run.store.release(run.id, epoch)
    found = run.bisect("total >= 5000 ** 2")
    assert (found.step, found.kept) == (5000, 10_002)
    assert found.looked_at < 70
    assert [(each.old, each.new) for each in found.changes] == [("24990001", "25000000")]
