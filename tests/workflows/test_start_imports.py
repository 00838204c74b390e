"""Modules that a resume loads: each is a hundredth of a bare Python's start."""

import os
import subprocess
import sys

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
    "_calls": "awaitables driver perform plain recording steps",
    "_checkpoints": (
        "checkpoints chunks given references resources stored_values surroundings variables"
    ),
    "_execution": (
        "account active_run cleanup concurrency draining failures inner_calls location other_tasks "
        "outcomes outside process_memory registry reloading steering surfacing waits"
    ),
    "_identity": "call_parts captures clients holders identity leaves module_names parts sights",
    "_journal": (
        "chain counters header_text heads journal lease projection records seal spending summary"
    ),
    "_matching": "callers held pool subjects",
    "_rewrite": "ahead build frame made points scope source transform",
    "_runtime": (
        "asyncio_state clock events facts file_trust forks group_commit interrupts limits messages "
        "options retries settings store_urls thread_context tracebacks tracing"
    ),
    "_values": (
        "addresses buffers class_contents codec data dict_watch digest digest_atoms "
        "hidden_arguments instances list_digest message_fields moments pickling preview reducers "
        "secrets sentinels synchronizers trees"
    ),
    "_wire": "",
    "_workflows": (
        "complaints definition execute frame invoke loops module_state opening reach "
        "remade_clients resume starts takeover turns usual_save workflow"
    ),
    "errors": "",
    "stores": (
        "_files _folder_logs _folder_store _locks _marks _process_log _read_only _rows base disk"
    ),
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
        done = subprocess.run(
            # Not what an editable installation loads into every Python; not the site's either.
            [sys.executable, "-S", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 9, done.stderr
    return {*done.stdout.split()}


def test_a_resume_loads_only_what_it_needs(tmp_path, home):
    """A plain resume loads the listed modules of ours, and no dear ones of others."""
    found = loaded(tmp_path)
    rooms = {f"stepwise.{room}" for room in OURS} | {"stepwise"}
    listed = {f"stepwise.{room}.{name}" for room in OURS for name in OURS[room].split()} | rooms
    ours = {name for name in found if name.partition(".")[0] == "stepwise"}
    assert ours - listed == set()
    assert {name.partition(".")[0] for name in found} & NOT_LOADED == set()
