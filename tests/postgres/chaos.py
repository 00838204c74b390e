"""Nodes and a database server that are killed, a person who settles, and a judge.

:class:`Chaos` starts runs of ``chaos_program.py`` in a process that is killed, lets nodes continue
them (each is ``stepwise up`` in a process group), kills nodes and the server every few seconds, and
sends and settles what a person would, until all runs have ended.  :func:`judge` compares what the
service, the trace of the workflows' statements and the journals say.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import NamedTuple

from chaos_program import EFFECTS, plan_of
from counter_service import value_of
from harness import COMMAND, PROGRAMS, python_path

import stepwise
from stepwise.errors import StepwiseError

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 300  # until all runs have ended, once nothing is killed any more
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
NAMES = {
    "look": ("look",),
    "child": ("child",),
    "branches": ("part_of",) * 3,
    "sleep": ("stepwise.sleep",),
    "long": ("stepwise.sleep",),
    "wait": ("stepwise.wait_for",),
}


def runs_of(count, seed):
    """The names of runs: every second one is a coroutine's."""
    return [f"{'a' * (number % 2)}job-{seed}-{number}" for number in range(count)]


def can_be_elsewhere():
    """Whether processes can be made that see no process of ours, as if on another machine."""
    with contextlib.suppress(OSError):
        return (
            subprocess.run([*ELSEWHERE, "true"], check=False, capture_output=True).returncode == 0
        )
    return False


class Node:
    """``stepwise up`` with all of its processes, which die together.

    Args:
        begun: called with each process group that was begun.
        elsewhere: no other node can see whether its processes live, as if it were another machine.
        words: options of ``up``.
    """

    def __init__(self, name, folder, environment, begun, *, elsewhere=False, words=()):
        self.name, self._folder, self._begun = name, folder, begun
        self.kind = "node"
        before = ELSEWHERE if elsewhere else ()
        self._words = [*before, COMMAND, "up", "--logs", folder / "logs", *words]
        self._environment = {**environment, "CHAOS_NODE": name}
        self._process = None

    def start(self):
        with (self._folder / f"{self.name}.err").open("ab") as errors:
            self._process = subprocess.Popen(
                [*self._words, "chaos_program"], cwd=HERE, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True,
            )  # fmt: skip
        self._begun(self._process.pid)

    def kill(self):
        """``kill -9`` for the whole process group, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def wait(self):
        """Wait for the end of its first process."""
        if self._process is not None:
            self._process.wait()

    @contextlib.contextmanager
    def paused(self):
        """Its processes stand still, as when a machine is suspended."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)


