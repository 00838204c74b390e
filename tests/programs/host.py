"""Starts programs quickly: forks itself for each, having imported what they will import.

Reads one JSON request a line and answers ``{"code": N, "seconds": ...}``, the code negative for a
signal.  The host has opened no store and started no thread; the fork then runs the program as
``__main__``, as the interpreter would have, and ends as it would.  A request has:

``argv``        the words behind ``python``; or ``stepwise`` and the words behind that.
``env``         what is set in the environment, or the whole of it if ``alone`` is true.
``path``        the folders that stand first in ``sys.path``.
``cwd``         the folder to go to.
``out, err``    the files for what it prints.
``input``       a file to read from.
``first``       a source that is executed before the program.
``kill_after``  the seconds after which it is killed.
``terminal``    instead of these three: the terminal on which it is in the foreground.
``watched``     whether to say ``{"pid": N}`` first; it prints line by line.
``session``     whether it begins a session of its own, so that its children can be ended with it.

Words of its own command line are further modules to import.
"""

import asyncio
import asyncio.runners  # noqa: F401
import atexit
import concurrent.futures.thread  # noqa: F401
import fcntl
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import select
import signal
import sqlite3  # noqa: F401
import subprocess
import sys
import termios
import threading
import time
import types
import warnings

import cloudpickle  # noqa: F401
import diskcache  # noqa: F401

import stepwise._calls.async_driver
import stepwise._calls.cached
import stepwise._calls.edits
import stepwise._execution.changes
import stepwise.cli.look
import stepwise.cli.steer
import stepwise.stores.disk
from stepwise._rewrite.build import rewrite

TIMEOUT = 300


def serve():
    """Answer requests; in the fork, give the request to be run."""
    for line in sys.stdin:
        request = json.loads(line)
        terminal = "terminal" in request and os.open(request["terminal"], os.O_RDWR | os.O_NOCTTY)
        pid = os.fork()
        if pid == 0:
            return {**request, "terminal": terminal}
        if terminal:
            os.close(terminal)
        if "watched" in request:
            print(json.dumps({"pid": pid}), flush=True)
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
    if request.get("session"):
        os.setsid()
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(request["terminal"], termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(request["terminal"], number)
        sys.stdin = os.fdopen(0, closefd=False)  # nothing of the host's input is in its buffer
    else:
        redirect(request)
    if request.get("alone"):
        os.environ.clear()
    if "watched" in request:
        sys.stdout.reconfigure(line_buffering=True)
    os.environ.update(request["env"])
    os.chdir(request.get("cwd", "."))
    sys.path[:1] = request["path"]
    code = 0
    exec(request.get("first", ""), {"__name__": "first"})
    try:
        execute(in_stages(request["argv"]) if request["terminal"] else request["argv"])
    except SystemExit as exit_:
        code = exit_.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code, traceback = 1, error.__traceback__
        while traceback and traceback.tb_frame.f_code.co_filename in OURS:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    # As the interpreter ends, without taking apart all that the fork shares with the host.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


class Started:
    """What of ``subprocess.Popen`` a command uses: a fork that has waited for it, and is a program.

    Args:
        pid: of that fork.
        telling: where it reads what it is.
        stdout: of the command, which the fork has; 2 is for its JSON, which no test asks for here.
    """

    def __init__(self, pid, telling, words, *, cwd, env, stdout=None):
        assert stdout != 2
        self._pid = pid
        tell_program(telling, words, env, cwd or os.getcwd())

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def tell_program(telling, words, environment, cwd):
    with open(telling, "w", encoding="utf-8") as file:
        json.dump([words[1:], dict(environment), cwd], file)


def read_all(told):
    with open(told, encoding="utf-8") as file:
        return file.read()


def in_stages(argv):
    """Return the words that this fork executes: of a command, or of a program that it becomes.

    The command starts one program.  That may become another one, by ``execve``, and so on.  Each is
    a fork that has executed nothing else, of a process that ends as the last one does.
    """
    others, code = sys.path[1:], 0
    told, telling = os.pipe()
    pid = os.fork()
    if pid:
        subprocess.Popen = functools.partial(Started, pid, telling)
        return argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the program
    os.close(telling)
    while asked := read_all(told):
        argv, environment, cwd = json.loads(asked)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        beside = "" if argv[0] == "-c" else os.path.dirname(os.path.abspath(argv[0]))
        paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:] = [beside, *paths, *others]
        told, telling = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.execve = functools.partial(becomes, telling)
            return argv
        os.close(telling)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def becomes(telling, path, words, environment):
    """``os.execve``: another fork executes that, in the place of this one."""
    os.stat(path)
    tell_program(telling, words, environment, os.getcwd())
    os._exit(0)


def redirect(request):
    """Read and write files, or pipes, instead of those of the host."""
    appended = os.O_CREAT | os.O_APPEND | os.O_WRONLY
    os.dup2(os.open(request.get("input", os.devnull), os.O_RDONLY), 0)
    os.dup2(os.open(request["out"], appended, 0o600), 1)
    same = request["err"] == request["out"]  # perhaps a pipe without a name by now
    os.dup2(1 if same else os.open(request["err"], appended, 0o600), 2)


OURS = {__file__, runpy.__file__, runpy.run_path.__code__.co_filename}


def execute(argv):
    """Execute a script, ``-c`` or ``-m`` as ``__main__``, or the command ``stepwise``."""
    sys.orig_argv = [sys.executable, *argv]
    if argv[0] == "-W":
        warnings.simplefilter(argv[1])
        argv = argv[2:]
    main = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = main, argv
    if argv[0] == "stepwise":
        stepwise.cli.run()
    elif argv[0] == "-m":
        sys.argv = argv[1:]
        runpy._run_module_as_main(argv[1])
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), vars(main))
    else:
        main.__file__ = os.path.abspath(argv[0])
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
        with open(main.__file__, "rb") as file:
            source = file.read()
        exec(compile(source, main.__file__, "exec"), vars(main))


for name in sys.argv[1:]:
    importlib.import_module(name)
for name in {"httpx", "httpx2"} & {*sys.modules}:
    importlib.import_module(name.replace("httpx", "httpcore"))  # the first client imports it
rewrite(kill_after)  # expressions that tokenize compiles are compiled
gc.freeze()
asked = serve()
if asked is not None:
    become(asked)
