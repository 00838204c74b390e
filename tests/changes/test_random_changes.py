"""Changes of random objects are found, recorded and repeated on equal ones, in place."""

import collections
import copy
import dataclasses
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweeping import WHOLE

import stepwise
from stepwise._changes import Edit, Snapshot, path_text
from stepwise._execution.changes import Recorded, changes_of, load_changes
from stepwise._matching.subjects import Held, Targets, Watched
from stepwise._values.codec import Codec


class Own:
    def __init__(self, **held):
        self.__dict__.update(held)


class Slotted:
    __slots__ = ("items", "other")

    def __init__(self, items, other=None):
        self.items = items
        self.other = other


@dataclasses.dataclass(frozen=True)
class Frozen:
    items: list = dataclasses.field(default_factory=list)


class Model(pydantic.BaseModel):
    items: list = []
    _seen: int = pydantic.PrivateAttr(0)


class Named(list):
    """A list with attributes."""


atoms = st.integers(-2, 2) | st.booleans() | st.floats(-1, 1) | st.text("ab", max_size=2)
containers = st.recursive(
    st.lists(atoms, max_size=4)
    | st.dictionaries(st.text("abc", max_size=2), atoms, max_size=3)
    | st.sets(st.integers(0, 5), max_size=3)
    | st.lists(atoms, max_size=3).map(collections.deque)
    | st.binary(max_size=4).map(bytearray),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text("abc", max_size=2), inner, min_size=1, max_size=3)
        | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2).map(collections.OrderedDict)
        | st.builds(Own, items=inner, count=atoms)
        | st.builds(Slotted, st.lists(inner, max_size=2))
        | st.builds(Frozen, st.lists(inner, max_size=2))
        | st.builds(Model, items=st.lists(atoms, max_size=2))
        | st.lists(inner, max_size=2).map(Named)
        | inner.map(lambda each: SimpleNamespace(each=each))
        | inner.map(lambda each: (each, 1))
    ),
    max_leaves=6,
)


def parts_of(value, met):
    """Return the objects that a change can be made to."""
    if id(value) in met or isinstance(value, (str, int, float, bytes, type(None))):
        return []
    met[id(value)] = value
    inside = []
    if isinstance(value, dict):
        inside += value.values()
    elif isinstance(value, (list, tuple, collections.deque)):
        inside += value
    inside += getattr(value, "__dict__", {}).values()
    inside += [getattr(value, each, None) for each in getattr(type(value), "__slots__", ())]
    found = [] if isinstance(value, (tuple, Frozen)) else [value]
    return found + [each for held in inside for each in parts_of(held, met)]


def described(value, met=None):
    """Return what objects hold, with their classes, orders and aliases."""
    met = {} if met is None else met
    if isinstance(value, (str, int, float, bytes, type(None))):
        return type(value).__name__, repr(value)
    if id(value) in met:
        return "again", met[id(value)]
    met[id(value)] = len(met)
    items = ()
    if isinstance(value, dict):
        items = tuple((described(k, met), described(v, met)) for k, v in value.items())
    elif isinstance(value, set):
        items = tuple(sorted(described(each, met) for each in value))
    elif isinstance(value, (list, tuple, collections.deque, bytearray)):
        items = tuple(described(each, met) for each in value)
    held = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        for name in cls.__dict__.get("__slots__", ()):
            if hasattr(value, name) and name != "__dict__":
                held[name] = getattr(value, name)
    attributes = tuple((name, described(held[name], met)) for name in sorted(held))
    return type(value).__name__, items, attributes


def change(value, chosen, new):
    """Change one object in place, in one of the ways of its kind."""
    if isinstance(value, Model):
        value._seen += 1
    elif isinstance(value, (Own, SimpleNamespace)):
        chosen.choice([lambda: setattr(value, "count", new), lambda: vars(value).clear()])()
    elif isinstance(value, Slotted):
        value.other = new
    elif isinstance(value, dict):
        ways = [lambda: value.update(z=new), value.clear, lambda: value.update(a=new)]
        ways.append(lambda: value.update({"b": value.pop("b", 0)}))
        chosen.choice(ways)()
    elif isinstance(value, set):
        chosen.choice([lambda: value.add(9), value.clear])()
    elif isinstance(value, (list, collections.deque, bytearray)):
        item = 7 if isinstance(value, bytearray) else new
        ways = [lambda: value.append(item), value.reverse]
        if value:
            ways += [value.pop, lambda: value.__setitem__(0, item)]
        chosen.choice(ways)()


def recorded(snapshot):
    """Return how the changes since a snapshot stand in a record."""
    held = Held(None, None)
    held.watched, held.snapshot = Watched(snapshot.roots), snapshot
    changes = changes_of(held)
    if changes is None:
        return None
    assert changes.untold == []
    codec = Codec()
    plainly = lambda: codec.encode("done", "it")  # noqa: E731
    return Recorded(changes.edits, (), snapshot).encode(codec, "done", plainly, failed=False)


