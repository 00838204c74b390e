"""pytest in a Python that was compiled to WebAssembly, as ``wasm.mjs`` starts it.

There are no processes, no threads, no links and no locks there.  Tests that need a process or a
thread are skipped; links become copies, and locks succeed.
"""

import asyncio
import faulthandler
import fcntl
import os
import sys
import time

import pytest


class Loop(asyncio.BaseEventLoop):
    """An event loop without files, since Pyodide's own needs that of JavaScript."""

    def __init__(self):
        super().__init__()
        self._selector = self

    def select(self, timeout):
        time.sleep(timeout or 0)
        return []

    def _process_events(self, found):
        pass

    def _write_to_self(self):
        pass


def link(source, target):
    with open(source, "rb") as read, open(target, "xb") as written:
        written.write(read.read())
    os.chmod(target, os.stat(source).st_mode & 0o777)


COMPILED = {"cryptography", "numpy", "pandas", "pydantic"}
MISSING = ("does not support processes", "can't start new thread", "unable to start watchdog")


class Skips:
    """Skip what this platform has not."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        try:
            return (yield)
        except (OSError, RuntimeError) as error:
            for each in MISSING:
                if each in str(error):
                    pytest.skip(each)
            raise


class Absent:
    """Skip a test, or a module of tests, that imports a compiled package."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in COMPILED:
            pytest.skip(f"no {name}", allow_module_level=True)


def main(arguments):
    sys.meta_path.insert(0, Absent)
    asyncio.events._set_running_loop(None)
    asyncio.new_event_loop = asyncio.events.new_event_loop = Loop
    faulthandler.dump_traceback_later = lambda *_, **__: None
    fcntl.lockf = fcntl.flock = lambda *_: None
    os.geteuid, os.getegid, os.link = os.getuid, os.getgid, link
    options = ["-p", "no:cacheprovider", "-W", "ignore:It looks like `register_random`"]
    return int(pytest.main([*options, *arguments], plugins=[Skips()]))
