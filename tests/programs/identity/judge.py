"""Kills a program, runs it until it ends, and says what a recorded outcome did that it must not."""

from __future__ import annotations

import inspect
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field

from harness import Lab

import stepwise._runs.run
from identity.programs import draw

KINDS = ("wrong", "lost", "doubled", "repeat", "stop", "swapped", "key", "state", "error")
SAME = "same" in inspect.signature(stepwise._runs.run.Run.resolve).parameters
STARTS = 14  # of one program, at most

PROMISED = {
    "ordinary": KINDS,
    "twins": ("wrong", "lost", "doubled", "key", "error"),
    "a body configures": ("lost", "doubled", "key", "error"),
    "random attribute": ("wrong", "lost", "doubled", "key", "error"),
}
"""What must not happen in a program of that category; the rest is counted, and bounded."""


@dataclass
class Verdict:
    """What one trial came to.

    Args:
        found: how often each kind of fault was met.
        needed: stops that nobody can do without: the side effect was in flight at the kill.
        landed: how many of these had happened; what they did to their instance is lost.
        story: what happened, for who has to mend it.
    """

    program: object
    found: Counter = field(default_factory=Counter)
    needed: int = 0
    landed: int = 0
    starts: int = 0
    story: list = field(default_factory=list)

    @property
    def broken(self):
        """The kinds of faults that the rule promises not to make."""
        promised = set(PROMISED[self.program.category])
        if self.program.may_ask:
            promised.discard("stop")
        return [kind for kind in KINDS if kind in promised and self.found[kind]]

    def blame(self, kind, what, times=1):
        self.found[kind] += times
        self.story.append(f"{kind.upper()}: {what}")

    def text(self):
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.found.items()) or "nothing wrong"
        head = f"seed {self.program.seed} ({self.program.category}): {kinds}"
        return "\n".join([head, *self.story, "", self.program.source])


class Trials:
    """A program, what it is without the library, and its trials.

    Args:
        before: what the program begins with: another rule in the library's place.
    """

    def __init__(self, program, before=""):
        self.program = program
        self.before = before
        with Lab(program.source, PLAIN="1", ORDER="0") as lab:
            ended = lab.run()
            assert ended.code == 0, f"{ended.text}\n{program.source}"
            self.lines = _lines(lab)
            self.plain = _ended(lab)["result"]
        did = [each for each in self.lines if _did(each)]
        self.effects = Counter(tuple(each["act"]) for each in did if each["effect"])
        self.thoughts = Counter(tuple(each["act"]) for each in did if not each["effect"])

    def __iter__(self):
        """The lines after which it can be killed."""
        return iter(range(1, len(self.lines) + 1))

    def kill(self, *lines):
        """Kill it after these lines of the ledger, one in each start, and run it to its end."""
        verdict = Verdict(self.program)
        verdict.story.append(f"killed after line {lines} of the ledger")
        with Lab(self.before + self.program.source) as lab:
            self._run(lab, lines, verdict)
        return verdict

    def _run(self, lab, lines, verdict):
        settled = Counter()  # what was begun by the time it was settled
        said = {}  # the acts of the calls that somebody answered for
        for start in range(STARTS):
            lab.environment["ORDER"] = f"{self.program.seed} {lines} {start}"
            verdict.starts += 1
            ended = lab.run(die_at=f"ledger {lines[start]}" if start < len(lines) else "")
            if ended.code not in (0, 3, -9):
                verdict.blame("error", f"start {start}: exit code {ended.code}\n{ended.text}")
                return
            verdict.story.append(f"start {start}: {_told(lab)}")
            if ended.died:
                continue
            report = _ended(lab)
            if any(_are_twins(said.get(tuple(place)), act) for place, act in report["made"]):
                return  # what somebody said of a call was taken for its twin, which nobody can see
            if "doubt" not in report:
                self._judge(lab, report, verdict)
                return
            if not self._settle(lab, report, verdict, settled, said):
                self._count_effects(_lines(lab), verdict, complete=False)
                return
        verdict.blame("stop", f"it did not end in {STARTS} starts")

    def _settle(self, lab, report, verdict, settled, said):
        """Answer a stop by the ledger; whether that was possible.

        First what is in doubt, as the message says; a stop for anything else need not be.
        """
        doubt = report["doubt"]
        run, number, text = doubt["run_id"], doubt["step"], doubt["text"]
        verdict.story.append(f"stopped: {text}")
        steps = {each["number"]: each for each in report["steps"] if each["run"] == run}
        for each in map(int, re.findall(rf"resolve {run} ([0-9]+) --landed", text)):
            lines = [line for line in _lines(lab) if line.get("key") == steps[each]["key"]]
            if settled[run, each] < len(lines) or not lines:
                settled[run, each] = len(lines)
                return self._say_what_happened(lab, verdict, run, each, lines)
        verdict.blame("stop", f"step {number} of {run} is {steps[number]['status']}")
        answer = self._same_or_another(report, run)
        if answer is None:
            return False
        said[tuple(report["stopped"][0])] = report["stops"][0]
        which = re.findall("--stop [0-9]+", text)[:1]  # where several calls wait
        return self._resolve(lab, verdict, run, *answer, *" ".join(which).split())

    def _say_what_happened(self, lab, verdict, run, number, lines):
        verdict.needed += 1
        landed = [each["answer"] for each in lines if _did(each) and each["act"] == lines[0]["act"]]
        verdict.landed += bool(landed)
        answer = ["--landed", json.dumps(landed[0])] if landed else ["--did-not-happen"]
        return self._resolve(lab, verdict, run, str(number), *answer)

    def _resolve(self, lab, verdict, *answer):
        verdict.story.append(f"stepwise resolve {' '.join(answer)}")
        ended = lab.run(command=["resolve", *answer])
        if ended.code:
            verdict.blame("error", ended.text)
        return not ended.code

    def _same_or_another(self, report, run):
        """What somebody says who knows which act the stopped call is; ``None`` if he does not.

        It was done if as many records of it are there as calls of it have been made.
        """
        number = report["doubt"]["step"]
        steps = [each for each in report["steps"] if each["run"] == run]
        if not SAME or not report["stops"] or any(each["inside"] for each in steps):
            return None
        act = report["stops"][0]
        done = [each["number"] for each in steps if each["answer"] and _act(each["answer"]) == act]
        if report["calls"].count(act) <= len(done):
            return str(number if number in done else done[-1]), "--same"
        return str(number), "--another"

    # -- verdicts ---------------------------------------------------------------------------------

    def _judge(self, lab, report, verdict):
        result, plain = report["result"], self.plain
        for site, answer in plain["out"].items():
            given = result["out"].get(site)
            if given is None or _who(given) != _who(answer):
                verdict.blame("wrong", f"call {site} got {given!r}, not {answer!r}")
        if self.program.place != "global" and self.program.one_by_one and not verdict.landed:
            expected, state = plain["state"], result["state"]
            if expected != state:
                verdict.blame("state", f"it ends as {state}, not {expected}")
        lines = _lines(lab)
        did = [each["act"] for each in lines if _did(each)]
        if verdict.starts == 1 and sorted(report["calls"]) != sorted(did):
            verdict.blame("error", f"not who calls: {report['calls']}, {did}")
        self._count_effects(lines, verdict, complete=True)
        recorded = Counter(
            tuple(_act(each["answer"]))
            for each in report["steps"]
            if each["answer"] and not each["effect"]
        )
        for act, times in (recorded - self.thoughts).items():
            verdict.blame("repeat", f"{act} was recorded {times} times too often", times)

        self._compare_keys(lines, verdict)
        if all(each.form in ("seq", "gather") for each in self.program.statements):
            self._compare_answers(lines, verdict)

    def _compare_answers(self, lines, verdict):
        """What the workflow was once given for a call, it is given again."""
        given = {}
        for line in lines:
            if line["kind"] == "got":
                first = given.setdefault(line["site"], line["answer"])
                if first != line["answer"]:
                    verdict.blame(
                        "swapped", f"call {line['site']} got {line['answer']} after {first}"
                    )

    def _compare_keys(self, lines, verdict):
        """No side effect is given an idempotency key that another act was given."""
        acts = {}
        for line in lines:
            if line["kind"] == "began" and line["effect"]:
                first = acts.setdefault(line["key"], line["act"])
                if first != line["act"]:
                    verdict.blame("key", f"{line['act']} was given the key of {first}")

    def _count_effects(self, lines, verdict, *, complete):
        done = Counter(tuple(each["act"]) for each in lines if _did(each) and each["effect"])
        for act, times in (done - self.effects).items():
            verdict.blame("doubled", act, times)
        for act, times in (self.effects - done).items() if complete else ():
            verdict.blame("lost", act, times)


