"""``submit()``: a run that a Ray cluster executes, as it would be executed here."""

import asyncio
import os
import sys
import textwrap

import cluster_jobs
import pytest
from cluster_jobs import mark, pids
from ray_cluster import SECONDS, address, alive, begun, ended, hears, program, until

import stepwise
from stepwise import (
    ConfigurationError,
    NotRecordableError,
    RunCancelled,
    RunConflictError,
    RunEndedError,
    StepInDoubtError,
    workflow,
)
from stepwise.integrations import ray as ray_of_ours
from stepwise.integrations.ray import RayHandle, submit

# -- as it would be here -------------------------------------------------------------------------


def test_the_result_comes_back(store, world):
    """The run is on record when submit() returns, under the id that a call here has."""
    run_id = cluster_jobs.many.run_id_for(world, 3)
    handle = submit(cluster_jobs.many, world, 3)
    assert (handle.id, handle.run.inputs) == (run_id, {"world": world, "count": 3})
    got, processes = handle.result(SECONDS)
    assert got == [0, 1, 2]
    assert set(processes) != {os.getpid()}
    assert handle.done
    assert handle.status == "completed"
    assert handle.result() == (got, processes)
    assert isinstance(handle, RayHandle)
    assert handle.id in repr(handle)


def test_a_run_that_completed_is_not_executed_again(store, world):
    """Submitted by id once more, a completed run gives its recorded result, without a task."""
    first = submit(cluster_jobs.many, world, 1, run_id="mine")
    assert first.result(SECONDS)
    again = submit(cluster_jobs.many, world, 1, run_id="mine")
    assert again.done
    assert again.ref is None
    assert again.result() == first.result()
    assert len(cluster_jobs.noted(world)) == 1


def test_equal_calls_in_a_loop_are_several_runs(store, world):
    """A call that comes after an equal one has completed means another run, as without Ray."""
    handles = []
    for _ in range(2):
        handles.append(submit(cluster_jobs.many, world, 1))
        handles[-1].result(SECONDS)
    assert handles[1].id == f"{handles[0].id}-2"


def test_submitted_twice_is_executed_once(store, world):
    """The same run in progress is not executed twice, and everybody gets its result."""
    mark(world, "hold-0")
    handle = submit(cluster_jobs.many, world, 1, run_id="once")
    until(lambda: pids(world, "holds-0"))
    assert submit(cluster_jobs.many, world, 1, run_id="once") is handle
    source = """
        import cluster_jobs, sys
        from stepwise.integrations.ray import submit
        handle = submit(cluster_jobs.many, sys.argv[1], 1, run_id="once")
        print("submitted", flush=True)
        print(handle.result(90)[0], flush=True)
    """
    other = begun(program(source, world), store, RAY_ADDRESS=address())
    hears(other, "submitted")
    mark(world, "go")
    assert "[0]" in other.communicate(timeout=SECONDS)[0].splitlines()
    assert handle.result(SECONDS)[0] == [0]
    assert len(pids(world, "work-0")) == 1


def test_a_coroutine_workflow(store, world):
    """A coroutine workflow is executed in an event loop of the worker; its handle is awaitable."""

    async def main():
        return await submit(cluster_jobs.amany, world, 3)

    assert asyncio.run(main()) == [0, 1, 2]


def test_a_method(store):
    """A workflow that is a method travels with its object; some megabytes come back."""
    handle = submit(cluster_jobs.Agent("Ann").run, "write", kwargs={"times": 2})
    large = submit(cluster_jobs.gives, 5 << 20)
    assert handle.result(SECONDS) == ["Ann: write"] * 2
    assert large.result(SECONDS) == bytes(5 << 20)


@pytest.mark.parametrize(
    ("kind", "error"), [("mine", cluster_jobs.MyError), ("other", ValueError), ("exit", SystemExit)]
)
def test_exceptions_arrive(store, kind, error):
    """An exception of the workflow is raised by result(), with its facts, and Ray tries nothing."""
    handle = submit(cluster_jobs.fails, kind)
    with pytest.raises(error) as caught:
        handle.result(SECONDS)
    if kind == "mine":
        assert caught.value.code == 7
        assert "in fails" in "".join(caught.value.__notes__)
    assert handle.run.status == ("crashed" if kind == "exit" else "failed")
    with pytest.raises(error):
        handle.result()


def test_a_result_that_cannot_be_recorded(store, world):
    """A result that can neither be recorded nor sent is an error that says so."""
    with pytest.raises(NotRecordableError, match="completed on node"):
        submit(cluster_jobs.gives_what_cannot_be_recorded, world).result(SECONDS)


