"""Runs that suspend in a cell of a real kernel."""

import re

DEFINED = """
    import time
    import stepwise
    from stepwise import workflow
    stepwise.configure(suspend_after=0)

    @workflow(run_id="plain")
    def plain():
        return stepwise.wait_for("a")

    @workflow(run_id="awaited")
    async def awaited():
        return await stepwise.wait_for("a")
"""


CALLS = {"plain": "plain()", "awaited": "await awaited()"}


def until_completed(then):
    """A cell that sends to the latest run, waits for its end, and shows something."""
    return f"""
        import asyncio
        run = stepwise.runs()[0]
        run.send("a", [1, 2])
        while run.status != "completed":
            await asyncio.sleep(0.01)
        {then}
    """


def test_a_run_that_suspends_in_a_cell_goes_on_in_the_kernel(notebook):
    """The cell shows one line, the kernel goes on, and the run with it once it was sent a value."""
    kernel = notebook.start(DEFINED)
    for name, call in CALLS.items():
        told = kernel.fail(call)
        lines = [line for line in told.splitlines() if "is suspended" in line]
        assert f"RunSuspended: run {name} is suspended: it waits for the signal 'a'" in lines[0]
        assert "goes on in this kernel" in lines[0]
        assert "Traceback" not in told
        assert "[1, 2]" in kernel.run(until_completed(call)).text


def test_the_cell_of_a_run_that_was_woken_gets_its_result(notebook):
    """Executed again, the cell is answered by the run that it began: nothing is done twice."""
    kernel = notebook.start(re.sub(r"@workflow\(.*\)", "@workflow", DEFINED))
    for number, call in enumerate(CALLS.values(), 1):
        kernel.fail(call)
        shown = kernel.run(until_completed(f"print({call}, len(stepwise.runs()))"))
        assert f"[1, 2] {number}" in shown.text
