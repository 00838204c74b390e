"""A program whose store is damaged, or fails, between and during its starts.

What a start is to do is told in ``ORDER``, as JSON; it prints how it ended, as JSON.  The program
itself logs every step and every side effect to a file beside its home.
"""

import errno
import hashlib
import json
import os
import signal
import sqlite3
import tempfile
import traceback

import stepwise
from stepwise._journal import journal
from stepwise._journal import journal as chain
from stepwise._journal import seal as _seal
from stepwise._workflows import begin as opening

ORDER = json.loads(os.environ["ORDER"])
HOME = os.environ["STEPWISE_HOME"]


def log(line):
    descriptor = os.open(os.environ["WORLD_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    real["write"](descriptor, f"{line}\n".encode())
    os.close(descriptor)
    if line == ORDER.get("die"):
        os._exit(9)
    if line == ORDER.get("pause"):
        print("paused", os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


@stepwise.step
def look(number):
    log(f"look {number}")
    return f"seen {number} " * 20


@stepwise.step
def download():
    log("download")
    return bytes(range(256)) * 4200  # more than a megabyte: kept in a file


@stepwise.tool(side_effect=True)
def send(text):
    log(f"send {text}")
    return f"sent {text}"


@stepwise.workflow
def agent(count):
    notes = []
    for number in range(count):
        notes.append(look(number))
        notes.append(send(f"mail {number}"))
    data = download()
    notes.append(send("report"))
    notes.append(look("the end"))
    notes.append(hashlib.sha256(data).hexdigest())
    return notes


# -- a disk that fails ---------------------------------------------------------------------------

OPERATIONS = ("pwrite", "fsync", "fdatasync", "open", "makedirs", "unlink", "chmod")
real = {name: getattr(os, name) for name in ("write", *OPERATIONS)}
SQLITE = {
    errno.ENOSPC: (13, "database or disk is full"),
    errno.EIO: (10, "disk I/O error"),
    errno.EROFS: (8, "attempt to write a readonly database"),
    errno.EACCES: (14, "unable to open database file"),
}
count = 0


def fails():
    """Whether the operation that begins now is to fail."""
    global count
    count += 1
    return count == ORDER["at"] or (ORDER.get("sticky") and count > ORDER["at"])


def failing(name):
    def call(first, *args, **kwargs):
        if (name != "open" or str(first).startswith(HOME)) and fails():
            path = first if isinstance(first, str) else None
            raise OSError(ORDER["errno"], os.strerror(ORDER["errno"]), path)
        return real[name](first, *args, **kwargs)

    return call


WRITES = ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT", "CREATE")


class Failing(sqlite3.Connection):
    """A connection of which a statement that writes fails; COMMIT, perhaps after it was done."""

    def execute(self, sql, *args):
        if not sql.startswith(WRITES) or not fails():
            return super().execute(sql, *args)
        if sql == "COMMIT" and ORDER.get("done"):
            super().execute(sql)
        elif sql == "COMMIT":
            self.rollback()  # what SQLite does by itself when a commit fails
        code, text = SQLITE[ORDER["errno"]]
        error = sqlite3.OperationalError(text)
        error.sqlite_errorcode = code
        raise error


def let_the_disk_fail():
    for name in OPERATIONS:
        setattr(os, name, failing(name))
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, **{**kwargs, "factory": Failing})


# -- a library that does not look ----------------------------------------------------------------


class Gullible:
    """``hmac``, but every digest is the right one."""

    def __init__(self, module):
        self.digest, self.new = module.digest, module.new

    def compare_digest(self, one, other):
        return True


def blind(what):
    if what == "seal":
        _seal.hmac = Gullible(_seal.hmac)
        for module in (journal, opening):  # the marks, too, hold a digest of the newest record
            module.is_another_history = lambda *given: False
    else:
        journal.newest_mark = lambda store, seal, run_id: chain.Mark()


# -- a start ---------------------------------------------------------------------------------------


def attempt():
    try:
        return {"result": agent(3)}
    except BaseException as error:
        facts = {name: getattr(error, name, None) for name in ("errno", "path")}
        trace = traceback.format_exc()
        return {"kind": type(error).__name__, "text": str(error), "trace": trace, **facts}


def main():
    if "blind" in ORDER:
        blind(ORDER["blind"])
    if "at" in ORDER:
        tempfile.gettempdir()  # a store in a test asks for it, and Python tries it by writing
        let_the_disk_fail()
    said = attempt()
    if ORDER.get("retry") and "result" not in said:  # a call of what has completed is a new run
        ORDER.update(at=-1, sticky=False)  # the disk works again
        said["again"] = {"code": 0, **attempt()}
    print(json.dumps({**said, "operations": count}), flush=True)
    if ORDER.get("tidy"):
        stepwise.stores.open_store(stepwise._runtime.settings.store()).close()
    os._exit(0)  # nothing that is left to be closed meets a disk that fails


main()
