"""The traversal of all that a function reads of the project; see ``versions``.

This module is loaded on use: a run whose files have not changed need not look into them again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepwise._identity.call_parts import plain_function, shape_digest
from stepwise._identity.clients import is_foreign_module
from stepwise._identity.versions import UNKNOWN, Version, lines_of
from stepwise._rewrite.build import codes_within
from stepwise._rewrite.reading import (
    CLASSES,
    IMPORTS,
    CodeRead,
    bases,
    bindings,
    decorators,
    docstring,
    imported,
    literal,
    members,
)
from stepwise._rewrite.source import (
    FUNCTIONS,
    Definition,
    Source,
    definition_at,
    parsed,
    text_digest,
)
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached, process_lock
from stepwise._runtime.messages import is_ours
from stepwise._values.digest import DECORATED
from stepwise._values.trees import ATOMS

_READS = {"read", "read_text", "read_bytes", "readlines"}
_PLAIN = ("classmethod", "staticmethod", "property", "cached_property")
_OF_MODULES = ("__file__", "__name__", "__package__", "__path__", "__spec__", "__cached__")
_CONSTRUCTION = ("__init__", "__new__", "__post_init__", "__init_subclass__")
_DYNAMIC = {"globals", "eval", "exec", "__import__", "importlib.import_module"}
_MISSING = object()
_reading = process_lock()  # what was read of modules and definitions is kept, and completed later


def version_of(function: Any, source: Source | None = None, *, is_tool: bool = False) -> Version:
    """Return the version of a function.

    Args:
        function: the function; for one that a decorator has wrapped, the innermost counts.
        source: the source that was taken when the function was decorated.
        is_tool: its docstring and its annotations are sent to a model, and count.
    """
    inner, bound = _innermost(function)
    code = getattr(inner, "__code__", None)
    if not isinstance(code, types.CodeType):
        return UNKNOWN
    if "-packages" in code.co_filename or is_ours(code.co_filename):
        return UNKNOWN
    with _reading:
        followed = _followed(inner, source, is_tool=is_tool)
        if followed is None:
            running = "code of Python {}.{}".format(*sys.version_info)
            return _version({running: [shape_digest(inner), bound]})
        follower, reading = followed
        parts = follower.texts
        if bound:
            parts["bound arguments"] = [bound]
        if hasattr(reading.node, "name"):
            parts["signature"] = [reading.signature(annotations=is_tool)]
        if inner.__doc__ and (is_tool or "__doc__" in reading.attributes):
            parts["docstring"] = [inspect.cleandoc(inner.__doc__)]
        return _version(parts, {} if bound or follower.values else follower.files)


def _followed(
    inner: types.FunctionType, source: Source | None, *, is_tool: bool
) -> tuple[_Follower, CodeRead] | None:
    """Follow all that a function reads; ``None`` if its text is not known."""
    code = inner.__code__
    lines = source.lines if source is not None and source.filename == code.co_filename else None
    module = _module(inner.__globals__, code.co_filename, lines)
    found = definition_at(module.tree, code.co_name, code.co_firstlineno) if module else None
    if module is None or found is None:
        return None
    follower = _Follower(module)
    return follower, follower.begin(inner, *found, is_tool=is_tool)


def versions_of(classes: Iterable[type]) -> dict[str, str]:
    """Return the versions of the project's classes, by their full names: of what makes instances.

    The version of a class whose definition is not found in its module is empty.
    """
    found = {}
    for cls in classes:
        module = _imported_module(cls.__module__)
        if module is None:
            continue
        follower = _Follower(module)
        with _reading:
            follower._follow(cls.__qualname__, module, (), {})
            follower._follow_members()
        found[f"{cls.__module__}.{cls.__qualname__}"] = _version(follower.texts).id
    return found


def _version(texts: Mapping[str, Iterable[str]], files: Mapping[str, str] | None = None) -> Version:
    parts = {name: text_digest("\n".join(each)) for name, each in texts.items()}
    told = "\n".join(sorted(f"{name} {digest}" for name, digest in parts.items()))
    return Version(text_digest(told), parts, files or {})


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """All code that a function or a class reaches, for results that outlive the program.

    Args:
        id: a digest of the texts.
        values: the variables of modules that the code reads, and their namespaces.
        held: the functions and classes among them, with their code, as they were followed.
    """

    id: str
    values: Sequence[tuple[str, Mapping[str, Any]]]
    held: Sequence[tuple[str, Mapping[str, Any], Any, Any]]

    def stands(self) -> bool:
        """Return whether the names still mean these functions and classes."""
        return all(
            space.get(name) is value and getattr(plain_function(value), "__code__", None) is code
            for name, space, value, code in self.held
        )


_codes_of: weakref.WeakKeyDictionary[Any, Code | None] = weakref.WeakKeyDictionary()


def code_of(subject: Any, source: Source | None = None, *, is_tool: bool = False) -> Code | None:
    """Return the code of a function or a class; ``None`` if some of it is not known.

    Args:
        source, is_tool: see :func:`version_of`.
    """
    with _reading:
        found = _codes_of.get(subject)
        if found is None or not found.stands():
            found = _codes_of[subject] = _code_of(subject, source, is_tool=is_tool)
        return found


def _code_of(subject: Any, source: Source | None, *, is_tool: bool) -> Code | None:
    _unread.clear()
    told: list[str] = []
    if isinstance(subject, type):
        follower = _followed_class(subject)
    else:
        inner, bound = _innermost(subject)
        file = getattr(getattr(inner, "__code__", None), "co_filename", "-packages")
        found = _followed(inner, source, is_tool=is_tool) if "-packages" not in file else None
        follower, reading = found or (None, None)
        if reading is not None and hasattr(reading.node, "args"):
            told = [bound, reading.signature(annotations=True)]
    if follower is None or _unread:
        return None
    values, held = [], []
    for (_, name), space in follower.globals.items():
        value, function = space.get(name), plain_function(space.get(name))
        if function is not None or isinstance(value, (type, types.ModuleType)):
            held.append((name, space, value, getattr(function, "__code__", None)))
        else:
            values.append((name, space))
    texts = {**follower.texts, "signature": told}
    told = [f"{name}\n{text}" for name, each in sorted(texts.items()) for text in each]
    return Code(hashlib.sha256("\n\n".join(told).encode()).hexdigest(), values, held)


def _followed_class(cls: type) -> _Follower | None:
    """Follow a class with all of its members; ``None`` if its text is not known."""
    home = sys.modules.get(cls.__module__)
    module = _module(vars(home), str(getattr(home, "__file__", ""))) if home else None
    if module is None:
        return None
    root, *rest = cls.__qualname__.replace(".<locals>", "").split(".")
    found: Sequence[Definition] = module.bindings.get(root, [])
    around: tuple[Definition, ...] = ()
    for name in rest:
        around = (*around, *found[:1])
        body = found[0].body if found and isinstance(found[0], (*CLASSES, *FUNCTIONS)) else []
        found = bindings(body).get(name, [])
    follower = _Follower(module)
    for node in found:
        if not isinstance(node, CLASSES):
            return None
        follower._class(node, module, around)
        follower._members(_Class(module, node, around, {*members(node)}, is_whole=False))
    follower._follow_members()
    return follower if found else None


def _innermost(function: Any) -> tuple[Any, str]:
    """Return the function that the user wrote, and the text of arguments bound by a partial."""
    bound = []
    while True:
        if isinstance(function, functools.partial):
            given = [*function.args, *sorted(function.keywords.items())]
            bound += [repr(each) for each in given if _is_plain(each)]
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not hasattr(function, "__code__"):
            called = getattr(type(function), "__call__", None)  # noqa: B004  # a callable object
            return called, ",".join(bound)
        else:
            return function, ",".join(bound)


def _unrecorded(value: Any) -> types.FunctionType | None:
    """Return the function inside a value, or ``None`` if it is a step or workflow of its own."""
    is_step = DECORATED in getattr(getattr(value, "__func__", value), "__dict__", {})
    return None if is_step or hasattr(type(value), "run_id_for") else plain_function(value)


def _is_plain(value: Any) -> bool:
    """Return whether a value is immutable, and has the same text in each process."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return type(value) in ATOMS


