"""Values and exceptions to bytes and back; records to headers and back; previews."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import decimal
import enum
import functools
import io
import json
import os
import pathlib
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
from typing import Any

import httpx
import numpy as np
import pytest
from harness import python
from hypothesis import given
from hypothesis import strategies as st
from pickled import Account, Model, Plain, Point, double

from examples import sweep
from stepwise import errors
from stepwise._values import codec
from stepwise._values.codec import (
    Codec,
    Encoded,
    decode,
    decode_error,
    encode,
    encode_error,
    traceback_text,
)
from stepwise._values.exception_data import decode_raised, encode_raised
from stepwise.errors import NotRecordableError, StepFailedError, UnreadableValueError

needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups in 3.10")
Group = getattr(builtins, "ExceptionGroup", None)


class Color(enum.Enum):
    RED = 1


def through(value):
    return decode(*encode(value))


# -- values ----------------------------------------------------------------------------------------

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.uuids(),
    st.datetimes(),
    st.decimals(allow_nan=False),
    st.sampled_from([*Color, int, double, len, pathlib.Path("a/b"), Model(x=1)]),
)
keys = atoms.filter(lambda value: not isinstance(value, Model))  # which has no hash
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


@sweep
@given(atoms | st.sampled_from([2**5000, "x" * 20_000, b"x" * 20_000, "\ud800" * 9_000]))
def test_atoms_are_pickled_as_by_a_pickler_of_ours(atom):
    """A single text, number or bytes takes a shorter way to the same bytes."""
    sink = io.BytesIO()
    codec._Plain(sink, codec.PROTOCOL).dump(atom)
    assert bytes(codec.dump_plain(atom)) == sink.getvalue()


@sweep
@given(values)
def test_round_trip(value):
    """Data comes back equal, of the same types, from bytes that any Python may load."""
    encoded = encode(value)
    assert encoded.form is None
    back = decode(*encoded)
    assert back == value
    assert repr(back) == repr(value)


def test_shared_references():
    """What is one object in a value is one object when it comes back."""
    shared, ring = [1], []
    ring.append(ring)
    back = through({"a": shared, "b": shared, "ring": ring})
    assert back["a"] is back["b"]
    assert back["ring"][0] is back["ring"]


def test_arrays():
    """An array comes back with its elements, shape and type."""
    array = np.arange(6, dtype=">i2").reshape(2, 3).T
    back = through(array)
    assert (back == array).all()
    assert (back.shape, back.dtype) == (array.shape, array.dtype)


def test_names_not_copies():
    """Classes, functions and enum members of a module come back as themselves."""
    assert through([Color.RED, Point, double]) == [Color.RED, Point, double]
    assert len(encode(Point(1)).data) < 200


def test_lambdas_and_closures():
    """A lambda and a closure come back working; their bytes are marked with this Python."""
    rate = 3
    encoded = encode({"f": lambda value: value * rate, "g": functools.partial(double, 4)})
    assert encoded.form == f"{sys.version_info[0]}.{sys.version_info[1]}"
    back = decode(*encoded)
    assert back["f"](5) == 15
    assert back["g"]() == 8


def test_local_classes():
    """An object of a class made inside a function comes back with its methods."""

    class Answer:
        def __init__(self, text):
            self.text = text

        def shout(self):
            return self.text.upper()

    class Mood(enum.Enum):
        GOOD = 1

    encoded = encode([Answer("hi"), Mood.GOOD])
    assert encoded.form is not None
    answer, mood = decode(*encoded)
    assert answer.shout() == "HI"
    assert isinstance(answer, Answer)
    assert mood is Mood.GOOD


def test_code_of_another_python(monkeypatch):
    """By-value code of another Python is refused unread: loading it could crash the interpreter."""
    encoded, plain = encode(lambda: 1), encode([1, 2])
    monkeypatch.setattr(codec, "PYTHON", "3.99")
    assert decode(*plain) == [1, 2]
    loaded = []
    monkeypatch.setattr(codec.pickle, "loads", loaded.append)
    with pytest.raises(UnreadableValueError, match=r"run the program with Python") as caught:
        decode(*encoded)
    assert "3.99" in str(caught.value)
    assert loaded == []


def test_class_that_is_gone(monkeypatch):
    """A value whose class is gone is refused with the name to bring back."""
    module = types.ModuleType("soon_gone")
    module.Answer = type("Answer", (), {"__module__": "soon_gone"})
    monkeypatch.setitem(sys.modules, "soon_gone", module)
    encoded = encode(module.Answer())
    monkeypatch.delitem(sys.modules, "soon_gone")
    with pytest.raises(UnreadableValueError, match="soon_gone") as caught:
        decode(*encoded)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_damaged_bytes():
    """Bytes that are no pickle are refused as unreadable."""
    with pytest.raises(UnreadableValueError):
        decode(b"\x80\x05nonsense")


# -- what cannot be recorded -----------------------------------------------------------------------

LOCK = threading.Lock()
PATHS = {
    "": LOCK,
    "[1]": [1, LOCK],
    "[0]": (LOCK, 1),
    "['client']": {"ok": 1, "client": LOCK},
    ".x": Point(LOCK),
    ".a[0]['b'].c": Plain(a=[{"b": Plain(c=LOCK)}]),
    "[0][0][0][0]": [[[[LOCK]]]],
    ".user": Account(LOCK),
    "[2]": [lambda: 1, Point(1), LOCK],
}


@pytest.mark.parametrize("path", PATHS)
def test_the_culprit(path):
    """The error names the part that cannot be recorded, its type, and the way out."""
    with pytest.raises(NotRecordableError) as caught:
        encode(PATHS[path], "the value returned by 'search'")
    assert caught.value.path == path
    assert caught.value.type_name == "_thread.lock"
    assert str(caught.value).startswith(f"the value returned by 'search'{path} is a _thread.lock")
    assert "Return plain data" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_culprit_behind_a_cycle():
    """A reference back to the whole does not hide the part that cannot be recorded."""
    ring: list = []
    ring += [ring, LOCK]
    with pytest.raises(NotRecordableError) as caught:
        encode(ring)
    assert (caught.value.path, caught.value.type_name) == ("[1]", "_thread.lock")
    agent, tool = Plain(), Plain()
    agent.tools, tool.agent, agent.lock = [tool], agent, LOCK
    with pytest.raises(NotRecordableError) as caught:
        encode(agent)
    assert (caught.value.path, caught.value.type_name) == (".lock", "_thread.lock")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_a_culprit_without_words():
    """A key whose ``repr`` raises, or a reduction that fails without text, is told all the same."""

    class Mute:
        def __repr__(self):
            raise RuntimeError("no text")

    class Stubborn:
        def __reduce__(self):
            raise MuteError

    for value in ({Mute(): LOCK}, [Stubborn()]):
        with pytest.raises(NotRecordableError):
            encode(value)


def nested(depth, wrap):
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


def depth_of(value):
    """How deep a value of :func:`nested` is; takes it apart, since freeing it would recurse."""
    depth = 0
    while value is not None:
        depth, value = depth + 1, value.pop() if isinstance(value, list) else vars(value).pop("c")
    return depth


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        pytest.param(
            lambda inner: Plain(c=inner),
            marks=pytest.mark.skipif(
                sys.version_info[:2] == (3, 12), reason="3.12 counts the C stack by itself"
            ),
        ),
    ],
    ids=["lists", "objects"],
)
def test_nesting(wrap):
    """Plain pickle gives up at some hundred levels; a linked list of thousands is recorded."""
    value = nested(3_000, wrap)
    try:
        assert depth_of(through(value)) == 3_000
    finally:
        depth_of(value)


def test_deep_nesting():
    """What is nested extremely deeply is recorded whole or refused with the reason; no crash."""
    value = nested(20_000, lambda inner: [inner])
    try:
        assert depth_of(through(value)) == 20_000
    except NotRecordableError as error:
        assert re.search("nest|deep", str(error))
    finally:
        depth_of(value)


@pytest.mark.parametrize("how", ["r", "a", "r+", "rb", "wb"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda file: file,
        lambda file: [lambda: 1, {"log": file}],
        lambda file: lambda: file,
    ],
    ids=["alone", "beside a lambda", "in a closure"],
)
def test_open_files(how, wrap, tmp_path):
    """An open file is refused: cloudpickle would make it a copy in memory, and lose its writes."""
    path = tmp_path / "notes.txt"
    path.write_text("hello", "utf-8")
    with open(path, how) as file, pytest.raises(NotRecordableError, match="open file"):
        encode(wrap(file))
    with tempfile.NamedTemporaryFile() as file:
        for opened in (file, sys.__stdout__):
            with pytest.raises(NotRecordableError):
                encode(wrap(opened))


def test_buffers_in_memory():
    """What a text or byte buffer in memory holds is data, and comes back with its position."""
    text, data = io.StringIO("hello"), io.BytesIO(b"hello")
    text.read(2)
    data.read(3)
    for extra in ([], [lambda: 1]):
        back = through([text, data, *extra])
        assert (back[0].read(), back[1].read()) == ("llo", b"lo")


def test_sockets_and_generators():
    """A socket and a generator are named as what they are."""
    with socket.socket() as connection, pytest.raises(NotRecordableError) as caught:
        encode({"c": connection})
    assert (caught.value.path, caught.value.type_name) == ("['c']", "socket.socket")
    with pytest.raises(NotRecordableError) as caught:
        encode([(n for n in range(3))])
    assert (caught.value.path, caught.value.type_name) == ("[0]", "generator")


# -- what a script defines -------------------------------------------------------------------------

SCRIPT = textwrap.dedent(
    """
    import dataclasses, enum, pathlib, pickle, sys
    from stepwise._values.codec import decode, decode_error, encode, encode_error

    class Color(enum.Enum):
        RED = 1
    @dataclasses.dataclass
    class Point:
        x: int
        def double(self):
            return self.x * 2
    class Outer:
        class Inner:
            pass
        @classmethod
        def make(cls):
            return cls()
    class OddError(Exception):
        def __init__(self, code):
            super().__init__(code)
            self.code = code
    def double(value):
        return value * 2
    COUNT = []
    def count():
        COUNT.append(1)
        return len(COUNT)

    value = [Color.RED, Point(2), Outer.Inner(), double, Point]
    call = lambda: (Point(4), Color.RED, count())
    mixed = [Color.RED, Point(3), count, Outer.Inner, Outer.make, lambda: call()]

    file = pathlib.Path(sys.argv[1])
    if not file.exists():
        error = OddError(7)
        error.__cause__ = ValueError("why")
        recorded = [tuple(encode(value)), tuple(encode(mixed)), encode_error(error).data]
        file.write_bytes(pickle.dumps(recorded))
        print("recorded")
    else:
        plain, code, failure = pickle.loads(file.read_bytes())
        assert plain[1] is None and code[1] is not None
        color, point, inner, function, cls = decode(*plain)
        assert color is Color.RED and isinstance(point, Point) and point.double() == 4
        assert isinstance(inner, Outer.Inner) and function is double and cls is Point
        color, point, counter, nested, make, call = decode(*code)
        assert color is Color.RED and isinstance(point, Point) and counter is count
        assert nested is Outer.Inner and isinstance(make(), Outer)
        made, color, number = call()
        assert isinstance(made, Point) and color is Color.RED and number == 1 and COUNT == [1]
        error = decode_error(failure)
        assert type(error) is OddError and error.code == 7 and str(error.__cause__) == "why"
        print("read")
    """
)


def test_what_a_script_defines(tmp_path):
    """What a script defines is itself again in its next run: classes, members, errors."""
    script, file = tmp_path / "agent.py", tmp_path / "recorded"
    script.write_text(SCRIPT, "utf-8")
    said = [python("-W", "error", str(script), str(file)) for _ in range(2)]
    assert [(done.stdout, done.stderr) for done in said] == [("recorded\n", ""), ("read\n", "")]


# -- exceptions ------------------------------------------------------------------------------------


def raised(error, cause=None, *, within=None):
    """The exception, as it arrives after it was raised."""
    try:
        if within is None:
            raise error from cause
        try:
            raise within
        except Exception:
            raise error  # noqa: B904
    except Exception as caught:
        return caught


def error_through(error):
    encoded = encode_error(error)
    assert isinstance(encoded, Encoded)
    return decode_error(encoded.data)


def error_through_data(error):
    return decode_raised(encode_raised(error, traceback_text), whole=True)


either_way = pytest.mark.parametrize(
    "through", [error_through, error_through_data], ids=["pickled", "as data"]
)


def http_error():
    response = httpx.Response(404, request=httpx.Request("GET", "http://localhost/page"))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


SECRET = "a1b2c3d4e5f6g7h8"


@either_way
def test_what_an_exception_says_is_recorded_without_credentials(through):
    """Keys and passwords in URLs, headers and pairs are masked in texts, arguments, notes."""
    said = f"GET https://me:{SECRET}@x/y?token={SECRET}&page=2 with Authorization: Bearer {SECRET}"
    error = raised(OSError(5, said))
    error.sent = {"text": f'{{"api_key": "{SECRET}"}}'}
    name = "" if through is error_through else "json"
    data = Codec(name).encode_error(error).data
    assert SECRET.encode() not in bytes(data)
    back = through(error)
    clean = "GET https://***@x/y?token=***&page=2 with Authorization: Bearer ***"
    assert (back.args, back.sent) == ((5, clean), {"text": '{"api_key": "***"}'})
    assert SECRET in str(error)


@dataclasses.dataclass
class DataError(Exception):
    code: int
    detail: str = ""


class KeywordError(Exception):
    def __init__(self, message, *, code):
        super().__init__(message)
        self.code = code


class FormattingError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


class HoldingError(Exception):
    def __init__(self, held):
        super().__init__("holds a client")
        self.held = held


class ReducedError(KeywordError):
    def __reduce__(self):
        return _rebuild, (self.args[0], self.code)


def _rebuild(message, code):
    return ReducedError(message, code=code)


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3, None, 1.5),
        KeyError("k"),
        KeyError(("a", 1)),
        FileNotFoundError(2, "gone", "file.txt"),
        UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid"),
        SyntaxError("bad", ("f.py", 1, 2, "text", 1, 3)),
        ImportError("no", name="n", path="p"),
        StopIteration(5),
        ZeroDivisionError(),
        asyncio.CancelledError("stop"),
        KeyboardInterrupt(),
        SystemExit(3),
        ValueError("\ud800 lone"),
        DataError(5, "d"),
        ReducedError("m", code=4),
        KeywordError("no code", code=1),
        FormattingError(7),
        AssertionError({"a": [1]}),
        decimal.DivisionByZero("x"),
        subprocess.CalledProcessError(1, ["ls"], b"out"),
        httpx.ConnectError("refused"),
        errors.StepTimeoutError("slow", step="s", timeout=1.5),
        error_of(lambda: json.loads("{")),
        error_of(lambda: (1).nothing),
        error_of(lambda: open("/nowhere/at/all")),  # noqa: SIM115
    ],
    ids=lambda error: f"{type(error).__name__}{error.args!r:.20}",
)
@either_way
def test_errors(error, through):
    """An exception comes back with its type, text, arguments and attributes."""
    if type(error).__reduce__ is BaseException.__reduce__:
        error.extra = {"request": 7}
    back = through(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)
    assert getattr(back, "filename", None) == getattr(error, "filename", None)


@either_way
def test_causes_and_contexts(through):
    """Causes and contexts come back, each of them once, and ``from None`` stays hidden."""
    root = raised(KeyError("root"))
    middle = raised(ValueError("middle"), root)
    top = raised(TypeError("top"), within=middle)
    back = through(top)
    assert isinstance(back.__context__, ValueError)
    assert back.__cause__ is None
    assert back.__suppress_context__ is False
    assert isinstance(back.__context__.__cause__, KeyError)
    assert back.__context__.__suppress_context__ is True
    both = ValueError("both")
    both.__cause__ = both.__context__ = root
    back = through(both)
    assert back.__cause__ is back.__context__
    try:
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("shown") from None
    except ValueError as error:
        back = through(error)
    assert isinstance(back.__context__, KeyError)
    assert back.__suppress_context__


def test_rings_and_long_chains():
    """A chain that leads back to its start, or is very long, is recorded as far as it is useful."""
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    back = error_through(one)
    assert back.__context__.__context__ is back
    top: BaseException | None = None
    for number in range(2_000):
        link = ValueError(number)
        link.__cause__ = top
        top = link
    back = error_through(top)
    depth = 0
    while back.__cause__ is not None:
        assert back.__cause__.args[0] == back.args[0] - 1
        back, depth = back.__cause__, depth + 1
    assert 10 <= depth <= 100


def test_summaries():
    """An exception that does not survive pickle comes back as a summary of it, with its notes."""
    with open(os.devnull) as file:
        for held in (LOCK, file):
            error = raised(HoldingError(held))
            error.__notes__ = ["the page moved"]
            back = error_through(error)
            assert type(back) is StepFailedError
            assert str(back) == "HoldingError: holds a client"
            assert "holds a client" in back.traceback_text
            assert back.__notes__ == ["the page moved"]
            assert pickle.loads(pickle.dumps(back)).type_name == back.type_name == "HoldingError"


@pytest.mark.parametrize(
    "make",
    [
        http_error,
        lambda: raised(KeywordError("no code", code=1)),
        lambda: raised(FormattingError(7)),
    ],
    ids=["httpx", "keywords", "formatting"],
)
@pytest.mark.parametrize("through", [error_through, through])
def test_errors_with_an_init_of_their_own(make, through):
    """An exception whose ``__init__`` takes other arguments than it hands on comes back as it was.

    So does one among the values of a result.
    """
    error = make()
    back = through(error)
    assert type(back) is type(error)
    assert (str(back), back.args) == (str(error), error.args)
    assert vars(back).keys() == vars(error).keys()


@either_way
def test_summary_inside_a_chain(through):
    """A cause that does not survive is summarised; the exception itself is not."""
    back = through(raised(ValueError("top"), HoldingError(LOCK)))
    assert type(back) is ValueError
    assert type(back.__cause__) is StepFailedError
    assert back.__cause__.type_name == "HoldingError"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no notes in 3.10")
@either_way
def test_notes(through):
    """Notes come back with their exception, also if that says itself how it is pickled."""
    for error in (ValueError("bad"), error_of(lambda: json.loads("{"))):
        error.add_note("look at line 3")
        back = through(error)
        assert (type(back), back.__notes__) == (type(error), ["look at line 3"])


@needs_groups
@either_way
def test_groups(through):
    """A group comes back as one of its members, with their causes: ``except*`` finds them."""
    member = raised(ValueError("a"), KeyError("cause"))
    inner = Group("in", [KeyError("b"), FormattingError(7)])
    back = through(raised(Group("two", [member, inner])))
    assert type(back) is Group
    assert [type(each) for each in back.exceptions] == [ValueError, Group]
    assert isinstance(back.exceptions[0].__cause__, KeyError)
    assert back.exceptions[1].exceptions[0].args == ("b",)
    assert back.split(KeyError)[0] is not None
    assert back.exceptions[1].exceptions[1].code == 7


@needs_groups
def test_groups_with_a_member_that_does_not_survive():
    """A group of which one member does not survive pickle still tells of all its members."""
    back = error_through(raised(Group("two", [ValueError("first"), raised(HoldingError(LOCK))])))
    if isinstance(back, Group):
        assert [type(each) for each in back.exceptions] == [ValueError, StepFailedError]
    else:
        assert (type(back), back.type_name) == (StepFailedError, "ExceptionGroup")
        assert "first" in back.traceback_text
        assert "holds a client" in back.traceback_text


class MuteReprError(Exception):
    def __repr__(self):
        raise RuntimeError("no repr")


class NonTextError(Exception):
    def __str__(self):
        return self.args  # not a text


@pytest.mark.parametrize("kind", [MuteError, MuteReprError, NonTextError])
@pytest.mark.parametrize("where", ["alone", "cause", "context"])
def test_unprintable_errors(kind, where):
    """An exception whose ``str`` or ``repr`` raises is recorded all the same."""
    error = raised(kind("x"))
    if where == "cause":
        error = raised(ValueError("top"), error)
    elif where == "context":
        error = raised(ValueError("top"), within=error)
    back = error_through(error)
    found = {"alone": back, "cause": back.__cause__, "context": back.__context__}[where]
    assert type(found) in (kind, StepFailedError)
    assert getattr(found, "type_name", kind.__name__) == kind.__name__
    assert where == "alone" or str(back) == "top"


@pytest.mark.parametrize("notes", [None, 5, [7, "seven"]])
def test_notes_that_are_none(notes):
    """What anybody may write into ``__notes__``, or a ``SyntaxError``, is recorded, too."""
    error = SyntaxError("bad", ("file.py", "one", None, 5))
    error.__notes__ = notes
    assert type(error_through(error)) is SyntaxError


def test_error_whose_class_is_gone(monkeypatch):
    """An exception whose class is gone, or another Python's code, comes back as its summary."""

    class LocalError(Exception):
        pass

    module = types.ModuleType("soon_gone")
    module.OldError = type("OldError", (Exception,), {"__module__": "soon_gone"})
    monkeypatch.setitem(sys.modules, "soon_gone", module)
    kinds = module.OldError, LocalError
    encoded = [encode_error(raised(kind("told"), KeyError("why"))).data for kind in kinds]
    assert [type(decode_error(each)).__name__ for each in encoded] == ["OldError", "LocalError"]
    monkeypatch.delitem(sys.modules, "soon_gone")
    monkeypatch.setattr(codec, "PYTHON", "3.99")
    for each, kind in zip(encoded, kinds, strict=True):
        back = decode_error(each)
        assert type(back) is StepFailedError
        assert str(back).endswith(f"{kind.__name__}: told")
        assert "told" in back.traceback_text
        assert isinstance(back.__cause__, KeyError)


def test_traceback_text():
    """The text of a traceback has the raising line, not its chain, and a limit."""
    error = raised(ValueError("x" * 50_000), KeyError("the cause"))
    text = traceback_text(error)
    assert text.startswith("Traceback")
    assert "[...]" in text
    assert len(text) < 8_100
    assert "the cause" not in text
    short = traceback_text(raised(ValueError("bad")))
    assert short.endswith("ValueError: bad\n")
    assert "in raised" in short
