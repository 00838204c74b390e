"""A power cut at any moment loses nothing that was acknowledged.

A program runs with a shim that logs what it does to its files (``tests/power/shim.c``).  From that
log the disk is made again as it could have been left by a power cut after each operation: what was
not flushed is gone, or there, or torn at a sector, or zeros, or there in part; and names of files
are as durable as a journaling file system makes them, or only as far as their folder was flushed.
"""

import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys

import pytest
from harness import python
from sweeping import SEED, needs_the_shim, shim, size, thinned

import stepwise
from stepwise.testing import fresh_store

HERE = pathlib.Path(__file__).parents[1] / "power"
sys.path.insert(0, str(HERE))

import steers  # noqa: E402

STEPS = 8
SAMPLE = 20  # images of each kind of disk
STEERED = 6  # of those from which runs go on
CONTENTS = ("dropped", "kept", "torn", "zeroed", "partial")
NAMES = ("journaled", "flushed")
SECTOR = 512

pytestmark = needs_the_shim


def record(folder, durability, program="program.py", *more):
    """Run a program with the shim; the operations, with the paths relative to its home."""
    home, log = folder / "home", folder / "log"
    home.mkdir(parents=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(shim()),
        "POWER_ROOT": str(home),
        "POWER_LOG": str(log),
        "POWER_ACKS": str(home / "acks"),
        "POWER_DURABILITY": durability,
        "STEPWISE_HOME": str(home),
        "STEPWISE_STORE": f"disk:{home}/store",
    }
    command = [sys.executable, HERE / program, str(STEPS), *more]
    subprocess.run(command, env=environment, check=True, timeout=300)
    return list(operations(log.read_bytes(), f"{home}/"))


def operations(log, prefix):
    at = 0
    while at < len(log):
        what = chr(log[at])
        offset, length, size = struct.unpack_from("<qII", log, at + 1)
        path = f"{log[at + 17 : at + 17 + length].decode()}/".removeprefix(prefix)[:-1]
        at += 17 + length
        data = log[at : at + size]
        at += size
        if what in "rl":
            data = data.decode().removeprefix(prefix)
        if not path.endswith(("-shm", " (deleted)")):  # an index, made again; a log that was taken
            yield what, path, offset, data


class File:
    """A file: what is flushed, and the operations since."""

    def __init__(self):
        self.flushed = b""
        self.pending = []
        self.mode = self.flushed_mode = 0o600

    def content(self, how, chance):
        data = bytearray(self.flushed)
        for number, (what, offset, new) in enumerate(self.pending):
            last = number == len(self.pending) - 1
            if how == "dropped" or (how == "partial" and chance.random() < 0.5):
                continue
            if what == "t":
                data[offset:] = bytes(max(0, offset - len(data)))
                continue
            if how == "zeroed":
                data += bytes(max(0, offset + len(new) - len(data)))
                continue
            torn = how == "torn" and last
            size = len(new) // 2 // SECTOR * SECTOR if torn else len(new)
            data += bytes(max(0, offset - len(data)))
            data[offset : offset + size] = new[:size]
        return bytes(data)


class Disk:
    """The files of a home, as the operations up to now have left them."""

    def __init__(self):
        self.names, self.flushed_names = {}, {}
        self.acks = b""

    def apply(self, what, path, offset, data):
        if path == "acks":
            self.acks += data
        elif what == "c":
            self.names[path] = File()
        elif what == "u":
            self.names.pop(path, None)
        elif what in "rl":
            file = self.names[path] if what == "l" else self.names.pop(path)
            self.names[data] = file
        elif what == "m":
            if path in self.names:
                self.names[path].mode = offset
        elif what in "wt":
            self.names[path].pending.append((what, offset, data))
        elif path in self.names:
            file = self.names[path]
            file.flushed, file.pending = file.content("kept", None), []
            file.flushed_mode = file.mode
        else:  # a folder
            inside = f"{path}/" if path else ""
            for each in {*self.names, *self.flushed_names}:
                if each.startswith(inside) and "/" not in each.removeprefix(inside):
                    self.flushed_names.pop(each, None)
                    if each in self.names:
                        self.flushed_names[each] = self.names[each]

    def write(self, folder, names, how, chance):
        shutil.rmtree(folder, ignore_errors=True)
        for path, file in (self.names if names == "journaled" else self.flushed_names).items():
            target = folder / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.write_bytes(file.content(how, chance))
            target.chmod(file.flushed_mode if how == "dropped" else file.mode)