# -- modules --------------------------------------------------------------------------------------


class _Module:
    """The text of a module or of a notebook cell, and the names that it binds."""

    def __init__(self, namespace: Mapping[str, Any], file: str, text: str, tree: Any) -> None:
        self.namespace, self.file, self.text, self.tree = namespace, file, text, tree
        self.bindings = bindings(tree.body)
        self.readings: dict[tuple[int, str, bool], CodeRead] = {}

    @cached
    def digest(self) -> str:
        """The digest of the text."""
        return text_digest(self.text)

    @property
    def name(self) -> str:
        """The name of the module's file in messages."""
        name: str = self.namespace.get("__name__", "")
        if name in ("", "__main__", "__mp_main__"):
            return os.path.basename(self.file)
        is_package = os.path.basename(self.file) == "__init__.py"
        return name.replace(".", "/") + ("/__init__.py" if is_package else ".py")

    def is_recorded(self, node: Definition) -> bool:
        """Return whether a definition is a step or a workflow of its own."""
        return any(map(self.is_of_stepwise, decorators(node)))

    def is_of_stepwise(self, chain: str) -> bool:
        """Return whether a name in this module is one of stepwise's."""
        value = self.namespace.get(chain.partition(".")[0])
        name = getattr(value, "__name__" if type(value) is types.ModuleType else "__module__", "")
        return isinstance(name, str) and name.partition(".")[0] == "stepwise"

    def read(self, node: Definition, *, own: str = "", instance: bool = False) -> CodeRead:
        """Return what a definition of this module reads."""
        key = id(node), own, instance
        if key not in self.readings:
            out = self.is_of_stepwise
            self.readings[key] = CodeRead(node, own=own, instance=instance, left_out=out)
        return self.readings[key]


