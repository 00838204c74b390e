"""Undoing the side effects of a run, the newest first, whatever dies in between."""

import asyncio
import contextlib
import os
import pathlib
import textwrap

import pytest
from harness import python
from outside import Log, Outside

import stepwise
from stepwise import CompletedCall, DidNotHappen, Landed, step, tool, workflow
from stepwise.graph import CheckpointManager, Edge, Graph, GraphExecutor, Node
from stepwise.testing import fresh_store

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "order.py"


@pytest.fixture(autouse=True)
def store():
    with fresh_store() as opened:
        yield opened


class World(Outside):
    """What is booked and charged, and what was done to it."""

    def __init__(self):
        self.done = []
        self.failing = None

    def undo(self, call):
        self.done.append(f"undo {call.name} {call.arguments['item']}")
        if self.failing == call.arguments["item"]:
            raise ConnectionError("no route")

    def tool(self, name, **options):
        def act(item: str, price: int = 1) -> str:
            self.done.append(f"{name} {item}")
            return f"{name}-{item}"

        act.__qualname__ = act.__name__ = name
        return tool(side_effect=True, compensate=self.undo, **options)(act)


@pytest.fixture
def world():
    return World()


# -- in one process ------------------------------------------------------------------------------


def test_a_failed_workflow_is_undone_newest_first(world):
    """With compensate_on_failure, completed tools are undone newest first, and the error stays."""
    book, charge = world.tool("book"), world.tool("charge")

    @workflow(compensate_on_failure=True)
    def order(item):
        book(item)
        charge(item)
        raise ValueError("sold out")

    with pytest.raises(ValueError, match="sold out"):
        order("bike")
    assert world.done == ["book bike", "charge bike", "undo charge bike", "undo book bike"]
    (run,) = stepwise.runs()
    assert run.status == "failed"
    assert [each.status for each in run.steps] == ["compensated", "compensated"]
    assert isinstance(run.error, ValueError)


def test_what_was_undone_is_done_anew(world):
    """Called again after it was undone, a workflow makes the tools anew and answers the steps."""
    book, stock = world.tool("book"), [0]

    @step
    def look(item):
        world.done.append("look")
        return item

    @workflow(compensate_on_failure=True)
    def order(item):
        look(item)
        booked = book(item)
        if not stock[0]:
            raise ValueError("sold out")
        return booked

    with pytest.raises(ValueError, match="sold out"):
        order("bike")
    stock[0] = 1
    assert order("bike") == "book-bike"
    assert world.done == ["look", "book bike", "undo book bike", "book bike"]


def test_what_is_done_anew_is_another_act():
    """Each time it is made anew it has other keys, so that nobody outside drops it as known."""
    keys = Log()

    def undo(call):
        keys.append(call.compensation_key)

    @tool(side_effect=True, compensate=undo)
    def book(item):
        keys.append(stepwise.current_step().idempotency_key)
        return item

    @workflow(compensate_on_failure=True)
    def order(item):
        book(item)
        book(item)
        raise ValueError("sold out")

    for _ in range(3):
        with pytest.raises(ValueError, match="sold out"):
            order("bike")
    assert len(keys) == len(set(keys)) == 12


def test_what_is_done_anew_after_a_crash_is_another_act_too():
    """Interrupted while it does them anew, a run gives the rest keys of their own as well."""
    given, mood = Log(), Log(["fails", "is interrupted", "works"])

    @tool(side_effect=True, compensate=lambda call: None)
    def book(item):
        given.append(stepwise.current_step().idempotency_key)
        return item

    @workflow(compensate_on_failure=True)
    def order(item):
        for number in range(2):
            book(item)
            if number == 0 and mood[0] == "is interrupted":
                raise KeyboardInterrupt
        if mood[0] == "fails":
            raise ValueError("sold out")

    for expected in (ValueError, KeyboardInterrupt, None):
        with pytest.raises(expected) if expected else contextlib.nullcontext():
            order("bike")
        mood.pop(0)
    assert len(given) == len(set(given)) == 4


