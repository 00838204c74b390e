"""The modules that a command imports, with messages for those that cannot be imported."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import stepwise
from stepwise._runtime.messages import printable
from stepwise.cli._command import note


def module_of(name: str) -> str:
    """Return the name of a module; for the path of a script, find it as Python would."""
    if not os.path.isfile(name):
        return name
    folder, file = os.path.split(os.path.realpath(name))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return os.path.splitext(file)[0]


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules as ``python -m`` finds them: in the current folder first."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for name in modules:
        if os.path.isfile(name) or not all(part.isidentifier() for part in name.split(".")):
            raise stepwise.ConfigurationError(_no_name(name))
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and _is_of(name, error.name):
                raise stepwise.ConfigurationError(
                    f"there is no module {error.name!r} in {folder} or on Python's path: start "
                    "this in the folder from which python -m would find it"
                ) from None
            trace = error.__traceback__
            while trace is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
                trace = trace.tb_next
            lines = traceback.format_exception(type(error), error, trace)
            note(printable("".join(lines).rstrip()))
            what = type(error).__name__
            if isinstance(error, SystemExit):
                what = f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
            raise stepwise.ConfigurationError(
                f"module {name!r} cannot be imported: {what}, see above"
            ) from None


def _no_name(name: str) -> str:
    path = os.path.relpath(name).removesuffix(".py")
    dotted = path.replace(os.sep, ".")
    if os.path.exists(name) and all(part.isidentifier() for part in dotted.split(".")):
        return f"{name} is a file: give the name of its module: stepwise up {dotted}"
    return f"{name!r} is not the name of a module: write it as after python -m"


def _is_of(name: str, missing: str | None) -> bool:
    """Return whether the missing module is the named one or a package around it."""
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen ") or "importlib" in file
