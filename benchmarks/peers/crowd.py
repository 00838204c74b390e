"""Many runs at once in one process, on PostgreSQL: stepwise, or DBOS.

    python crowd.py stepwise|dbos JOB

``JOB`` is JSON with the ``kind``: ``throughput`` makes ``runs`` runs of ``steps`` steps at the same
time; ``hold`` makes one run and waits in its last step, to be killed there; ``survive`` waits until
that has happened, and takes the run over; ``stream`` makes one run that says ``tokens`` tokens, and
reads them back.  What came of it is one line of JSON on stdout.
"""

from __future__ import annotations

import functools
import json
import os
import random
import string
import sys
import threading
import time

_TEXT = "".join(random.Random(7).choices(string.ascii_letters, k=1 << 15))
_PATIENCE = 120.0


class Bodies:
    """What steps do and return; when they were entered and left, by run."""

    def __init__(self) -> None:
        self.size, self.stop_at, self.held, self.stopped = 1024, -1, False, 0
        self.lock = threading.Lock()
        self.left: dict[str, float] = {}
        self.gaps: list[float] = []
        self.reached = threading.Event()

    def __call__(self, run: str, number: int):
        at = time.monotonic()
        if run in self.left:
            self.gaps.append(at - self.left[run])
        if number == self.stop_at:
            self.reached.at = at
            self.reached.set()
            with self.lock:
                self.stopped += 1
            if self.held:
                threading.Event().wait()
        begin = (number * 7919) % (len(_TEXT) - self.size)
        made = {"i": number, "text": _TEXT[begin : begin + self.size]}
        self.left[run] = time.monotonic()
        return made


body = Bodies()


def words(tokens):
    """Return texts of five letters that no compression makes smaller."""
    return [_TEXT[at : at + 5] for at in range(0, 5 * tokens, 5)]


def say(emit, tokens, rate) -> None:
    """Say tokens, ``rate`` of them a second, or as fast as possible if it is 0."""
    began = time.monotonic()
    for number, word in enumerate(words(tokens), 1):
        emit(word)
        ahead = began + number / rate - time.monotonic() if rate else 0
        if ahead > 0:
            time.sleep(ahead)


def of_stepwise():
    import stepwise

    @stepwise.step
    def step(run, number):
        return body(run, number)

    @stepwise.workflow
    def loop(run, count):
        for number in range(count):
            step(run, number)

    @stepwise.step
    def speak(tokens, rate):
        say(stepwise.emit, tokens, rate)

    @stepwise.workflow
    def talk(place, tokens, rate):
        (speak if place == "step" else functools.partial(say, stepwise.emit))(tokens, rate)

    class Stepwise:
        def __init__(self, job):
            stepwise.configure(store=job["url"], quiet=True)
            if "host" in job:  # nobody can see there whether the process lives
                from stepwise.stores import _postgres_presence

                _postgres_presence._here = lambda: (job["host"], "pid:[1]")

        def start(self, run, count):
            return loop.options(run_id=run).start(run, count).result

        def take_over(self, run, count):
            return loop.options(run_id=run, on_owned="wait").start(run, count)

        def talk(self, run, *given):
            talk.options(run_id=run)(*given)

        def heard(self, run):
            return [item.value for item in stepwise.get_run(run).stream() if item.kind == "item"]

        def close(self):
            pass

    return Stepwise


def of_dbos():
    from dbos import DBOS, SetWorkflowID

    @DBOS.step()
    def step(run, number):
        return body(run, number)

    @DBOS.workflow()
    def loop(run, count):
        for number in range(count):
            step(run, number)

    def write(token):
        DBOS.write_stream("main", token)

    @DBOS.step()
    def speak(tokens, rate):
        say(write, tokens, rate)

    @DBOS.workflow()
    def talk(place, tokens, rate):
        (speak if place == "step" else functools.partial(say, write))(tokens, rate)

    class Dbos:
        """With its defaults: a pool of 20 connections, a thread for each workflow."""

        def __init__(self, job):
            url = job["url"].replace("postgresql://", "postgresql+psycopg://", 1)
            config = {"name": "crowd", "system_database_url": url, "log_level": "ERROR"}
            if job["kind"] != "throughput":
                config |= {"executor_id": job["kind"], "application_version": "1"}
            DBOS(config=config)
            DBOS.launch()

        def start(self, run, count):
            with SetWorkflowID(run):
                return DBOS.start_workflow(loop, run, count).get_result

        def take_over(self, run, count):
            """Someone has to say which executor is dead: here it is said at once."""
            sys.stdin.readline()
            DBOS._recover_pending_workflows(["hold"])

        def talk(self, run, *given):
            with SetWorkflowID(run):
                talk(*given)

        def heard(self, run):
            return list(DBOS.read_stream(run, "main"))

        def close(self):
            DBOS.destroy()

    return Dbos


