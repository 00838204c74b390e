"""Workflows that make the calls of a function, so that a test need not write each out."""

import stepwise


def flow_of(call, **options):
    """Return a workflow that makes the calls of a function and returns what it gives.

    The function is captured, so it is in no checkpoint; by default the run is called ``r``.
    """

    @stepwise.workflow(**{"run_id": "r", **options})
    def flow():
        return call()

    return flow


def aflow_of(call, **options):
    """Return the same for an event loop: what the function returns is awaited."""

    @stepwise.workflow(**{"run_id": "r", **options})
    async def flow():
        return await call()

    return flow
