"""Runs that suspend in a cell of a real kernel."""

import re

import pytest

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


@pytest.mark.parametrize(("name", "call"), [("plain", "plain()"), ("awaited", "await awaited()")])
def test_a_run_that_suspends_in_a_cell_goes_on_in_the_kernel(notebook, name, call):
    """The cell shows one line, the kernel goes on, and the run with it once it was sent a value."""
    kernel = notebook.start(DEFINED)
    told = kernel.fail(call)
    lines = [line for line in told.splitlines() if "is suspended" in line]
    assert f"RunSuspended: run {name} is suspended: it waits for the signal 'a'" in lines[0]
    assert "goes on in this kernel" in lines[0]
    assert "Traceback" not in told
    shown = kernel.run(
        f"""
        import asyncio
        run = stepwise.get_run("{name}")
        run.send("a", [1, 2])
        while run.status != "completed":
            await asyncio.sleep(0.01)
        {call}
        """
    )
    assert "[1, 2]" in shown.text


@pytest.mark.parametrize("call", ["plain()", "await awaited()"])
def test_the_cell_of_a_run_that_was_woken_gets_its_result(notebook, call):
    """Executed again, the cell is answered by the run that it began: nothing is done twice."""
    kernel = notebook.start(re.sub(r"@workflow\(.*\)", "@workflow", DEFINED))
    kernel.fail(call)
    shown = kernel.run(
        f"""
        import asyncio
        (run,) = stepwise.runs()
        run.send("a", [1, 2])
        while run.status != "completed":
            await asyncio.sleep(0.01)
        print({call}, len(stepwise.runs()))
        """
    )
    assert "[1, 2] 1" in shown.text
