"""Checkpoints refer to what is stored already; what they give back is what the variables were."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time

import pytest
from harness import python
from hypothesis import example, given, settings
from hypothesis import strategies as st
from killed import Killed, chunk_little, forget_process, line_of, played_to_the_end

import stepwise
from stepwise import step, workflow
from stepwise._checkpoints import references
from stepwise._checkpoints.chunks import Needs, Vault, digest_of
from stepwise._checkpoints.stored_values import KnownValues
from stepwise._runs.checkpoints import checkpoints_of
from stepwise._values import trees
from stepwise._workflows import frame
from stepwise.stores import Batch, Owner, open_store

ALL = {"retention": "all"}
BIG = 600  # characters: a result of that size is referred to


dying = set()  # numbers of steps in which it does, once


@pytest.fixture(autouse=True)
def nobody_dies():
    dying.clear()


@step
def think(number):
    if number in dying:
        dying.remove(number)
        raise Killed
    return {"role": "assistant", "content": f"{number}" * BIG, "n": number, "tools": [{"id": 1}]}


@step
def tick(number):
    if ("tick", number) in dying:
        dying.remove(("tick", number))
        raise Killed
    return number


def described(value, met=None):
    """A value with its types, its order, and what is shared in it."""
    met = {} if met is None else met
    if type(value) in (list, dict):
        if id(value) in met:
            return f"#{met[id(value)]}"
        met[id(value)] = len(met)
    if type(value) in (list, tuple):
        return [type(value).__name__, *(described(each, met) for each in value)]
    if type(value) is dict:
        return ["dict", *((repr(k), described(v, met)) for k, v in value.items())]
    return f"{type(value).__name__} {value!r}"


def objects(run, prefix):
    return open_store(run.store.url).names(run.id, prefix)


# -- any program ---------------------------------------------------------------------------------


class Equal(str):
    """Equal to a string, and not the same."""

    __slots__ = ()


def reordered(each):
    first = next(iter(each))
    each[first] = each.pop(first)


CHANGES = {
    "content": lambda each: each.update(content="new"),
    "equal": lambda each: each.update(role=Equal(each.get("role", ""))),
    "type": lambda each: each.update(n=bool(each.get("n"))),
    "sign": lambda each: each.update(n=-0.0 if each.get("n") == 0 else 0.0),
    "order": reordered,
    "key": lambda each: each.update(extra=None),
    "gone": lambda each: each.pop("content", None),
    "deep": lambda each: each.setdefault("tools", []).append({"id": 2}),
    "swap": lambda each: each.update(tools=[dict(t) for t in each.get("tools", [])]),
    "inner": lambda each: [t.update(id=True) for t in each.get("tools", [])],
}


def change(operation, at, how, messages, others):
    """Do one thing to the messages that is no step."""
    if operation == "append":
        messages.append({"role": "user", "content": f"{at}" * (50 * at), "n": at})
    elif operation == "many":
        messages.extend({"role": "user", "content": str(n), "n": n} for n in range(at))
    elif operation == "objects":
        messages.append([Equal("x"), {at}, bytearray(b"x")])
    elif operation == "alias":
        others.append(messages[at % len(messages)] if messages else at)
    elif operation == "again":
        messages.extend(messages[:at])
    elif operation == "inside":
        others.append({"all": messages, "some": messages[at:]})
    elif operation == "delete":
        del messages[at : at + 1]
    elif operation == "cut":
        del messages[:at]
    elif operation == "turn":
        messages.reverse()
    elif operation == "clear":
        messages.clear()
    elif operation == "drop":
        others.clear()
    elif operation == "change" and messages:
        each = messages[at % len(messages)]
        if type(each) is dict and each:
            CHANGES[how](each)


operations = st.tuples(
    st.sampled_from(
        [
            "append",
            "many",
            "objects",
            "alias",
            "again",
            "inside",
            "delete",
            "cut",
            "turn",
            "clear",
            "drop",
        ]
        + ["copy", *["change", "think"] * 8]
    ),
    st.integers(0, 12),
    st.sampled_from(sorted(CHANGES)),
)
expected = {}
names = itertools.count()


@workflow(**ALL)
def play(program, given):
    messages, others, last, ticked = [], [], None, None
    for number, (operation, at, how) in enumerate(program):
        if operation == "think":
            last = think(number)
            messages.append(last)
        elif operation == "copy":
            messages = [*messages]
        else:
            change(operation, at, how, messages, others)
        if operation == "inside":
            given.extend(messages[:at])
        expected[number] = described([messages, others, last, given])
        ticked = tick(number)
    return ticked


TICKS = line_of(play, "expected[number] =")
"""The statement after which a checkpoint holds what is expected of it."""


@pytest.fixture
def small(monkeypatch):
    """Chunks of a few items."""
    chunk_little(monkeypatch)
    monkeypatch.setattr(references, "_LEAF", 400)
    monkeypatch.setattr(references, "HEAVY", 2000)
    monkeypatch.setattr(frame, "HEAVY", 2000)


@settings(
    max_examples=60,
)
@given(program=st.lists(operations, max_size=40), kills=st.sets(st.integers(0, 40), max_size=3))
@example(program=[("think", 0, "order")] * 12 + [("change", 1, "order")], kills={8})
@example(program=[("think", 0, "order")] * 12 + [("change", 1, "inner")] * 3, kills=set())
def test_any_checkpoint_gives_back_what_the_variables_were(small, program, kills):
    """Whatever is done to a list of messages, each checkpoint holds it as it was.

    Types, orders and what is shared are as they were, also after kills and resumes.
    """
    run = played(program, kills)
    found = 0
    for checkpoint in run.checkpoints:
        assert checkpoint.verified
        values = run.locals(at=checkpoint.step)
        if checkpoint.position == TICKS:
            here = [values[name] for name in ("messages", "others", "last", "given")]
            assert described(here) == expected[values["number"]]
            found += 1
    assert found == len(program)


def played(program, kills=(), **options):
    """The run of a program that is killed in some of its steps, and resumed."""
    expected.clear()
    dying.update(("tick", number) for number in kills if number < len(program))
    name = f"play-{next(names)}"
    return played_to_the_end(
        lambda: play.options(store="memory:", run_id=name, **options).execute(program, [])
    )


GROWN = [("think", 0, "order")] * 14


@pytest.mark.parametrize("how", sorted(CHANGES))
@pytest.mark.parametrize("at", [1, 12])
def test_every_change_is_seen(small, how, at):
    """A message that is changed in place, in a chunk or after the last, is written again."""
    run = played([*GROWN, ("change", at, how), *GROWN[:3]])
    assert objects(run, "chunk/")
    for checkpoint in run.checkpoints:
        values = run.locals(at=checkpoint.step)
        if checkpoint.position == TICKS:
            here = [values[name] for name in ("messages", "others", "last", "given")]
            assert described(here) == expected[values["number"]]


def test_a_change_that_is_not_seen_would_be_found(small, monkeypatch):
    """The tests here fail if changes are not looked for."""
    monkeypatch.setattr(trees.Watch, "holds", lambda _: True)
    with pytest.raises(AssertionError):
        test_every_change_is_seen(small, "content", 1)


# -- how little is written -----------------------------------------------------------------------


@workflow
def converse(count):
    messages = []
    for number in range(count):
        messages.append(think(number))
    return len(messages)


def test_a_list_that_grows_is_not_written_again():
    """A checkpoint of a long conversation takes no more than one of a short conversation."""
    run = converse.options(store="memory:").execute(600)
    newest = run.checkpoints[-1]
    assert newest.size < 3000
    assert run.locals()["messages"] == [step.result for step in run.steps]
    store = open_store(run.store.url)
    chunks = [len(store.get(run.id, name)) for name in objects(run, "chunk/")]
    assert sum(chunks) < 600 * 40
    assert len(chunks) <= 2 * 8  # 512 items, 64 of them, 8 of them


@workflow(**ALL)
def listen(count):
    heard = []
    for number in range(count):
        heard.append({"role": "user", "content": f"{tick(number)}" * 300})
    return len(heard)


def test_a_checkpoint_writes_the_last_few_items():
    """What no step returned is written a few times at most, however long the list becomes."""
    run = listen.options(store="memory:").execute(200)
    assert max(checkpoint.size for checkpoint in run.checkpoints) < 8 * 1000 + 3000
    store = open_store(run.store.url)
    chunks = sum(len(store.get(run.id, name)) for name in objects(run, "chunk/"))
    items = sum(len(each["content"]) for each in run.locals()["heard"])
    assert chunks < 3.5 * items


@workflow
def listen_to_three(count):
    heard = []
    for number in range(count):
        heard += [{"role": "user", "content": f"{tick(number)}" * 300} for _ in range(3)]
    return len(heard)


def test_few_chunks_are_named_however_a_list_grows():
    """The chunks of a list are few, whether or not it has so many items that they come out even."""
    run = listen_to_three.options(store="memory:").execute(200)
    assert len(objects(run, "chunk/")) <= 3 * 8
    assert len(run.locals()["heard"]) == 600


@workflow(**ALL)
def two_lists(count):
    one, other = [], []
    for number in range(count):
        one.append({"one": f"{tick(number)}" * 400})
        other.append({"other": f"{number}" * 400})
    return len(one)


def test_long_lists_are_kept_apart():
    """Two lists of which each is long and heavy come back as two."""
    run = two_lists.options(store="memory:").execute(110)
    for checkpoint in run.checkpoints:
        values, done = run.locals(at=checkpoint.step), checkpoint.step
        texts = [f"{n}" * 400 for n in range(done)]
        assert [each["one"] for each in values["one"]] == texts
        assert [each["other"] for each in values["other"]] == texts[:-1]
        assert checkpoint.size < 30_000


def made_from(number):
    return [{"number": number, "at": at, "text": f"{number} {at}" * 20} for at in range(100)]


@workflow(**ALL)
def make_anew(count):
    found = []
    for number in range(count):
        found = made_from(tick(number))
    return len(found)


def test_a_list_that_is_made_anew_is_written_as_it_is():
    """A long list that no second checkpoint meets is not taken apart into chunks."""
    run = make_anew.options(store="memory:").execute(20)
    assert objects(run, "chunk/") == []
    for number in range(20):
        assert run.locals(at=number + 1)["found"] == made_from(number)


@workflow(**ALL)
def replace(how, count):
    heard = made_from(tick(0))
    for number in range(1, count):
        if how == "grows":
            heard = [*heard, {"number": tick(number), "text": f"{number}" * 100}]
        elif how == "slides":
            heard = [*heard[3:], {"number": tick(number), "text": f"{number}" * 100}]
        else:
            tick(number)
    return len(heard)


@pytest.mark.parametrize("how", ["stays", "grows", "slides"])
def test_a_list_that_is_met_again_is_not_written_a_third_time(how):
    """A long list is put into chunks by the second checkpoint, also if its items are in another."""
    run = replace.options(store="memory:").execute(how, 20)
    sizes = [checkpoint.size for checkpoint in run.checkpoints]
    items = sum(len(each["text"]) for each in made_from(0))
    assert sizes[0] > items
    assert max(sizes[1:]) < items / 2
    expected = made_from(0)
    for number in range(1, 20):
        if how != "stays":
            expected = [*expected, {"number": number, "text": f"{number}" * 100}]
        expected = expected[3:] if how == "slides" else expected
    assert run.locals()["heard"] == expected


@pytest.mark.parametrize("kills", [{1}, set(range(1, 20))])
def test_a_list_that_was_restored_is_not_written_again(kills):
    """A long list is put into chunks by the second checkpoint, also if that is of a new process."""
    dying.update(("tick", number) for number in kills)
    run = played_to_the_end(
        lambda: replace.options(store="memory:", run_id=f"again-{kills}").execute("grows", 20)
    )
    sizes = [checkpoint.size for checkpoint in run.checkpoints]
    assert max(sizes[1:]) < sizes[0] / 2
    assert len(run.locals()["heard"]) == 119


@workflow(**ALL)
def serve(users, count):
    conversations = {f"user {number}": made_from(number) for number in range(users)}
    for number in range(count):
        messages = conversations[f"user {number % users}"]
        messages.append({"text": f"{tick(number)}" * 200})
    return [len(messages) for messages in conversations.values()]


def test_each_of_many_long_lists_is_written_once():
    """A list that a variable names at one checkpoint only is put into chunks, where it is kept."""
    run = serve.options(store="memory:").execute(70, 160)
    sizes = [checkpoint.size for checkpoint in run.checkpoints]
    assert max(sizes[75:]) < sizes[0] / 4
    expected = {f"user {number}": made_from(number) for number in range(70)}
    for number in range(160):
        expected[f"user {number % 70}"].append({"text": f"{number}" * 200})
    assert run.locals()["conversations"] == expected


@workflow(**ALL)
def collect(count):
    chosen = {}
    for number in range(count):
        found = made_from(tick(number))
        chosen[number] = [each for each in found if each["at"] % 5]
    return len(chosen)


def test_what_a_large_dict_gets_is_written_once():
    """Long lists that are put into a large dict, under no name of their own, are in chunks."""
    run = collect.options(store="memory:").execute(100)
    assert max(checkpoint.size for checkpoint in run.checkpoints) < 100_000
    chosen = {n: [each for each in made_from(n) if each["at"] % 5] for n in range(100)}
    assert sum(len(each["text"]) for rows in chosen.values() for each in rows) > 500_000
    assert run.locals(at=100)["chosen"] == chosen


@workflow(**ALL)
def send_batches(count):
    for number in range(count):
        batch = [{"number": number, "at": at, "text": f"{number}" * 20} for at in range(100)]
        measure(batch)
    del batch


@step
def measure(batch):
    return len(batch)


def test_a_list_that_only_a_step_is_given_is_written_as_it_is(monkeypatch):
    """That a long list was an argument does not make it worth chunks."""
    made = []
    monkeypatch.setattr(KnownValues, "make", lambda _, items, *__: made.append(items))
    send_batches.options(store="memory:").execute(10)
    assert made == []


@workflow(**ALL)
def hold(size):
    text = think(1)["content"] * size
    for number in range(5):
        tick(number)
    return text


def test_a_large_text_is_not_written_again():
    """A large string that stays is written twice at most, whoever made it."""
    run = hold.options(store="memory:").execute(100)
    sizes = [checkpoint.size for checkpoint in run.checkpoints]
    assert sum(size > 50_000 for size in sizes) <= 1
    assert all(len(values["text"]) == 60_000 for values in map(run.locals, range(2, 6)))


def test_a_text_of_megabytes_is_written_once():
    """A string of more than a megabyte is in a chunk from the first checkpoint on."""
    run = hold.options(store="memory:").execute(4000)
    assert all(checkpoint.size < 50_000 for checkpoint in run.checkpoints)
    assert len(objects(run, "chunk/")) == 1
    assert len(run.locals()["text"]) == 2_400_000


@workflow
def small_talk(count):
    messages = []
    for number in range(count):
        messages.append({"n": tick(number)})
    return len(messages)


def test_a_short_list_is_written_as_it_is():
    """Where there is little to write, no chunks are made."""
    run = small_talk.options(store="memory:").execute(60)
    assert objects(run, "chunk/") == []


# -- chunks that nobody needs, and chunks that are damaged ---------------------------------------


@pytest.mark.parametrize("retention", ["latest_only", "prune_old", "all"])
@pytest.mark.parametrize("kills", [(), (9, 20)])
def test_chunks_go_with_the_last_checkpoint_that_needs_them(small, retention, kills):
    """There is every chunk that a kept checkpoint needs, and no other, whatever is kept."""
    program = [*GROWN, ("cut", 7, ""), *GROWN, ("clear", 0, ""), *GROWN]
    options = {} if retention == "all" else {"retention": retention}
    run = played(program, kills, **options)
    assert all(checkpoint.verified for checkpoint in run.checkpoints)
    assert set(objects(run, "chunk/")) == {
        f"chunk/{number:012d}"
        for _, loaded in checkpoints_of(run.store, run._seal, run.id)
        for number in Needs.of(loaded.state.needs).all_chunks
    }
    if retention == "latest_only":
        assert len(objects(run, "checkpoint/")) == 1


def damage(run, name, change):
    store = open_store(run.store.url)
    epoch = store.acquire(run.id, Owner(os.getpid(), "here", time.time(), "thread"))
    data = bytearray(store.get(run.id, name))
    data[len(data) // 2] ^= 1
    batch = Batch(put={name: bytes(data)}) if change == "flip" else Batch(delete=(name,))
    store.write(run.id, epoch, batch)
    store.release(run.id, epoch)


@pytest.mark.parametrize("how", ["flip", "lose"])
def test_a_damaged_chunk_invalidates_what_needs_it(small, how):
    """A chunk that is damaged or lost takes the checkpoints with it that need it, and no others."""
    dying.add(("tick", 13))
    with pytest.raises(Killed):
        play.options(store="memory:", run_id="damaged")(GROWN, [])
    run = stepwise.get_run("damaged", store="memory:")
    names = objects(run, "chunk/")
    before = [checkpoint.step for checkpoint in run.checkpoints]
    damage(run, names[-1], how)
    verified = [checkpoint.step for checkpoint in run.checkpoints if checkpoint.verified]
    assert verified
    assert verified == before[: len(verified)] != before
    assert not run.verify().ok
    forget_process()
    again = play.options(store="memory:", run_id="damaged").execute(GROWN, [])
    assert again.resumed_from_step == verified[-1]
    assert described(again.locals()["messages"]) == described(
        [think.__wrapped__(number) for number in range(14)]
    )
    assert again.verify().ok


def test_a_chunk_of_another_time_is_not_the_one_that_is_meant(small):
    """Chunks that verify, under the right numbers, are refused if they are others than those."""
    run = played(GROWN)
    vault = Vault(run.store, run._seal, run.id)
    needs = vault.needs(objects(run, "checkpoint/")[-1])
    assert needs.all_chunks
    assert vault.holds(needs)
    assert not vault.holds(needs._replace(links=digest_of([b"another"])))


# -- real crashes --------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import stepwise
from stepwise import step, workflow

@step
def think(number):
    if os.environ.get("DIE") == str(number):
        os.kill(os.getpid(), signal.SIGKILL)
    print("think", number, flush=True)
    return {"role": "assistant", "content": str(number) * 700}

class Agent:
    def __init__(self):
        self.history = []

    @workflow(id="self")
    def run(self, count):
        mine, last = [], None
        every = iter(list(range(count)))
        for number in every:
            last = think(number)
            self.history.append(last)
            mine.append({"said": last["content"], "by": [number]})
            if number % 100 == 50:
                self.history[3]["content"] = f"changed at {number}"
        assert last is self.history[-1]
        assert [each["said"] for each in mine[4:]] == [str(n) * 700 for n in range(4, count)]
        assert [each["by"] for each in mine] == [[n] for n in range(count)]
        return self.history[3]["content"], len(self.history), len(mine)

agent = Agent()
history = agent.history
print("result", agent.run(230), history is agent.history)
"""