def missing(folder, acks, monkeypatch, run_id="job"):
    """The acknowledged calls of which the image does not tell."""
    monkeypatch.setenv("STEPWISE_HOME", str(folder))
    told = [line.split(" ", 1) for line in acks.decode().splitlines()]
    if not told:
        return []
    with fresh_store(f"disk:{folder}/store"):
        try:
            run = stepwise.get_run(run_id)
            steps = {f"{each.name}({each.arguments})": each.status for each in run.steps}
        except (stepwise.RunNotFoundError, stepwise.JournalLostError):  # perhaps but its marks
            return told
        done = [call for call, status in steps.items() if status == "completed"]
        if run.spent.usd != sum(call.startswith("think") for call in done):
            return f"{run.spent} of {done}"
        status = run.status
    allowed = {"done": {"completed"}, "announced": {"completed", "in_doubt"}}
    return [
        (word, call)
        for word, call in told
        if (status != "completed" if call == "agent" else steps.get(call) not in allowed[word])
    ]


def unlogged(folder, acks, monkeypatch):
    """The acknowledged calls of the runs of ``logged.py`` of which the image does not tell."""
    lost = []
    for run_id in ("job", "own"):
        told = [line for line in acks.splitlines(keepends=True) if f" {run_id} ".encode() in line]
        own = b"".join(told).replace(f" {run_id} ".encode(), b" ")
        lost += missing(folder, own, monkeypatch, run_id)
    return lost


def unsent(folder, acks, monkeypatch):
    """The acknowledged signals that the image lacks, or has otherwise; and what else is wrong."""
    monkeypatch.setenv("STEPWISE_HOME", str(folder))
    told = acks.decode().splitlines()
    with fresh_store(f"disk:{folder}/store"):
        try:
            run = stepwise.get_run("job")
        except stepwise.RunNotFoundError:
            return told
        verified = run.verify()
        found = {each.number: each.value for each in run.inbox}
        wrong = [*verified.problems, *([] if run.send("more", 1) > len(found) else ["number"])]
    first = {}  # a key that is sent again gives the number of the first message that has it
    for number, n in map(str.split, told):
        first.setdefault(int(number), n)
    return wrong + [number for number, n in first.items() if found.get(number) != f"{n} " * 40]


def unwaited(folder, acks, monkeypatch):
    """The acknowledged waits, and messages taken, of which the image does not tell."""
    monkeypatch.setenv("STEPWISE_HOME", str(folder))
    told = [line.split() for line in acks.decode().splitlines()]
    with fresh_store(f"disk:{folder}/store"):
        try:
            run = stepwise.get_run("job")
        except stepwise.RunNotFoundError:
            return told
        steps = {each.number: each for each in run.steps}
        taken = {each.step: each.value for each in run.inbox if each.status == "taken"}
        wrong = [*run.verify().problems]
        suspended = sum(type(each.record).__name__ == "Suspended" for each in run._entries())
        status = run.status
    for word, step, value in told:
        known = steps.get(int(step))
        if word == "took":
            good = known is not None and known.status == "completed"
            good = good and f"{known.result}" == value and f"{taken.get(int(step))}" == value
        elif word == "waits":
            good = known is not None
        else:
            good = suspended > int(value) if word == "suspended" else status == "completed"
        if not good:
            wrong.append((word, step, value))
    return wrong


