"""A program whose run version 8ec4de6 has left in ``tests/data``, the newest checkpoint as a draft.

Made with that version, in a home with this key, and with ``CRASH=5``::

    STEPWISE_KEY=cdcd.. STEPWISE_HOME=home STEPWISE_STORE=disk:home/store python drafted.py
"""

import os

from stepwise import step, tool, workflow


@step
def think(n):
    print("did think", n, flush=True)
    if os.environ.get("CRASH") == str(n):
        os._exit(9)
    return n * 10


@tool(side_effect=True)
def send(n):
    print("did send", n, flush=True)
    return n


@workflow(name="drafted")
def drafted():
    found = []
    for n in range(7):
        found.append(think(n))
        send(n)
        print("sent", n, flush=True)
    return found


def main():
    print("result", drafted.options(run_id="job")())
