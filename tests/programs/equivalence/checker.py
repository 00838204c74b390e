"""Crashes programs everywhere, and compares what comes of it with the undisturbed run."""

from __future__ import annotations

import ast
import os
import pickle
import random
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, replace

from killed import forget_process

import stepwise
from equivalence.programs import write
from equivalence.world import Crash, Runaway, world
from stepwise._journal.journal import open_head, seal_for
from stepwise._journal.seal import named
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore, _StoredRun


class Differs(AssertionError):
    """A resumed program is not what it was undisturbed."""


# -- executing -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Observed:
    """What is seen of an execution."""

    outcome: tuple
    given: list
    effects: list
    trace: list

    def compare(self, other, what):
        """Raise if the other execution is not the same."""
        for name in ("outcome", "effects", "trace", "given"):
            one, two = getattr(self, name), getattr(other, name)
            if name == "effects":  # a failure that was not handled yet is tried again
                one, two = _without_failures(one), _without_failures(two)
            if one != two:
                raise Differs(f"{what}: {name}\n  expected {one}\n  got      {two}")


@dataclass(frozen=True)
class Moment:
    """What a killed process leaves behind, and what it had done by then."""

    runs: dict
    effects: list
    marks: dict

    def rest(self, trace, got):
        """What of a trace has to come after it.

        A child run that had failed is executed again, or answered if its caller had gone on.
        """
        answered = self._failed() - {run_id for run_id, _ in got}
        return [
            entry
            for n, entry in enumerate(trace)
            if n >= self.marks.get(entry[0], 0) and entry[0] not in answered
        ]

    def _failed(self):
        seal = seal_for(MemoryStore("equivalence"))
        heads = [run.head for run in self.runs.values() if run.head is not None]
        return {head.run_id for head in heads if open_head(seal, head).status == "failed"}


class RecordingStore(MemoryStore):
    """A store that keeps what a killed process would leave, after each of its writes."""

    def __init__(self, runs=None):
        super().__init__("equivalence")
        self._runs = _copied(runs or {})
        self.moments = []

    def write(self, run_id, epoch, batch):
        super().write(run_id, epoch, batch)
        if not world.crashed:
            world.note(run_id, batch)
            self.moments.append(Moment(_copied(self._runs), [*world.effects], {**world.marks}))

    def copied(self):
        return _copied(self._runs)


def _copied(runs):
    return {
        run_id: _StoredRun(dict(run.records), dict(run.objects), run.head, run.epoch)
        for run_id, run in runs.items()
    }


def execute(program, store, crash_at=None, before=()):
    """Run a program as a workflow, in a process that has just begun."""
    forget_process()
    world.begin(crash_at, before=before)
    try:
        outcome, given = program.call(program.durable, store)
    except (Crash, Runaway, stepwise.StepInDoubtError):
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        raise Differs(f"it raised\n{text}") from error
    return Observed(outcome, given, world.effects, world.trace)


def execute_plainly(program):
    """Run a program as the plain functions that it consists of."""
    world.begin()
    outcome, given = program.call(program.plain)
    return Observed(outcome, given, world.effects, world.trace)


# -- crashing ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was tested."""

    programs: int = 0
    crashes: int = 0

    def add(self, other):
        self.programs += other.programs
        self.crashes += other.crashes


