"""``stepwise up --ray``: crashed and awakened runs are continued by tasks of a Ray cluster."""

import contextlib
import json
import os
import threading

import cluster_jobs
import pytest
from cluster_jobs import mark, pids
from ray_cluster import SECONDS, address, begun, ended, hears, program, stepwise, until

from stepwise import runs
from stepwise.integrations.ray import submit

SUBMIT = """
    import sys, time
    import cluster_jobs
    from stepwise.integrations.ray import submit
    handles = [submit(cluster_jobs.many, sys.argv[1], 4, run_id=name) for name in sys.argv[2:]]
    print("submitted", flush=True)
    time.sleep(1000)
"""


ENDED = "ended", "completed"


def command(*words):
    """The command line of an executor."""
    return stepwise("up", "--ray", address(), "--json", *words, "cluster_jobs")


@contextlib.contextmanager
def executors(store, count, *words):
    """Processes of ``stepwise up --ray``, and the events that they have printed, until the end."""
    made = [begun(command(*words), store) for _ in range(count)]
    try:
        for each in made:
            assert json.loads(each.stdout.readline())["event"] == "ready"
        yield made
    finally:
        for each in made:
            if each.poll() is None:
                each.kill()
            each.stdout.close()
            each.wait()


class Events:
    """The events that executors print, as they come."""

    def __init__(self, executors):
        self._found = []
        self._readers = [threading.Thread(target=self._read, args=[each]) for each in executors]
        for each in self._readers:
            each.start()

    def _read(self, executor):
        for line in executor.stdout:
            self._found.append(json.loads(line))

    def completed(self):
        """The runs that have ended as completed, as often as that was said."""
        return sorted(e["id"] for e in self._found if (e["event"], e["status"]) == ENDED)

    def to_the_end(self):
        """Wait until the executors have ended."""
        for each in self._readers:
            each.join(SECONDS)


def crash(store, world, *names):
    """Submit runs by a driver that is killed while they hold before their third step."""
    mark(world, "hold-2")
    driver = begun(program(SUBMIT, world, *names), store, RAY_ADDRESS=address())
    with driver:
        hears(driver, "submitted")
        until(lambda: len(pids(world, "holds-2")) == len(names))
        driver.kill()
    os.unlink(os.path.join(world, "hold-2"))
    until(lambda: all(run_of(name).status == "crashed" for name in names))


def run_of(name):
    """The run of an id."""
    (found,) = [each for each in runs() if each.id == name]
    return found


def test_a_driver_dies(store, world):
    """The tasks end with their driver, the runs are crashed, and ``up --ray`` continues each in the
    middle of its function, once, however many such processes there are.
    """
    names = [f"run-{number}" for number in range(3)]
    crash(store, world, *names)
    with executors(store, 2) as made:
        events = Events(made)
        until(lambda: len(events.completed()) >= len(names))
        for each in made:
            each.terminate()
        events.to_the_end()
    for name in names:
        run = run_of(name)
        assert (run.resumed_from_step, run.steps_executed) == (2, 2)
    assert sorted(
        what for what, _ in cluster_jobs.noted(world) if what.startswith("work")
    ) == sorted(f"work-{number}" for number in range(4) for _ in names)
    assert events.completed() == names


def test_the_same_submit_again_continues(store, world):
    """After the death of its driver, a run is continued by the same call of another driver."""
    crash(store, world, "again")
    assert submit(cluster_jobs.many, world, 4, run_id="again").result(SECONDS)[0] == [0, 1, 2, 3]
    assert run_of("again").resumed_from_step == 2


def test_suspended_runs_are_awakened(store, world):
    """``up --ray`` continues a run whose message has come, although its submitter is gone."""
    source = """
        import cluster_jobs, sys, time
        from stepwise.integrations.ray import submit
        handle = submit(cluster_jobs.waits, sys.argv[1], run_id="waits")
        while handle.status != "suspended":
            time.sleep(0.1)
    """
    ended(program(source, world), store, RAY_ADDRESS=address())
    with executors(store, 2):
        run_of("waits").send("answer", "yes")
        until(lambda: run_of("waits").status == "completed")
    assert run_of("waits").result == "yes"
    assert len(pids(world, "work-0")) == len(pids(world, "work-1")) == 1


def test_it_drains(store, world, tmp_path):
    """SIGTERM lets the steps in progress on the cluster end, and begins no other one."""
    crash(store, world, "drains")
    mark(world, "hold-2")
    mark(world, "drains")
    logs = tmp_path / "logs"
    with executors(store, 1, "--logs", str(logs)) as (executor,):
        until(lambda: len(pids(world, "holds-2")) == 2)
        executor.terminate()
        hears(executor, "draining")
        mark(world, "go")
        executor.wait(SECONDS)
    run = run_of("drains")
    assert run.status == "crashed"
    assert len(pids(world, "work-2")) == 1
    assert not pids(world, "work-3")
    os.unlink(os.path.join(world, "hold-2"))
    assert run.steps[-1].status == "completed"
    done = ended(command("--once"), store)
    assert done.returncode == 0, done.stderr
    assert (run_of("drains").status, run_of("drains").resumed_from_step) == ("completed", 3)
    assert "resumes at" in (logs / "drains.log").read_text()


def test_a_run_that_kills_its_process_is_tried_again_later(store, world):
    """A task whose process died is not tried again by Ray, but by ``up``, which counts deaths."""
    mark(world, "die")
    source = f"""
        import cluster_jobs, sys
        from ray.exceptions import WorkerCrashedError
        from stepwise.integrations.ray import submit
        handle = submit(cluster_jobs.pays_and_looks, {world!r}, run_id="dies", max_retries=0)
        try:
            handle.result({SECONDS})
        except WorkerCrashedError:
            sys.exit(17)  # Ray prints that the worker died, within the lines of others
    """
    done = ended(program(source), store, RAY_ADDRESS=address())
    assert done.returncode == 17, done.stdout + done.stderr
    with executors(store, 1):
        until(lambda: run_of("dies").status == "completed")
    assert run_of("dies").result == "reconciled"


def test_an_address_without_a_cluster(store):
    """An address at which there is no cluster is an error that names it."""
    done = ended(stepwise("up", "--ray", "127.0.0.1:1", "cluster_jobs"), store)
    assert done.returncode
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_stores_that_are_refused(cluster, tmp_path, kind):
    """``up --ray`` refuses a store in memory; a folder is one for a cluster on this machine."""
    url = "memory:" if kind == "memory" else f"disk:{tmp_path}"
    done = ended(command("--once"), url)
    assert bool(done.returncode) == (kind == "memory"), done.stderr