def test_cancelled(store, world):
    """cancel() ends the run, and then its task; result() raises RunCancelled."""
    handle = submit(cluster_jobs.many, world, 20_000)
    until(lambda: pids(world, "work-1"))
    handle.cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        handle.result(SECONDS)
    assert handle.status == "cancelled"
    assert not pids(world, "work-19999")
    with pytest.raises(RunEndedError):
        handle.cancel()


def test_cancelled_while_it_is_suspended(store, world):
    """A run that waits for a message is cancelled by a task that unwinds it."""
    handle = submit(cluster_jobs.waits, world)
    until(lambda: handle.status == "suspended")
    handle.cancel()
    with pytest.raises(RunCancelled):
        handle.result(SECONDS)


def test_late(store, world):
    """result(timeout) raises TimeoutError, and the run continues."""
    mark(world, "hold-0")
    handle = submit(cluster_jobs.many, world, 1)
    with pytest.raises(TimeoutError, match="it continues"):
        handle.result(0.2)
    assert not handle.wait(0)
    mark(world, "go")
    assert handle.result(SECONDS)[0] == [0]


def test_a_run_that_suspends_goes_on(store, world):
    """A run that waits keeps no worker; a message, or its time, has it submitted again."""
    naps = submit(cluster_jobs.naps, world, 2.5)
    handle = submit(cluster_jobs.waits, world)
    until(lambda: handle.status == "suspended")
    assert not handle.done
    handle.run.send("answer", 42)
    assert handle.result(SECONDS) == 42
    assert naps.result(SECONDS) == "awake"
    assert len(pids(world, "work-0")) == len(pids(world, "work-1")) == 2


