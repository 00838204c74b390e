"""What was looked at before: digests and outlooks are made anew where they have to be."""

from __future__ import annotations

import dataclasses
import random
import threading
import weakref

import pytest

from stepwise import tool, workflow
from stepwise._identity.held_parts import Holder, Sights
from stepwise._identity.identity import Parameters, digest_part
from stepwise._values import digest as list_digest


@dataclasses.dataclass
class Message:
    role: str
    content: str
    tags: dict


class Slotted:
    __slots__ = ("history", "model")


class Team(list):
    pass


class Agent:
    pass


def method(self):
    pass


def held_by(instance):
    return Holder("ask", method, Parameters(method, what="step"), instance, type(instance))


def filled(instance):
    instance.model = "gpt"
    instance.history = [{"role": "user", "content": "hello", "parts": [1, 2]}]
    if not isinstance(instance, Slotted):
        instance.calls = 0
        instance.limits = {"tokens": 100, "cents": 5}
        instance.fixed = (1, 2.5, ("x",))
        instance.flat = [1, 2, 3]
        instance.deep = ({"in a tuple": [1]},)
        instance.messages = [Message("user", "hi", {"a": 1})]
        instance.lock = threading.Lock()
        instance.seen = {1, 2}
        instance.parent = instance
    return instance


def changes_of(instance):
    """Changes that a step body or a workflow makes, in place or not, visible in a digest or not."""
    yield lambda: instance.history.append({"role": "tool"})
    yield lambda: instance.history[0].update(content="other")
    yield lambda: instance.history[0].__setitem__("content", "other"[:])
    yield lambda: instance.history[0]["parts"].append(3)
    yield lambda: setattr(instance, "model", "claude")
    yield lambda: setattr(instance, "history", [*instance.history])
    if isinstance(instance, Team):
        yield lambda: instance.append(1)
    if not isinstance(instance, Slotted):
        yield lambda: instance.flat.__setitem__(0, instance.flat[0] + 1)
        yield lambda: instance.flat.__setitem__(1, True)
        yield lambda: instance.limits.__setitem__("cents", len(instance.history))
        yield lambda: instance.limits.__setitem__("euros", instance.limits.pop("cents", 1))
        yield lambda: instance.limits.__setitem__("cents", instance.limits.pop("euros", 1))
        yield lambda: instance.deep[0]["in a tuple"].append(2)
        yield lambda: setattr(instance.messages[0], "content", "bye")
        yield lambda: instance.messages[0].tags.update(b=len(instance.messages[0].tags))
        yield lambda: instance.seen.add(random.randrange(100))
        yield lambda: setattr(instance, "calls", instance.calls + 1)
        yield lambda: setattr(instance, "lock", threading.Lock())
        yield lambda: instance.__dict__.pop("extra", None)
        yield lambda: setattr(instance, "extra", [])


def expected(instance):
    holder = held_by(instance)
    return {name: holder.digest(name, value)[0] for name, value in holder.values().items()}


@pytest.mark.parametrize("make", [Agent, Slotted, Team])
def test_each_look_gives_the_digests_of_what_is_held_now(make):
    """However an instance was changed between two looks, the parts are those of a first look."""
    instance, sights = filled(make()), Sights(lambda _: "")
    steps, state = list(changes_of(instance)), set()
    chosen = random.Random(7)
    for number in range(150):
        for _ in range(chosen.choice((0, 0, 0, 1, 2))):
            chosen.choice(steps)()
        sight = sights.look(held_by(instance), state)
        assert sight.texts == expected(instance), number
        assert sight.values.keys() == sight.parts.keys()


def test_what_has_not_changed_is_not_digested_again(monkeypatch):
    """From the fourth look on, plain data, models and what has no digest cost no digest."""
    instance, sights = filled(Agent()), Sights(lambda _: "")
    del instance.parent, instance.seen
    for _ in range(3):
        sights.look(held_by(instance), set())
    digested = []
    monkeypatch.setattr(
        "stepwise._identity.held_parts.digest_part",
        lambda *given: digested.append(given) or digest_part(*given),
    )
    before = sights.look(held_by(instance), set())
    assert sights.look(held_by(instance), set()) is before
    instance.calls += 1
    assert sights.look(held_by(instance), set()) is not before
    assert [value for value, *_ in digested] == [1]


def test_a_large_list_is_remembered_when_it_is_digested_again():
    """One that nobody changes is digested once, and nothing is kept for a second time."""
    agent = Agent()
    agent.history = [{"role": "user", "content": f"hello {n}"} for n in range(1500)]
    sights, holder = Sights(lambda unknown: "?"), held_by(agent)
    for times in (0, 1, 1):
        text = sights.look(holder, ()).texts["self.history"]
        assert text == digest_part(list(agent.history), (agent,), once=True)[0]
        assert list_digest.held(agent.history) == times
        agent.history.append({"role": "user", "content": f"more {times}"})


def test_sights_that_are_let_go_hold_nothing():
    """What nobody but a sight holds is garbage once the sights are let go."""
    instance, sights = Agent(), Sights(lambda _: "")
    instance.inner = inner = Agent()
    inner.name = "a"
    gone = threading.Event()
    weakref.finalize(inner, gone.set)
    for _ in range(4):
        sights.look(held_by(instance), set())
    instance.inner = None
    del inner
    sights.let_go()
    assert gone.is_set()


# -- who else is alive ---------------------------------------------------------------------------


class Channel:
    def __init__(self, name):
        self.name = name

    @tool(side_effect=True)
    def post(self, number):
        posted.append((self.name, number))


posted = []


def test_garbage_is_collected_once_for_each_live_instance(monkeypatch):
    """A resume with many side effects beside another instance's records is not slowed by each."""
    one, other = Channel("one"), Channel("other")
    fails = [True]

    def act():
        for number in range(10):
            other.post(number)
        if fails:
            raise ValueError(fails.pop())

    @workflow
    def posting():
        if not fails:
            for number in range(100, 130):
                one.post(number)
        act()

    with pytest.raises(ValueError, match="True"):
        posting()
    collected = []
    monkeypatch.setattr("stepwise._matching.pool.gc.collect", lambda: collected.append(1))
    posting()
    assert posted == [
        *(("other", number) for number in range(10)),
        *(("one", number) for number in range(100, 130)),
    ]
    assert len(collected) == 1