_modules: dict[str, tuple[list[str], _Module | None]] = {}
_unread: set[str] = set()
"""The files of followed code whose text is not known to be what is executed."""


def _module(
    namespace: Mapping[str, Any], file: str, lines: list[str] | None = None
) -> _Module | None:
    """Return the module with this namespace, or ``None`` if its text is not what is executed.

    Args:
        lines: the text of the file, if it is known to be what is executed.
    """
    found = lines if lines is not None else lines_of(file, None)
    is_sure = found is not None
    if found is None:
        found = linecache.getlines(file)
    known = _modules.get(file)
    if known is not None and known[0] is found:
        return known[1]
    text, module = "".join(found), None
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        if text:  # notebook magics do not parse
            module = _Module(namespace, file, text, parsed(text))
            module = module if is_sure or _is_executed(module) else None
    _modules[file] = found, module
    return module


def _is_executed(module: _Module) -> bool:
    """Return whether a module was made of the text that its file has now."""
    namespace = module.namespace
    codes = {*codes_within(compile(module.text, module.file, "exec", dont_inherit=True))}
    inside = [*namespace.values()]
    inside += [e for v in inside if isinstance(v, type) for e in tuple(vars(v).values())]
    functions = [plain_function(each) for each in inside]
    made = [each.__code__ for each in functions if each is not None]
    literals = ((name, literal(nodes[0], _MISSING)) for name, nodes in module.bindings.items())
    return all(each in codes for each in made if each.co_filename == module.file) and all(
        value is _MISSING or namespace.get(name, value) == value for name, value in literals
    )


