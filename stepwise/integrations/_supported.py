"""The libraries that the integrations serve, with the oldest supported version of each."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from types import ModuleType

from stepwise._runtime.facts import NamedTuple
from stepwise.errors import ConfigurationError


class Library(NamedTuple):
    """A library that an integration serves.

    Args:
        distribution: its name in the registry.
        oldest: the oldest supported version.
        extra: of stepwise, that installs it; empty if the user brings the library.
    """

    distribution: str
    oldest: tuple[int, ...]
    extra: str = ""


LIBRARIES = {
    "openai": Library("openai", (1, 66)),
    "anthropic": Library("anthropic", (0, 49)),
    "langgraph.checkpoint": Library("langgraph-checkpoint", (3, 0), "langgraph"),
    "pydantic_ai": Library("pydantic-ai-slim", (2, 38), "pydantic-ai"),
    "opentelemetry": Library("opentelemetry-api", (1, 30), "otel"),
    "prometheus_client": Library("prometheus-client", (0, 20), "metrics"),
}
"""By the name of the module that is imported."""


def require(module: str) -> ModuleType:
    """Import a library, and check that its version is supported.

    Raises:
        ConfigurationError: it is not installed, or is older than what is supported.
    """
    library = LIBRARIES[module]
    try:
        found = importlib.import_module(module)
        version = metadata.version(library.distribution)
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise ConfigurationError(
            f"{library.distribution} is not installed: {_install(library)}"
        ) from error
    if _numbers(version) < library.oldest:
        oldest = ".".join(map(str, library.oldest))
        raise ConfigurationError(
            f"{library.distribution} {version} is older than {oldest}, the oldest version that "
            f"stepwise supports: {_install(library, oldest)}"
        )
    return found


def does_not_fit(module: str, reason: str) -> ConfigurationError:
    """Return the error for a version, newer than those that were tested, that does not fit."""
    library = LIBRARIES[module]
    version = metadata.version(library.distribution)
    return ConfigurationError(
        f"{library.distribution} {version} does not fit this version of stepwise: {reason}. "
        f"Use an older {library.distribution}, or a newer stepwise"
    )


def _install(library: Library, oldest: str = "") -> str:
    if library.extra and not oldest:
        return f'pip install "stepwise-agents[{library.extra}]"'
    return f'pip install "{library.distribution}>={oldest or ".".join(map(str, library.oldest))}"'


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:3])
