"""Values that share memory still do after they were stored, or are refused in a checkpoint."""

from __future__ import annotations

import array
import ctypes
import io
import pickle

import numpy as np
import pandas as pd
import pytest

from stepwise._values.codec import Reducers, dump
from stepwise._values.memory import SharedMemoryError


class Linked(Reducers):
    """As the variables of a frame are pickled."""

    keeps_links = True


class CPair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_uint16), ("b", ctypes.c_uint16))


class COuter(ctypes.Structure):
    _fields_ = (("pair", CPair),)


def through(*values):
    return pickle.loads(bytes(dump(values, Linked())))


def test_arrays_over_bytes_that_change():
    """An array and a view over a ``bytearray`` or an ``array`` still write into it."""
    for memory in (bytearray(8), array.array("H", [0] * 4)):
        over = np.frombuffer(memory, "<u2")
        same, first, second, part, view = through(
            memory, over, over, np.frombuffer(memory, "<u2")[2:], memoryview(memory)
        )
        assert first is second
        first[0], part[0] = 1, 2
        assert bytes(same) == bytes([1, 0, 0, 0, 2, 0, 0, 0])
        assert view.obj is same
        assert (view.format, view.shape) == (memoryview(memory).format, memoryview(memory).shape)


def test_tables_that_pandas_would_copy_before_a_write():
    """After loading, a write to a DataFrame does not change another over the same memory."""
    table = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    table, other, column = through(table, table.rename(columns={"a": "c"}), table["b"])
    table.loc[0, "a"], table.loc[0, "b"] = 9.0, "z"
    assert [other.loc[0, "c"], other.loc[0, "b"], column[0]] == [1.0, "x", "x"]


def test_windows_over_an_array():
    """Windows that overlap still see what is written to their array."""
    array = np.arange(5)
    array, windows = through(array, np.lib.stride_tricks.sliding_window_view(array, 2))
    array[1] = 9
    assert windows.tolist() == [[0, 9], [9, 2], [2, 3], [3, 4]]
    assert not windows.flags.writeable


def test_empty_arrays_share_nothing():
    """An empty array over a memory that is held elsewhere comes back, with its form."""
    memory = bytearray(8)
    over = np.frombuffer(memory, "<u2")
    found = through(memory, over[4:], over.reshape(2, 2)[:, 2:])
    assert [each.shape for each in found[1:]] == [(0,), (2, 0)]


def test_views_that_become_copies():
    """A view of an array of objects or of a masked array comes back as an equal copy."""
    for owner in (np.array([{}, [], ""], object), np.ma.masked_array([1, 2, 3], [0, 1, 0])):
        assert np.shares_memory(owner, owner[1:])
        found, view = through(owner, owner[1:])
        assert repr(view) == repr(owner[1:])
        assert not np.shares_memory(found, view)


def test_views_of_bytes():
    """A view of ``bytes`` comes back as an equal view, also as a result."""
    views = memoryview(b"abcdef"), memoryview(b"abcdef")[1:3], memoryview(b"abcdef").cast("H")
    for found in (through(*views), pickle.loads(bytes(dump(views, Reducers())))):
        for one, other in zip(found, views, strict=True):
            assert (one, one.format, one.shape) == (other, other.format, other.shape)
    part = pickle.loads(bytes(dump(memoryview(bytearray(b"abc"))[1:], Reducers())))
    assert (bytes(part), part.readonly) == (b"bc", False)


@pytest.mark.parametrize(
    "pair",
    [
        lambda each: (each, memoryview(each)[1:]),
        lambda _: (memoryview(np.zeros(3)),),
        lambda _: (io.BytesIO(b"abc").getbuffer(),),
        lambda _: (held := (ctypes.c_uint8 * 4)(), np.frombuffer(held, np.uint8)),
        lambda each: (each, ctypes.c_int.from_buffer(each)),
        lambda each: (each, CPair.from_buffer(each)),
        lambda _: (outer := COuter(), outer.pair),
    ],
)
def test_links_that_cannot_be_kept(pair):
    """A part of a memory of which the rest is elsewhere is in no checkpoint, and says so."""
    with pytest.raises(SharedMemoryError, match="shares the memory of"):
        through(*pair(bytearray(4)))


def test_ctypes_with_a_memory_of_their_own():
    """An object of ctypes over no other memory comes back; as a result, each does, as a copy."""
    number, pair = through(ctypes.c_int(3), CPair(1, 2))
    assert (number.value, pair.a, pair.b) == (3, 1, 2)
    found = pickle.loads(bytes(dump(CPair.from_buffer(bytearray(b"\1\0\2\0")), Reducers())))
    assert (found.a, found.b) == (1, 2)


def test_tensors():
    """Tensors of torch still share a storage; one that is part of a computation is refused."""
    torch = pytest.importorskip("torch")
    rows, layer = torch.zeros(2, 2), torch.nn.Linear(2, 2)
    layer(rows).sum().backward()
    rows, row, layer, weight = through(rows, rows[0], layer, layer.weight.data)
    row += 1
    assert rows.tolist() == [[1, 1], [0, 0]]
    weight.fill_(3)
    assert layer.weight.tolist() == [[3, 3], [3, 3]]
    assert layer.bias.grad.tolist() == [2, 2]
    numbers = np.zeros(3)
    for wrong in (
        [(rows * layer.weight).sum()],
        [rows, rows.numpy()],
        [numbers, torch.from_numpy(numbers)],
        [rows, rows.view(torch.int32)],
    ):
        with pytest.raises(SharedMemoryError):
            through(*wrong)


class Storage:
    """A stand-in for a storage of torch: another one each time that a tensor is asked for it."""

    def __init__(self, numbers):
        self.numbers = numbers

    def data_ptr(self):
        return id(self.numbers)

    def nbytes(self):
        return 1

    @property
    def device(self):
        return Device()


class Device(str):
    """The stand-in of a device."""

    __slots__ = ()
    type = "cpu"


Storage.__name__ = "UntypedStorage"


class Tensor:
    """A stand-in for a tensor of torch, as far as it is pickled."""

    is_leaf = True
    grad_fn = grad = None

    def __init__(self, storage):
        self.numbers = storage.numbers

    def untyped_storage(self):
        raise NotImplementedError

    def __reduce_ex__(self, protocol):
        return Tensor, (Storage(self.numbers),)


Storage.__qualname__ = "Storage"


def test_tensors_of_a_stand_in():
    """Tensors over one memory still share it, and keep their gradient, without torch too."""
    numbers = [1, 2]
    one, other = Tensor(Storage(numbers)), Tensor(Storage(numbers))
    one.grad = [3]
    one, other = through(one, other)
    assert one.numbers is other.numbers
    assert (one.grad, other.grad) == ([3], None)
    one.grad_fn = "sum"
    with pytest.raises(SharedMemoryError, match="detach"):
        through(one)