@pytest.mark.parametrize("in_doubt", ["settled by hand", "asked"])
def test_a_repeated_act_that_is_in_doubt_keeps_its_key(in_doubt):
    """What was made anew and is in doubt is asked about by the key that it was given."""
    given, asked, mood = Log(), Log(), Log(["fails", "dies", "works"])

    def ask(call):
        asked.append(call.idempotency_key)
        return DidNotHappen

    @tool(
        side_effect=True,
        compensate=lambda call: None,
        in_doubt=ask if in_doubt == "asked" else "raise",
    )
    def book(item):
        given.append(stepwise.current_step().idempotency_key)
        if mood[0] == "dies":
            raise KeyboardInterrupt
        return item

    @workflow(compensate_on_failure=True)
    def order(item):
        book(item)
        if mood[0] == "fails":
            raise ValueError("sold out")
        return "done"

    with pytest.raises(ValueError, match="sold out"):
        order("bike")
    mood.pop(0)
    with pytest.raises(KeyboardInterrupt):
        order("bike")
    mood.pop(0)
    if in_doubt != "asked":
        (run,) = stepwise.runs()
        (open_one,) = [each for each in run.steps if each.status == "in_doubt"]
        assert open_one.idempotency_key == given[1]
        run.resolve(open_one.number, DidNotHappen)
    assert order("bike") == "done"
    assert given[0] != given[1] == given[2]
    assert asked == ([given[1]] if in_doubt == "asked" else [])


def test_what_was_made_again_with_other_arguments_is_undone_with_those():
    """A call made again, which somebody said is the recorded one, is undone as it was made then."""
    items, done = ["bike"], []

    @tool(side_effect=True, compensate=lambda call: done.append(f"undo {call.arguments['item']}"))
    def book(item):
        if item == "bike":
            raise KeyboardInterrupt
        done.append(f"book {item}")

    @workflow(compensate_on_failure=True)
    def order():
        book(items[0])
        raise ValueError("sold out")

    with pytest.raises(KeyboardInterrupt):
        order()
    items[0] = "boat"
    with pytest.raises(stepwise.StepInDoubtError, match="arguments that are not recorded"):
        order()
    (run,) = stepwise.runs()
    run.resolve(1, same=True)
    run.resolve(1, did_not_happen=True)
    with pytest.raises(ValueError, match="sold out"):
        order()
    assert done == ["book boat", "undo boat"]


def test_without_the_option_nothing_is_undone(world):
    """A workflow that does not ask for it keeps what it did when it fails."""
    book = world.tool("book")

    @workflow
    def order(item):
        book(item)
        raise ValueError("sold out")

    with pytest.raises(ValueError, match="sold out"):
        order("bike")
    assert world.done == ["book bike"]


def test_a_completed_run_is_undone_on_request(world):
    """Run.compensate() undoes a completed run and says how many; a second call finds none."""
    book = world.tool("book")

    @workflow
    def order(item):
        return [book(item), book(item + "s")]

    order = order.options(run_id="one")
    run = order.execute("bike")
    assert run.compensate() == 2
    assert run.compensate() == 0
    assert world.done[2:] == ["undo book bikes", "undo book bike"]
    assert run.status == "failed"
    assert run.result is None
    order("bike")
    assert world.done[4:] == ["book bike", "book bikes"]


def test_what_a_compensation_is_given():
    """A compensation gets the arguments, the result, and keys that are stable and different."""
    calls = []

    @tool(side_effect=True, compensate=calls.append)
    def charge(customer, *, cents=100):
        return {"id": customer, "key": stepwise.current_step().idempotency_key}

    @workflow
    def order(customer):
        return charge(customer, cents=5)

    run = order.execute("ann")
    run.compensate()
    (call,) = calls
    assert isinstance(call, CompletedCall)
    assert (call.name, call.arguments) == (run.steps[0].name, {"customer": "ann", "cents": 5})
    assert call.result == {"id": "ann", "key": call.idempotency_key}
    assert call.compensation_key != call.idempotency_key


