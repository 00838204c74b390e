"""Bodies of requests are stored as what they add to earlier ones, and read whole again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from stepwise.integrations._recorded_responses import Bodies, canonical, whole_bodies

TEXTS = st.sampled_from(["a", "b", "long " * 60, "other " * 60])
MESSAGES = st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS}), max_size=6)
BODIES = st.lists(
    st.fixed_dictionaries(
        {
            "model": TEXTS,
            "messages": MESSAGES,
            "options": st.none() | MESSAGES.map(lambda m: {"m": m}),
        },
        optional={"input": MESSAGES},
    )
    | st.sampled_from([[1, 2], "text", 5]),
    max_size=8,
)


@given(BODIES, st.randoms(use_true_random=False))
def test_bodies_are_whole_again_in_whatever_order_they_were_recorded(bodies, random):
    """What is read is what was stored, although parallel calls are recorded in another order."""
    known = Bodies()
    short = [known.shortened(body) for body in bodies]
    order = random.sample(range(len(bodies)), len(bodies))
    read = whole_bodies((None, json.loads(json.dumps(short[at]))) for at in order)
    assert [canonical(each) for each in read] == [canonical(bodies[at]) for at in order]


@given(BODIES)
def test_a_file_refers_to_earlier_calls_by_their_numbers(bodies):
    """With numbers as names, a body refers to a call before it, and is whole again."""
    known = Bodies()
    short = [(number, known.shortened(body, number)) for number, body in enumerate(bodies, 1)]
    assert whole_bodies(short) == bodies
    for number, body in short:
        fields = body.values() if isinstance(body, dict) else ()
        likes = [each["$like"] for each in fields if isinstance(each, dict) and "$like" in each]
        assert all(like < number for like in likes)


def test_a_conversation_takes_as_much_as_its_messages():
    """The requests of 300 turns are stored in room for 300 turns, not for 300 squared."""
    known, messages, sizes = Bodies(), [], []
    for turn in range(300):
        messages.append({"role": "user", "content": f"question {turn} " * 20})
        sizes.append(len(canonical(known.shortened({"model": "m", "messages": messages}))))
    assert max(sizes[2:]) < sizes[0] + 200


def test_a_body_whose_beginning_is_lost_is_missing():
    """A body that refers to a forgotten record is None; the others are whole."""
    known = Bodies()
    messages = [{"content": "x" * 300}]
    short = [known.shortened({"messages": messages * n}) for n in (1, 2)]
    other = {"messages": []}
    assert whole_bodies([(None, short[1]), (None, other)]) == [None, other]
