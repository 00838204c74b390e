"""What the programs have in common: a log of what happened, and places at which to die.

Nothing here knows stepwise: a program is killed from its own code, at the place that the
environment variable ``DIE_AT`` names.  A line is on the disk's side of the process before the next
one is written, so it survives the process (a power cut is not what these programs are about).
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback

_log = os.open(os.environ["WORLD_LOG"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
_events = 0
_WHERE = ("stepwise", "diskcache", "__main__", "world")


def log(line):
    """Append a line to the log."""
    os.write(_log, f"{line}\n".encode())


def die():
    """End this process as ``DIE_HOW`` says; a signal that can be caught comes back."""
    how = os.environ.get("DIE_HOW", "kill")
    if how == "exit":
        os._exit(7)
    if how == "pause":  # until somebody outside says so
        print("paused", flush=True)
        sys.stdin.readline()
        return
    os.kill(
        os.getpid(), {"kill": signal.SIGKILL, "int": signal.SIGINT, "term": signal.SIGTERM}[how]
    )


def here(place):
    """A place of the program; every one is passed once in an undisturbed run."""
    log(f"@{place}")
    if os.environ.get("DIE_AT") == place:
        os.environ["DIE_AT"] = ""  # once: a signal may be survived
        die()


def doing(call, value):
    """The body of a step or tool: what it does is done once ``did ...`` is in the log."""
    here(f"{call} before")
    log(f"did {call} -> {json.dumps(value)}")
    here(f"{call} after")
    return value


def got(call):
    """In the workflow, after a call that returned."""
    log(f"got {call}")
    here(f"{call} returned")


def main(run):
    """Run the program, and leave its result beside the log; after a Ctrl-C, again."""
    if os.environ.get("DIE_HOW") == "term":  # as people do who want their "finally" to run
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        with _counting():
            result = run()
    except KeyboardInterrupt:
        log("interrupted")
        traceback.print_exc()
        result = run()
    text = json.dumps(result)
    with open(os.environ["WORLD_LOG"] + ".result", "w", encoding="utf-8") as file:
        file.write(text)
    print(text)


def _counts(frame):
    """Whether a kill here could matter: what is read off the source changes nothing outside."""
    module = frame.f_globals.get("__name__", "")
    return module.startswith(_WHERE) and not module.startswith("stepwise._rewrite")


@contextlib.contextmanager
def _counting():
    """With ``DIE_AT=event N``: die at the N-th call or return, ours or the library's.

    Calls and returns of C functions too: before and after each statement of SQLite, each lock.
    """
    chosen = os.environ.get("DIE_AT", "")
    if not chosen.startswith("event "):
        yield
        return
    number, died = int(chosen.removeprefix("event ")), []
    is_signal = os.environ.get("DIE_HOW") in ("int", "term")

    def watch(frame, event, argument):
        global _events
        if _counts(frame):
            _events += 1
            # No signal is handled between two C functions that follow without anything between.
            if _events >= number > 0 and not died and (event != "c_call" or not is_signal):
                died.append(True)
                die()

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        log(f"events {_events}")