def test_child_runs_and_steps_are_undone_in_their_place(world):
    """Tools of child runs and tools called inside steps are undone in place, and made anew."""
    book = world.tool("book")

    @step
    def pair(item):
        return [book(item), book(item + "2")]

    @workflow
    def child(item):
        return book(item)

    @workflow
    def order():
        return [book("first"), child("of child"), pair("in step"), book("last")]

    order = order.options(run_id="one")
    result = order()
    made = list(world.done)
    (run,) = [each for each in stepwise.runs(order) if each.id == "one"]
    assert run.compensate() == 5
    undone = world.done[5:]
    assert undone == [f"undo {each}" for each in reversed(made)]
    assert order() == result
    assert world.done[10:] == made


def test_a_child_run_that_is_undone_in_part_is_not_taken_for_undone(world):
    """Undoing a caller again goes on in its child run where a compensation had raised."""
    book = world.tool("book", fails_cleanly=ConnectionError)

    @workflow
    def child():
        return [book("one"), book("two")]

    @workflow
    def order():
        child()

    order.options(run_id="one")()
    world.failing = "one"
    with pytest.raises(ConnectionError):
        stepwise.get_run("one").compensate()
    world.done.clear()
    world.failing = None
    assert stepwise.get_run("one").compensate() == 1
    assert world.done == ["undo book one"]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_undone_child_run_is_made_anew(world, depth):
    """A child run that was undone is made anew, though its caller's checkpoint lies behind it."""
    book, failing = world.tool("book"), [True]

    @step
    def look(item):
        world.done.append(f"look {item}")

    @workflow
    def inner():
        return book("bike")

    @workflow
    def around():
        return inner()

    @workflow
    def order():
        look("one")
        booked = inner() if depth == 1 else around()
        look("two")
        if failing:
            raise ValueError(failing.pop())
        return booked

    order = order.options(run_id="one")
    with pytest.raises(ValueError, match="True"):
        order()
    assert stepwise.get_run("one").compensate() == 1
    assert order() == "book-bike"
    assert world.done == ["look one", "book bike", "look two", "undo book bike", "book bike"]
    assert stepwise.get_run("one").status == "completed"


def test_a_child_run_without_anything_to_undo_keeps_its_caller_as_it_was(world):
    """Undoing a run of which nothing can be undone leaves it completed."""
    sent = []

    @tool(side_effect=True)
    def send(item):
        sent.append(item)

    @workflow
    def child():
        send("mail")

    @workflow
    def around():
        child()

    @workflow
    def order():
        around()
        return 1

    run = order.execute()
    assert run.compensate() == 0
    assert stepwise.get_run(run.id).status == "completed"
    assert sent == ["mail"]


def test_a_step_of_an_agent_that_was_undone_is_made_anew(world):
    """RecoverableAgent resumes before the step of which the tool was undone."""
    book, failing = world.tool("book"), [True]

    async def trip(context):
        if context.step == 1:
            context.state["booked"] = book("bike")
        elif context.step == 3:
            if failing:
                raise ValueError(failing.pop())
            return context.state["booked"]
        return None

    def attempt():
        store = stepwise.CheckpointStore(stepwise._runtime.settings.store())
        agent = stepwise.RecoverableAgent(trip, store, checkpoint_every_n=1, max_recoveries=0)
        return asyncio.run(agent.run_with_recovery("a trip", "trip"))["result"]

    with pytest.raises(ValueError, match="True"):
        attempt()
    assert stepwise.get_run("trip").compensate() == 1
    assert attempt() == "book-bike"
    assert world.done == ["book bike", "undo book bike", "book bike"]


