"""Conversations of the OpenAI Agents SDK in our stores; the SDK itself is not needed for them."""

import asyncio
import contextlib
import copy
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from stepwise import ConfigurationError, workflow
from stepwise._calls import call as perform
from stepwise.integrations.openai_agents import StepwiseSession
from stepwise.stores import close_under
from stepwise.testing import fresh_store

ITEMS = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi", "id": "m1"}]


@pytest.fixture(autouse=True)
def store():
    with fresh_store() as opened:
        yield opened


class Broken(Exception):
    """The workflow is cut off here, once."""


items = st.lists(st.fixed_dictionaries({"content": st.text(max_size=5)}), max_size=3)
acts = st.lists(
    st.tuples(st.just("add_items"), items)
    | st.tuples(st.just("get_items"), st.none() | st.integers(0, 4))
    | st.tuples(st.sampled_from(["pop_item", "clear_session", "reopen", "another"])),
    max_size=12,
)


@given(acts)
def test_a_session_is_a_list(done):
    """Whatever is added, removed and reopened, a session holds what a list would hold."""
    asyncio.run(as_a_list(done))


async def as_a_list(done):
    with fresh_store():
        session, model = StepwiseSession("one"), []
        for act, *arguments in done:
            if act == "reopen":
                session = StepwiseSession("one")
            elif act == "another":
                await StepwiseSession("two").add_items(copy.deepcopy(ITEMS))
            else:
                expected = on_a_list(model, act, *arguments)
                assert await getattr(session, act)(*arguments) == expected
        assert await StepwiseSession("one").get_items() == model


def on_a_list(model, act, *arguments):
    if act == "add_items":
        model.extend(*arguments)
    elif act == "pop_item":
        return model.pop() if model else None
    elif act == "clear_session":
        model.clear()
    else:
        (limit,) = arguments
        return model[len(model) - min(limit, len(model)) :] if limit is not None else model
    return None


def test_two_sessions_of_one_id_see_each_other():
    """Objects of one id, as in two processes, add to one conversation and lose nothing."""

    async def talk():
        one, two = StepwiseSession("x"), StepwiseSession("x")
        await one.add_items(ITEMS[:1])
        await two.add_items(ITEMS[1:])
        assert await one.get_items() == await two.get_items() == ITEMS
        await asyncio.gather(*(each.add_items(ITEMS) for each in (one, two) * 5))
        assert len(await one.get_items()) == 22

    asyncio.run(talk())


def test_what_is_handed_out_is_a_copy():
    """A caller that changes the items that it got changes nothing of the conversation."""

    async def talk():
        session = StepwiseSession("x")
        await session.add_items(ITEMS)
        (await session.get_items())[0]["content"] = "changed"
        assert await session.get_items() == ITEMS

    asyncio.run(talk())


def test_a_resumed_run_adds_nothing_twice():
    """A statement that is executed again sees the conversation as it was, and adds nothing more."""
    seen, broken = [], []

    @workflow
    async def chat():
        session = StepwiseSession("x")

        async def turn():
            seen.append(await session.get_items())
            await session.add_items(ITEMS)
            popped = await session.pop_item()
            if not broken:
                broken.append(True)
                raise Broken
            return popped

        return await turn()

    with pytest.raises(Broken):
        asyncio.run(chat())
    assert asyncio.run(chat()) == ITEMS[1]
    assert seen == [[], []]
    assert asyncio.run(StepwiseSession("x").get_items()) == ITEMS[:1]


@pytest.mark.parametrize("act", ["add_items", "pop_item", "clear_session"])
def test_an_operation_cut_off_before_its_record_is_not_done_again(act, monkeypatch):
    """A crash after an operation, and before its step is recorded, does not double it."""
    asyncio.run(StepwiseSession("x").add_items(ITEMS))
    arguments = [ITEMS] if act == "add_items" else []

    @workflow
    async def chat():
        return await getattr(StepwiseSession("x"), act)(*arguments)

    def crash(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(perform, "outcome", crash)
        asyncio.run(chat())
    asyncio.run(chat())
    left = asyncio.run(StepwiseSession("x").get_items())
    assert left == {"add_items": ITEMS * 2, "pop_item": ITEMS[:1], "clear_session": []}[act]


def test_damage_is_noticed(tmp_path):
    """A conversation whose end is gone is not read as a shorter one; clearing it begins anew."""
    where = f"disk:{tmp_path}"
    session = StepwiseSession("x", store=where)
    asyncio.run(session.add_items(ITEMS[:1]))
    asyncio.run(session.add_items(ITEMS[1:]))
    close_under(tmp_path)
    with contextlib.closing(sqlite3.connect(next(tmp_path.glob("*.db")))) as connection:
        (newest,) = connection.execute("SELECT max(key) FROM Cache WHERE key LIKE 'r/%'").fetchone()
        connection.execute("DELETE FROM Cache WHERE key = ?", [newest])
        connection.commit()
    with pytest.raises(stepwise.errors.CorruptStoreError, match=r"conversation 'x'.*clear_session"):
        asyncio.run(StepwiseSession("x", store=where).get_items())
    asyncio.run(StepwiseSession("x", store=where).clear_session())
    assert asyncio.run(StepwiseSession("x", store=where).get_items()) == []


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_session_needs_a_name(name):
    """An id that is no text is refused."""
    with pytest.raises(ConfigurationError, match="session_id="):
        StepwiseSession(name)


def test_items_are_json():
    """An item that is no JSON data is refused, with its session."""
    with pytest.raises(ConfigurationError, match="session 'x' is no JSON data"):
        asyncio.run(StepwiseSession("x").add_items([{"content": object()}]))