def _are_twins(act, other):
    """Whether two acts differ in nothing but the account behind them, which nobody can see."""
    if act is None or act == other:
        return False
    return [act[0], _visible(act[1]), act[2]] == [other[0], _visible(other[1]), other[2]]


def _visible(truth):
    config, _, mode = truth.split("/")
    return config, mode


def _did(line):
    return line["kind"] == "did"


def _act(answer):
    """The act that an answer is of: step, object and question."""
    name, truth, _, question, _ = answer.split("|")
    return [name, truth, question]


def _who(answer):
    """What an answer says; not the level of a side effect, which whoever settles it cannot know."""
    name, truth, level, question, _ = answer.split("|")
    return name, truth, question, level if name != "post" else ""


def _told(lab):
    lines = [f"  {' '.join(str(v) for v in each.values())}" for each in _lines(lab)]
    return "\n" + "\n".join(lines)


def _lines(lab):
    path = lab.folder / "log"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _ended(lab):
    return json.loads((lab.folder / "log.ended").read_text(encoding="utf-8"))


# -- many -----------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What many trials came to, by category."""

    trials: int = 0
    needed: int = 0
    by_category: dict = field(default_factory=dict)
    broken: list = field(default_factory=list)

    def add(self, verdict):
        self.trials += 1
        self.needed += verdict.needed
        counts = self.by_category.setdefault(verdict.program.category, Counter())
        counts.update({**verdict.found, "trials": 1})
        if verdict.broken:
            self.broken.append(verdict)

    @property
    def found(self):
        return sum(self.by_category.values(), Counter())

    def text(self):
        """What went wrong, of each kind the smallest program in which it must not."""
        lines = [f"{self.trials} trials, {self.needed} stops in doubt"]
        for key, counts in sorted(self.by_category.items()):
            shown = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
            lines.append(f"  {key:<18} {counts['trials']:>5}: {shown or 'all right'}")
        for kind in KINDS:
            found = [each for each in self.broken if kind in each.broken]
            if found:
                worst = min(found, key=lambda each: each.program.size)
                lines += ["", f"smallest with {kind}:", worst.text()]
        return "\n".join(lines)


def check_seeds(seeds, *, kills=3, before="", enough=lambda tally: False):
    """Kill the programs of these seeds, each a few times, until it is enough."""
    tally = Tally()
    for seed in seeds:
        chance = random.Random(f"kills of {seed}")
        trials = Trials(draw(seed), before)
        lines = list(trials)
        tally.add(trials.kill())  # as the library leaves it alone
        for line in sorted(chance.sample(lines, min(kills, len(lines)))):
            again = (chance.choice(lines),) if chance.random() < 0.2 else ()
            tally.add(trials.kill(line, *again))
        if enough(tally):
            break
    return tally
