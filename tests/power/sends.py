"""Sends signals to a run that was interrupted; tells of each send that returned."""

import os
import sys

import stepwise

ACKS = os.open(os.environ["POWER_ACKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@stepwise.workflow
def waiting() -> None:
    raise KeyboardInterrupt


try:
    waiting.options(run_id="job")()
except KeyboardInterrupt:
    run = stepwise.get_run("job")
for n in range(int(sys.argv[1])):
    number = run.send("tick", f"{n} " * 40, key=f"{n // 2}" if n % 3 else None)
    os.write(ACKS, f"{number} {n}\n".encode())
