"""Undoing the side effects of a run, the newest first, whatever dies in between."""

import asyncio
import contextlib
import os
import pathlib
import textwrap

import pytest
from flows import flow_of
from harness import python
from outside import Log, Outside
from sweeping import some

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


class SoldOut(Exception):
    pass


def order_of(body, **options):
    """A run ``one`` that makes the calls of a function, and fails after them."""

    @workflow(run_id="one", **options)
    def order():
        body()
        raise SoldOut

    return order


def fails(order, error=SoldOut):
    """Execute a workflow that fails; its run."""
    with pytest.raises(error):
        order()
    return stepwise.get_run("one")


# -- in one process ------------------------------------------------------------------------------


@pytest.mark.parametrize("undone", [True, False])
def test_a_failed_workflow_is_undone_newest_first(world, undone):
    """With compensate_on_failure, completed tools are undone newest first, and the error stays."""
    book, charge = world.tool("book"), world.tool("charge")
    both = order_of(lambda: [book("bike"), charge("bike")], compensate_on_failure=undone)
    run = fails(both)
    expected = ["undo charge bike", "undo book bike"] if undone else []
    assert world.done == ["book bike", "charge bike", *expected]
    assert run.status == "failed"
    assert [each.status for each in run.steps] == ["compensated" if undone else "completed"] * 2
    assert isinstance(run.error, SoldOut)


def test_what_was_undone_is_done_anew(world):
    """Called again after it was undone, a workflow makes the tools anew and answers the steps."""
    book, stock = world.tool("book"), [0]
    look = step(name="look")(lambda: world.done.append("look"))

    @workflow(run_id="one", compensate_on_failure=True)
    def order():
        look()
        booked = book("bike")
        if not stock[0]:
            raise SoldOut
        return booked

    fails(order)
    stock[0] = 1
    assert order() == "book-bike"
    assert world.done == ["look", "book bike", "undo book bike", "book bike"]


def test_what_is_done_anew_is_another_act():
    """Each time it is made anew it has other keys, so that nobody outside drops it as known.

    So have those that are left when the run is interrupted meanwhile.
    """
    keys, moods = Log(), Log(["fails", "fails", "is interrupted", "fails"])

    @tool(side_effect=True, compensate=lambda call: keys.append(call.compensation_key))
    def book(item):
        keys.append(stepwise.current_step().idempotency_key)

    @workflow(run_id="one", compensate_on_failure=True)
    def order():
        book("bike")
        if moods[0] == "is interrupted":
            raise KeyboardInterrupt
        book("bike")
        raise SoldOut

    while moods:
        fails(order, KeyboardInterrupt if moods[0] == "is interrupted" else SoldOut)
        moods.pop(0)
    assert len(keys) == len(set(keys)) == 12


@pytest.mark.parametrize("in_doubt", ["settled by hand", "asked"])
def test_a_repeated_act_that_is_in_doubt_keeps_its_key(in_doubt):
    """What was made anew and is in doubt is asked about by the key that it was given."""
    given, asked, moods = Log(), Log(), Log([SoldOut, KeyboardInterrupt])

    def ask(call):
        asked.append(call.idempotency_key)
        return DidNotHappen

    in_doubt = ask if in_doubt == "asked" else "raise"

    @tool(side_effect=True, compensate=lambda call: None, in_doubt=in_doubt)
    def book():
        given.append(stepwise.current_step().idempotency_key)
        if moods == [KeyboardInterrupt]:
            raise moods.pop()

    @workflow(run_id="one", compensate_on_failure=True)
    def order():
        book()
        if moods:
            raise moods.pop(0)
        return "done"

    fails(order)
    run = fails(order, KeyboardInterrupt)
    if in_doubt == "raise":
        (open_one,) = [each for each in run.steps if each.status == "in_doubt"]
        assert open_one.idempotency_key == given[1]
        run.resolve(open_one.number, did_not_happen=True)
    assert order() == "done"
    assert given[0] != given[1] == given[2]
    assert asked == ([] if in_doubt == "raise" else [given[1]])