def throughput(library, job) -> dict[str, object]:
    body.size = job["bytes"]
    for end in [library.start(f"warm-{number}", 5) for number in range(min(8, job["runs"]))]:
        end()
    body.gaps.clear()
    body.left.clear()
    print(json.dumps({"warm": os.getpid()}), flush=True)  # the server's counters are read here
    sys.stdin.readline()
    began, cpu = time.monotonic(), time.process_time()
    for end in [library.start(f"run-{number}", job["steps"]) for number in range(job["runs"])]:
        end()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    count, gaps = job["runs"] * job["steps"], sorted(body.gaps)
    return {
        "ms": wall / count * 1e3,
        "cpu_ms": cpu / count * 1e3,
        "p50_ms": gaps[len(gaps) // 2] * 1e3,
        "p99_ms": gaps[int(len(gaps) * 0.99)] * 1e3,
    }


def stream(library, job) -> dict[str, object]:
    """Say tokens in one run, and read them back when it has ended: seconds of both."""
    place, tokens, rate = job["place"], job["tokens"], job["rate"]
    library.talk("warm", place, 20, rate)
    library.heard("warm")
    print(json.dumps({"warm": os.getpid()}), flush=True)
    sys.stdin.readline()
    began, cpu = time.monotonic(), time.process_time()
    library.talk("talk", place, tokens, rate)
    said, cpu = time.monotonic() - began, time.process_time() - cpu
    began = time.monotonic()
    heard = library.heard("talk")
    if heard != words(tokens):
        raise SystemExit(f"{len(heard)} of {tokens} tokens can be read")
    return {"said": said, "cpu_ms": cpu / tokens * 1e3, "read": time.monotonic() - began}


def hold(library, job) -> None:
    """Come to the last step, say so, and wait there to be killed."""
    body.stop_at, body.held = job["steps"] - 1, True
    library.start(job["run"], job["steps"])
    body.reached.wait(_PATIENCE)
    print(json.dumps({"held": os.getpid()}), flush=True)
    threading.Event().wait()


def survive(library, job) -> dict[str, object]:
    """Take the run over when its process has died; when its last step was entered again."""
    body.stop_at = job["steps"] - 1
    print(json.dumps({"watching": os.getpid()}), flush=True)
    library.take_over(job["run"], job["steps"])
    if not body.reached.wait(_PATIENCE):
        raise SystemExit("the run was not taken over")
    return {"at": body.reached.at, "ran_again": len(body.gaps)}


def hold_many(library, job) -> None:
    """Begin runs that all come to their last step, and wait there to be killed."""
    body.stop_at, body.held = job["steps"] - 1, True
    for number in range(job["runs"]):
        library.start(f"{job['prefix']}-{number}", job["steps"])
    end = time.monotonic() + _PATIENCE
    while body.stopped < job["runs"]:
        if time.monotonic() > end:
            raise SystemExit("the runs do not come to their last steps")
        time.sleep(0.01)
    print(json.dumps({"held": os.getpid()}), flush=True)
    threading.Event().wait()


def take_many(library, job) -> dict[str, object]:
    """Resume them and bring them to their ends; the processor time of each."""
    print(json.dumps({"warm": os.getpid()}), flush=True)
    sys.stdin.readline()
    began, cpu = time.monotonic(), time.process_time()
    for number in range(job["runs"]):
        library.start(f"{job['prefix']}-{number}", job["steps"])()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    return {"ms": wall / job["runs"] * 1e3, "cpu_ms": cpu / job["runs"] * 1e3}


KINDS = {
    "throughput": throughput,
    "stream": stream,
    "hold": hold,
    "survive": survive,
    "hold_many": hold_many,
    "take_many": take_many,
}


def main(who: str, given: str) -> None:
    job = json.loads(given)
    library = {"stepwise": of_stepwise, "dbos": of_dbos}[who]()(job)
    found = KINDS[job["kind"]](library, job)
    print(json.dumps(found), flush=True)
    if job["kind"] in ("throughput", "stream"):
        library.close()
    os._exit(0)  # what remains in threads of a library is none of our business


if __name__ == "__main__":
    main(*sys.argv[1:])
