"""Checkpoints of plain data whose parts are stored already: what is shared comes back shared.

Random programs put the results of steps, and dicts around them, into two lists and a third
variable.  After each step, the variables in the checkpoint are compared with the live ones: their
values, their order, and which of them are one object.
"""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from killed import Killed, played_to_the_end
from messages import Plain, described

from stepwise import step, workflow
from stepwise._checkpoints.references import References

dying = set()
numbers = itertools.count()


@step
def reply(number, size):
    if number in dying:
        dying.remove(number)
        raise Killed
    return answer(number, size)


def answer(number, size):
    tools = [{"name": "search", "arguments": {"number": number}}]
    return {
        "role": "assistant",
        "content": f"{number:05d} " * (size // 6),
        "tools": tools,
        "pair": (1, number),
    }


def changed(how, made, first, second, note):
    """Return the three variables after one change."""
    if how == "reply":
        first.append(made)
    elif how == "wrapped":
        first.append({"role": "tool", "content": made})
    elif how == "text":
        first.append({"role": "tool", "content": made["content"], "number": 1})
    elif how == "tools":
        first.append({"role": "tool", "content": "", "tools": made["tools"]})
    elif how == "deep":
        first.append({"role": "user", "content": [{"type": "text", "text": made["content"]}]})
    elif how == "deep reply":
        first.append({"role": "user", "content": [made]})
    elif how == "deep and noted":
        first.append({"role": "user", "content": [made]})
        note = made
    elif how == "of the workflow":
        first.append({"role": "user", "content": made["content"] + "!"})
    elif how == "little":
        first.append({"n": len(first)})
    elif how == "twice":
        first += [{"role": "tool", "content": made}] * 2
    elif how == "pair":
        first.append((made, first[-1] if first else None))
    elif how == "set":
        first.append({1, "two", made["content"]})
    elif how == "instance":
        first.append(Plain("user", made))
    elif how == "note":
        note = made
    elif how == "note last":
        note = first[-1] if first else None
    elif how == "note inside":
        note = {"of": first, "made": made}
    elif how == "share":
        second.append(first[-1] if first else made)
    elif how == "both":
        first.append(made)
        second.append(made)
    elif how == "alias":
        second = first
    elif how == "copy":
        first = [*first, made]
    elif how == "apart":
        second = [made]
    elif how == "nest":
        second.append(first)
    elif how == "change first" and first and type(first[0]) is dict:
        first[0]["seen"] = made["content"]
    elif how == "change made":
        made["seen"] = True
        first.append(made)
    elif how == "change last" and first and type(first[-1]) is dict:
        first[-1]["seen"] = made["tools"]
    elif how == "delete":
        del first[:1]
    elif how == "exchange" and first:
        first[0], first[-1] = first[-1], first[0]
    elif how == "clear":
        first.clear()
    return first, second, note


HOWS = (
    *("reply", "wrapped", "text", "tools", "deep", "deep reply", "of the workflow", "little"),
    *(
        "deep and noted",
        "twice",
        "pair",
        "set",
        "instance",
        "note",
        "note last",
        "note inside",
        "share",
        "both",
    ),
    *("alias", "copy", "apart", "nest", "change first", "change made", "change last", "delete"),
    *("exchange", "clear"),
)
GROWING = ("reply", "wrapped", "text", "little")


@workflow(retention="all")
def hold(script, earlier):
    first, second, note = [answer(-1 - n, 300) for n in range(earlier)], [], None
    for number, (how, size) in enumerate(script):
        first, second, note = changed(how, reply(number, size), first, second, note)
    return described([first, second, note])


def check(script, earlier, killed=()):
    """Execute a program; compare each of its checkpoints with what the variables were."""
    dying.clear()
    dying.update(killed)
    name = f"hold-{next(numbers)}"
    bound = hold.options(store="memory:", run_id=name)
    run = played_to_the_end(lambda: bound.execute(script, earlier))
    states = {each.step: each for each in run.checkpoints}
    first, second, note = [answer(-1 - n, 300) for n in range(earlier)], [], None
    for number, (how, size) in enumerate(script):
        first, second, note = changed(how, answer(number, size), first, second, note)
        if number + 1 in states:
            values = run.locals(at=number + 1)
            found = [values["first"], values["second"], values["note"]]
            assert described(found) == described([first, second, note]), (number, how)
    assert run.result == described([first, second, note])


changes = st.tuples(
    st.sampled_from(HOWS + 4 * GROWING), st.sampled_from([6, 60, 600, 600, 3000, 20_000])
)


@settings(max_examples=60)
@given(
    st.lists(changes, min_size=4, max_size=40).map(tuple),
    st.sampled_from([0, 6, 20, 70]),
    st.sets(st.integers(0, 40), max_size=2),
)
@example((("reply", 600),) * 30, 0, {29})
@example(
    (("text", 600),) * 20 + (("alias", 6), ("note inside", 6)) + (("text", 600),) * 5, 20, {24}
)
@example((("twice", 600), ("wrapped", 600), ("share", 6)) * 8, 20, ())
@example((("reply", 600), ("change last", 600), ("note last", 6)) * 8, 20, {7, 20})
def test_each_checkpoint_holds_the_variables_as_they_were(script, earlier, killed):
    """Whatever the variables share with each other and with what is stored, comes back shared."""
    check(script, earlier, killed)


@pytest.mark.parametrize(
    "script",
    [
        (("reply", 600),) * 20 + (("wrapped", 600), ("note last", 6), ("reply", 600)),
        (("little", 6),) * 70 + (("note inside", 6), ("little", 6)),
        (("reply", 600),) * 20 + (("deep and noted", 600), ("reply", 600)),
    ],
)
def test_the_comparison_sees_what_is_not_shared(monkeypatch, script):
    """Were it not proved that nothing deeper is stored already, an object would come back twice."""
    monkeypatch.setattr(References, "meet", lambda *_: False)
    with pytest.raises(AssertionError):
        check(script, 0)


def looks(monkeypatch, script, earlier=0):
    """Return how often the variables were looked at thoroughly while a program was executed."""
    found = []
    prepare = References.prepare
    monkeypatch.setattr(
        References, "prepare", lambda self, *given: found.append(1) or prepare(self, *given)
    )
    check(script, earlier)
    return len(found)


@pytest.mark.parametrize("how", GROWING[:3])
def test_growing_lists_are_looked_at_now_and_then(monkeypatch, how):
    """Lists that grow by one item a step are searched for what is stored once in eight steps."""
    assert looks(monkeypatch, ((how, 600),) * 160, 20) <= 160 // 8 + 3


def test_what_is_in_vain_is_not_tried_each_time(monkeypatch):
    """Variables that cannot be set apart are not pickled twice at each checkpoint."""
    tried = []
    apart = References.apart
    monkeypatch.setattr(
        References,
        "apart",
        lambda *given, **how: ((found := apart(*given, **how)) and tried.append(1)) or found,
    )
    check((("instance", 600),) * 100, 20)
    assert len(tried) <= 2 * 100 // 32 + 2  # at most two checkpoints at each step


def resumed_everywhere(program, count, *, kills=range(1, 40)):
    """Return the results of a workflow, undisturbed and killed in each of these steps."""
    found = []
    for killed in (None, *kills):
        dying.clear()
        dying.update({killed} - {None})
        name = f"hold-{next(numbers)}"
        bound = program.options(store="memory:", run_id=name)
        found.append(played_to_the_end(lambda bound=bound: bound.execute(count)).result)
    return found[0], found[1:]


@workflow
def pairs_of(count):
    log, pairs = [], []
    following = iter(range(100, 300))
    for number, value in enumerate(following):
        log.append(reply(number, 600))
        pairs.append((number, value, next(following)))
        if number == count:
            break
    return pairs


@workflow
def held_in_a_list(count):
    log, pairs = [], []
    following = iter(range(100, 300))
    all_of_them = [following]
    for number in range(count):
        log.append(reply(number, 600))
        pairs.append((next(following), next(all_of_them[0])))
    return pairs


@pytest.mark.parametrize("program", [pairs_of, held_in_a_list])
def test_an_iterator_that_something_else_holds_stays_one(program):
    """An iterator that a loop, or a list, goes on with as well is not written apart from that."""
    undisturbed, resumed = resumed_everywhere(program, 40)
    assert all(each == undisturbed for each in resumed)


@workflow
def under_a_number(count):
    log, key = [], float("nan")
    for number in range(count):
        log.append({key: reply(number, 600), "number": number})
    return [len(each) for each in log]


@workflow
def pair_held_twice(count):
    log, found, pair, note = [], [], None, None
    for number in range(count):
        made = reply(number, 600)
        log.append(made)
        if number == 25:
            pair = made["pair"]
            note = [{"of": [pair]}]
        found.append(note is None or note[0]["of"][0] is pair)
    return found


def test_a_key_that_does_not_equal_itself_stays_one():
    """A value under a NaN is not put beside the place that was kept for it."""
    undisturbed, resumed = resumed_everywhere(under_a_number, 40)
    assert all(each == undisturbed for each in resumed)


def test_a_tuple_stays_one():
    """A tuple of a result that is met deeper in another variable is the same object there."""
    undisturbed, resumed = resumed_everywhere(pair_held_twice, 40)
    assert all(each == undisturbed for each in resumed)


@workflow
def keep_all(count):
    log = []
    for number in range(count):
        log.append(reply(number, 600))
    return [each["content"] for each in log]


def test_a_change_by_a_daemon_while_a_checkpoint_is_taken_is_not_lost(monkeypatch):
    """A message that a thread changes after the thorough look is written, and the run goes on."""
    prepare, changing = References.prepare, []

    def prepare_while_it_changes(self, values, arguments):
        values = list(values)
        prepare(self, values, arguments)
        found = [each for each in values if type(each) is list and len(each) > 20]
        if found and not changing:
            changing.append(found[0][1])
            found[0][1]["content"] = "changed"

    monkeypatch.setattr(References, "prepare", prepare_while_it_changes)
    dying.clear()
    bound = keep_all.options(store="memory:", run_id=f"hold-{next(numbers)}")
    result = bound.execute(40).result
    assert changing
    assert result[1] == "changed"


@step
def made(number):
    return Plain("model", f"{number:05d} " * 100)


references, alive = [], []


@workflow
def shortened_now_and_then(count):
    log = []
    for number in range(count):
        log.append(made(number))
        references.append(weakref.ref(log[-1]))
        if number % 50 == 49:
            log = log[-2:]
        gc.collect()
        alive.append(sum(each() is not None for each in references))


def test_a_list_that_no_variable_names_any_more_is_let_go():
    """A run does not hold the messages that the workflow has dropped with their list."""
    references.clear()
    alive.clear()
    shortened_now_and_then.options(store="memory:", run_id=f"hold-{next(numbers)}").execute(200)
    assert len(alive) == 200
    assert max(alive) < 120


newest = []


@workflow
def wrap_all(count):
    log = []
    for number in range(count):
        log.append({"role": "tool", "content": reply(number, 600)})
        newest[:] = log[-1:]
    return len(log)


def test_a_message_that_a_daemon_adds_to_meanwhile_does_not_break_the_run(monkeypatch):
    """A dict that grows while it is set apart is written as it was, or in the thorough way."""
    reference, grown = References._reference, []

    def reference_while_it_grows(self, node):
        if newest and len(grown) < 50:
            newest[0][f"late {len(grown)}"] = grown.append(1)
        return reference(self, node)

    monkeypatch.setattr(References, "_reference", reference_while_it_grows)
    dying.clear()
    newest.clear()
    bound = wrap_all.options(store="memory:", run_id=f"hold-{next(numbers)}")
    assert bound.execute(40).result == 40
    assert grown
