"""Programs of cached steps: whatever is edited, changed and killed, the cache changes no result."""

import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from caching import WRITES, edited, program
from harness import python
from sweeping import WHOLE

ROUNDS = 6


class Trial:
    """A folder with a script, whose runs share a cache."""

    def __init__(self, folder):
        folder.mkdir(parents=True)
        self.folder, self.runs, self.answered = folder, itertools.count(), 0

    def run(self, text, run_id, **env):
        """Run the script; count the steps that the cache answered."""
        written = self.folder / f"{run_id}.py"
        written.write_text(text)
        written.replace(self.folder / "agent.py")  # whole at each moment: another start may read it
        files = {name: self.folder / f"{run_id}.{name}" for name in ("DID", "SENT")}
        store = {"STEPWISE_STORE": f"disk:{self.folder}/store", "STEPWISE_QUIET": "0"}
        env = {**os.environ, **store, **files, **env}
        ended = python("agent.py", run_id, cwd=self.folder, env=env)
        self.answered += int(ended.stderr.rpartition("answered ")[2] or 0) if ended.stdout else 0
        return ended

    def sent(self, run_id):
        """The number of side effects of a run."""
        path = self.folder / f"{run_id}.SENT"
        return len(path.read_text().split()) if path.exists() else 0

    def value(self, text, **env):
        """The output of a new run."""
        ended = self.run(text, f"run-{next(self.runs)}", **env)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.mark.parametrize("first", range(50 if WHOLE else 2))
def test_random_programs(tmp_path, first):
    """No program has another result with the cache than without one; each side effect happens.

    Programs that mutate arguments, instances and results are edited, killed, and run side by side.
    """
    answered = 0
    for seed in range(first, first + (200 if WHOLE else 50), 50):
        choose, folder = random.Random(seed), tmp_path / f"{seed}"
        text = program(choose)
        trial, plain = Trial(folder / "cached"), Trial(folder / "plain")
        for number in range(ROUNDS):
            text = edited(choose, text) if number % 2 else text
            play(choose, trial, plain, number, text)
        answered += trial.answered
    assert answered > (20 if WHOLE else 5)


def play(choose, trial, plain, number, text):
    """Run a program with the cache, killed or side by side, and compare it with a run without."""
    wanted = plain.value(text, STEPWISE_CACHE_SIZE=0)
    how = choose.choice(["plain", "killed", "together"])
    if how == "together":
        with ThreadPoolExecutor(2) as pool:
            assert [*pool.map(lambda _: trial.value(text), range(2))] == [wanted, wanted]
        return
    run_id = f"killed-{number}"
    while how == "killed" and choose.random() < 0.7:
        trial.run(text, run_id, KILL=choose.randint(1, 4))
    ended = trial.run(text, run_id)
    assert (ended.returncode, ended.stdout) == (0, wanted), ended.stderr
    assert trial.sent(run_id) == plain.sent(f"run-{number}")


def test_killed_at_each_write(tmp_path):
    """Killed before, within or after any write of the cache or the store, nothing is wrong."""
    text = program(random.Random(1))
    plain = Trial(tmp_path / "plain")
    wanted, kills = plain.value(text, STEPWISE_CACHE_SIZE=0), 0
    for at in itertools.count(1, 1 if WHOLE else 7):
        trial = Trial(tmp_path / f"{at}")
        died = trial.run(WRITES + text, "killed", KILL_WRITE=at)
        kills += died.returncode != 0
        ended = trial.run(text, "killed")
        assert (ended.returncode, ended.stdout) == (0, wanted), ended.stderr
        assert trial.sent("killed") == plain.sent("run-0")
        assert trial.value(text) == wanted
        if died.returncode == 0:
            break
    assert kills > 3