def unsteered(folder, acks, monkeypatch):
    """Go on with the runs of the image to their end; what is wrong then, or was forgotten."""
    monkeypatch.setenv("STEPWISE_HOME", str(folder))
    steers.world[:] = acks.decode().splitlines()
    with fresh_store(f"disk:{folder}/store"):
        runs = {run.id: run.status for run in stepwise.runs()}
        wrong = [
            word
            for word in steers.world
            for run_id in steers.RUNS
            if word == f"ended {run_id}" and runs.get(run_id) != "cancelled"
        ]
        return wrong + steers.finish(STEPS // 4) + steers.wrong_with(STEPS // 4)


def cut(
    tmp_path, monkeypatch, sample, program="program.py", check=missing, more=(), durability="fsync"
):
    """Cut the power at (a sample of) all operations; yield what was lost of each image."""
    found = record(tmp_path / "recorded", durability, program, *more)
    kinds = [(names, how) for names in NAMES for how in CONTENTS]
    moments = [(number, kind) for number in range(len(found)) for kind in kinds]
    chance = random.Random(SEED)
    chosen = set(chance.sample(moments, size(sample, len(moments)) if sample else 0))
    acked = (number for number, (_, path, *_) in enumerate(found) if path == "acks")
    at_acks = [(number, (names, "dropped")) for number in acked for names in NAMES]
    chosen.update(thinned(at_acks, 3))  # odd, so that both kinds of names are among them
    disk, image = Disk(), tmp_path / "image"
    for number, operation in enumerate(found):
        disk.apply(*operation)
        for names, how in kinds:
            if (number, (names, how)) in chosen:
                disk.write(image, names, how, chance)
                gone = check(image, disk.acks, monkeypatch)
                where = f"operation {number} {operation[:3]}, {names}, {how}"
                yield f"{where}: {gone}" if gone else ""


@pytest.fixture
def survives(tmp_path, monkeypatch, tally):
    """Cut the power while a program runs; the images lose nothing."""

    def survives(what, sample=SAMPLE, **how):
        images = [*cut(tmp_path, monkeypatch, sample, **how)]
        lost = [each for each in images if each]
        tally(f"a power cut {what}", len(images), with_losses=len(lost))
        assert lost == [], f"seed {SEED}"

    return survives


def test_a_power_cut_at_any_moment(survives):
    """Whatever the disk made of what was not flushed, all that was acknowledged is there."""
    survives("at an operation of the disk")


def test_a_power_cut_while_a_log_changes_hands(survives):
    """A log that is filled, written over, left behind and taken over loses nothing either."""
    survives("while a log changes hands", program="logged.py", check=unlogged)


def test_a_power_cut_while_signals_are_sent(survives):
    """A signal whose send returned is in the inbox, once and unchanged; others may be or not."""
    survives("while signals are sent", program="sends.py", check=unsent)


def test_a_power_cut_while_a_run_waits(survives):
    """A wait that began, a message that was taken and a suspension survive a power cut."""
    survives("while a run waits", program="waits.py", check=unwaited)


def test_a_power_cut_while_a_run_is_steered(survives):
    """After it, runs that ask, wait and are cancelled end as they would have, each effect once."""
    survives("while a run is steered", STEERED, program="steers.py", check=unsteered)


@pytest.mark.parametrize("broken", ["flush", "name"])
def test_the_harness_sees_logs_that_are_not_flushed(tmp_path, monkeypatch, broken):
    """Without a flush of the log, or of its name, the same power cuts lose acknowledged steps."""
    how = {"program": "logged.py", "check": unlogged, "more": ["", broken]}
    assert any("dropped" in each for each in cut(tmp_path, monkeypatch, 0, **how))


def test_the_programs_fill_the_log(tmp_path):
    """What the power is cut of: small batches are in logs, one of which is begun again and again.

    A living process's log is fenced, and each log is deleted once it was taken in.
    """
    found = record(tmp_path, "fsync", "logged.py")
    done = [each for each in found if "logs/" in each[1] and "locks" not in each[1]]
    begun = [path for what, path, at, data in done if what == "w" and at == 0 and any(data)]
    assert max(map(begun.count, begun)) > 1
    assert "m" in {what for what, *_ in done}
    assert {path for _, path, *_ in done} == {path for what, path, *_ in done if what == "u"}


def test_the_harness_sees_losses(tmp_path, monkeypatch):
    """Without a flush per step (durability="os") the same power cuts do lose acknowledged steps."""
    lost = cut(tmp_path, monkeypatch, 0, durability="os")
    assert any("dropped" in each for each in lost)


def test_the_program_goes_on_after_a_power_cut(tmp_path):
    """Started again after a power cut, the program ends as if nothing had happened."""
    found = record(tmp_path / "recorded", "fsync")
    chance = random.Random(SEED)
    moments = sorted(chance.sample(range(len(found)), size(4, len(found))))
    disk = Disk()
    for number, operation in enumerate(found):
        disk.apply(*operation)
        if number in moments:
            image = tmp_path / f"image{number}"
            disk.write(image, chance.choice(NAMES), chance.choice(CONTENTS), chance)
            assert goes_on(image, disk.acks), f"seed {SEED}, operation {number}"


def goes_on(image, acks):
    image.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "STEPWISE_HOME": str(image),
        "STEPWISE_STORE": f"disk:{image}/store",
        "POWER_ACKS": str(image / "acks"),
        "POWER_DURABILITY": "fsync",
    }
    again = python(HERE / "program.py", str(STEPS), env=environment)
    if "StepInDoubtError" in again.stderr:  # it was begun, and perhaps no more than that
        (call,) = re.findall(r"  step +\d+  (\S+)$", again.stderr, re.MULTILINE)
        return f"done {call}".encode() not in acks
    told = (image / "acks").read_bytes().splitlines()
    executed = {line for line in told if line.startswith(b"announced")}
    before = {line for line in acks.splitlines() if line.startswith(b"announced")}
    return again.returncode == 0 and told[-1] == b"done agent" and not executed & before
