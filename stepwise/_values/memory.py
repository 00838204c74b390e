"""Objects that share memory, which pickle would store as independent copies.

- A numpy view of an array that occurs elsewhere in the value, or is stored already, and an array
  over a ``bytearray``, are stored as views.  (A writeable view of a read-only array comes back
  read-only.)
- A ``memoryview`` of a whole object is stored as a view of the object.
- Tensors of torch are stored as tensors over one storage, with their gradient.

An array whose memory is a file (``np.memmap``, opened for writing) is refused: writes to a copy
would not reach the file.  On request, any other link that cannot be kept is refused, too.  Examples
are a part of a memory that other objects hold, and a ctypes object over another object's memory.
An array and a tensor over one memory, and a tensor that is part of a computation, are others.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterable
from typing import Any

_LINKED = (bytearray, array.array)


class SharedMemoryError(TypeError):
    """An object shares memory with another object, and a copy would not.

    Args:
        value: the object.
    """

    def __init__(self, why: str, value: Any) -> None:
        super().__init__(why)
        self.value = value


class SharedMemory:
    """The reduction of objects that may share memory.

    Args:
        keeps_links: refuse a link that cannot be kept; otherwise store a copy instead.
        kept: returns the reference that replaces an object, or ``None``.
        arrays: returns the arrays that a reference may replace, and that occur nowhere here.
    """

    def __init__(
        self,
        *,
        keeps_links: bool,
        kept: Callable[[Any], Any],
        arrays: Callable[[], Iterable[Any]],
    ) -> None:
        self.keeps_links = keeps_links
        self._kept = kept
        self._arrays = arrays
        self._views: dict[int, int] = {}
        self._viewed = False
        self._shared: frozenset[int] = frozenset()
        self._storages: dict[Any, Any] = {}
        self._places: dict[str, list[tuple[int, int]]] = {"array": [], "tensor": []}

    def shares(self) -> bool:
        """Return whether arrays of the value share memory, so that it must be pickled again."""
        if not self._viewed:
            return False
        self._shared = frozenset(each for each, count in self._views.items() if count > 1)
        self._views.clear()
        self._viewed = False
        return bool(self._shared)

    def of(self, obj: Any) -> Any:
        """Return the reduced form of an object."""
        if type(obj) is memoryview:
            return self.view(obj)
        if type(type(obj)).__module__ == "_ctypes":
            return self.c_data(obj)
        return self.array(obj) if type(obj).__module__ == "numpy" else self.tensor(obj)

    def array(self, array: Any) -> Any:
        """Reduce an array; a view of an array that occurs elsewhere stays a view of that array."""
        _refuse_mapped(array)
        if type(array).__name__ == "memmap" or not array.size:
            return NotImplemented  # an empty array has nothing to share
        owner, memory = _owner_of(array)
        if self.keeps_links:
            self._lies_at(owner, owner.__array_interface__["data"][0], owner.nbytes, "array")
        if type(memory) in _LINKED:
            whole = sys.modules["numpy"].frombuffer(memory, "B")
            return view_of(memory, array, whole)
        if self.keeps_links and owner.flags.writeable and _is_held_elsewhere(memory):
            kind = type(memory).__name__
            raise SharedMemoryError(
                f"it shares the memory of a {kind}, and a copy would not", array
            )
        self._views[id(owner)] = self._views.get(id(owner), 0) + 1
        if owner is array:
            return NotImplemented
        self._viewed = True
        contiguous = owner.flags.c_contiguous or owner.flags.f_contiguous
        is_shared = id(owner) in self._shared or self._kept(owner) is not None
        if not is_shared or array.dtype.hasobject or not contiguous:
            return NotImplemented
        return view_of(owner, array)

    def view(self, view: memoryview) -> Any:
        """Reduce a memoryview: of a whole object to a view of the object, of a part to a copy."""
        whole: Any = None
        if len(view.format) != 1:
            return NotImplemented  # no view of such a format can be made
        if type(view.obj) in _LINKED or type(view.obj) is bytes:
            whole = memoryview(view.obj)
        if whole is not None and whole.nbytes == view.nbytes and view.c_contiguous:
            return _memory, (view.obj, view.format, view.shape, view.readonly)
        if self.keeps_links and not (view.readonly and type(view.obj) is bytes):
            kind = type(view.obj).__name__
            raise SharedMemoryError(f"it shares the memory of a {kind}, and a copy would not", view)
        part = view.tobytes() if view.readonly else bytearray(view.tobytes())
        return _memory, (part, view.format, view.shape, view.readonly)

    def c_data(self, data: Any) -> Any:
        """Reduce a ctypes object that owns its memory, unlike objects made by ``from_buffer``."""
        if self.keeps_links and not data._b_needsfree_:
            why = "it shares the memory of another object, and a copy would not"
            raise SharedMemoryError(why, data)
        return NotImplemented

    def tensor(self, tensor: Any) -> Any:
        """Reduce a torch tensor, over the storage that it shares with other tensors."""
        if self.keeps_links and tensor.grad_fn is not None:
            why = "it is part of a computation, which a copy would not be: use tensor.detach()"
            raise SharedMemoryError(why, tensor)
        form = tensor.__reduce_ex__(4)
        if not isinstance(form, tuple):
            return form
        make, parts, *state = form
        parts = self._over_storages(parts, tensor)
        grad = tensor.grad if tensor.is_leaf else None
        if grad is None or state:
            return make, parts, *state
        return make, parts, grad, None, None, _set_gradient

    def _over_storages(self, parts: tuple[Any, ...], tensor: Any) -> tuple[Any, ...]:
        return tuple(
            self._over_storages(each, tensor)
            if type(each) is tuple
            else self._storage(each, tensor)
            if type(each).__name__ in ("TypedStorage", "UntypedStorage")
            else each
            for each in parts
        )

    def _storage(self, storage: Any, tensor: Any) -> Any:
        raw, kind = getattr(storage, "_untyped_storage", storage), getattr(storage, "dtype", None)
        address = raw.data_ptr()
        if not address:
            return storage
        if self.keeps_links and raw.device.type == "cpu":
            kept, self._arrays = [*self._arrays()], tuple  # noted once
            starts = (each.__array_interface__["data"][0] for each in kept)
            self._places["array"] += [
                (start, start + each.nbytes) for start, each in zip(starts, kept, strict=True)
            ]
            self._lies_at(tensor, address, raw.nbytes(), "tensor")
        known, known_kind = self._storages.setdefault((address, raw.device), (storage, kind))
        if known_kind == kind:
            return known
        if self.keeps_links:
            raise SharedMemoryError("it shares the memory of a tensor of another type", tensor)
        return storage

    def _lies_at(self, value: Any, start: int, size: int, kind: str) -> None:
        """Note the memory of an object; refuse an object of the other kind over the same memory."""
        other = "array" if kind == "tensor" else "tensor"
        if any(start < end and begin < start + size for begin, end in self._places[other]):
            raise SharedMemoryError(f"it shares the memory of another {other}", value)
        self._places[kind].append((start, start + size))


def view_of(owner: Any, array: Any, whole: Any = None) -> tuple[Any, ...]:
    """Return the reduced form of a view of the object that owns its memory.

    Args:
        whole: an array over all of the owner; by default, the owner is an array itself.
    """
    first = (owner if whole is None else whole).__array_interface__["data"][0]
    start = array.__array_interface__["data"][0] - first
    shape = array.dtype, array.shape, array.strides
    return _view, (type(array), owner, start, *shape, array.flags.writeable)


def _owner_of(array: Any) -> tuple[Any, Any]:
    """Return the array that owns the data of a view, and the object that holds the memory."""
    while True:
        memory = array.base
        while type(memory) is memoryview:
            memory = memory.obj
        if type(memory).__name__ == "DummyArray":  # of numpy's as_strided, sliding_window_view
            memory = memory.base
        if type(memory) is not type(array):
            return array, memory
        array = memory


def _refuse_mapped(array: Any) -> None:
    """Refuse an array that writes to a file."""
    if not array.flags.writeable:
        return
    memory = array
    while getattr(memory, "base", None) is not None:
        if getattr(memory, "mode", None) == "c":
            return  # copied on write: the file never sees it
        memory = memory.base
    if type(memory).__name__ == "mmap":
        raise TypeError("it is mapped to a file, and writes to a copy would not reach the file")


def _is_held_elsewhere(memory: Any) -> bool:
    """Return whether anything beside one owner and the caller holds an object."""
    alone = [object()]
    one = alone[0]
    return memory is not None and sys.getrefcount(memory) > sys.getrefcount(one) + 1


def _view(
    cls: Any, owner: Any, start: int, dtype: Any, shape: Any, strides: Any, writeable: bool
) -> Any:
    memory = owner if type(owner) is not cls or owner.flags.c_contiguous else owner.T
    array = cls(shape, dtype, memory, start, strides)
    if not writeable:
        array.flags.writeable = False
    return array


def _memory(memory: Any, kind: str, shape: Any, readonly: bool) -> memoryview:
    view = memoryview(memory)
    if (view.format, view.shape) != (kind, shape):
        view = view.cast("B")
        view = view.cast(kind, shape) if kind != "B" or len(shape) != 1 else view  # type: ignore[call-overload]
    return view.toreadonly() if readonly else view


def _set_gradient(tensor: Any, gradient: Any) -> None:
    tensor.grad = gradient
