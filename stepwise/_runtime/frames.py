"""Frames of our own code, known by the folder of the package.

Imports nothing of ours.
"""

from __future__ import annotations

import os

__all__ = ["is_ours"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_EXAMPLES = _PACKAGE + "examples" + os.sep


def is_ours(file: str) -> bool:
    """Return whether a file of code belongs to stepwise; its examples are code of a user."""
    return file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)
