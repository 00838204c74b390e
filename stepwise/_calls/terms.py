"""The terms of an approval: what a person is shown of a call, and what the yes is bound to.

All arguments belong to them, also those that ``key=`` and ``ignore=`` leave out of the identity of
the call, and those at their default.  The passed ones are recorded with the question, and the call
is made with the recorded ones.  Secrets, the instance of a method, and what a framework injects
come from the call; all but the last are compared with what they were when the question was asked.

A digest of an argument is an authentication code under the key of the store: nobody can find a
secret, or one of few possible values, by trying.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stepwise._identity.identity import NOT_STATE, Parameters, reader_of
from stepwise._identity.parts import as_function, captured, digest_part, started_module
from stepwise._journal.seal import Seal
from stepwise._runtime.facts import NamedTuple
from stepwise._values import digest as _digest
from stepwise._values.class_contents import cell_content
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.data import parameter_types
from stepwise._values.digest_atoms import main_name
from stepwise._values.hidden_arguments import Hiding
from stepwise._values.instances import attributes
from stepwise._values.preview import preview
from stepwise._values.secrets import Secrets
from stepwise.errors import ConfigurationError, DigestError, NotRecordableError

__all__ = ["Agreement", "differing_parts", "digested", "in_full", "load_arguments", "terms_of"]

_ITS_ITEMS = "its items"


class Asks(Protocol):
    """A tool whose calls need a person's yes."""

    name: str
    what: str
    approve: bool | Callable[..., Any]
    in_doubt: Any
    function: Callable[..., Any]
    parameters: Parameters
    hiding: Hiding


class Agreement(NamedTuple):
    """The terms of one call, as they are now.

    Args:
        stored: the passed arguments, encoded; secrets and injected ones are not among them.
        arguments: the same, as they come back from there.
        encoded: canonical bytes of everything that counts, by the name of the part.
        details: what the person is shown.
    """

    stored: Encoded
    arguments: Mapping[str, Any]
    encoded: Mapping[str, bytes]
    details: str

    def digest(self, seal: Seal, ticket: str) -> str:
        """Return the text of the digests that is recorded with a question."""
        tags = {name: _tag(seal, ticket, name, held) for name, held in self.encoded.items()}
        return json.dumps(tags)


def terms_of(tool: Asks, codec: Codec, bound: Mapping[str, Any], instance: object) -> Agreement:
    """Return the terms of a call.

    Args:
        bound: the arguments by name, without the ``instance`` of a method.

    Raises:
        ConfigurationError: an argument has no digest, or cannot be recorded.
    """
    passed, defaults = tool.parameters.all_of(bound)
    encoded = _encodings(tool, passed, defaults, instance)
    kept = dict(tool.hiding.stored(passed))
    try:
        stored = _dumped(codec, tool, kept)
        found = codec.secrets.found_in(stored.data)
        arguments = load_arguments(codec, tool, bytes(stored.data), stored.form)
    except NotRecordableError as problem:
        raise _refused(tool, str(problem)) from problem
    if found:
        raise _refused(
            tool,
            f"an argument holds the secret {found!r}, and would be recorded with the question. "
            "Name its parameter in secret=",
        )
    back = _encodings(tool, arguments, {}, None)
    changed = [name for name in kept if back.get(name) != encoded[name]]
    if changed:
        raise _refused(
            tool,
            f"the argument {changed[0]!r} does not come back from the store as it was passed. Pass "
            "plain data: a text, an id, a path",
        )
    details = _details(tool, codec.secrets, {**passed, **arguments}, defaults, instance)
    return Agreement(stored, arguments, encoded, details)


def digested(tool: Asks, bound: Mapping[str, Any], instance: object) -> Mapping[str, bytes]:
    """Return canonical bytes of everything that counts, as it is now."""
    return _encodings(tool, *tool.parameters.all_of(bound), instance)


def differing_parts(digest: str, terms: Mapping[str, bytes], seal: Seal, ticket: str) -> list[str]:
    """Return the names of the parts in which terms differ from those of a question."""
    tags = json.loads(digest) if digest else {}
    names = dict.fromkeys([*terms, *tags])
    return [n for n in names if n not in terms or not _is_tag(seal, ticket, n, terms[n], tags)]


def _tag(seal: Seal, ticket: str, name: str, held: bytes) -> str:
    return seal.tag(f"approval {ticket} {name}", held).hex()


def _is_tag(seal: Seal, ticket: str, name: str, held: bytes, tags: Mapping[str, str]) -> bool:
    tag = bytes.fromhex(tags.get(name, ""))
    return seal.is_tag(f"approval {ticket} {name}", held, tag)


def _refused(tool: Asks, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"approve= of {tool.what}: a yes is bound to all arguments, which are recorded with the "
        f"question, and {why}"
    )


# -- recording -----------------------------------------------------------------------------------


def _dumped(codec: Codec, tool: Asks, kept: Mapping[str, Any]) -> Encoded:
    what = f"the arguments of {tool.what}, which needs an approval,"
    if not codec.data_only:
        return codec.encode(dict(kept), what)
    kinds = parameter_types(tool.function)
    texts = {
        name: _text(codec.encode(value, f"the argument {name!r}", kinds.get(name, Any)))
        for name, value in kept.items()
    }
    return Encoded(json.dumps(texts).encode(), JSON)


