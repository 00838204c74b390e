"""A watch over objects holds exactly as long as none of them was changed."""

from __future__ import annotations

import pickle
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy  # noqa: ICN001
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwise._values import trees
from stepwise._values.trees import Watch, walk


class Text(str):
    """Equal to a plain text, and another type."""

    __slots__ = ()


class Strange:
    """Equal to anything, and not to be asked."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the user's code was called")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Note:
    """An instance of a class of the user's."""

    text: Any
    more: Any = None


def slowly(nodes: list[Any]) -> list[Any]:
    """Everything that nodes hold, by the identity of the objects, in order."""
    found: list[Any] = []
    for node in nodes:
        held = node if type(node) in (list, dict, set, tuple) else vars(node)
        if type(held) is dict:
            found.append([(type(key), key, id(value)) for key, value in held.items()])
        else:
            found.append([id(each) for each in held])
    return found


def nodes_of(value: Any) -> list[Any]:
    tree = walk(value)
    assert tree is not None
    return list(tree.nodes)


ATOMS = [None, True, 1, 1.0, 0.0, -0.0, "a", "b", "user", "1", b"1", 10**20, float("nan")]
KEYS = ["role", "content", "name", "n", "a", "tool_calls"]

values = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, *KEYS, 1, 2.5]), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.sampled_from(KEYS), max_size=3)
        | st.builds(Note, inner, inner)
    ),
    max_leaves=25,
)


def containers(nodes: list[Any]) -> list[Any]:
    return [each for each in nodes if type(each) in (list, dict, set) or isinstance(each, Note)]


def edit(node: Any, how: int, atom: Any, key: str) -> None:
    """Change a container in one of many ways, or not at all."""
    held = vars(node) if isinstance(node, Note) else node
    if type(held) is list:
        _edit_list(held, how, atom)
    elif type(held) is dict:
        _edit_dict(held, how, atom, key)
    else:
        held ^= {key}


def _edit_list(held: list[Any], how: int, atom: Any) -> None:
    if how % 4 == 0:
        held.append(atom)
    elif held and how % 4 == 1:
        held[how % len(held)] = atom
    elif held and how % 4 == 2:
        held.pop(how % len(held))
    else:
        held.reverse()


def _edit_dict(held: dict[Any, Any], how: int, atom: Any, key: str) -> None:
    names = list(held)
    name = names[how % len(names)] if names else key
    if how % 6 == 0:
        held[key] = atom
    elif how % 6 == 1:
        held.pop(name, None)
    elif how % 6 == 2 and names:  # the same values in the same order under another key
        items = [(key if each == name else each, held[each]) for each in names]
        held.clear()
        held.update(items)
    elif how % 6 == 3 and names:  # the same items in another order
        held[name] = held.pop(name)
    elif how % 6 == 4 and len(names) > 1:  # the same values in the same order, keys exchanged
        items = list(zip([*names[1:], names[0]], held.values(), strict=True))
        held.clear()
        held.update(items)
    elif names and type(name) is str:  # an equal key of another type
        items = [(Text(each) if each is name else each, held[each]) for each in names]
        held.clear()
        held.update(items)


places = st.integers(0, 1000)
edits = st.lists(
    st.tuples(places, places, st.sampled_from(ATOMS), st.sampled_from(KEYS)), max_size=3
)


@settings(max_examples=100)
@given(value=st.lists(values, min_size=1, max_size=6), edits=edits, apart=st.booleans())
def test_a_watch_notices_every_change(value, edits, apart):
    """A watch holds if and only if every object holds what it held, in its order."""
    nodes = nodes_of(value)
    watch = Watch(nodes)
    if apart:  # the same, put together from several
        watch = Watch()
        for node in nodes:
            watch.extend(Watch([node]))
            assert watch.holds()
    before = slowly(nodes)
    assert watch.holds()
    mutable = containers(nodes)
    for where, how, atom, key in edits:
        edit(mutable[where % len(mutable)], how, atom, key)
    now = slowly(nodes)
    assert watch.holds() == (now == before)
    assert watch.holds() == (now == before)  # a look at a change does not make it known
    pairs = zip(nodes, before, now, strict=True)
    changed = {id(node) for node, then, today in pairs if then != today}
    assert watch.changed() & set(map(id, nodes)) == changed


