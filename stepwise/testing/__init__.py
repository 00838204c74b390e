"""Tools for your tests: fresh stores, crashes on purpose, and the contract of stores.

Under pytest, each test automatically has a fresh store in a temporary folder.  The test's
subprocesses share that store, and each scope of fixtures (session, module, class) has another.  To
use the real store, give ``--stepwise-store=real``, set ``stepwise_store = real`` in pytest's
configuration file, or write ``@pytest.mark.stepwise_store("real")``.

Within a test, and with tools other than pytest, a block gets a store in memory::

    from stepwise.testing import fresh_store

    def test_the_agent_invites_the_team():
        with fresh_store():
            assert agent("invite the team") == "done"

Is it crash-safe?  The fixture ``crash_everywhere`` really kills a workflow at every point where
that makes a difference, runs it again, and compares.  :func:`crash_at` crashes a workflow at one
step, in the process of the test::

    def test_the_agent_survives_anything(crash_everywhere):
        crash_everywhere(agent, "invite the team")

The model calls of a recorded run answer the model calls of a test, without key and network::

    def test_the_agent_invites_the_team():
        with recorded("run.json"):      # stepwise export RUN --format model-calls -o run.json
            assert agent("invite the team") == "done"

A recorded run is a test of the code as it is now: its calls are answered by the record, and the
first difference is reported::

    def test_yesterdays_run():
        rerun("trip.json", agent).assert_same()     # stepwise export RUN --format test -o trip.py
"""

from stepwise._workflows.rerun import Rerun, RerunCall, RerunDifference, rerun
from stepwise.testing.contract import StoreContract
from stepwise.testing.crashes import (
    CrashReport,
    SimulatedCrash,
    SimulatedFailure,
    crash_at,
    crash_everywhere,
)
from stepwise.testing.fresh import fresh_store
from stepwise.testing.recorded import RequestNotRecorded, recorded

__all__ = [
    "CrashReport",
    "RequestNotRecorded",
    "Rerun",
    "RerunCall",
    "RerunDifference",
    "SimulatedCrash",
    "SimulatedFailure",
    "StoreContract",
    "crash_at",
    "crash_everywhere",
    "fresh_store",
    "recorded",
    "rerun",
]
