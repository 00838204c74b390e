"""The commands that an error prints open the store that has the run."""

from __future__ import annotations

import pytest

import stepwise
from stepwise import StepInDoubtError, tool, workflow


@pytest.mark.parametrize("where", ["in the program", "in the environment", "by nobody"])
def test_the_store_of_the_commands(where, tmp_path, monkeypatch):
    """``--store`` is printed where a shell would open another store than the program did."""
    url = f"sqlite:{tmp_path}/runs"
    if where == "in the program":
        stepwise.configure(store=url)
    elif where == "in the environment":
        monkeypatch.setenv("STEPWISE_STORE", url)

    @tool(side_effect=True)
    def send():
        raise OSError

    @workflow(run_id="r")
    def flow():
        send()

    with pytest.raises(OSError):
        flow()
    with pytest.raises(StepInDoubtError) as caught:
        flow()
    assert (f" --store {url}" in str(caught.value)) == (where == "in the program")
