"""Arguments of a call that are not stored, and arguments that are not shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from stepwise._values.preview import preview_arguments
from stepwise._values.secrets import HIDDEN, Secrets

__all__ = ["NOT_SHOWN", "NO_HIDING", "Hiding", "Redact", "attributes_in"]

Redact = Iterable[str] | Callable[[str, Any], str | None]

_SELF = "self."


def attributes_in(names: Iterable[str]) -> frozenset[str]:
    """Return the attributes of the instance among names of parameters: ``self.NAME``."""
    attributes = (name.removeprefix(_SELF) for name in names if name.startswith(_SELF))
    return frozenset(name for name in attributes if name.isidentifier())


class Hiding:
    """The options ``ignore``, ``secret`` and ``redact`` of one step or workflow.

    Args:
        defaults: of the parameters, by name.

    Attributes:
        secret: parameters whose values are stored nowhere; attributes as ``self.NAME``.
        hides: some argument may be shown as another text than its own.
    """

    def __init__(
        self,
        ignored: AbstractSet[str],
        secret: AbstractSet[str],
        redact: AbstractSet[str] | Callable[[str, Any], str | None],
        defaults: Mapping[str, Any],
    ) -> None:
        self.secret = secret
        self._defaults = {name: defaults[name] for name in secret & defaults.keys()}
        self._redact = redact if callable(redact) else None
        self._only_ignored = ignored - secret - (set() if callable(redact) else redact)
        self._instead = {
            **dict.fromkeys(ignored, "<ignored>"),
            **dict.fromkeys(() if callable(redact) else redact, "<redacted>"),
            **dict.fromkeys(secret, HIDDEN),
        }
        self.hides = bool(self._instead or self._redact is not None)

    def secrets_of(self, bound: Mapping[str, Any], instance: Any = None) -> dict[str, Any]:
        """Return the values of a call's secrets, by name."""
        if not self.secret:
            return {}
        found = {**self._defaults, **{name: bound[name] for name in self.secret & bound.keys()}}
        if instance is not None:
            for name in attributes_in(self.secret):
                found[f"{_SELF}{name}"] = getattr(instance, name, None)
        return found

    def stored(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call without the secret ones."""
        if not self.secret:
            return bound
        return {name: value for name, value in bound.items() if name not in self.secret}

    def shown(self, bound: Mapping[str, Any], secrets: Secrets) -> str:
        """Return the arguments of a call as text, without hidden values."""
        if secrets.are_none and not self.hides:
            return preview_arguments(bound)
        instead = self.instead if self.hides else None
        return preview_arguments(bound, instead=instead, mask=secrets.mask if secrets else None)

    def hidden_in(self, bound: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of what is not shown: arguments, and attributes as ``self.NAME``."""
        attributes = (name for name in self._instead if name.startswith(_SELF))
        return (*self.names(bound), *attributes)

    def names(self, bound: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the arguments that are not shown as they are."""
        return tuple(name for name, value in bound.items() if self.instead(name, value) is not None)

    def instead(self, name: str, value: Any, *, ignored: bool = True) -> str | None:
        """Return the text shown instead of an argument; ``None`` for the usual text.

        Args:
            ignored: False for somebody who decides about the call, and so is shown what is ignored.
        """
        text = self._instead.get(name) if ignored or name not in self._only_ignored else None
        if text is not None or self._redact is None:
            return text
        try:
            given = self._redact(name, value)
            return None if given is None else str(given)
        except Exception as error:  # the user's function failed: the value stays hidden
            return f"<{type(error).__name__} in redact>"


NO_HIDING = Hiding(frozenset(), frozenset(), frozenset(), {})
"""Where all is stored and shown."""


class _NotShown:
    """The placeholder for the variable of a hidden parameter."""

    def __repr__(self) -> str:
        return "<not shown>"


NOT_SHOWN = _NotShown()