def repeated(encoded, roots):
    """Repeat recorded changes on other objects; return the paths that were lost."""
    given_now = Targets(roots, lambda _: False)
    loaded = load_changes(bytes(encoded.data), encoded.form, given_now, None)
    assert loaded.put_back is not None
    lost = []
    loaded.put_back("it", lambda text: bool(lost.append(text)))
    return lost


@settings(max_examples=300 if WHOLE else 80)
@given(value=containers, other=containers, seed=st.integers(0, 1 << 16), new=atoms | containers)
@example(value=SimpleNamespace(each=Slotted([])), other=collections.deque([0]), seed=0, new=1)
def test_what_is_changed_anywhere_is_repeated_on_an_equal_object(value, other, seed, new):
    """Random changes at any depth, of objects that share some, make an equal pair equal to it."""
    chosen = random.Random(seed)
    live = {"one": [value, other], "two": {"shared": value}}
    fresh = copy.deepcopy(live)
    snapshot = Snapshot(live)
    for _ in range(chosen.randint(0, 3)):
        change(chosen.choice(parts_of([*live.values()], {})[1:]), chosen, new)
    encoded = recorded(snapshot)
    if encoded is None:
        assert described(live) == described(fresh)
        return
    assert repeated(encoded, fresh) == []
    assert described(live) == described(fresh)


@settings(max_examples=300 if WHOLE else 80)
@given(value=containers, seed=st.integers(0, 1 << 16), new=atoms)
def test_a_change_that_is_there_already_is_not_repeated(value, seed, new):
    """What is as it was after the call stays as it is."""
    chosen = random.Random(seed)
    live = {"one": [value]}
    snapshot = Snapshot(live)
    change(chosen.choice(parts_of([*live.values()], {})[1:]), chosen, new)
    encoded = recorded(snapshot)
    if encoded is not None:
        after = copy.deepcopy(live)
        repeated(encoded, live)
        assert described(live) == described(after)


def test_what_is_neither_is_left_and_said():
    """An object that another code changed meanwhile is left as it is, by its path."""
    live = {"state": Own(history=[1])}
    snapshot = Snapshot(live)
    live["state"].history.append(2)
    encoded = recorded(snapshot)
    other = {"state": Own(history=["x", "y", "z"])}
    with pytest.warns(match=r"state\.history"):
        load_changes(
            bytes(encoded.data), encoded.form, Targets(other, lambda _: False), None
        ).put_back("it", lambda _: True)
    assert other["state"].history == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: random.Random(1), lambda it: it.random()),
        (lambda: np.random.default_rng(1), lambda it: it.random()),
        (lambda: np.random.RandomState(1), lambda it: it.rand()),
        (lambda: np.zeros((3, 2))[:, 0], lambda it: it.__iadd__(1)),
        (lambda: np.array([[1], "a"], dtype=object), lambda it: it.__setitem__(1, "b")),
    ],
    ids=["random", "generator", "state", "view", "objects"],
)
def test_generators_and_arrays(make, draw):
    """A generator of random numbers goes on where it was, an array has its contents again."""
    live, fresh = {"it": make()}, {"it": make()}
    snapshot = Snapshot(live)
    draw(live["it"])
    assert repeated(recorded(snapshot), fresh) == []
    if hasattr(live["it"], "tolist"):
        assert live["it"].tolist() == fresh["it"].tolist()
    else:
        assert np.array_equal(draw(live["it"]), draw(fresh["it"]))


def test_a_long_list_that_grows_is_looked_at_anew_only_where_it_grew():
    """A snapshot that is kept for the next call takes in what came, and finds what changed then."""
    messages = [{"role": "user", "content": str(n)} for n in range(1000)]
    snapshot = Snapshot({"messages": messages})
    for n in range(50):
        messages.append({"role": "user", "content": "new"})
        assert not snapshot.holds()
        assert snapshot.renewed()
        assert snapshot.holds()
        messages[-1]["content"] = f"changed {n}"
        (found,) = snapshot.changed()
        path = snapshot.paths([found.obj])[id(found.obj)]
        assert path_text(path) == f"messages[{1000 + n}]"
        assert snapshot.renewed()
    assert len(snapshot._blocks) < 12
    for place in random.Random(1).sample(range(1050), 100):
        messages[place]["more"] = place
        (found,) = snapshot.changed()
        assert path_text(snapshot.paths([found.obj])[id(found.obj)]) == f"messages[{place}]"
        assert snapshot.renewed()
        assert snapshot.holds()
    messages[0], messages[1] = messages[1], {"role": "new"}
    assert snapshot.renewed()
    messages[1]["role"] = "changed"
    (found,) = snapshot.changed()
    assert found.obj is messages[1]


def test_data_are_no_content_to_unpickle():
    """A change that stands as JSON, so under ``trust="data"``, gives no generator a pickle."""
    generator = np.random.RandomState(1)
    state = generator.get_state(legacy=False)
    forged = Edit("whole", None, b"", b"", (pickle.dumps(state), ()))
    with pytest.raises(stepwise.UnreadableValueError):
        forged.apply(generator)
