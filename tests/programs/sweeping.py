"""How much of a sweep is done: a sample in CI, all of it on demand, and what came of it.

``STEPWISE_WHOLE=1`` asks for the whole sweep, or for 20 times the sample where the whole would take
days; ``STEPWISE_SCALE=5`` for five times the sample, without an upper limit; and ``STEPWISE_SEED``
for the sample that another session had drawn.  The sample of CI is always the same, so that a test
does not fail for what its commit has not changed; larger ones are drawn anew each time.
"""

import atexit
import functools
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import pytest

WHOLE = os.environ.get("STEPWISE_WHOLE") == "1"
SCALE = float(os.environ.get("STEPWISE_SCALE") or 1)
LARGE = WHOLE or SCALE >= 5  # of all programs, where a small sample is of some
DRAWN = random.SystemRandom().randrange(10**6) if WHOLE or SCALE != 1 else 0
SEED = int(os.environ.get("STEPWISE_SEED") or DRAWN)
SHIM = pathlib.Path(__file__).resolve().parent.parent / "power" / "shim.c"

needs_the_shim = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("gcc") is None,
    reason="the shim needs Linux and gcc",
)


def size(sample, whole):
    """How many trials: ``sample`` of them in CI, at most ``whole``."""
    return whole if WHOLE else min(whole, round(sample * SCALE))


def many(sample, whole):
    """The same where the whole would take days."""
    return min(whole, round(sample * max(SCALE, 20 if WHOLE else 1)))


def some(items, sample, label=""):
    """A sample of ``items``, in their order; the same for the same seed and label."""
    items = list(items)
    chosen = random.Random(f"{SEED} {label}").sample(
        range(len(items)), size(min(sample, len(items)), len(items))
    )
    return [items[index] for index in sorted(chosen)]


def thinned(items, every):
    """Each of ``items`` if all of a sweep is done, else each of so many."""
    return list(items)[:: 1 if WHOLE else max(1, round(every / SCALE))]


@functools.cache
def shim():
    """The shim of ``tests/power``, compiled."""
    folder = tempfile.mkdtemp(prefix="stepwise-shim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = pathlib.Path(folder) / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", path, SHIM, "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=300)
    return path
