"""For your tests: a store of their own, crashes on purpose, and the contract of stores.

A test of an agent gets a store that nothing else has written to, and that is gone afterwards::

    from stepwise.testing import fresh_store

    def test_the_agent_invites_the_team():
        with fresh_store():
            assert agent("invite the team") == "done"

Is it crash-safe?  The fixture ``crash_everywhere`` kills it for real at every point where that
makes a difference, runs it again, and compares; :func:`crash_at` crashes it at one step, in the
process of the test::

    def test_the_agent_survives_anything(crash_everywhere):
        crash_everywhere(agent, "invite the team")

Imports: fresh, crashes, everywhere, contract.
"""

from stepwise.testing.contract import StoreContract
from stepwise.testing.crashes import SimulatedCrash, crash_at
from stepwise.testing.everywhere import CrashReport, crash_everywhere
from stepwise.testing.fresh import fresh_store

__all__ = [
    "CrashReport",
    "SimulatedCrash",
    "StoreContract",
    "crash_at",
    "crash_everywhere",
    "fresh_store",
]