def test_what_was_made_again_with_other_arguments_is_undone_with_those():
    """A call made again, which somebody said is the recorded one, is undone as it was made then."""
    items, done = ["bike"], []

    @tool(side_effect=True, compensate=lambda call: done.append(f"undo {call.arguments['item']}"))
    def book(item):
        if item == "bike":
            raise KeyboardInterrupt
        done.append(f"book {item}")

    order = order_of(lambda: book(items[0]), compensate_on_failure=True)
    run = fails(order, KeyboardInterrupt)
    items[0] = "boat"
    with pytest.raises(stepwise.StepInDoubtError, match="arguments that are not recorded"):
        order()
    run.resolve(1, same=True)
    run.resolve(1, did_not_happen=True)
    fails(order)
    assert done == ["book boat", "undo boat"]


def test_what_a_compensation_is_given():
    """A compensation gets the arguments, the result, and keys that are stable and different."""
    calls = []

    @tool(side_effect=True, compensate=calls.append)
    def charge(customer, *, cents=100):
        return {"id": customer, "key": stepwise.current_step().idempotency_key}

    run = flow_of(lambda: charge("ann", cents=5)).execute()
    run.compensate()
    (call,) = calls
    assert isinstance(call, CompletedCall)
    assert (call.name, call.arguments) == (run.steps[0].name, {"customer": "ann", "cents": 5})
    assert call.result == {"id": "ann", "key": call.idempotency_key}
    assert call.compensation_key != call.idempotency_key


def test_a_completed_run_is_undone_on_request(world):
    """Run.compensate() undoes a completed run and says how many; a second call finds none.

    Tools of child runs and tools called inside steps are undone in place, and made anew.
    """
    book = world.tool("book")
    pair = step(name="pair")(lambda item: [book(item), book(item + "2")])
    child = flow_of(lambda: book("of child"), run_id=None)
    order = flow_of(lambda: [book("first"), child(), pair("in step"), book("last")])
    run = order.execute()
    made, result = list(world.done), run.result
    assert run.compensate() == 5
    assert run.compensate() == 0
    assert world.done[5:] == [f"undo {each}" for each in reversed(made)]
    assert (run.status, run.result) == ("failed", None)
    assert order() == result
    assert world.done[10:] == made


def test_a_child_run_that_is_undone_in_part_is_not_taken_for_undone(world):
    """Undoing a caller again goes on in its child run where a compensation had raised."""
    book = world.tool("book", fails_cleanly=ConnectionError)
    run = flow_of(flow_of(lambda: [book("one"), book("two")], run_id=None)).execute()
    world.failing = "one"
    with pytest.raises(ConnectionError):
        run.compensate()
    world.done.clear()
    world.failing = None
    assert run.compensate() == 1
    assert world.done == ["undo book one"]


def child_of(call):
    """A child run that makes a call."""
    return flow_of(call, run_id=None)


def step_around(call):
    """A step that makes a call."""
    return step(name="around")(lambda: [call()])


