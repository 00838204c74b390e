"""The digest of a long list is that of its items, whatever was digested of it before."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from stepwise import step, workflow
from stepwise._values import digest
from stepwise._values.digest import Numbering
from stepwise._values.trees import Watch


@pytest.fixture(autouse=True)
def nothing_known():
    digest.forget()
    yield
    digest.forget()


def plainly(value, numbering=None, *, of=digest.digest):
    """The digest of a value without anything that was known of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest.Encoder, "grows", False)
        return of(value, numbering)


def message(n):
    return {"role": "user", "content": f"message {n} " * 9, "n": n, "parts": [{"id": n}, (n, None)]}


def update(name, value):
    return lambda messages, n: messages[n % len(messages)].update({name: value(n)})


def change_type(messages, n):
    each = messages[n % len(messages)]
    each["n"] = float(each["n"]) if type(each["n"]) is int else int(each["n"])


def delete(messages, n):
    if len(messages) > 1:
        del messages[n % len(messages)]


def append(messages, n):
    messages.append(message(n))


OPERATIONS = {
    "append": append,
    "change": update("content", lambda n: n),
    "type": change_type,
    "inside": lambda messages, n: messages[n % len(messages)]["parts"][0].update(id=True),
    "equal": lambda messages, n: messages.__setitem__(0, copy.deepcopy(messages[0])),
    "delete": delete,
    "turn": lambda messages, n: messages.reverse(),
    "other": lambda messages, n: messages[n % len(messages)]["parts"].append({1, n}),
    "itself": lambda messages, n: messages[n % len(messages)]["parts"].append(messages),
}


@given(
    length=st.sampled_from([2, 15, 16, 17, 130]),
    operations=st.lists(
        st.tuples(st.sampled_from([*OPERATIONS, "append", "append"]), st.integers(0, 200)),
        max_size=12,
    ),
)
def test_the_digest_is_the_same(length, operations):
    """Whatever was done to a list between two digests, the second is as without the first."""
    messages = [message(n) for n in range(length)]
    for operation, n in operations:
        OPERATIONS[operation](messages, n)
        assert digest.digest(messages) == plainly(messages)
        assert digest.digest({"m": [messages], "n": n}) == plainly({"m": [messages], "n": n})


@dataclasses.dataclass
class Note:
    text: str
    id: str
    at: float
    answers: object = None


@pytest.fixture
def fields_of_notes():
    name = f"{Note.__module__}.{Note.__qualname__}"
    stepwise.configure(volatile={name: "at"}, references={name: ("id", "answers")})
    yield
    stepwise.configure(volatile={}, references={})


ids = st.sampled_from(["a", "b", "c"])
notes = st.builds(Note, st.just("note"), ids, st.floats(0, 9), st.none() | ids)
parts = notes | st.builds(lambda each: {"role": "tool", "content": [each]}, notes)
lists = st.lists(parts, min_size=6, max_size=10) | st.lists(parts, min_size=14, max_size=18)


@given(
    before=st.lists(parts, max_size=2),
    first=lists,
    second=lists,
    more=st.lists(st.tuples(st.booleans(), parts), max_size=4),
)
@pytest.mark.usefixtures("fields_of_notes")
def test_references_count_as_in_a_list_that_is_not_known(before, first, second, more):
    """Lists with references have the digest that they have anew, alone, beside and in others."""
    around = {"before": before, "first": first, "second": [second, {"again": first}]}
    for to_first, part in [(True, {}), *more, (False, {})]:
        for value in (first, [second], around):
            assert digest.digest(value, Numbering()) == plainly(value, Numbering())
            assert digest.digest(value) == plainly(value)
        (first if to_first else second).append(part)


@pytest.mark.parametrize("make", [message, lambda n: Note("note", "a", n)])
@pytest.mark.parametrize("length", [20, 100])
def test_a_change_while_a_list_is_digested_shows_at_the_next_digest(monkeypatch, length, make):
    """What another thread changes while new items are encoded is not taken for what was encoded."""
    messages = [make(n) for n in range(length)]
    for _ in range(3):
        digest.digest(messages)
    right = digest.Encoder.joined

    def joined(self, new, *how):
        encoded = right(self, new, *how)
        (new[-1] if type(new[-1]) is dict else vars(new[-1]))["text"] = f"changed {len(encoded)}"
        return encoded

    for n in range(12):
        messages.append(make(n))
        with monkeypatch.context() as patch:
            patch.setattr(digest.Encoder, "joined", joined)
            digest.digest(messages)
        for _ in range(1 + n % 3):
            assert digest.digest(messages) == plainly(messages)