@settings(max_examples=100)
@given(value=st.lists(values, min_size=2, max_size=6), places=st.tuples(*[st.integers(0, 99)] * 2))
def test_what_moves_between_containers_is_noticed(value, places):
    """Items that move from one container to another, all in all the same, are a change."""
    nodes = nodes_of(value)
    watch, before = Watch(nodes), slowly(nodes)
    lists = [each for each in nodes if type(each) is list]
    dicts = [each for each in nodes if type(each) is dict and each]
    here, there = (lists[place % len(lists)] for place in places)
    if here:
        there.insert(0, here.pop())
    if len(dicts) > 1:
        one, other = (dicts[place % len(dicts)] for place in places)
        if one:
            key, held = one.popitem()
            items = [(key, held), *other.items()]
            other.clear()
            other.update(items)
    assert watch.holds() == (slowly(nodes) == before)


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.update(content=1),  # for True
        lambda each: each.update(content=Strange()),
        lambda each: each.update(n=Strange()),
        lambda each: each.update({Text("x"): Strange()}),
        lambda each: each.clear(),
    ],
)
def test_nothing_of_the_users_is_called(change):
    """To see whether anything changed, no method of a user's class is called."""
    messages = [{"role": "user", "content": True, "n": n} for n in range(100)]
    watch = Watch([messages, *messages])
    change(messages[50])
    assert not watch.holds()


def conversation(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"message {n}"} for n in range(count)]


@pytest.mark.parametrize("place", [0, 49, 50, 69])
def test_one_key_of_one_message_is_noticed(place):
    """A change in any message is found by the next look, however often none was found before."""
    messages, watch = conversation(50), Watch()
    watch.extend(Watch(messages))
    for message in conversation(20):
        assert watch.holds()
        messages.append(message)
        watch.extend(Watch([message]))
    thread = threading.Thread(target=messages[place].update, args=({"more": 1},))
    thread.start()
    thread.join()
    assert not watch.holds()
    del messages[place]["more"]
    assert watch.holds()
    messages[place]["contents"] = messages[place].pop("content")
    assert not watch.holds()


@pytest.mark.parametrize("place", [0, 1, 511, 512, 513, 1023, 1024, 1499])
def test_one_of_many_containers_is_found(place):
    """A change of one container is found among thousands, and no other one is taken for changed."""
    held: list[Any] = [
        [n] if n % 3 == 0 else {n: "number"} if n % 500 == 1 else {"text": n} for n in range(1500)
    ]
    watch, joined = Watch(held), Watch()
    for at in range(0, 1500, 100):
        joined.extend(Watch(held[at : at + 100]))
    assert watch.holds()
    assert joined.holds()
    edit(held[place], 0, None, "more")
    for each in (watch, joined):
        assert not each.holds()
        assert each.changed() == {id(held[place])}


def test_attributes_that_were_set_in_another_order_are_compared_by_name():
    """Values that change places among attributes are found, in whatever order these were set."""
    Note("first", "sets the order of the class")
    other = Note.__new__(Note)
    other.more, other.text = 1000, 2000
    held = vars(other)
    watch = Watch([held])
    assert watch.holds()
    other.more, other.text = other.text, other.more
    assert not watch.holds()
    now = dict(held)
    held.clear()
    held.update(now)
    assert not watch.holds()
    assert watch.changed() == {id(held)}


@given(st.integers(0, 20_000), st.integers(0, 20_000))
def test_lists_of_many_objects_are_the_same_if_each_object_is(count, place):
    """Lists of any length are the same if they hold the same objects, not equal ones."""
    one: list[Any] = [*map(str, range(count))]
    other = [*one]
    assert trees.same(one, other)
    if one:
        other[place % count] = Text(one[place % count])
        assert one == other
        assert not trees.same(one, other)
        assert not trees.same(one, other[1:])


def test_lists_that_another_thread_changes_meanwhile_are_compared():
    """A list that becomes longer and shorter while it is looked at is read as it is at one time."""
    first = [object() for _ in range(1000)]
    live, stop = [*first], threading.Event()

    def change() -> None:
        while not stop.is_set():
            live.extend([None] * 100_000)
            del live[1000:]

    thread, interval = threading.Thread(target=change), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        assert all(trees.starts_with(live, first) for _ in range(500))
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_change_before_the_first_look_is_noticed():
    """A change between the snapshot and the first comparison, or the joining, is found."""
    messages = conversation(100)
    watch, whole, late = Watch(messages), Watch(conversation(100)), Watch(messages)
    messages[70]["content"] = "another"
    assert not watch.holds()
    assert whole.holds()
    whole.extend(late)
    assert not whole.holds()


@pytest.mark.parametrize("times", [1, 100])  # code that runs often is specialized
def test_attributes_of_many_instances_are_watched(times):
    """An attribute that is set, added or deleted is found, and one that is set to itself is not."""
    notes = [Note(f"note {n}", [n]) for n in range(20)]
    watch = Watch(notes)
    for _ in range(times):
        for note in notes[:5]:
            text = note.text
            note.text = f"{text}!"
            assert not watch.holds()
            note.text = text
            assert watch.holds()
    notes[10].extra = 1
    assert not watch.holds()
    del notes[10].extra
    watch = Watch(notes)  # Python 3.13 may have given the instance another dict
    assert watch.holds()
    del notes[19].more
    assert not watch.holds()