@pytest.mark.parametrize("options", ["", "encrypt=True", "prune"])
def test_killed_and_resumed(tmp_path, options):
    """A process that is killed again and again goes on with the whole conversation each time."""
    text = SCRIPT
    if options == "prune":
        text = text.replace('@workflow(id="self")', "@workflow(prune_journal=True)")
    text = text.replace('@workflow(id="self")', "@workflow")
    if options == "encrypt=True":
        pytest.importorskip("cryptography")
        text = text.replace("class Agent", "stepwise.configure(encrypt=True)\nclass Agent")
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    said = []
    for die in (70, 71, 140, 201, None):
        environment = {**os.environ, "DIE": str(die)}
        done = python(str(script), cwd=tmp_path, env=environment)  # fmt: skip
        assert done.returncode == (-9 if die is not None else 0), done.stderr
        said += re.findall(r"^think (\d+)$", done.stdout, re.MULTILINE)
    assert said == [str(number) for number in range(230)]
    assert "result ('changed at 150', 230, 230) True" in done.stdout


# -- forks, pruned journals ----------------------------------------------------------------------


def test_a_fork_has_chunks_of_its_own():
    """A fork resumes after its source has been deleted, with the whole conversation."""
    run = converse.options(retention="all").execute(200)
    fork = run.fork(at=150)
    run.delete()
    assert fork.verify().ok
    assert [each["n"] for each in fork.locals()["messages"]] == list(range(150))
    again = converse.options(run_id=fork.id).execute(200)
    assert again.result == 200
    assert again.resumed_from_step == 150
    assert [each["n"] for each in again.locals()["messages"]] == list(range(200))


def test_a_pruned_journal_keeps_what_checkpoints_need():
    """With ``prune_journal`` the conversation is in the checkpoints, and the records are gone."""
    run = converse.options(prune_journal=True).execute(700)
    assert len(run.steps) < 600
    assert [each["n"] for each in run.locals()["messages"]] == list(range(700))
    assert run.verify().ok


class Client:
    """Holds much that is not state, and does not pickle."""

    def __init__(self):
        self.known = [{"n": n} for n in range(500)]
        self.lock = threading.Lock()


client = Client()


@workflow
def with_client(count):
    mine = client
    for number in range(count):
        tick(number)
    return len(mine.known)


def test_what_is_not_state_is_not_written():
    """Lists of an object that the resumed run gets from its module are not put into chunks."""
    run = with_client.options(store="memory:").execute(5)
    assert objects(run, "chunk/") == []
