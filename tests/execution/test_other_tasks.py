"""The tasks of a run: none is missed, however it was made, and none is asked again and again."""

import asyncio
import contextvars
import gc
import sys
import threading
import weakref

import pytest

import stepwise
from stepwise import step, workflow
from stepwise._execution import tasks as other_tasks
from stepwise._execution.active_run import current_scope
from stepwise._runtime import asyncio_state


@step
async def think(n):
    await asyncio.sleep(0)
    return n


@workflow
async def sequence(count):
    for n in range(count):
        await think(n)


def others():
    """The names of the other tasks of the run whose code this is."""
    return sorted(task.get_name() for task in other_tasks.tasks_of(current_scope().run))


def in_a_run(main):
    """Execute a coroutine function as a workflow."""
    run = workflow(main, name="main").options(store="memory:", run_id="run")
    return asyncio.run(run())


@pytest.fixture
def asked(monkeypatch):
    """The tasks whose contexts were asked for, one entry for each time."""
    found, ask = [], asyncio_state.context_of

    def count(task):
        found.append(task.get_name())
        return ask(task)

    def never(loop=None):
        raise AssertionError("asyncio was asked for all of its tasks")

    monkeypatch.setattr(asyncio_state, "context_of", count)
    if sys.version_info < (3, 14):
        monkeypatch.setattr(asyncio, "all_tasks", never)
    return found


async def together(count, steps):
    """Execute so many runs at once, from a loop that ends nothing else."""
    runs = [sequence.options(store="memory:", run_id=f"{count} {steps} {n}") for n in range(count)]
    await asyncio.gather(*[run(steps) for run in runs])


def loop_of_its_own(coroutine):
    """As ``asyncio.run``, which asks for all tasks at its end."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()


def test_a_step_asks_no_task_of_other_runs(asked):
    """With 12 runs at once, a step asks as many tasks as it does in a run that is alone."""
    calls = {}
    for count, steps in [(1, 10), (1, 20), (12, 10), (12, 20)]:
        asked.clear()
        loop_of_its_own(together(count, steps))
        calls[count, steps] = len(asked)
    assert 0 < calls[1, 20] - calls[1, 10] <= 20
    assert calls[12, 20] - calls[12, 10] <= 12 * (calls[1, 20] - calls[1, 10])


def test_counting_a_crowd_asks_a_few_of_it(monkeypatch):
    """Whether a loop has many tasks is known from some of them, and each ended task is met once."""
    met, is_over = [], other_tasks._is_over

    def count(task):
        met.append(task)
        return is_over(task)

    async def main():
        ended = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(500)]
        await asyncio.gather(*ended)
        crowd = [asyncio.ensure_future(asyncio.sleep(3600)) for _ in range(500)]
        assert other_tasks.is_crowded(10)
        monkeypatch.setattr(other_tasks, "_is_over", count)
        for _ in range(100):
            assert other_tasks.is_crowded(10)
        assert len(met) == 100 * 11
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        met.clear()
        assert not other_tasks.is_crowded(10)
        assert not other_tasks.is_crowded(10)
        assert len(met) < 600
        return [*ended, *crowd]

    asyncio.run(main())


async def wait():
    await asyncio.sleep(3600)


async def end(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def of_factory():
    """A task of a factory that the program installed."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine, **more: asyncio.Task(coroutine, loop=loop))
    return loop.create_task(wait())


MADE = {
    "create_task": lambda: asyncio.create_task(wait()),
    "ensure_future": lambda: asyncio.ensure_future(wait()),
    "class": lambda: asyncio.Task(wait(), loop=asyncio.get_running_loop()),
    "factory": of_factory,
    "within": lambda: asyncio.ensure_future(asyncio.wait_for(wait(), 3600)),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_task_counts_however_it_was_made(kind):
    """A task that the workflow starts counts, whoever makes it, until it has ended."""

    async def main():
        assert others() == []
        task = MADE[kind]()
        assert task.get_name() in others()
        await asyncio.sleep(0)
        await end(task)
        return others()

    assert in_a_run(main) == []


def test_a_task_of_a_callback_counts():
    """A task that a callback of the workflow makes counts; one in the background does not.

    Nor does one that was looked at while it was in the background, until it is back in the run.
    """

    async def main():
        loop, made, out, back = asyncio.get_running_loop(), [], asyncio.Event(), asyncio.Event()

        async def other():
            with stepwise.background():
                out.set()
                await back.wait()
            await wait()

        made.append(asyncio.ensure_future(other()))
        await out.wait()
        before = others()
        back.set()
        loop.call_soon(lambda: made.append(asyncio.ensure_future(wait())))
        with stepwise.background():
            left_out = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = others() == sorted(task.get_name() for task in made)
        await end(*made, left_out)
        return before, len(made), found

    assert in_a_run(main) == ([], 2, True)


def test_a_child_run_knows_its_own_tasks_only():
    """The tasks of a child run count for its parent, and those of the parent not for the child."""

    async def main():
        task = asyncio.ensure_future(wait())
        mine = others()

        @workflow(name="child")
        async def child():
            inside = asyncio.ensure_future(wait())
            found = others() == [inside.get_name()]
            parent = [each.get_name() for each in other_tasks.tasks_of(current_scope().run.parent)]
            await end(inside)
            return found, sorted(parent) == sorted([task.get_name(), inside.get_name()])

        result = await child()
        await end(task)
        return mine == [task.get_name()], *result

    assert in_a_run(main) == (True, True, True)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task has its own context")
def test_a_task_that_shares_a_context_counts():
    """A task made long before counts while a generator of a run is entered in its context."""

    @workflow(name="pieces")
    async def pieces():
        await asyncio.sleep(0)
        yield others()

    async def main():
        context = contextvars.copy_context()
        sharing = asyncio.get_running_loop().create_task(wait(), context=context)
        assert other_tasks.is_crowded(1)  # looks at all tasks

        async def read():
            return [piece async for piece in pieces.options(store="memory:", run_id="run")()]

        (found,) = await asyncio.get_running_loop().create_task(read(), context=context)
        return found == [sharing.get_name()]

    assert asyncio.run(main())


def test_no_task_is_kept():
    """A task that has ended goes with the last reference to it, looked at or not."""

    async def ended():
        task = asyncio.ensure_future(asyncio.sleep(0))
        assert others() == [task.get_name()]
        await task
        await asyncio.sleep(0)  # asyncio refers to it in its callback
        return weakref.ref(task)

    @step
    async def look():
        reference = await ended()
        gc.collect()
        return reference() is None

    async def main():
        return await look()

    assert in_a_run(main)


def test_loops_that_come_and_go_leave_nothing(monkeypatch):
    """References to the tasks of many short loops are dropped, those of living tasks are not."""
    known = other_tasks._KnownTasks()
    monkeypatch.setattr(other_tasks, "_MANY", 50)
    known._most = 50

    async def main():
        tasks = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(20)]
        known.look()
        await asyncio.gather(*tasks)

    for _ in range(20):
        asyncio.run(main())
        gc.collect()
    assert len(known._references) < 200
    assert len(known._loops) < 10


def test_loops_of_several_threads_look_at_once():
    """Runs in the loops of several threads each know their own tasks."""
    found, barrier = [], threading.Barrier(4, timeout=60)

    def execute(number):
        async def main():
            barrier.wait()
            for n in range(20):
                task = asyncio.ensure_future(wait(), loop=asyncio.get_running_loop())
                found.append(others() == [task.get_name()])
                await end(task)
                await think(n)

        asyncio.run(workflow(main, name="main").options(store="memory:", run_id=f"{number}")())

    threads = [threading.Thread(target=execute, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80
