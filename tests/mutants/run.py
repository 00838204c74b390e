"""Apply each mutant of the table to a copy of the tree; the tests that guard it must fail.

``python tests/mutants/run.py [-n JOBS] [TEXT ...]`` (``make mutants``); ``TEXT`` chooses mutants by
what is in their description or file.  Exit code 0: every mutant was caught.

Tools of the registry were looked at and not taken.  mutmut and cosmic-ray make their own mutants
with general operators; they do not apply given ones.  mutmut also replaces functions by trampolines
that choose the mutant, and the rewriter of stepwise reads a function's source.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from table import MUTANTS, Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 600  # for the tests of one mutant: those of a mutant that waits for ever are ended
_PASSED, _FAILED = 0, 1  # exit codes of pytest


def located(guard: str) -> str:
    """Return ``test_file.py::test_name`` with the folder of the file."""
    file, _, name = guard.partition("::")
    (path,) = ROOT.glob(f"tests/**/{file}")
    return f"{path.relative_to(ROOT)}::{name}"


class Tree:
    """A copy of the files that git knows, in which tests can be run.

    Args:
        parent: the folder for it.
    """

    def __init__(self, parent: pathlib.Path) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=parent))
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)

    def test(self, guards: list[str]) -> tuple[int | None, str]:
        """Return the exit code of pytest, and its output; the code is ``None`` if it hung."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        # The compiled file of a changed source would pass for that of the next one: the same
        # second, the same size.
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [*command, *map(located, guards)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None, process.communicate()[0]
        return process.returncode, output

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """Return what became of a mutant, and what the tests printed."""
        path = self.folder / mutant.file
        source = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(source), encoding="utf-8")
        try:
            code, output = self.test([*mutant.guards])
        finally:
            path.write_text(source, encoding="utf-8")
        outcomes = {_PASSED: "survived", _FAILED: "caught", None: "caught, by a test that hung"}
        return outcomes.get(code, "not judged"), output


def main() -> int:
    """Judge the mutants, and print counts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("-n", "--jobs", type=int, default=2)
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    options = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not options.texts or any(t in f"{mutant.file} {mutant.what}" for t in options.texts)
    ]
    with tempfile.TemporaryDirectory(prefix="stepwise-mutants-") as parent:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for _ in range(options.jobs):
            trees.put(Tree(pathlib.Path(parent)))

        def judge(mutant: Mutant) -> str:
            tree, began = trees.get(), time.monotonic()
            try:
                outcome, output = tree.judge(mutant)
            finally:
                trees.put(tree)
            seconds = time.monotonic() - began
            print(f"{outcome:9} {seconds:4.0f} s  {mutant.file}: {mutant.what}", flush=True)
            if not outcome.startswith("caught"):
                print(output[-3000:], flush=True)
            return outcome

        code, output = trees.get().test(sorted({g for mutant in chosen for g in mutant.guards}))
        if code != _PASSED:
            print(output, "the guarding tests fail on the tree as it is", sep="\n")
            return 2
        trees.put(Tree(pathlib.Path(parent)))
        with ThreadPoolExecutor(options.jobs) as pool:
            counts = Counter(pool.map(judge, chosen))
    print(f"{len(chosen)} mutants: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    return 0 if all(outcome.startswith("caught") for outcome in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