ARRAYS = {
    "numbers": lambda: numpy.arange(12.0),
    "many": lambda: numpy.arange(50_000),
    "columns": lambda: numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4)),
    "texts": lambda: numpy.array(["a", "bc"]),
    "times": lambda: numpy.array(["2026-01-01"], dtype="M8[s]"),
    "one": lambda: numpy.array(5.0),
    "fields": lambda: numpy.array([(1, 2.5), (3, 4.5)], dtype="i4,f8"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_is_known_by_its_bytes(kind):
    """An array that is written to, at any place, or has another form, has changed."""
    array = ARRAYS[kind]()
    tree = walk([[array], "x" * 600], arrays=True)
    assert tree is not None
    watch = Watch(tree.nodes)
    assert watch.holds()
    raw = array.ravel("K").view("B")
    for at in {0, 1, len(raw) // 2, len(raw) - 1}:
        raw[at] ^= 1
        assert not watch.holds()
        assert watch.changed() == {id(array)}
        raw[at] ^= 1
        assert watch.holds()
    array.setflags(write=False)
    assert not watch.holds()
    array.setflags(write=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy 2.5 discourages it
        array.shape = (*array.shape, 1)
    assert not watch.holds()


def fixed_below(view):
    view.base.flags.writeable = False
    return view


@pytest.mark.parametrize(
    "array",
    [
        numpy.frombuffer(bytearray(8)),
        numpy.frombuffer(bytearray(80))[1:],
        numpy.zeros(3, dtype="i4,f8")[1:],
        fixed_below(numpy.zeros(3)[1:]),
        numpy.zeros((1 << 17) + 1)[1:],
        numpy.zeros(3, dtype=[("a", "i4,f8")]),
        numpy.frombuffer(bytes(8)),
        numpy.array([object()]),
        numpy.array(["text"], dtype=numpy.dtypes.StringDType()),
        numpy.array([]),
        numpy.ma.array([1, 2]),
    ],
)
def test_arrays_that_a_hash_does_not_know(array):
    """An array whose items lie elsewhere, or are seen through another one, is in no tree."""
    assert walk([array], arrays=True) is None
    assert walk([numpy.arange(5)]) is None


def test_a_view_is_known_by_its_form_and_by_the_array_under_it():
    """A view that has another form has changed; what is written to it changes its owner."""
    owner = numpy.ones((3, 4))
    for view in (owner[1], owner[:, 2], owner.T, owner[::-1, 1:]):
        tree = walk([view, "x" * 600], arrays=True)
        assert tree is not None
        assert {id(view), id(owner)} < set(map(id, tree.nodes))
        watch = Watch(tree.nodes)
        assert watch.holds()
        view[0] += 1
        assert not watch.holds()
        assert watch.changed() == {id(owner)}
        view[0] -= 1
        assert watch.holds()
        view.flags.writeable = False
        assert not watch.holds()
        assert watch.changed() == {id(view)}


def test_numbers_of_numpy_never_change():
    """A number of numpy is in a tree as a number of Python is, and no node."""
    tree = walk([[numpy.float64(1), numpy.int32(2), numpy.datetime64("2026")], "x" * 600])
    assert tree is not None
    assert len(tree.nodes) == 3  # two lists and a text


def test_a_field_with_another_name_is_noticed():
    """Names of fields may be changed in place, in the type that an array shares."""
    array = ARRAYS["fields"]()
    watch = Watch([array])
    array.dtype.names = ("a", "b")
    assert not watch.holds()


def test_fields_of_another_type_are_noticed():
    """An array whose fields have other types or places under the same names has changed."""
    for other in ("f4,i4", {"names": ["f0", "f1"], "formats": ["i4", "i4"], "offsets": [4, 0]}):
        array = numpy.zeros(3, dtype="i4,i4")
        watch = Watch([array])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy 2.5 discourages it
            array.dtype = other
        assert not watch.holds()


def test_an_array_that_numpy_loaded_into_bytes_is_watched():
    """An array over the bytes of its pickle, which it may write, has these to itself."""
    array = pickle.loads(pickle.dumps(numpy.arange(600).astype("M8[s]")))
    assert type(array.base) is bytes
    tree = walk([array], arrays=True)
    assert tree is not None
    watch = Watch(tree.nodes)
    assert watch.holds()
    array[7] = numpy.datetime64(8, "s")
    assert not watch.holds()
    array.flags.writeable = False
    assert walk([array], arrays=True) is None


def test_a_change_while_it_is_made(monkeypatch):
    """A watch that is made while another thread changes a dict never holds, and raises nothing."""
    messages = conversation(100)
    changing = mock.Mock(side_effect=[RuntimeError, (), ()])
    monkeypatch.setattr(trees, "chain", mock.Mock(from_iterable=changing))
    watch = Watch(messages)
    monkeypatch.undo()
    assert not watch.holds()
    more = Watch(conversation(3))
    more.extend(watch)
    assert not more.holds()
