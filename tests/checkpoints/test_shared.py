"""Values of a workflow that share objects with what is stored: what is shared comes back shared."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
from killed import Killed, played_to_the_end
from messages import Plain
from sweeping import some

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


def resumed_everywhere(program, count):
    """Return the results of a workflow, undisturbed and killed in its steps, in CI in a few."""
    found = []
    for killed in (None, *some(range(1, 40), 6, program.__name__)):
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


@pytest.mark.parametrize("program", [pairs_of, held_in_a_list, under_a_number, pair_held_twice])
def test_what_something_else_holds_stays_one(program):
    """An iterator, a tuple, or a value under a NaN is not written apart from who holds it, too."""
    undisturbed, resumed = resumed_everywhere(program, 40)
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
        if number % 10 == 9:
            gc.collect()
            alive.append(sum(each() is not None for each in references))


def test_a_list_that_no_variable_names_any_more_is_let_go():
    """A run does not hold the messages that the workflow has dropped with their list."""
    references.clear()
    alive.clear()
    shortened_now_and_then.options(store="memory:", run_id=f"hold-{next(numbers)}").execute(200)
    assert len(alive) == 20
    assert max(alive) < 120