def test_a_node_of_a_graph_that_was_undone_is_made_anew(world, tmp_path):
    """A graph resumes before the node of which the tool was undone."""
    book, failing = world.tool("book"), [True]

    def pack(memory):
        if failing:
            raise ValueError(failing.pop())
        return "packed"

    nodes = [
        Node("book", lambda memory: book("bike")),
        Node("look", lambda memory: "looked"),
        Node("pack", pack),
    ]
    edges = [Edge("book", "look"), Edge("look", "pack")]
    manager = CheckpointManager(f"disk:{tmp_path / 'store'}")

    def attempt():
        executor = GraphExecutor(None, manager)
        return asyncio.run(executor.execute(Graph(nodes, edges), "goal", None, None))

    failed = attempt()
    assert not failed.success
    with fresh_store(tmp_path / "store"):
        assert stepwise.get_run(failed.run_id).compensate() == 1
    assert attempt().success
    assert world.done == ["book bike", "undo book bike", "book bike"]


def test_steps_around_steps_around_what_was_undone_run_again(world):
    """However deep in steps a tool was called that is undone: it is made anew."""
    book = world.tool("book")

    @step
    def inner(item):
        return book(item)

    @step
    def outer(item):
        return inner(item)

    @workflow
    def order():
        return outer("bike")

    order = order.options(run_id="one")
    assert order.execute().compensate() == 1
    assert order() == "book-bike"
    assert world.done == ["book bike", "undo book bike", "book bike"]


def test_what_ended_last_is_undone_first(world):
    """A tool that called another one ended after it, and is undone before it."""
    book = world.tool("book")

    @tool(side_effect=True, compensate=world.undo)
    def ship(item):
        return book(item)

    @workflow
    def order():
        return ship("bike")

    assert order.execute().compensate() == 2
    assert world.done == ["book bike", "undo ship bike", "undo book bike"]


def test_a_side_effect_around_what_was_undone_is_not_repeated(world):
    """A side-effecting tool is not made anew because a tool that it called was undone."""
    book = world.tool("book")

    @tool(side_effect=True)
    def ship(item):
        world.done.append(f"ship {item}")
        return book(item)

    @step
    def deliver(item):
        world.done.append(f"deliver {item}")
        return ship(item)

    @workflow
    def order():
        return deliver("bike")

    order = order.options(run_id="one")
    run = order.execute()
    assert run.compensate() == 1
    assert order() == "book-bike"
    assert world.done == ["deliver bike", "ship bike", "book bike", "undo book bike"]


def test_a_failing_compensation_stops_and_is_in_doubt(world):
    """A compensation that raises leaves the older effects alone, and is in doubt until settled."""
    book = world.tool("book")

    @workflow
    def order():
        return [book("a"), book("b"), book("c")]

    run = order.options(run_id="one").execute()
    world.failing = "b"
    with pytest.raises(ConnectionError):
        run.compensate()
    assert [each.status for each in run.steps] == ["completed", "in_doubt", "compensated"]
    with pytest.raises(stepwise.StepInDoubtError, match="compensation of"):
        run.compensate()
    with pytest.raises(stepwise.StepInDoubtError, match="--did-not-happen"):
        order.options(run_id="one")()
    run.resolve(2, did_not_happen=True)
    world.failing = None
    assert run.compensate() == 2
    assert world.done[3:] == ["undo book c", "undo book b", "undo book b", "undo book a"]


def test_a_failing_compensation_does_not_hide_the_failure(world):
    """When undoing fails as well, the workflow's own error propagates and a warning tells."""
    book = world.tool("book")

    @workflow(compensate_on_failure=True)
    def order():
        book("a")
        raise ValueError("sold out")

    world.failing = "a"
    with (
        pytest.warns(stepwise.RunWarning, match="undoing its side effects failed too"),
        pytest.raises(ValueError, match="sold out"),
    ):
        order()


def test_a_clean_failure_of_a_compensation_may_be_tried_again(world):
    """An exception in fails_cleanly proves that nothing was undone: it can be tried at once."""
    book = world.tool("book", fails_cleanly=(ConnectionError,))

    @workflow
    def order():
        return book("a")

    run = order.execute()
    world.failing = "a"
    with pytest.raises(ConnectionError):
        run.compensate()
    world.failing = None
    assert run.compensate() == 1


