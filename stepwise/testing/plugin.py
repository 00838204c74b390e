"""The pytest plugin: fixtures for users' tests, there once stepwise is installed.

Imports: pytest, and the rest on use, so that other people's test runs pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepwise.testing.everywhere import CrashReport

__all__ = ["crash_everywhere"]


@pytest.fixture
def crash_everywhere() -> Callable[..., CrashReport]:
    """``crash_everywhere(workflow, *args, setup=, effects=, compare=, limit=, **kwargs)``.

    Kills the workflow at every point that makes a difference, runs it again, and compares; see
    :func:`stepwise.testing.crash_everywhere`.
    """
    from stepwise.testing.everywhere import crash_everywhere as crash

    def crash_everywhere(workflow: Any, /, *args: Any, **kwargs: Any) -> CrashReport:
        return crash(workflow, *args, **kwargs)

    return crash_everywhere