def check(program, sample=None, seed=0):
    """Crash a program everywhere, or at about ``sample`` moments.

    Raises:
        Differs: a recovery is not what it should be.
    """
    choose = random.Random(f"crashes of {seed}")
    tally = Tally(1)
    try:
        plain, whole, moments = _undisturbed(program)
        for moment in _some(moments, sample, choose):
            trace, again = _recover(program, plain, whole, moment, f"killed {_when(moment)}")
            tally.crashes += 1
            for second in _some(again, 1 if sample else 3, choose):
                rest = replace(whole, trace=trace)
                what = f"killed {_when(moment)}, and again {_when(second)}"
                joined = replace(second, effects=moment.effects + second.effects)
                _recover(program, plain, rest, joined, what)
                tally.crashes += 1
        for number in _some(range(1, len(whole.effects) + 1), sample and sample // 2, choose):
            _interrupt(program, plain, whole, number)
            tally.crashes += 1
    except Differs as error:
        raise Differs(f"{program.name}, {error}\n\n{program.source}") from None
    return tally


def _some(items, count, choose):
    items = list(items)
    return items if not count or len(items) <= count else choose.sample(items, count)


def _undisturbed(program):
    plain = execute_plainly(program)
    store = RecordingStore()
    whole = _ended(program, store, "undisturbed")
    untagged = replace(whole, trace=[("", text) for _, text in whole.trace])
    plain.compare(untagged, "undisturbed, in a run")
    return plain, whole, _crashes(whole, store)


def _ended(program, store, what, crash_at=None, before=()):
    try:
        return execute(program, store, crash_at, before)
    except stepwise.StepInDoubtError as error:
        raise Differs(f"{what}: it stopped\n{error}") from None
    except Runaway:
        raise Differs(f"{what}: it does not end\n  {world.effects}\n  {world.trace}") from None
    except Differs as error:
        raise Differs(f"{what}: {error}") from None


def _when(moment):
    checkpoints = sum(map(len, _checkpoints(moment)))
    return f"after {len(moment.effects)} effects, with {checkpoints} checkpoints"


def _checkpoints(moment):
    return [
        [name for name in run.objects if name.startswith("checkpoint/")]
        for run in moment.runs.values()
    ]


def _recover(program, plain, whole, moment, what):
    """Go on where a killed process stopped; the trace and the moments of this recovery."""
    store = RecordingStore(moment.runs)
    got = _ended(program, store, what, before=moment.effects)
    main = next(iter(moment.runs.values()))
    if main.head is not None and main.head.finished:
        replace(plain, effects=[], trace=[]).compare(got, f"{what}: a completed run")
        return [], []
    expected = replace(whole, trace=moment.rest(whole.trace, got.trace))
    expected.compare(replace(got, effects=moment.effects + got.effects), what)
    return got.trace, _crashes(got, store)


def _crashes(observed, store):
    """The moments at which a process may have been killed; not after a run has ended as failed."""
    return store.moments[:-1] if observed.outcome[0] == "raised" else store.moments


def _interrupt(program, plain, whole, number):
    """Crash in a step by an exception, and go on; what failed by then may be tried again."""
    what = f"interrupted in effect {number}"
    store = RecordingStore()
    try:
        _ended(program, store, what, number)
        raise Differs(f"{what}: it was not")
    except Crash:
        moment = Moment(store.copied(), world.effects, world.marks)
    got = _ended(program, RecordingStore(moment.runs), what, before=moment.effects)
    expected = replace(whole, trace=moment.rest(whole.trace, got.trace))
    expected.compare(replace(got, effects=moment.effects + got.effects), what)


def _without_failures(effects):
    return [each for each in effects if "boom" not in each]


def kinds_of_statements(program):
    """In which kinds of statements there are checkpoints, and how many."""
    _, _, moments = _undisturbed(program)
    nodes = {node.name: node for node in ast.walk(ast.parse(program.source)) if _is_function(node)}
    seal, found, seen = seal_for(RecordingStore()), Counter(), set()
    for moment in moments:
        for run_id, run in moment.runs.items():
            function = nodes[run_id.rpartition("/")[2].partition("-")[0]]
            for name in run.objects:
                if (run_id, name) in seen or not name.startswith("checkpoint/"):
                    continue
                seen.add((run_id, name))
                position = seal.open(named(name, run_id), run.objects[name]).header[0]
                found.update(_kinds(function, position.partition(" ")[2]))
    return found


def _is_function(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _kinds(node, path):
    for part in path.split("."):
        if not _is_function(node):
            yield type(node).__name__
        block, bracket, index = part.partition("[")
        if bracket:
            node = getattr(node, block)[int(index[:-1])]


# -- forking -------------------------------------------------------------------------------------


class _ForkStore(DiskStore):
    def write(self, run_id, epoch, batch):
        super().write(run_id, epoch, batch)
        world.note(run_id, batch)


def _in_child(program, folder, crash_at, before=()):
    """Execute a program in a forked process: what came of it, and what it had done."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)

        def report(observed=None):
            seen = (observed, world.effects, world.trace, world.marks)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(seen, pipe)
            os._exit(0)

        try:
            world.begin(crash_at, crash=report, before=before)
            outcome, given = program.call(program.durable, _ForkStore(folder))
            report(Observed(outcome, given, world.effects, world.trace))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    if not data:
        raise Differs(f"the forked process failed (crash in effect {crash_at})")
    return pickle.loads(data)


def check_forked(program, seed=0):
    """Crash a program with ``os._exit`` in a step, twice, on a store on disk.

    Raises:
        Differs: a recovery is not what it should be.
    """
    try:
        _, whole, _ = _undisturbed(program)
        first = random.Random(f"forks of {seed}").randint(1, len(whole.effects))
        with tempfile.TemporaryDirectory() as folder:
            effects, expected = [], whole.trace
            for number, crash_at in enumerate((first, 1 + first % 2, None), 1):
                what = f"process {number}, forked, to end in effect {crash_at}"
                observed, done, trace, marks = _in_child(program, folder, crash_at, effects)
                effects += done
                if trace != expected[: len(trace)]:
                    raise Differs(f"{what}: trace\n  expected {expected}\n  got      {trace}")
                if observed is not None:
                    break
                expected = [e for n, e in enumerate(expected) if n >= marks.get(e[0], 0)]
            whole = replace(whole, trace=expected)
            whole.compare(replace(observed, effects=effects), what)
    except Differs as error:
        raise Differs(f"{program.name}, {error}\n\n{program.source}") from None
    return Tally(1, number)


def check_seeds(seeds, *, sample=None, forked=False, write=write):
    """Check the programs of some seeds."""
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stepwise.StepwiseWarning)
        warnings.filterwarnings("error", ".*cannot be resumed in the middle")
        for seed in seeds:
            program = write(seed)
            try:
                tally.add(check_forked(program, seed) if forked else check(program, sample, seed))
            except Differs as error:
                raise Differs(f"seed {seed}: {error}") from None
    return tally
