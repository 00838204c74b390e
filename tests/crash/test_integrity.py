"""Nothing in the store can be damaged, cut off, deleted or refused so that a run goes wrong.

A run that has finished, and two that were killed, are damaged in every file and started again; and
a disk fails at every operation of a start.  Whatever happens, the program ends with the right
result, or with an error of ours that says what is the matter; nothing acknowledged is done again.

Sampled, by ``STEPWISE_SEED`` where that is set; with ``STEPWISE_WHOLE=1`` every operation, and up
to 100 bytes of each file.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from functools import partial

import pytest
import sweeping
from harness import Lab
from sweeping import SEED

FLIPS, CUTS, FAILURES = 10, 5, 6
ERRORS = {"StoreError", "CorruptStoreError", "JournalLostError", "StepInDoubtError"}
NEW_KEY = "ConfigurationError"  # the key file is not part of the store; without it none is read
EFFECTS = ["send mail 0", "send mail 1", "send mail 2", "send report"]
STATES = {
    "finished": {},
    "killed in a step": {"die": "look 2"},
    "killed in a side effect": {"die": "send mail 2"},
}


class Damaged(Lab):
    """The home of a run, brought into one state after another."""

    def __init__(self):
        super().__init__("damaged.py", STEPWISE_QUIET="1")
        self.home, self.told = self.folder / "home", self.folder / "log"
        self.states = {}

    def start(self, **order):
        """Start the program once; what it said, with its exit code."""
        self.environment["ORDER"] = json.dumps(order)
        ended = self.run()
        lines = [line for line in ended.text.splitlines() if line.startswith("{")]
        return {**(json.loads(lines[-1]) if lines else {}), "code": ended.code}

    def did(self):
        """Every step and side effect that was begun, in order."""
        return self.lines

    def prepare(self, state):
        """Bring the home into a state, which is made once."""
        made = self.folder / state
        if state not in self.states:
            self.clear()
            self.states[state] = self.start(tidy=state == "finished", **STATES[state])
            self.home.rename(made)
            self.told.rename(made / "log")
        self.clear()
        shutil.copytree(made, self.home)
        (self.home / "log").rename(self.told)
        files = [path for path in sorted(self.home.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.home)): used(path) for path in files}

    def clear(self):
        shutil.rmtree(self.home, ignore_errors=True)
        self.told.unlink(missing_ok=True)


def used(path):
    """How many bytes of a file are in use; a log ends with zeros, which say nothing."""
    return len(path.read_bytes().rstrip(b"\0")) if "logs" in path.parts[-2] else path.stat().st_size


@pytest.fixture(scope="module")
def lab():
    with Damaged() as lab:
        yield lab


@pytest.fixture(scope="module")
def truth(lab):
    lab.prepare("finished")
    return lab.states["finished"]["result"]


def verdict(lab, truth, state, said):
    """What is wrong about how a start ended; empty if nothing is."""
    did = Counter(line for line in lab.did() if line in EFFECTS)
    repeated = [effect for effect, times in did.items() if times > 1]
    if repeated:
        return f"repeated {repeated}"
    if said["code"]:
        return f"hung or crashed: {said['code']}"
    if "result" in said:
        if said["result"] != truth:
            return f"a wrong value: {said['result']}"
        if state == "killed in a side effect":
            return "the side effect in doubt was taken for done, or not done"
        return "" if did == Counter(EFFECTS) else f"did {did}"
    about_the_key = said["kind"] == NEW_KEY and "key" in said["text"]
    if said["kind"] not in ERRORS and not about_the_key:
        return f"an error that is not ours:\n{said['trace']}"
    return ""


def sweep(lab, truth, state, damages, **order):
    """Start after each damage, and again after an error: how it ended, and what was wrong."""
    for name, damage in damages:
        lab.prepare(state)
        damage(lab.home)
        for _ in range(2):
            said = lab.start(**order)
            text = verdict(lab, truth, state, said)
            yield said.get("kind", "right"), f"{state}, {name}: {text}" if text else ""
            if text or "result" in said:
                break


def flips(lab, state, count):
    """One bit flipped at bytes that are spread evenly over every file."""
    choose = random.Random(f"{SEED} {state}")
    files = lab.prepare(state)
    for name, size in files.items():
        weight = 3 if name.endswith((".db", "-wal")) or "logs/" in name else 1
        share = min(size, sweeping.size(weight * count // len(files), 100))
        for part in range(share):
            position = choose.randrange(part * size // share, (part + 1) * size // share)
            bit = choose.randrange(8)
            yield f"bit {bit} of byte {position} of {name}", partial(flip, name, position, bit)


def flip(name, position, bit, home):
    with open(home / name, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def cuts(lab, state, count):
    """Each file cut off: to nothing, by one byte, and to lengths between."""
    choose = random.Random(f"{SEED} cut {state}")
    files = lab.prepare(state)
    for name, size in files.items():
        some = choose.sample(range(size), min(size, sweeping.size(count // len(files), 100)))
        for length in sorted({*some, 0, size // 2, max(size - 1, 0)}):
            yield f"{name} cut to {length}", partial(cut, name, length)


def cut(name, length, home):
    os.truncate(home / name, length)


def deletions(lab, state):
    """Each file deleted."""
    for name in lab.prepare(state):
        yield f"{name} deleted", partial(delete, name)


def delete(name, home):
    (home / name).unlink()


def check(ends, tally, about):
    """Nothing was wrong; how often it ended how."""
    ends = list(ends)
    counts = Counter(how for how, _ in ends)
    wrong = [text for _, text in ends if text]
    tally(about, len(ends), **counts)
    assert not wrong, f"STEPWISE_SEED={SEED}\n" + "\n".join(wrong)
    return counts


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_a_flipped_bit(lab, truth, state, tally):
    """One flipped bit anywhere: the right result, or a clear error; nothing is done twice."""
    ends = sweep(lab, truth, state, flips(lab, state, FLIPS))
    assert len(check(ends, tally, "a flipped bit")) > 1


@pytest.mark.parametrize("state", STATES)
def test_a_file_that_is_cut_off(lab, truth, state, tally):
    """Any file cut off at any length: the right result, or a clear error; nothing is done twice."""
    ends = sweep(lab, truth, state, cuts(lab, state, CUTS))
    assert len(check(ends, tally, "a file cut off")) > 1


@pytest.mark.parametrize("state", STATES)
def test_a_file_that_is_gone(lab, truth, state, tally):
    """Any file deleted: the right result, or a clear error; nothing is done twice."""
    ends = sweep(lab, truth, state, deletions(lab, state))
    assert len(check(ends, tally, "a deleted file")) > 1


def test_the_sweep_damages_logs(lab):
    """A run that was killed has left frames in a log, which the sweeps damage, too."""
    for state in ("killed in a step", "killed in a side effect"):
        logs = [size for name, size in lab.prepare(state).items() if "logs/" in name]
        assert max(logs) > 1000, state


def test_the_sweep_sees_a_wrong_value(lab, truth):
    """With digests that nobody looks at, the same flips give wrong values: the sweep can see."""
    lab.prepare("finished")
    name = "store/cache.db"
    found = re.finditer(b"sent report", (lab.home / name).read_bytes())
    changes = [("a recorded value", partial(flip, name, it.start(), 0)) for it in found]
    assert any(
        "a wrong value" in text for _, text in sweep(lab, truth, "finished", changes, blind="seal")
    )
    assert "".join(text for _, text in sweep(lab, truth, "finished", changes)) == ""


def test_the_sweep_sees_a_repeated_side_effect(lab, truth):
    """With marks that nobody looks at, a deleted log repeats side effects: the sweep can see."""
    gone = deletions(lab, "killed in a step")
    ends = sweep(lab, truth, "killed in a step", gone, blind="marks")
    assert any("repeated" in text for _, text in ends)


# -- a disk that fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["once", "sticky", "though done"])
def test_a_disk_that_fails(lab, truth, how, tally):
    """An operation of the disk fails: an error that names path and cause; later it goes on."""
    lab.clear()
    total = lab.start(at=0)["operations"]
    assert total > 50
    choose = random.Random(f"{SEED} {how}")
    codes = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
    each = [(at, code) for at in range(1, total + 1) for code in codes]
    ends = []
    for at, code in choose.sample(each, sweeping.size(FAILURES, len(each))):
        lab.clear()
        order = {"at": at, "errno": code, "sticky": how == "sticky", "done": how == "though done"}
        said = lab.start(**order, retry=choose.random() < 0.5)  # in the same process
        again = said.get("again") or lab.start()
        text = after_failure(lab, truth, said, again, code)
        place = f"{errno.errorcode[code]} {how} at operation {at} of {total}"
        ends.append((said.get("kind", "right"), f"{place}: {text}" if text else ""))
    assert (
        check(ends, tally, "ENOSPC, EIO, EROFS, EACCES at an operation of the disk")["StoreError"]
        > 1
    )


def after_failure(lab, truth, said, again, code):
    """What is wrong about a start on a failing disk and the next on a sound one."""
    did = lab.did()
    if said["code"] or again["code"]:
        return f"hung or crashed: {said} {again}"
    if "result" not in said:
        if said["kind"] != "StoreError":
            return f"not a StoreError:\n{said['trace']}"
        if said["errno"] != code or not str(said["path"]).startswith(str(lab.home)):
            return f"path or errno: {said['path']} {said['errno']}"
    repeated = [line for line, times in Counter(did).items() if times > 1]
    if any(line in EFFECTS for line in repeated):
        return f"repeated {repeated}"
    if len(repeated) > 1:
        return f"acknowledged and lost: {repeated}"
    if again.get("kind") == "StepInDoubtError":
        # It was in flight: begun, or announced by a write of which it is not known if it was done.
        begun = [line for line in did if line in EFFECTS]
        flying = did[-1] if did[-1] in EFFECTS else EFFECTS[len(begun)]
        return "" if flying.removeprefix("send ") in again["text"] else f"{again['text']} {did}"
    if again.get("result") != truth:
        return f"did not recover: {again}"
    return ""


# -- fencing -------------------------------------------------------------------------------------


def test_a_process_that_wakes_up_too_late(lab, truth):
    """A stopped process whose run was taken over writes nothing more, and is told so."""
    lab.clear()
    lab.environment["ORDER"] = json.dumps({"pause": "look 1"})
    with lab.popen() as sleeper:
        line = sleeper.stdout.readline()
        assert line == f"paused {sleeper.pid}\n"
        assert lab.start()["kind"] == "RunBusyError"  # the kernel keeps a stopped owner's lock
        (lab.home / "store" / "leases").unlink()
        assert lab.start(die="look 2")["code"] == 9
        os.kill(sleeper.pid, signal.SIGCONT)
        late = json.loads(sleeper.communicate(timeout=300)[0])
    assert late["kind"] == "LeaseLostError", late
    assert lab.start()["result"] == truth
    did = Counter(lab.did())
    assert [did[effect] for effect in EFFECTS] == [1, 1, 1, 1]
