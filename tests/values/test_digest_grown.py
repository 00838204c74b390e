"""The digest of a long list is that of its items, whatever was digested of it before."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwise
from stepwise import step, workflow
from stepwise._values import digest, list_digest


@pytest.fixture(autouse=True)
def nothing_known():
    list_digest.forget()
    yield
    list_digest.forget()


def plainly(value):
    """The digest of a value without anything that was known of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest.Encoder, "grows", False)
        return digest.digest(value)


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
    length=st.sampled_from([2, 63, 64, 65, 130]),
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
    assert list_digest._grown == {}
