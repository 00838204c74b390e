"""W5: what stepwise costs a program that only imports it, and what an installation weighs.

Import time is that of ``import stepwise`` over a bare Python, in turn.  The weight is counted over
what ``stepwise-agents`` requires, by the metadata of this environment.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import time
from importlib import metadata

import common

_NAME = "stepwise-agents"


def start(code: str) -> float:
    """Milliseconds of a process that runs ``code``."""
    began = time.perf_counter()
    common.child("-c", code)
    return (time.perf_counter() - began) * 1e3


def required(name: str, found: dict[str, metadata.Distribution]) -> None:
    """Collect a distribution and what it requires, without the extras."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return  # for another system or Python
    for requirement in found[key].requires or ():
        if "extra ==" not in requirement:
            required(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], found)


def size(distribution: metadata.Distribution) -> int:
    """Bytes of its files."""
    paths = [pathlib.Path(str(distribution.locate_file(f))) for f in distribution.files or ()]
    if distribution.metadata["Name"] == _NAME:  # installed editable: its files are in the tree
        paths = [*common.HERE.parent.joinpath("stepwise").rglob("*.py")]
    return sum(path.stat().st_size for path in paths if path.is_file())


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    start("import stepwise")  # makes the bytecode
    times = [
        (start("import stepwise") - start("pass"))
        for _ in range(2 if arguments.quick else max(10, 2 * arguments.rounds))
    ]
    found: dict[str, metadata.Distribution] = {}
    required(_NAME, found)
    megabytes = sum(size(each) for each in found.values()) / 1e6
    count = float(len(found))
    names = ", ".join(sorted(found))
    return [
        common.Row("import over bare Python", common.Spread.of(times), "ms", limit=100),
        common.Row("distributions", common.Spread.of([count]), "", limit=8, note=names),
        common.Row("installed", common.Spread.of([megabytes]), "MB", limit=10),
    ]


if __name__ == "__main__":
    common.main(measure, "W5: the start")