def _imported_module(name: str) -> _Module | None:
    """Return a module of the project by its name, or ``None``."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or not file or is_foreign_module(name) or is_ours(file):
        return None
    found = _module(vars(module), file)
    if found is None:
        _unread.add(file)
    return found


def _absolute(origin: tuple[str, str, int], here: _Module) -> str:
    """Return the full name of the module that an ``import`` in another module names."""
    name, _, level = origin
    if not level:
        return name
    package = str(here.namespace.get("__package__") or "").split(".")
    return ".".join(filter(None, [*package[: len(package) + 1 - level], name]))


def _resolved(
    origin: tuple[str, str, int], rest: Sequence[str], here: _Module
) -> tuple[str, str, _Module | None, list[str]]:
    """Return the full name that an ``import`` names, its module, and the attributes in there.

    The module comes by its name, and as one of the project or ``None``.
    """
    inside, name = origin[1], _absolute(origin, here)
    full = ".".join(filter(None, [name, inside]))
    way = [inside, *rest] if inside else [*rest]
    if name not in sys.modules and not _is_installed(name):
        _unread.add(name)
    module = _imported_module(name)
    while way and f"{name}.{way[0]}" in sys.modules:
        if module is not None and way[0] in module.bindings:
            break
        name, way = f"{name}.{way[0]}", way[1:]
        module = _imported_module(name)
    return full, name, module, way


@functools.cache
def _is_installed(name: str) -> bool:
    """Return whether a module that is not imported yet is one of Python or of a package."""
    root = name.partition(".")[0]
    if root in sys.modules or root in sys.stdlib_module_names:
        return is_foreign_module(root)
    spec = importlib.util.find_spec(root)
    return spec is None or "-packages" in str(spec.origin or spec.submodule_search_locations)


def _definitions(chain: str, here: _Module) -> Iterator[tuple[_Module, Definition]]:
    """Yield the statements of the project that bind a name of a module."""
    root, *rest = chain.split(".")
    for node in here.bindings.get(root, ()):
        if not isinstance(node, IMPORTS):
            yield here, node
            continue
        _, _, module, way = _resolved(imported(node)[root], rest, here)
        if module is not None and way:
            yield from _definitions(".".join(way), module)


# -- following ------------------------------------------------------------------------------------


class _Class(NamedTuple):
    """A class that is followed.

    Args:
        names: the attributes that count; ``None`` for those that any followed code reads.
        is_whole: the class is constructed: its special methods count, too.
    """

    module: _Module
    node: Definition
    around: tuple[Definition, ...]
    names: set[str] | None
    is_whole: bool


class _Follower:
    """The traversal of everything that a function reads of the project.

    Attributes:
        texts: the texts of each part, by its name.
        files: a digest of each file that was read.
        values: true if a value counts, which no file tells.
        globals: the names that are read, with the variables of their modules.
    """

    def __init__(self, home: _Module) -> None:
        self.texts: dict[str, list[str]] = {}
        self.files: dict[str, str] = {}
        self.values = False
        self.globals: dict[tuple[int, str], Mapping[str, Any]] = {}
        self._home = home
        self._met: set[tuple[int, str]] = set()
        self._attributes: set[str] = set()
        self._classes: dict[tuple[int, bool, bool], _Class] = {}

    def begin(
        self, function: Any, node: Definition, around: tuple[Definition, ...], *, is_tool: bool
    ) -> CodeRead:
        """Follow a function to the end."""
        own = getattr(node, "name", "")
        self._met.add((id(node), self._label(own, self._home)))
        reading = self._read("body", self._home, node, around, own=own)
        for chain in reading.annotated if is_tool else ():
            self._follow(chain, self._home, around, reading.imports)
        self.values = bool(function.__closure__)
        for cell in function.__closure__ or ():
            try:
                captured = _unrecorded(cell.cell_contents)
                self._value(getattr(captured, "__name__", ""), captured)
            except ValueError:
                continue  # a cell without a value yet
        self._follow_members()
        return reading

    def _read(
        self,
        label: str,
        module: _Module,
        node: Definition,
        around: tuple[Definition, ...],
        *,
        own: str = "",
    ) -> CodeRead:
        """Take the text of a definition, and follow what it reads."""
        is_method = bool(around) and isinstance(around[-1], CLASSES)
        is_static = "staticmethod" in decorators(node)
        instance = is_method and isinstance(node, FUNCTIONS) and not is_static
        reading = module.read(node, own=own, instance=instance)
        self._attributes |= reading.attributes
        texts = [reading.text]
        if not _DYNAMIC.isdisjoint(reading.names) or "__subclasses__" in reading.attributes:
            _unread.add(label)
        self.files[module.file] = module.digest
        if instance and reading.of_self:
            self._of_self(module, around, reading.of_self)
        for chain in reading.names:
            texts += self._follow(chain, module, around, reading.imports)
        for chain in reading.annotated:
            self._follow(chain, module, around, reading.imports, annotated=True)
        if label != "body" and isinstance(node, FUNCTIONS):
            texts.append(reading.defaults)
        self.texts.setdefault(label, []).extend(texts)
        return reading

    def _label(self, name: str, module: _Module) -> str:
        return name if module is self._home else f"{name} in {module.name}"

    def _once(self, node: Definition, how: str = "") -> bool:
        key = id(node), how
        is_new = key not in self._met
        self._met.add(key)
        return is_new

    def _follow(
        self,
        chain: str,
        module: _Module,
        around: Sequence[Definition],
        imports: Mapping[str, tuple[str, str, int]],
        *,
        annotated: bool = False,
    ) -> list[str]:
        """Follow a name with attributes; return the origins of imported names."""
        root, *rest = chain.split(".")
        if root in imports:
            return self._imported(imports[root], rest, module, annotated=annotated)
        for depth in range(len(around) - 1, -1, -1):
            outer = around[depth]
            if not isinstance(outer, FUNCTIONS):
                continue
            bound = bindings(outer.body).get(root, [])
            bound = [each for each in bound if isinstance(each, (*FUNCTIONS, *CLASSES))]
            for each in bound:
                self._binding(root, each, module, (*around[: depth + 1],), rest, annotated)
            if bound:
                return []
        found = module.bindings.get(root)
        if found is None:
            return self._by_value(root, rest, module, annotated=annotated)
        origins = []
        for each in found:
            origins += self._binding(root, each, module, (), rest, annotated)
        return origins

    def _binding(
        self,
        name: str,
        node: Definition,
        module: _Module,
        around: tuple[Definition, ...],
        rest: Sequence[str],
        annotated: bool,
    ) -> list[str]:
        """Follow a statement that binds a name."""
        if isinstance(node, IMPORTS):
            if not around and not annotated:
                self._assigned(module.namespace, name)
            return self._imported(imported(node)[name], rest, module, annotated=annotated)
        label = self._label(name, module)
        if not around:
            self.globals[id(module.namespace), name] = module.namespace
        if rest == ["__doc__"] and isinstance(node, (*FUNCTIONS, *CLASSES)):
            self.texts[f"{label}.__doc__"] = [docstring(node)]
        if isinstance(node, CLASSES):
            self._class(node, module, around, rest, annotated=annotated)
        elif not annotated and not module.is_recorded(node) and self._once(node, label):
            reading = self._read(label, module, node, around)
            value = module.namespace.get(name)
            if isinstance(value, (str, bytes)) and _reads_a_file(reading, module):
                self.texts[label].append(repr(value))
                self.values = True
        return []

    def _imported(
        self,
        origin: tuple[str, str, int],
        rest: Sequence[str],
        here: _Module,
        *,
        annotated: bool,
    ) -> list[str]:
        origin_text, name, module, way = _resolved(origin, rest, here)
        if module is None and way and not annotated and name in sys.modules:
            self._assigned(vars(sys.modules[name]), way[0])
        if module is not None and not annotated and (not way or way[0] not in module.namespace):
            _unread.add(origin_text)  # a module as a value, or what it makes or imports on use
        if module is None or not way:
            return [origin_text]
        return [origin_text, *self._follow(".".join(way), module, (), {}, annotated=annotated)]

    # -- values ----------------------------------------------------------------------------------

    def _assigned(self, space: Mapping[str, Any], name: str) -> None:
        """Let a name that is imported count by its value: data, or a function assigned to it."""
        value = space.get(name)
        if _is_of_project(plain_function(value)) or type(value) in (*ATOMS, list, dict, set):
            self.globals[id(space), name] = space

    def _by_value(
        self, name: str, rest: Sequence[str], module: _Module, *, annotated: bool
    ) -> list[str]:
        """Follow a name that the text does not bind: by ``import *``, or in another cell.

        Names that Python gives each module, such as ``__file__``, tell where the code is, not what
        it does.
        """
        if name in _OF_MODULES:
            return []
        value = module.namespace.get(name, _MISSING)
        self.globals[id(module.namespace), name] = module.namespace
        self.values = self.values or value is not _MISSING
        stars = module.bindings.get("*", [])
        for each in reversed(stars):
            if not isinstance(each, IMPORTS):
                continue
            other = _imported_module(_absolute(imported(each)["*"], module))
            if other is not None and name in other.namespace:
                chain = ".".join([name, *rest])
                is_new = self._once(each, f"{chain} {annotated}")
                return self._follow(chain, other, (), {}, annotated=annotated) if is_new else []
        if value is _MISSING or annotated:
            return []
        if plain_function(value) is not None:
            self._value(name, _unrecorded(value))
        elif isinstance(value, type):
            self._class_by_value(value, module, rest)
        elif _is_plain(value):
            self.texts[self._label(name, module)] = [repr(value)]
        elif isinstance(value, types.ModuleType):
            return [value.__name__]
        return []

    def _value(self, name: str, function: types.FunctionType | None) -> None:
        """Follow a function that is at hand."""
        inner, _ = _innermost(function)
        if not _is_of_project(inner):
            return
        code = inner.__code__
        module = _module(inner.__globals__, code.co_filename)
        found = definition_at(module.tree, code.co_name, code.co_firstlineno) if module else None
        label = self._label(name, module) if module else name
        if module is None or found is None:
            _unread.add(code.co_filename)
        elif self._once(found[0], label):
            self._read(label, module, *found)

    def _class_by_value(self, cls: type, module: _Module, rest: Sequence[str]) -> None:
        """Follow a class of another notebook cell: the last one that defines the name."""
        if is_foreign_module(cls.__module__):
            return
        for file in reversed([*linecache.cache]):
            if not os.path.exists(file) and f"class {cls.__name__}" in "".join(
                linecache.getlines(file)
            ):
                cell = _module(module.namespace, file)
                if cell is not None and cls.__name__ in cell.bindings:
                    self._follow(".".join([cls.__name__, *rest]), cell, (), {})
                    return

    # -- classes ---------------------------------------------------------------------------------

    def _class(
        self,
        node: Definition,
        module: _Module,
        around: tuple[Definition, ...],
        rest: Sequence[str] = (),
        *,
        annotated: bool = False,
    ) -> None:
        """Follow a class that is constructed or annotated, or one of its attributes."""
        bound = members(node).get(rest[0], []) if rest else []
        if bound and not any(isinstance(each, FUNCTIONS) for each in bound):
            self._members(_Class(module, node, around, {rest[0]}, is_whole=False))
            return
        key = id(node), not annotated, False
        if key in self._classes:
            return
        self._classes[key] = _Class(module, node, around, None, is_whole=not annotated)
        if not annotated:
            self._read(self._label(node.name, module), module, node, around)
        self._bases(self._classes[key])

    def _of_self(
        self, module: _Module, around: tuple[Definition, ...], names: Iterable[str]
    ) -> None:
        """Follow attributes that a method reads of its instance or class."""
        node = around[-1]
        key = id(node), False, True
        if key not in self._classes:
            self._classes[key] = _Class(module, node, around[:-1], set(), is_whole=False)
        known = self._classes[key].names
        assert known is not None
        known.update(names)

    def _bases(self, cls: _Class) -> None:
        for chain in bases(cls.node):
            self._follow(chain, cls.module, cls.around, {}, annotated=not cls.is_whole)

    def _follow_members(self) -> None:
        """Follow the members of the classes until no further one is reached."""
        before, now = -1, 0
        while before != now:
            before = now
            for cls in [*self._classes.values()]:
                self._members(cls)
                if cls.names:
                    for chain in bases(cls.node):
                        for module, base in _definitions(chain, cls.module):
                            if isinstance(base, CLASSES):
                                self._of_self(module, (base,), cls.names)
            now = len(self._met) + sum(1 + len(e.names or ()) for e in self._classes.values())

    def _members(self, cls: _Class) -> None:
        wanted = self._attributes if cls.names is None else cls.names
        for name, nodes in members(cls.node).items():
            for node in nodes:
                if isinstance(node, FUNCTIONS):
                    counts = name in wanted or (
                        cls.names is None and _is_special(node, cls.is_whole)
                    )
                else:
                    counts = name in wanted and not cls.is_whole
                if counts and not cls.module.is_recorded(node) and self._once(node):
                    label = self._label(f"{cls.node.name}.{name}", cls.module)
                    reading = self._read(label, cls.module, node, (*cls.around, cls.node))
                    if not isinstance(node, FUNCTIONS):  # it reads other names of the class
                        self._members(cls._replace(names={*reading.names}))


def _is_of_project(function: Any) -> bool:
    """Return whether a function is neither of an installed package nor of stepwise."""
    code = getattr(function, "__code__", None)
    return code is not None and not (
        is_foreign_module(function.__module__ or "") or is_ours(code.co_filename)
    )


def _reads_a_file(reading: CodeRead, module: _Module) -> bool:
    """Return whether an assignment reads a file, itself or by a function that it calls."""
    found = [each for chain in reading.names for each in _definitions(chain, module)]
    called = [home.read(node) for home, node in found if isinstance(node, FUNCTIONS)]
    return any(not each.attributes.isdisjoint(_READS) for each in (reading, *called))


def _is_special(node: Any, is_constructed: bool) -> bool:
    """Return whether Python or a decorator calls a method, not only code that names it."""
    if node.name.startswith("__") and node.name.endswith("__"):
        return is_constructed or node.name not in _CONSTRUCTION
    if not is_constructed:
        return False
    names = [each.rpartition(".")[2] for each in decorators(node)]
    return any(name not in (*_PLAIN, "setter") for name in names)
