"""JSON schemas: whether a value fits what somebody waits for.

The only module that knows jsonschema.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stepwise.errors import ConfigurationError

__all__ = ["misfit"]

_FORMS = 5  # that are described of a value that may have several


def misfit(schema: str, value: Any) -> str:
    """Return where plain data does not fit a JSON schema, and why; an empty text if it fits.

    A schema of which a part cannot be applied here (a pattern of another kind of regular
    expressions) refuses nothing: the program that waits validates the value itself.

    Raises:
        ConfigurationError: ``jsonschema`` is not installed.
    """
    try:
        import jsonschema  # on use: only those who send need it
        import referencing
    except ImportError as error:
        raise ConfigurationError(
            "the run waits for a value of a certain type; to check the value against its JSON "
            "schema, jsonschema is needed: pip install 'stepwise-agents[json]'"
        ) from error
    # The registry has nothing in it, so that no schema makes us fetch another one.
    validator = jsonschema.Draft202012Validator(json.loads(schema), registry=referencing.Registry())
    try:
        errors = list(validator.iter_errors(value))
    except Exception:  # the schema itself, of which the value cannot be blamed
        return ""
    return _described(errors, jsonschema.exceptions.relevance) if errors else ""


def _described(errors: list[Any], relevance: Callable[[Any], Any]) -> str:
    """Describe the most telling error; of a value that may have several forms, one for each."""
    told = max(errors, key=relevance)
    forms: dict[object, list[Any]] = {}
    for each in told.context:
        forms.setdefault(each.relative_schema_path[0], []).append(each)
    if not forms:
        return f"{told.json_path}: {told.message:.200}"
    return ", or ".join(_described(found, relevance) for found in list(forms.values())[:_FORMS])
