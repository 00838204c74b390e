"""Messages that grow at each step, and are changed in place by step bodies and by the workflow.

At each step it is proved twice that the earlier ones are what they were: for the digest of the
arguments and for the checkpoint.  Both are compared with what the slow way comes to.
"""

from __future__ import annotations

import itertools

import messages
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from killed import Killed, line_of, played_to_the_end
from messages import CHANGES, described
from sweeping import WHOLE

from stepwise import step, workflow
from stepwise._identity.identity import Parameters
from stepwise._values import digest, trees
from stepwise._values import digest as list_digest

EARLIER = 70  # enough for a digest that continues
KINDS = ["dict", "Plain", "Slotted", "Model"]

in_body = {}
before_it = {}
expected = {}
dying = set()
compared = []
numbers = itertools.count()


def change(edits, listed):
    for at, how in edits:
        messages.change("change", at, how, "", listed, [])


@step
def answer(listed, number):
    if number in dying:
        dying.remove(number)
        raise Killed
    expected[number] = described(listed)
    change(in_body.get(number, ()), listed)
    return messages.message(KINDS[number % len(KINDS)], number, 3)


@workflow(retention="all")
def conversation(count):
    listed = [messages.message(KINDS[n % len(KINDS)], n, 3) for n in range(EARLIER)]
    for number in range(count):
        change(before_it.get(number, ()), listed)
        reply = answer(listed, number)
        listed.append(reply)
    return len(listed)


def compare_identities(patch):
    """Have each call identified in the slow way, too."""
    right = Parameters.identify

    def both(self, *call, **how):
        found = right(self, *call, **how)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(digest.Encoder, "grows", False)
            assert right(self, *call, **how) == found
        compared.append(found)
        return found

    patch.setattr(Parameters, "identify", both)


edits = st.dictionaries(
    st.integers(0, 7),
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 3, 40, 66, 67, 68, 69, 70, 71, 72, 73]),
            st.sampled_from(sorted(set(CHANGES) - {"itself", "unknown"})),
        ),
        max_size=2,
    ),
    max_size=4,
)


@settings(max_examples=200 if WHOLE else 6)
@given(edits, edits, st.integers(3, 8), st.sampled_from([None, 1, 4]))
@example({2: [(40, "inner")]}, {4: [(41, "rename")], 5: [(41, "order")]}, 8, None)
@example({3: [(1, "exchange")]}, {3: [(1, "exchange")]}, 8, 4)  # and back again
def test_every_change_counts(body, workflow, count, killed):
    """Identity and checkpoint are those of the messages as they are, whoever changed them when."""
    in_body.clear()
    before_it.clear()
    in_body.update(body)
    before_it.update(workflow)
    dying.clear()
    dying.update({killed} if killed is not None and killed < count else ())
    compared.clear()
    list_digest.forget()
    name = f"conversation-{next(numbers)}"
    with pytest.MonkeyPatch.context() as patch:
        compare_identities(patch)
        run = played_to_the_end(
            lambda: conversation.options(store="memory:", run_id=name).execute(count)
        )
    assert len(compared) >= count
    found = 0
    for checkpoint in run.checkpoints:
        if checkpoint.position == line_of(conversation, "change(before_it"):
            values = run.locals(at=checkpoint.step)
            assert described(values["listed"]) == expected[values["number"]]
            found += 1
    assert found == count


def test_a_change_that_is_not_seen_would_be_found(monkeypatch):
    """The test above fails if changes are not looked for."""
    monkeypatch.setattr(trees.Watch, "holds", lambda _: True)
    with pytest.raises(AssertionError):
        test_every_change_counts.hypothesis.inner_test({2: [(40, "inner")]}, {}, 6, None)
