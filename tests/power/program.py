"""Steps, side effects and checkpoints; tells of each call that returned to the workflow."""

import os
import sys

from stepwise import spend, step, tool, workflow

ACKS = os.open(os.environ["POWER_ACKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@step
def think(n: int) -> str:
    spend(usd=1)
    return f"{n} " * 40


@step
def read(n: int) -> bytes:
    return bytes([n]) * (3 << 19)  # large enough for a file of its own


@tool(side_effect=True)
def send(n: int) -> int:
    os.write(ACKS, f"announced send(n={n})\n".encode())
    return n


def acknowledged(call: str) -> None:
    os.write(ACKS, f"done {call}\n".encode())


@workflow(durability=os.environ["POWER_DURABILITY"])
def agent(limit: int) -> list:
    found: list = []
    for n in range(limit):
        found.append(think(n))
        acknowledged(f"think(n={n})")
        if n % 3 == 1:
            found.append(send(n))
            acknowledged(f"send(n={n})")
        if n == 4:
            found.append(len(read(n)))
            acknowledged(f"read(n={n})")
    return found


agent.options(run_id="job")(int(sys.argv[1]))
acknowledged("agent")