def rename_in_new(messages, n):
    each = messages[-1 - n % 3]
    held = [(f"{name} {n}" if name == "role" else name, item) for name, item in each.items()]
    each.clear()
    each.update(held)


def move_in_new(messages, n):
    parts = messages[-1 - n % 3]["parts"]
    parts.append({"id": [[n, n], [n]]})
    digest.digest(messages)
    one, other = parts[-1]["id"]
    other.insert(0, one.pop())


NEW = {
    "append": append,
    "change": lambda messages, n: messages[-1 - n % 3].update(content=f"changed {n}"),
    "lengthen": lambda messages, n: messages[-1 - n % 3]["parts"].append(n),
    "rename": rename_in_new,
    "add": lambda messages, n: messages[-1 - n % 3].update({f"more {n}": n}),
    "move": move_in_new,
}


@given(
    length=st.sampled_from([8, 20, 100]),
    changes=st.lists(st.sampled_from(["append", *NEW]), max_size=30),
)
def test_a_change_of_a_new_message_shows(length, changes):
    """The newest messages count as they are."""
    messages = [message(n) for n in range(length)]
    for n, operation in enumerate(["append"] * 3 + changes):
        NEW[operation](messages, n)
        assert digest.digest(messages) == plainly(messages)


@pytest.mark.parametrize("first", [True, False])
def test_a_change_as_new_messages_join_the_watch_shows(monkeypatch, first):
    """What another thread changes while new messages join the watch over the others is seen."""
    messages = [message(n) for n in range(100)]
    digest.digest(messages)
    messages += [message(n) for n in range(20)]

    def watch(*nodes):
        if first:
            messages[-1]["content"] = "changed"
        made = Watch(*nodes)
        messages[-1]["content"] = "changed"
        return made

    with monkeypatch.context() as patch:
        patch.setattr(digest, "Watch", watch)
        digest.digest(messages)
    assert messages[-1]["content"] == "changed"
    assert digest.digest(messages) == plainly(messages)


@pytest.mark.parametrize("item", [None, 7, "", (), [], {}])
@pytest.mark.parametrize("length", [15, 16])
def test_small_items_are_encoded_alike(item, length):
    """A list of small items has the encoding that it has anew, however often it is met."""
    items = [item] * length
    for _ in range(4):
        assert digest.encode(items) == plainly(items, of=digest.encode)
        assert digest.digest([items]) == plainly([items])


def test_only_what_is_new_is_encoded(monkeypatch):
    """Of a list that grew, the items that were there are not encoded again."""
    messages = [message(n) for n in range(500)]
    digest.digest(messages)
    encoded = []
    right = digest.Encoder.joined
    monkeypatch.setattr(
        digest.Encoder,
        "joined",
        lambda self, new, *how: (encoded.extend(new), right(self, new, *how))[1],
    )
    messages += [message(1), message(2)]
    found = digest.digest(messages)
    assert encoded == messages[-2:]
    assert found == plainly(messages)


def test_what_cannot_be_digested_is_named_with_its_place():
    """An item of a long list that has no digest is named with its index."""
    messages = [message(n) for n in range(100)]
    digest.digest(messages)
    messages.append(message(3))
    messages[70]["parts"] = lambda: None
    with pytest.raises(stepwise.DigestError, match=r"value\[70\]\['parts'\]"):
        digest.digest(messages)


@step
def think(messages):
    return len(messages)


@workflow
def agent(count):
    messages = [message(n) for n in range(100)]
    for _ in range(count):
        messages.append({"n": think(messages)})
    return len(messages)


def test_nothing_is_kept_of_a_run_that_ended():
    """The lists of a run are let go when it ends."""
    agent.options(store="memory:")(5)
    assert digest._grown == {}


def test_a_field_that_a_model_gets_later_counts():
    """Models that differ in a field added by ``model_rebuild`` have different digests."""
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        a: int

    digest.digest(Model(a=1))
    Model.__pydantic_fields__["b"] = pydantic.fields.FieldInfo(annotation=int, default=0)
    Model.model_rebuild(force=True)
    assert digest.digest(Model(a=1, b=1)) != digest.digest(Model(a=1, b=2))


def test_classes_that_say_that_they_are_equal_have_their_own_fields():
    """The fields of one dataclass are not taken for those of another that is equal to it."""

    class Equal(type):
        def __eq__(cls, other):
            return type(other) is Equal

        def __hash__(cls):
            return 1

    def made(**kinds):
        return dataclasses.dataclass(Equal("Data", (), {"__annotations__": kinds}))

    one, two = made(a=int), made(a=int, b=int)
    digest.digest(one(1))
    assert digest.digest(two(1, 1)) != digest.digest(two(1, 2))