INSIDE = {
    "child run": child_of,
    "child run of a child run": lambda call: child_of(child_of(call)),
    "step in a step": lambda call: step_around(step_around(call)),
    "child run in a step": lambda call: step_around(child_of(call)),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("fails_behind", [True, False])
def test_what_was_undone_inside_is_made_anew(world, inside, fails_behind):
    """However deep in child runs and steps a tool was called that is undone: it is made anew.

    So it is though the checkpoint of its caller lies behind it.
    """
    book, failing = world.tool("book"), [fails_behind]
    look = step(name="look")(lambda item: world.done.append(f"look {item}"))
    call = INSIDE[inside](lambda: book("bike"))

    @workflow(run_id="one")
    def order():
        look("one")
        booked = call()
        look("two")
        if failing.pop():
            raise SoldOut
        return booked

    run = fails(order) if fails_behind else order.execute()
    assert run.compensate() == 1
    failing.append(False)
    assert "book-bike" in str(order())
    assert world.done == ["look one", "book bike", "look two", "undo book bike", "book bike"]
    assert run.status == "completed"


def test_a_child_run_without_anything_to_undo_keeps_its_caller_as_it_was():
    """Undoing a run of which nothing can be undone leaves it completed."""
    sent = []
    send = tool(name="send", side_effect=True)(lambda: sent.append("mail"))
    run = flow_of(child_of(child_of(send))).execute()
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

    works = {"book": lambda memory: book("bike"), "look": lambda memory: None, "pack": pack}
    graph = Graph([*map(Node, works, works.values())], [Edge("book", "look"), Edge("look", "pack")])
    manager = CheckpointManager(f"disk:{tmp_path / 'store'}")

    def attempt():
        return asyncio.run(GraphExecutor(None, manager).execute(graph, "goal", None, None))

    failed = attempt()
    assert not failed.success
    with fresh_store(tmp_path / "store"):
        assert stepwise.get_run(failed.run_id).compensate() == 1
    assert attempt().success
    assert world.done == ["book bike", "undo book bike", "book bike"]


def test_what_ended_last_is_undone_first(world):
    """A tool that called another one ended after it, and is undone before it."""
    book = world.tool("book")
    ship = tool(name="ship", side_effect=True, compensate=world.undo)(lambda item: book(item))  # noqa: PLW0108
    assert flow_of(lambda: ship("bike")).execute().compensate() == 2
    assert world.done == ["book bike", "undo ship bike", "undo book bike"]


def test_a_side_effect_around_what_was_undone_is_not_repeated(world):
    """A side-effecting tool is not made anew because a tool that it called was undone."""
    book = world.tool("book")

    @tool(side_effect=True)
    def ship():
        world.done.append("ship")
        return book("bike")

    order = flow_of(step_around(ship))
    assert order.execute().compensate() == 1
    assert order() == ["book-bike"]
    assert world.done == ["ship", "book bike", "undo book bike"]


def test_a_failing_compensation_stops_and_is_in_doubt(world):
    """A compensation that raises leaves the older effects alone, and is in doubt until settled."""
    book = world.tool("book")
    order = flow_of(lambda: [book("a"), book("b"), book("c")])
    run = order.execute()
    world.failing = "b"
    with pytest.raises(ConnectionError):
        run.compensate()
    assert [each.status for each in run.steps] == ["completed", "in_doubt", "compensated"]
    with pytest.raises(stepwise.StepInDoubtError, match="compensation of"):
        run.compensate()
    with pytest.raises(stepwise.StepInDoubtError, match="--did-not-happen"):
        order()
    run.resolve(2, did_not_happen=True)
    world.failing = None
    assert run.compensate() == 2
    assert world.done[3:] == ["undo book c", "undo book b", "undo book b", "undo book a"]


def test_a_failing_compensation_does_not_hide_the_failure(world):
    """When undoing fails as well, the workflow's own error propagates and a warning tells."""
    book, world.failing = world.tool("book"), "a"
    with pytest.warns(stepwise.RunWarning, match="undoing its side effects failed too"):
        fails(order_of(lambda: book("a"), compensate_on_failure=True))


def test_a_clean_failure_of_a_compensation_may_be_tried_again(world):
    """An exception in fails_cleanly proves that nothing was undone: it can be tried at once."""
    book = world.tool("book", fails_cleanly=(ConnectionError,))
    run = flow_of(lambda: book("a")).execute()
    world.failing = "a"
    with pytest.raises(ConnectionError):
        run.compensate()
    world.failing = None
    assert run.compensate() == 1


@pytest.mark.parametrize("answer", ["landed", "not", "raise"])
def test_tools_in_doubt(answer):
    """A tool in doubt is undone if its reconcile says it happened; unknown, it is left and told."""
    errors, undone = [], []

    def reconcile(call):
        errors.append(repr(call.error))
        return Landed("id-7") if answer == "landed" else DidNotHappen

    in_doubt = "raise" if answer == "raise" else reconcile

    @tool(side_effect=True, compensate=undone.append, in_doubt=in_doubt)
    def charge(items):
        items.append("fee")
        raise TimeoutError("slow")

    told = pytest.warns(stepwise.RunWarning, match="is in doubt, so it is not undone")
    with told if answer == "raise" else contextlib.nullcontext():
        fails(order_of(lambda: charge(["book"]), compensate_on_failure=True), TimeoutError)
    assert errors == ([] if answer == "raise" else ["TimeoutError('slow')"])
    assert [call.result for call in undone] == (["id-7"] if answer == "landed" else [])


def test_asynchronous_workflows_and_compensations():
    """Coroutine functions are awaited, in workflows of every kind; generators are undone, too."""
    done = []

    async def undo(call):
        done.append(call.arguments["item"])

    async def abook(item):
        return item

    book = tool(name="book", side_effect=True, compensate=undo)(lambda item: item)
    abook = tool(side_effect=True, compensate=undo)(abook)

    @workflow(compensate_on_failure=True)
    async def aorder():
        await abook("a")
        raise SoldOut

    @workflow(compensate_on_failure=True)
    def generator():
        yield book("c")
        raise SoldOut

    with pytest.raises(SoldOut):
        asyncio.run(aorder())
    fails(order_of(lambda: book("b"), compensate_on_failure=True))
    with pytest.raises(SoldOut):
        list(generator())
    assert done == ["a", "b", "c"]


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
    send = tool(name="send", side_effect=True, compensate=world.undo, ignore=("stream",))
    send = send(lambda item, stream: None)
    with open(os.devnull, encoding="utf-8") as stream:
        order = flow_of(lambda: send("a", stream))
        with pytest.raises(stepwise.NotRecordableError, match=r"to undo it.*\['stream'\]"):
            order()


def test_a_tool_that_is_gone(world):
    """A program that does not define the tool is told which module to import."""
    book = world.tool("vanishing")
    run = flow_of(lambda: book("a")).execute()
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
    python("order.py", cwd=tmp_path, env={**os.environ}, code=0)
    (run,) = stepwise.runs(store=home / "store")
    with pytest.raises(stepwise.ConfigurationError, match=r"import the script.*at order\.py:10"):
        run.compensate()


SHARED = """
    from stepwise import tool, workflow

    @tool(side_effect=True, compensate=lambda call: print("undone in", __file__))
    def book_for_two(what):
        return what

    @workflow
    def order():
        return book_for_two("a")

    if __name__ == "__main__":
        order()
"""


@pytest.mark.parametrize("runs_as", ["a script", "a module"])
def test_a_tool_of_the_same_name_elsewhere(tmp_path, home, runs_as):
    """Only the tool of the file that was called undoes a call, under whatever name it is loaded."""
    for name in ("order.py", "other.py"):
        (tmp_path / name).write_text(textwrap.dedent(SHARED))
    undo = "import stepwise, {0}; (run,) = stepwise.runs(); run.compensate()"
    start = ("order.py",) if runs_as == "a script" else ("-c", "import order; order.order()")
    done = python(*start, cwd=tmp_path, env={**os.environ}, code=0)
    done = python("-c", undo.format("other"), cwd=tmp_path, env={**os.environ})
    assert "this program has no tool" in done.stderr
    assert done.stdout == ""
    done = python("-c", undo.format("order"), cwd=tmp_path, env={**os.environ})
    assert done.stdout == f"undone in {tmp_path / 'order.py'}\n"


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


ANSWERED = [
    *((place, "truth") for place in PLACES),
    *((place, "other") for place in some(PLACES, 2, "other")),
]


@pytest.mark.parametrize(("place", "answer"), ANSWERED)
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