def _text(encoded: Encoded) -> str:
    return bytes(encoded.data).decode("utf-8", "surrogatepass")


def load_arguments(
    codec: Codec, tool: Asks | None, data: bytes, form: str | None
) -> dict[str, Any]:
    """Load the arguments that were recorded with a question.

    Args:
        tool: whose annotations say what they are; ``None`` for plain data.

    Raises:
        UnreadableValueError: they cannot be loaded here.
    """
    if form != JSON:
        loaded: dict[str, Any] = codec.decode(data, form)
        return loaded
    kinds = parameter_types(tool.function) if tool is not None else {}
    return {
        name: codec.decode(text.encode("utf-8", "surrogatepass"), JSON, kinds.get(name, Any))
        for name, text in json.loads(data).items()
    }


# -- digests -------------------------------------------------------------------------------------


def _encodings(
    tool: Asks, passed: Mapping[str, Any], defaults: Mapping[str, Any], instance: object
) -> dict[str, bytes]:
    token = main_name.set(started_module())
    try:
        found = {name: _strictly(tool, name, value) for name, value in passed.items()}
        for name, value in defaults.items():
            found[name] = _leniently(value, None)
        for name, value in _of_subject(tool, instance).items():
            found[name] = _leniently(value, instance)
        return found
    finally:
        main_name.reset(token)


def _strictly(tool: Asks, name: str, value: Any) -> bytes:
    try:
        return _digest.encode(value)
    except DigestError as error:
        reason = str(error).replace("(at value", f"(at {name}")
        raise _refused(
            tool,
            f"{name!r} has no digest: {reason}. Hold it in a variable of the module or in the "
            "instance of a method, or have the caller pass data from which the tool makes it",
        ) from None


def _leniently(value: Any, instance: object) -> bytes:
    try:
        return _digest.encode(value)
    except DigestError:  # by its class, and what is known of it
        return digest_part(value, () if instance is None else (instance,))[0].encode()


def _of_subject(tool: Asks, instance: object) -> dict[str, Any]:
    """The attributes of the instance, and captured variables other than functions.

    What ``==`` and ``ignore=`` leave out counts, too: the call may act on it.
    """
    found: dict[str, Any] = {}
    instance = _made_of(tool.function) if instance is None else instance
    if instance is not None and not isinstance(instance, type):
        held = attributes(instance)
        found = {f"self.{name}": held[name] for name in held if name not in NOT_STATE}
        cls: Any = type(instance)
        read = reader_of(cls)
        if read is not None:
            found[f"self.{_ITS_ITEMS}"] = read(instance)
    for name, cell in captured(tool.function).items():
        value = cell_content(cell)
        if as_function(value) is None:
            found[f"closure.{name}"] = value
    return found


def _made_of(function: Any) -> Any:
    """Return the object that a tool is made of: one that can be called, or the one of a method."""
    given = getattr(function, "__wrapped__", function)
    while isinstance(given, functools.partial):
        given = given.func
    if inspect.ismethod(given):
        return given.__self__
    return None if inspect.isroutine(given) else given


# -- what the person is shown --------------------------------------------------------------------


def _details(
    tool: Asks,
    secrets: Secrets,
    passed: Mapping[str, Any],
    defaults: Mapping[str, Any],
    instance: object,
) -> str:
    lines = []
    for name, value in (*passed.items(), *defaults.items()):
        text = tool.hiding.instead(name, value, ignored=False)
        lines.append(_line(name, in_full(value, secrets.mask) if text is None else text))
    for name, value in _of_subject(tool, instance).items():
        text = tool.hiding.instead(name, value, ignored=False)
        lines.append(_line(name, preview(value, mask=secrets.mask) if text is None else text))
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    """``name = text``; a text of several lines below, where each begins with a bar."""
    if "\n" not in text:
        return f"{name} = {text}"
    return "\n".join([f"{name} =", *(f"  | {line}" for line in text.split("\n"))])


def in_full(value: Any, mask: Callable[[str], str]) -> str:
    """Return a value as text, with nothing left out; a text of several lines as it is."""
    if isinstance(value, str) and "\n" in value:
        return mask(value)
    if isinstance(value, (str, int, float, bytes, type(None))):
        return mask(repr(value))
    import pprint  # on use: few programs ask for an approval

    class Printer(pprint.PrettyPrinter):
        """Shows an instance whose class has no ``__repr__`` by its attributes."""

        def format(
            self, obj: Any, context: dict[int, int], maxlevels: int, level: int
        ) -> tuple[str, bool, bool]:
            cls: Any = type(obj)
            if cls.__repr__ is not object.__repr__ or id(obj) in context:
                return super().format(obj, context, maxlevels, level)
            context[id(obj)] = 1
            held = attributes(obj).items()
            texts = [f"{n}={self.format(v, context, maxlevels, level + 1)[0]}" for n, v in held]
            del context[id(obj)]
            return f"{cls.__qualname__}({', '.join(texts)})", False, False

    try:
        return mask(Printer(width=88, sort_dicts=False).pformat(value))
    except Exception as error:  # the user's __repr__: the digest binds the yes all the same
        return f"<{type(value).__qualname__}: {type(error).__name__} in repr>"
