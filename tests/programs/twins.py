"""Workflows that are written once, as coroutine functions, and tested as plain functions, too."""

import asyncio
import importlib.util
import inspect
import itertools
import re
import textwrap

KINDS = ("plain", "async")
_numbers = itertools.count()


def defined(folder, source, kind, **names):
    """Return the module of a text; for ``plain``, no function of it is a coroutine function."""
    text = textwrap.dedent(source)
    if kind == "plain":
        text = re.sub(r"\b(async|await) ", "", text)
    path = folder / f"twins_{next(_numbers)}.py"
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module


def call(function, *arguments):
    """Call a function, and wait for it if it is one to wait for."""
    result = function(*arguments)
    return asyncio.run(_result(result)) if inspect.isawaitable(result) else result


async def _result(awaitable):
    return await awaitable
