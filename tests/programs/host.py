"""Starts programs quickly: forks itself for each, having imported what they will import.

Reads one JSON request a line, ``{"argv": [...], "env": {...}, "errors": path}``, and answers
``{"code": N, "seconds": ...}``, the code negative for a signal.  With ``"kill_after"`` in the
request the program is killed after so many seconds.  The host has opened no store and started no
thread, and the fork then runs the program as ``__main__``, to the end of the interpreter.  What a
program prints on stderr goes to ``errors``.
"""

import asyncio
import asyncio.runners  # noqa: F401
import atexit
import concurrent.futures.thread  # noqa: F401
import gc
import json
import os
import runpy
import select
import signal
import sqlite3  # noqa: F401
import sys
import threading
import time
import traceback

import cloudpickle  # noqa: F401
import diskcache  # noqa: F401

import stepwise.cli
import stepwise.stores.disk

TIMEOUT = 60


def serve():
    """Answer requests; in the fork, give the request to be run."""
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return request
        began = time.perf_counter()
        if "kill_after" in request:
            kill_after(pid, request["kill_after"])
        _, status = os.waitpid(pid, 0)
        seconds = time.perf_counter() - began
        answer = {"code": os.waitstatus_to_exitcode(status), "seconds": seconds}
        print(json.dumps(answer), flush=True)
    return None


def kill_after(pid, seconds):
    """Kill a program that has not ended by then."""
    watched = os.pidfd_open(pid)
    if not select.select([watched], [], [], seconds)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(watched)


def become(request):
    """Be the program that was asked for, to its end."""
    signal.alarm(TIMEOUT)  # a hang ends, loudly
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    errors = os.open(request["errors"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    try:
        if sys.argv[0] == "stepwise":
            stepwise.cli.run()
        else:
            sys.path.insert(0, os.path.dirname(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    # As the interpreter ends, without taking apart all that the fork shares with the host.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


gc.freeze()
asked = serve()
if asked is not None:
    become(asked)
