"""Modules that a resume loads: each is a hundredth of a bare Python's start."""

import os
import sys

from harness import interpreted

PROGRAM = """
import sqlite3
import sys

plain = {*sys.modules}

import os
import stepwise

@stepwise.step
def think(number):
    if number == 3:
        print(*sorted({*sys.modules} - plain), flush=True)
        os._exit(9)
    return number

@stepwise.workflow
def agent():
    for number in range(4):
        think(number)

agent()
"""

OURS = {
    "_calls": "awaitables call driver edited edits steps",
    "_checkpoints": "checkpoints references resources variables",
    "_execution": "account active_run flows location outcomes process_memory tasks waits",
    "_identity": "call_parts clients identity module_names held_parts versions",
    "_journal": "journal lease projection records seal summary",
    "_matching": "pool subjects",
    "_rewrite": "build frame source statements transform",
    "_runtime": (
        "asyncio_state clock facts forks interrupts messages observers "
        "options retries settings system_limits"
    ),
    "_values": "codec data digest preview reducers trees unpickling",
    "_workflows": "begin cancelling definition execute frame other_runs outlook resume workflow",
    "errors": "",
    "stores": "_files _group_commit _process_log _rows base disk",
}
"""The modules that a plain run needs to resume, by their rooms."""

NOT_LOADED = {
    "asyncio",
    "bz2",
    "cloudpickle",
    "dataclasses",
    "decimal",
    "diskcache",
    "lzma",
    "multiprocessing",
    "pathlib",
    "random",
    "shutil",
    "subprocess",
    "tempfile",
    "tenacity",
    "urllib",
    "uuid",
}
"""Modules that some of ours use, and a plain resume does without."""


def loaded(folder):
    """The modules that a killed program has loaded when it enters its first new step."""
    script = folder / "script.py"
    script.write_text(PROGRAM, "utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "STEPWISE_TEST_HOME"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for _ in range(2):
        # Not what an editable installation loads into every Python; not the site's either.
        done = interpreted("-S", script, env=environment, code=9)
    return {*done.stdout.split()}


def test_a_resume_loads_only_what_it_needs(tmp_path, home):
    """A plain resume loads the listed modules of ours, and no dear ones of others."""
    found = loaded(tmp_path)
    rooms = {f"stepwise.{room}" for room in OURS} | {"stepwise"}
    listed = {f"stepwise.{room}.{name}" for room in OURS for name in OURS[room].split()} | rooms
    ours = {name for name in found if name.partition(".")[0] == "stepwise"}
    assert ours - listed == set()
    assert {name.partition(".")[0] for name in found} & NOT_LOADED == set()