class Chaos:
    """A folder with a service, nodes and runs.

    Args:
        url: of the store.
        runs: their names.
        server: the database server, if it may be killed, or stopped in order, and started again.
        elsewhere: see :class:`Node`.
        pauses: seconds for which a node is paused instead of killed, every second time.
        pace: how many times slower than usual the service answers.

    Attributes:
        tend: called again and again, in the thread that waits for the runs.
    """

    def __init__(
        self,
        folder,
        url,
        runs,
        *,
        server=None,
        elsewhere=False,
        pauses=0.0,
        pace=1.0,
        **environment,
    ):
        self.folder, self.url, self.runs, self.server = folder, url, runs, server
        self.pauses = pauses
        self.kills, self.settled, self.sent = Counter(), [], set()
        self.brought_back = {}
        self.tend = lambda: None
        self._draw = random.Random(f"chaos {runs}")
        self._done = threading.Event()
        self._service = subprocess.Popen(
            [sys.executable, HERE / "counter_service.py", folder / "service"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        self.environment = {
            **os.environ,
            "PYTHONPATH": python_path(HERE, PROGRAMS),
            "STEPWISE_STORE": url,
            "CHAOS_SERVICE": f"http://127.0.0.1:{int(self._service.stdout.readline())}",
            "CHAOS_TRACE": str(folder / "trace"),
            "CHAOS_PACE": str(pace),
            **environment,
        }
        self.nodes = [self.node(f"node{n}", elsewhere=elsewhere) for n in range(3)]

    def node(self, name, **options):
        """Return a :class:`Node`, which is not started."""
        return Node(name, self.folder, self.environment, self._has_begun, **options)

    def _has_begun(self, group):
        """Tell the service, which outlives us, of a process group that must not."""
        self._service.stdin.write(f"{group}\n")
        self._service.stdin.flush()

    def close(self):
        """End everything."""
        self._done.set()
        self._service.stdin.close()
        self._service.wait()
        self._service.stdout.close()
        for node in (*self.nodes, *self.brought_back.values()):
            node.wait()

    def begin(self, seconds=2.0):
        """Start the runs in a process, which is killed that much later."""
        begin = "import asyncio, sys, chaos_program\nasyncio.run(chaos_program.begin(sys.argv[1:]))"
        with (self.folder / "begin.err").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", begin, *self.runs], cwd=HERE, env=self.environment,
                stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
        self._has_begun(process.pid)
        with process:
            begun = process.stdout.readline()
            time.sleep(seconds)
            os.killpg(process.pid, signal.SIGKILL)
        assert begun == f"{len(self.runs)} begun\n", (self.folder / "begin.err").read_text()

    def go_on(self, seconds, every=(2.0, 5.0)):
        """Kill for so many seconds; return when all runs have ended."""
        for node in self.nodes:
            node.start()
        until = time.monotonic() + seconds
        killer = threading.Thread(target=self._kill_all, args=(until, every))
        killer.start()
        try:
            self._until_all_have_ended(until + SECONDS)
        finally:
            self._done.set()
            killer.join()

    def _kill_all(self, until, every):
        nodes = itertools.cycle(self.nodes)
        for number in itertools.count():
            if self._done.wait(self._draw.uniform(*every)) or time.monotonic() > until:
                return
            if number % 3 == 1 and self.server is not None:
                how = self._draw.choice(("kill", "kill", "fast", "immediate"))
                self.kills["server"] += 1
                self.server.kill() if how == "kill" else self.server.stop(how)
                node = self.server
            elif number % 2 and self.pauses:
                self.kills["paused"] += 1
                with next(nodes).paused():
                    self._done.wait(self.pauses)
                continue
            else:
                node = next(nodes)
                self.kills[node.kind] += 1
                node.kill()
            self._done.wait(self._draw.uniform(0.1, 1.0))
            node.start()

    # -- what a person does ------------------------------------------------------------------------

    def _until_all_have_ended(self, until):
        while True:
            self.tend()
            with contextlib.suppress(StepwiseError):  # the server may be down; asked again
                left = self.left()
                if not left:
                    return
                for run in left:
                    self._care_for(run)
                self._bring_back(left)
            assert time.monotonic() < until, self.story()
            self._done.wait(0.3)

    def left(self):
        """The runs that have not ended."""
        ends = ("completed", "failed", "cancelled", "interrupted")
        ended = {each.id for each in stepwise.runs(store=self.url) if each.status in ends}
        return [run for run in self.runs if run not in ended]

    def _care_for(self, name):
        run = stepwise.get_run(name, store=self.url)
        status = run.status
        if status == "suspended":
            for wait in run.waits:
                if wait.kind == "signal" and (name, wait.name) not in self.sent:
                    number = int(wait.name.split()[1])
                    run.send(wait.name, value_of(name, number, 0), key="once")
                    self.sent.add((name, wait.name))
        elif status in ("crashed", "stuck"):
            for each in run.steps:
                if each.status == "in_doubt" and each.name.endswith("raised"):
                    self._settle(run, each)

    def _bring_back(self, left):
        """Continue runs that were given up since their processes died too often, as we are told."""
        told = "".join(path.read_text("utf-8", "replace") for path in self.folder.glob("node*.err"))
        for run in left:
            if f"stepwise up --once --run {run} " in told and run not in self.brought_back:
                self.brought_back[run] = self.node(f"again {run}", words=("--once", "--run", run))
                self.brought_back[run].start()

    def _settle(self, run, step):
        """Answer a doubt by the truth, which the service knows."""
        os.environ["CHAOS_SERVICE"] = self.environment["CHAOS_SERVICE"]
        from counter_service import post

        found = post("asked", run=run.id, number=-2, token=0, key=step.idempotency_key)
        if found is None:
            run.resolve(step.number, did_not_happen=True)
        else:
            run.resolve(step.number, landed=found)
        self.settled.append((run.id, step.number))

    def story(self):
        """What is to be read when something is wrong."""
        told = [f"in {self.folder}; killed {dict(self.kills)}; settled {self.settled}"]
        with contextlib.suppress(StepwiseError):
            for each in stepwise.runs(store=self.url):
                if each.id in self.runs and each.status != "completed":
                    told.append(f"{each.id} {each.status} {each.counts}")
        for path in sorted(self.folder.glob("*.err")):
            told += [f"-- {path.name}", path.read_text("utf-8", "replace")[-3000:]]
        return "\n".join(told)

    # -- what happened -----------------------------------------------------------------------------

    def read(self, name):
        """The lines of the service, or of the trace."""
        path = self.folder / name
        return [*map(json.loads, path.read_text("utf-8").splitlines())] if path.exists() else []

    def judged(self):
        """What was wrong, and how much there was of everything."""
        lines = self.read("service"), self.read("trace")
        return judge(Evidence(self.url, self.runs, *lines, bool(self.pauses)))


class Evidence(NamedTuple):
    """What is judged.

    Args:
        service: the lines of the service.
        trace: the lines of the workflows' own statements.
        paused: whether some nodes were cut off and lived, so that what they had begun, another one
            may have ended before they did.
    """

    url: str
    runs: list
    service: list
    trace: list
    paused: bool = False


class Verdict(NamedTuple):
    """What was wrong, and figures."""

    wrong: list
    figures: Counter


def judge(evidence):
    """Return what was wrong."""
    found = Verdict([], Counter())
    asked = defaultdict(list)
    for line in evidence.service:
        asked[line["run"]].append(line)
    passed = defaultdict(list)
    for line in evidence.trace:
        passed[line["run"]].append(line)
    for name in evidence.runs:
        try:
            run = stepwise.get_run(name, store=evidence.url)
        except stepwise.RunNotFoundError:
            found.wrong.append(f"{name} is lost")
            continue
        if run.status != "completed":
            found.wrong.append(f"{name} is {run.status}")
            continue
        judging = _Judging(run, found, evidence)
        judging.judge(asked[name], passed[name])
    return found


class _Judging:
    """The judging of one run."""

    def __init__(self, run, found, evidence):
        self.run, self.found, self.url = run, found, evidence.url
        self.paused = evidence.paused
        self.plan = plan_of(run.id)
        self.lines = defaultdict(list)

    def wrong(self, text):
        self.found.wrong.append(f"{self.run.id}: {text}")

    def judge(self, asked, passed):
        for line in asked:
            if line["what"] != "asked":
                self.lines[str(line["number"])].append(line)
        if not (verified := self.run.verify()).ok:
            self.wrong(f"its journal does not verify: {verified}")
        calls = self.calls()
        if calls is None:
            return
        self.results(calls)
        for number, steps in calls.items():
            self.step_by_step(number, steps, passed)
        self.positions(calls, passed)
        self.found.figures["runs"] += 1
        self.found.figures["steps"] += sum(map(len, calls.values()))
        self.found.figures["resumed"] += len({each["process"] for each in passed}) - 1

    def calls(self):
        """The recorded steps, by the number of the turn, with those of child runs."""
        steps, calls = iter(self.run.steps), {}
        for number, kind in enumerate(self.plan):
            names = NAMES.get(kind, (kind,))
            if self.run.id.startswith("ajob"):
                names = ("aasked",) * 3 if kind == "branches" else (*map(_in_coroutine, names),)
            calls[number] = [next(steps, None) for _ in names]
            recorded = [each and each.name for each in calls[number]]
            if recorded != [*names]:
                self.wrong(f"turn {number} is recorded as {recorded}, not {names}")
                return None
        for each in steps:
            self.wrong(f"one step too much: {each.number} {each.name}({each.arguments})")
        for each in (each for steps in calls.values() for each in steps):
            if each.status != "completed":
                self.wrong(f"step {each.number} {each.name} is {each.status}")
        for number in [n for n, kind in enumerate(self.plan) if kind == "child"]:
            inner = stepwise.get_run(f"{self.run.id}-{number}", store=self.url)
            if (inner.status, len(inner.steps)) != ("completed", 2):
                self.wrong(f"child {inner.id} is {inner.status} with {len(inner.steps)} steps")
            calls[number] += inner.steps
        return calls

    def results(self, calls):
        """Whether the locals of all attempts together gave what one attempt gives."""
        drawn, total = self.run.result["drawn"], 0
        if len(drawn) != len(self.plan):
            self.wrong(f"drew {len(drawn)} tokens")
            return
        for number, kind in enumerate(self.plan):
            parts = {"branches": 3, "child": 2}.get(kind, 0)
            places = [f"{number}/{part}" for part in range(parts)] or [number]
            if kind == "wait":
                total += value_of(self.run.id, number, 0)
            elif kind not in ("sleep", "long"):
                total += sum(value_of(self.run.id, place, drawn[number]) for place in places)
                for place in places:
                    effect = kind in (*EFFECTS, "branches") or str(place).endswith("/1")
                    self.effect(str(place), drawn[number], effect)
        if total != self.run.result["total"]:
            self.wrong(f"its total is {self.run.result['total']}, not {total}")

    def effect(self, place, token, effect):
        """Whether an effect happened once, and a plain step was executed for what was recorded."""
        lines = self.lines[place]
        what = Counter(line["what"] for line in lines if effect or line["token"] == token)
        self.found.figures["in flight at a kill"] += len(lines) - 1
        if effect:
            self.found.figures["effects"] += 1
            if what["happened"] != 1 or any(line["token"] != token for line in lines):
                self.wrong(f"effect {place} happened {what['happened']} times: {lines}")
        elif not what["looked"]:
            self.wrong(f"step {place} was never executed with token {token}: {lines}")

    def step_by_step(self, number, steps, passed):
        """Whether anything was executed that had been recorded."""
        ended = {each.idempotency_key: each.finished_at for each in steps}
        if len(ended) != len(steps):
            self.wrong(f"two steps of turn {number} have one key: {steps}")
        for place, lines in self.lines.items():
            if place.partition("/")[0] == str(number):
                for line in lines:
                    if line["key"] not in ended:
                        if not self.was_cut_off(line, number, passed):
                            self.wrong(f"{line} belongs to no recorded step")
                    elif line["at"] > ended[line["key"]] and not self.paused:
                        self.wrong(f"executed after {ended[line['key']]}, when it ended: {line}")

    def was_cut_off(self, line, number, passed):
        """Whether a plain step had not returned when its process was killed.

        Nothing durable announces a plain step: the next attempt may draw another token for it.
        """
        after = [
            each["number"]
            for each in passed
            if each["process"] == line["process"] and each["at"] > line["at"]
        ]
        drawn = self.run.result["drawn"][number]
        is_other = line["what"] == "looked" and line["token"] != drawn
        return is_other and (not after or after[0] <= number)

    def positions(self, calls, passed):
        """Whether each attempt went on where the one before it had come to."""
        ended = {number: max(step.finished_at for step in calls[number]) for number in calls}
        seen = Counter()
        for line in passed:
            number = line["number"]
            seen[number] += 1
            recorded = ended.get(max(number, 0), float("inf"))
            if line["at"] > recorded and not self.paused:
                self.wrong(f"passed turn {number} again, whose step was recorded at {recorded}")
        missing = [each for each in range(-1, len(self.plan) + 1) if not seen[each]]
        if missing:
            self.wrong(f"never passed turns {missing}")
        self.found.figures["turns begun again"] += sum(seen.values()) - len(seen)


def _in_coroutine(name):
    return name if name.startswith("stepwise.") else f"a{name}"