@pytest.mark.parametrize("answer", ["landed", "not", "raise"])
def test_tools_in_doubt(world, answer):
    """A tool in doubt is undone if its reconcile says it happened; unknown, it is left and told."""
    answers = {"landed": Landed("id-7"), "not": DidNotHappen}
    results = []

    def undo(call):
        results.append(call.result)

    @tool(
        side_effect=True,
        compensate=undo,
        in_doubt="raise" if answer == "raise" else lambda call: answers[answer],
    )
    def charge():
        raise TimeoutError

    @workflow(compensate_on_failure=True)
    def order():
        charge()

    with pytest.raises(TimeoutError):
        if answer == "raise":
            with pytest.warns(stepwise.RunWarning, match="is in doubt, so it is not undone"):
                order()
        else:
            order()
    assert results == (["id-7"] if answer == "landed" else [])


def test_a_tool_in_doubt_that_changed_its_argument():
    """The undoing's ``reconcile`` sees what a tool raised that had changed what it was given."""
    errors, undone = [], []

    def reconcile(call):
        errors.append(repr(call.error))
        return Landed("id-7")

    @tool(side_effect=True, in_doubt=reconcile, compensate=undone.append)
    def charge(items):
        items.append("fee")
        raise TimeoutError("slow")

    @workflow(compensate_on_failure=True)
    def order():
        charge(["book"])

    with pytest.raises(TimeoutError):
        order()
    assert errors == ["TimeoutError('slow')"]
    assert [call.result for call in undone] == ["id-7"]


def test_asynchronous_workflows_and_compensations():
    """Coroutine functions are awaited, in asynchronous workflows and in plain ones."""
    done = []

    async def undo(call):
        done.append(call.arguments)

    @tool(side_effect=True, compensate=undo)
    async def abook(item):
        return item

    @tool(side_effect=True, compensate=undo)
    def book(item):
        return item

    @workflow(compensate_on_failure=True)
    async def aorder():
        await abook("a")
        raise ValueError("no")

    @workflow(compensate_on_failure=True)
    def order():
        book("b")
        raise ValueError("no")

    import asyncio

    with pytest.raises(ValueError, match="no"):
        asyncio.run(aorder())
    with pytest.raises(ValueError, match="no"):
        order()
    assert done == [{"item": "a"}, {"item": "b"}]


def test_generator_workflows(world):
    """A generator workflow that fails is undone like any other."""
    book = world.tool("book")

    @workflow(compensate_on_failure=True)
    def order():
        yield book("a")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(order())
    assert world.done == ["book a", "undo book a"]


# -- mistakes ------------------------------------------------------------------------------------


def test_options_that_cannot_be(world):
    """Options that contradict each other are refused where they are written."""
    with pytest.raises(stepwise.ConfigurationError, match="side_effect=True"):
        tool(compensate=print)(lambda: None)
    with pytest.raises(stepwise.ConfigurationError, match="compensate"):
        tool(side_effect=True, compensate="refund")(lambda: None)
    with pytest.raises(stepwise.ConfigurationError, match="prune_journal"):
        workflow(compensate_on_failure=True, prune_journal=True)(lambda: None)


def test_arguments_that_cannot_be_recorded(world):
    """Arguments of a tool with a compensation are recorded, so those that cannot be are refused."""

    @tool(side_effect=True, compensate=world.undo, ignore=("stream",))
    def send(item, stream):
        raise AssertionError

    @workflow
    def order():
        with open(os.devnull, encoding="utf-8") as stream:
            send("a", stream)

    with pytest.raises(stepwise.NotRecordableError, match=r"to undo it.*\['stream'\]"):
        order()


def test_a_tool_that_is_gone(world):
    """A program that does not define the tool is told which module to import."""
    book = world.tool("vanishing")

    @workflow
    def order():
        return book("a")

    run = order.execute()
    tools, key = stepwise._calls.steps.compensated_tools, (__name__, "vanishing")
    held = tools.pop(key)
    try:
        with pytest.raises(stepwise.ConfigurationError, match=f"import the module.*{__name__}"):
            run.compensate()
    finally:
        tools[key] = held
    assert run.compensate() == 1