def test_code_of_a_script(store, world, tmp_path):
    """What a script defines travels by value: the run is named after the script, and the objects
    of its classes come back as objects of its classes.
    """
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import dataclasses, sys
            from stepwise import step, workflow
            from stepwise.integrations.ray import submit

            @dataclasses.dataclass
            class Found:
                text: str

            class Wrong(Exception):
                pass

            @step
            def look(text):
                return Found(text)

            @workflow
            def search(text):
                found = look(text)
                if text == "wrong":
                    raise Wrong(found)
                return found

            if __name__ == "__main__":
                handle = submit(search, "x")
                found = handle.result(90)
                assert type(found) is Found, type(found)
                assert type(handle.run.steps[0].result) is Found
                try:
                    submit(search, "wrong").result(90)
                except Wrong as error:
                    assert type(error.args[0]) is Found
                print(handle.run.workflow, found)
            """
        )
    )
    done = ended([sys.executable, str(script)], store, RAY_ADDRESS=address())
    assert f"{script}:search Found(text='x')" in done.stdout.splitlines(), done.stderr


def test_a_driver_that_leaves_the_cluster(store, world):
    """Whoever leaves the cluster is told that the task has ended with that, and can come back."""
    mark(world, "hold-0")
    source = f"""
        import cluster_jobs, ray
        from stepwise import StepwiseError
        from stepwise.integrations.ray import submit
        handle = submit(cluster_jobs.many, {world!r}, 1)
        ray.shutdown()
        try:
            handle.result({SECONDS})
        except StepwiseError as error:
            print(error)
        cluster_jobs.mark({world!r}, "go")
        print(submit(cluster_jobs.many, {world!r}, 1).result({SECONDS})[0])
    """
    done = ended(program(source), store, RAY_ADDRESS=address())
    assert "left the Ray cluster" in done.stdout, done.stderr
    assert "[0]" in done.stdout.splitlines()


# -- what is refused -----------------------------------------------------------------------------


def test_a_store_in_memory_is_refused(cluster):
    """A store that is in the memory of this process is refused before anything is submitted."""
    with pytest.raises(ConfigurationError, match="in the memory of this process"):
        submit(cluster_jobs.gives.options(store="memory:"), 1)


def test_a_folder_that_other_machines_lack_is_refused(cluster, tmp_path):
    """A folder is a store for a cluster on this machine alone."""
    store = stepwise.stores.open_store(f"disk:{tmp_path}")
    node = {"Alive": True, "NodeManagerHostname": os.uname().nodename}
    ray_of_ours.check_reach(store, [node])
    ray_of_ours.check_reach(store, [node, {"Alive": False, "NodeManagerHostname": "far"}])
    with pytest.raises(ConfigurationError, match=r"nodes on others \(far\)"):
        ray_of_ours.check_reach(store, [node, {"Alive": True, "NodeManagerHostname": "far"}])
    assert submit(cluster_jobs.gives.options(store=store), 3).result(SECONDS) == bytes(3)


def test_calls_that_cannot_be_submitted(store, world):
    """What is no workflow, a generator, a call inside a run and our own options are refused."""

    @workflow
    def items():
        yield 1

    @workflow
    def outer():
        return submit(cluster_jobs.gives, 1)

    for wrong in (lambda: submit(print), lambda: submit(items), outer):
        with pytest.raises(ConfigurationError, match=r"submit\(\)"):
            wrong()
    with pytest.raises(ConfigurationError, match="num_returns"):
        submit(cluster_jobs.gives, 1, num_returns=2)
    submit(cluster_jobs.gives, 1, run_id="taken").result(SECONDS)
    with pytest.raises(RunConflictError):
        submit(cluster_jobs.gives, 2, run_id="taken")


def test_another_key(store):
    """A worker with another key says so, and executes nothing."""
    other = {"env_vars": {"STEPWISE_KEY": "quite another secret"}}
    with pytest.raises(ConfigurationError, match="STEPWISE_KEY"):
        submit(cluster_jobs.gives, 1, runtime_env=other).result(SECONDS)


def test_code_that_a_worker_lacks(store, tmp_path):
    """A module that no worker can import is named, with the way to send it along."""
    (tmp_path / "lacking.py").write_text(
        "from stepwise import workflow\n\n@workflow\ndef lacks():\n    return 1\n"
    )
    sys.path.append(str(tmp_path))
    try:
        import lacking
    finally:
        sys.path.remove(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"lacking.*working_dir"):
        submit(lacking.lacks).result(SECONDS)
    there = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    assert submit(lacking.lacks, runtime_env=there).result(SECONDS) == 1


def test_without_ray():
    """Where Ray is not installed, the error names the extra."""
    source = """
        import sys
        sys.modules["ray"] = None
        from stepwise import workflow
        from stepwise.integrations.ray import submit
        submit(workflow(lambda: 1))
    """
    done = ended(program(source), "memory:")
    assert "pip install 'stepwise-agents[ray]'" in done.stderr.splitlines()[-1]


# -- nodes that die ------------------------------------------------------------------------------


def test_a_node_dies(store, world, cluster):
    """The run resumes on another node, inside its function, long before the lease runs out."""
    mark(world, "hold-3")
    handle = submit(cluster_jobs.many, world, 6)
    (pid,) = until(lambda: pids(world, "holds-3"))
    cluster.kill(cluster.node_of(pid))
    until(lambda: len(pids(world, "holds-3")) == 2, 25)  # the lease would take 30 s to run out
    mark(world, "go")
    got, processes = handle.result(SECONDS)
    assert got == list(range(6))
    run = handle.run
    assert (run.resumed_from_step, run.steps_executed) == (3, 3)
    # The code between the steps was not executed again: its variables come from the first node.
    assert processes == [pid] * 3 + pids(world, "work-3") * 3
    assert [what for what, _ in cluster_jobs.noted(world) if what.startswith("work")] == [
        f"work-{number}" for number in range(6)
    ]


def test_a_process_dies_in_a_side_effect(store, world):
    """Ray starts the task again, which reports the doubt; that is no reason for a third time."""
    mark(world, "die")
    handle = submit(cluster_jobs.pays, world)
    with pytest.raises(StepInDoubtError) as caught:
        handle.result(SECONDS)
    assert caught.value.run_id == handle.id
    assert len(pids(world, "charged")) == len(pids(world, "work-0")) == 1
    handle.run.resolve("charge", landed="settled")
    assert submit(cluster_jobs.pays, world).result(SECONDS) == "settled"
    assert len(pids(world, "charged")) == 1


def test_a_process_dies_in_a_side_effect_that_can_be_looked_up(store, world):
    """With a function that looks, the task that Ray starts again settles the doubt by itself."""
    mark(world, "die")
    assert submit(cluster_jobs.pays_and_looks, world).result(SECONDS) == "reconciled"
    assert len(pids(world, "charged")) == len(pids(world, "reconciled")) == 1


def test_a_node_is_cut_off_in_a_side_effect(store, world, cluster):
    """A node that Ray takes for dead while its worker lives: the effect is in doubt elsewhere, and
    the worker that wakes up writes nothing more.
    """
    mark(world, "hold")
    handle = submit(cluster_jobs.pays, world)
    (pid,) = until(lambda: pids(world, "holds"))
    go_on = cluster.cut_off(cluster.node_of(pid), store)
    try:
        with pytest.raises(StepInDoubtError):
            handle.result(SECONDS)
        before = handle.run.steps
    finally:
        mark(world, "go")
        go_on()
    until(lambda: not alive(pid))
    assert handle.run.steps == before
    assert handle.run.status == "crashed"
    assert len(pids(world, "charged")) == 1
