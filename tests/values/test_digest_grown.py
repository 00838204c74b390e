"""The digest of a long list is that of its items, whatever was digested of it before."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwise
from stepwise import step, workflow
from stepwise._identity.parts import digest_part
from stepwise._values import digest, list_digest
from stepwise._values.message_fields import Numbering
from stepwise._values.trees import Watch


@pytest.fixture(autouse=True)
def nothing_known():
    list_digest.forget()
    yield
    list_digest.forget()


def plainly(value, numbering=None, *, of=digest.digest):
    """The digest of a value without anything that was known of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest.Encoder, "grows", False)
        return of(value, numbering)


def message(n):
    return {"role": "user", "content": f"message {n} " * 9, "n": n, "parts": [{"id": n}, (n, None)]}


def append(messages, n):
    messages.append(message(n))


def change(messages, n):
    messages[n % len(messages)]["content"] = n


def change_type(messages, n):
    each = messages[n % len(messages)]
    each["n"] = float(each["n"]) if type(each["n"]) is int else int(each["n"])


def change_inside(messages, n):
    messages[n % len(messages)]["parts"][0]["id"] = True


def put_equal(messages, n):
    messages[n % len(messages)] = copy.deepcopy(messages[n % len(messages)])


def delete(messages, n):
    if len(messages) > 1:
        del messages[n % len(messages)]


def turn(messages, n):
    messages.reverse()


def other(messages, n):
    messages[n % len(messages)]["parts"].append({1, n})


def itself(messages, n):
    messages[n % len(messages)]["parts"].append(messages)


OPERATIONS = [append, change, change_type, change_inside, put_equal, delete, turn, other, itself]


@settings(
    max_examples=60,
)
@given(
    length=st.sampled_from([2, 7, 8, 9, 31, 63, 64, 65, 130]),
    operations=st.lists(
        st.tuples(st.sampled_from([*OPERATIONS, append, append]), st.integers(0, 200)), max_size=12
    ),
)
def test_the_digest_is_the_same(length, operations):
    """Whatever was done to a list between two digests, the second is as without the first."""
    messages = [message(n) for n in range(length)]
    for operation, n in operations:
        operation(messages, n)
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
lists = st.lists(parts, min_size=6, max_size=10) | st.lists(parts, min_size=62, max_size=66)


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


def test_a_short_list_is_known_when_it_was_met_again(monkeypatch):
    """Of a short list that grew, what was there at its third digest is not encoded again."""
    messages = [message(n) for n in range(20)]
    for n in range(3):
        assert list_digest._grown == {}
        digest.digest(messages)
        messages.append(message(n))
    encoded = []
    right = digest.Encoder.joined
    monkeypatch.setattr(
        digest.Encoder,
        "joined",
        lambda self, new, *how: (encoded.extend(new), right(self, new, *how))[1],
    )
    assert digest.digest(messages) == plainly(messages)
    assert encoded == messages[-1:]


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

    for n in range(40):
        messages.append(make(n))
        with monkeypatch.context() as patch:
            patch.setattr(digest.Encoder, "joined", joined)
            digest.digest(messages)
        for _ in range(1 + n % 3):
            assert digest.digest(messages) == plainly(messages)


def change_new(messages, n):
    messages[-1 - n % 3]["content"] = f"changed {n}"


def lengthen_new(messages, n):
    messages[-1 - n % 3]["parts"].append(n)


def rename_in_new(messages, n):
    each = messages[-1 - n % 3]
    held = [(f"{name} {n}" if name == "role" else name, item) for name, item in each.items()]
    each.clear()
    each.update(held)


def add_to_new(messages, n):
    messages[-1 - n % 3][f"more {n}"] = n


def move_in_new(messages, n):
    parts = messages[-1 - n % 3]["parts"]
    parts.append({"id": [[n, n], [n]]})
    digest.digest(messages)
    one, other = parts[-1]["id"]
    other.insert(0, one.pop())


NEW = [append, append, change_new, lengthen_new, rename_in_new, add_to_new, move_in_new]


@given(
    length=st.sampled_from([8, 20, 100]),
    changes=st.lists(st.sampled_from(NEW), max_size=30),
)
def test_a_change_of_a_new_message_shows(length, changes):
    """The newest messages, which are watched in another way, count as they are."""
    messages = [message(n) for n in range(length)]
    for n, operation in enumerate([append, append, append, *changes]):
        operation(messages, n)
        assert digest.digest(messages) == plainly(messages)


def test_a_change_as_the_watch_takes_over_shows(monkeypatch):
    """What another thread changes while new messages join the watch over the others is seen."""
    messages = [message(n) for n in range(100)]
    digest.digest(messages)
    messages += [message(n) for n in range(20)]
    digest.digest(messages)

    def watch(*nodes):
        messages[-1]["content"] = "changed"
        return Watch(*nodes)

    with monkeypatch.context() as patch:
        patch.setattr(list_digest, "Watch", watch)
        digest.digest(messages)
    assert messages[-1]["content"] == "changed"
    assert digest.digest(messages) == plainly(messages)


def test_lists_that_are_made_for_one_call_are_not_held():
    """Short lists that are digested once each are not held, wherever they lie in memory."""
    for n in range(50):
        digest.digest([message(n) for n in range(n, n + 10)])
    assert list_digest._grown == {}
    assert len(list_digest._met) <= 16


def test_short_lists_do_not_drive_out_a_long_one():
    """A long list is still known after many short ones that were met again."""
    messages = [message(n) for n in range(100)]
    digest.digest(messages)
    short = [[message(n) for n in range(n, n + 10)] for n in range(40)]
    for each in short:
        for _ in range(3):
            digest.digest(each)
    assert any(each.value is messages for each in list_digest._grown.values())
    assert len(list_digest._grown) <= 16


@pytest.mark.parametrize("item", [None, 7, "", (), [], {}])
@pytest.mark.parametrize("length", [8, 31, 32, 33])
def test_a_short_encoding_stands_for_itself(item, length):
    """A list of small items is not replaced by its hash, however often it is met."""
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


keys = (
    st.text(max_size=20)
    | st.text("a\ud800\u20ac\U0001f600", min_size=60, max_size=70)
    | st.uuids().map(str)
)
inside = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=80) | keys | notes,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(keys, each, max_size=18),
    max_leaves=30,
)


@given(st.dictionaries(keys, inside, max_size=18))
@pytest.mark.usefixtures("fields_of_notes")
def test_a_dict_has_the_digest_of_its_sorted_pairs(value):
    """A dict under few short texts has the digest that its pairs give, sorted by encoded keys."""
    found = digest.digest(value, Numbering()), digest_part(value)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "in_order", lambda _: None)
        assert (digest.digest(value, Numbering()), digest_part(value)[0]) == found


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
    assert list_digest._grown == {}


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