def test_a_tool_of_a_script_that_is_gone(tmp_path, home):
    """Another program is told which script to import, not that it is called ``__main__``."""
    script = """
        from stepwise import tool, workflow

        @tool(side_effect=True, compensate=print)
        def book_for_the_script(what):
            return what

        @workflow
        def order():
            return book_for_the_script("a")

        order()
    """
    (tmp_path / "order.py").write_text(textwrap.dedent(script))
    done = python("order.py", cwd=tmp_path, env={**os.environ})
    assert done.returncode == 0, done.stderr
    (run,) = stepwise.runs(store=home / "store")
    with pytest.raises(stepwise.ConfigurationError, match=r"import the script.*at order\.py:10"):
        run.compensate()


# -- killed --------------------------------------------------------------------------------------

PLACES = [
    f"{when} {what}"
    for what in ("undo charge", "undo packed", "undo of child", "undo book")
    for when in ("before", "after")
]


def start(folder, *, die="", fail=True, resolve=""):
    environment = {
        **os.environ,
        "STEPWISE_HOME": str(folder),
        "LOG": str(folder / "log"),
        "DIE": die,
        "FAIL": "1" if fail else "",
        "RESOLVE": resolve,
    }
    return python(PROGRAM, env=environment)


@pytest.mark.parametrize("answer", ["truth", "other"])
@pytest.mark.parametrize("place", PLACES)
def test_killed_while_undoing(tmp_path, place, answer):
    """Killed inside a compensation, it stops in doubt; settled, the rest is undone, none twice."""
    killed = start(tmp_path, die=place)
    assert killed.returncode == -9, killed.stderr
    again = start(tmp_path, fail=False)
    assert "StepInDoubtError: the compensation of" in again.stderr
    happened = place.startswith("after")
    settled = start(
        tmp_path, fail=False, resolve=("landed" if happened == (answer == "truth") else "not")
    )
    assert settled.returncode == 0, settled.stderr
    assert settled.stdout == "['book', 'of child', 'packed', 'charge']\n"
    log = (tmp_path / "log").read_text().split("\n")[:-1]
    made = ["book", "of child", "packed", "charge"]
    undone = [f"undo {each}" for each in reversed(made)]
    name = place.partition(" ")[2]
    expected = [each for each in undone if each != name]
    times = {"truth": 1, "other": 2 if happened else 0}[answer]
    assert [each for each in log if each.startswith("undo") and each != name] == expected
    assert log.count(name) == times
    assert [each for each in log if not each.startswith("undo")] == made * 2


DIES_BETWEEN = """
import os, signal, sys
import stepwise
from stepwise import step, tool, workflow
from stepwise._calls import compensation as _compensation

def undo(call):
    print("undo")

@tool(side_effect=True, compensate=undo)
def book():
    print("book")
    return "booked"

@step
def look():
    pass

@workflow
def child():
    return book()

@workflow
def order():
    booked = child()
    look()
    if sys.argv[1] == "fail":
        raise ValueError("no")
    return booked

if sys.argv[1] == "undo":
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    _compensation._undoing = lambda e, call, r, real=_compensation._undoing: (
        die() if call.child else real(e, call, r)
    )
    stepwise.get_run("one").compensate()
else:
    try:
        print(order.options(run_id="one")())
    except ValueError as error:
        print(error)
"""


def test_killed_between_a_child_run_and_its_caller(tmp_path):
    """Killed when the child run is undone and its caller does not know it, it is made anew."""
    program = tmp_path / "program.py"
    program.write_text(DIES_BETWEEN, encoding="utf-8")
    told = []
    for what in ("fail", "undo", "again"):
        done = python(program, what, env={**os.environ, "STEPWISE_HOME": str(tmp_path / "home")})
        told.append((done.returncode, done.stdout.split()))
    assert told == [(0, ["book", "no"]), (-9, ["undo"]), (0, ["book", "booked"])]
