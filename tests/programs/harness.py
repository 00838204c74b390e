"""Runs programs that die, again and again, until they have finished.

Programs are run by ``host.py``, one process of which serves a whole test session, so that a start
costs a fork.  :class:`Lab` is one program's folder: its runs, its log, what it said.
"""

import atexit
import contextlib
import functools
import io
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict, deque
from typing import ClassVar, NamedTuple

from sweeping import WHOLE

PROGRAMS = pathlib.Path(__file__).resolve().parent
ATTEMPTS = 12
COMMAND = os.path.join(sysconfig.get_path("scripts"), "stepwise")

# What a fork of `stepwise up` executes first: it looks often, and waits shortly after a death.
SOON = "from stepwise._workflows import up; up._SCAN, up._LONGEST = 0.2, 0.1"

_DID = re.compile(r"did (.*?) -> (.*)")
_IMPORT = re.compile(r"^\s*(?:import|from) .*", re.MULTILINE)
_LARGE = re.compile(r"\b(?:anthropic|httpx2?|openai|pandas|pydantic)\b")


def _memory():
    """A folder in memory, where there is one: a flush costs nothing there."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def python_path(*folders):
    """``PYTHONPATH`` with folders before those in it, which may hold the library under test."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


class Ended(NamedTuple):
    """How a process ended: its exit code (negative: the signal), what it printed."""

    code: int
    text: str
    seconds: float = 0.0

    @property
    def died(self):
        """Whether it was killed, or ended itself, on purpose."""
        return self.code in (7, -signal.SIGKILL, -signal.SIGTERM)


class Doubt(NamedTuple):
    """What a ``StepInDoubtError`` names, read from its text."""

    run: str
    number: str
    call: str
    key: str

    @classmethod
    def read(cls, text):
        """The facts in a traceback of it; ``None`` if it is of something else."""
        last = text.rpartition("stepwise.StepInDoubtError: ")[2]
        if last == text:
            return None
        run = re.search(r"^  run +(\S+)$", last, re.MULTILINE)[1]
        number, call = re.search(r"^  (?:step|recorded) +(\d+)  (.*)$", last, re.MULTILINE).groups()
        key = re.search(r"^  key +(\S+)$", last, re.MULTILINE)[1]
        for command in ("--landed '<its result as JSON>'", "--did-not-happen"):
            assert f"stepwise resolve {run} {number} {command}" in last, text
        return cls(run, number, call, key)


@functools.cache
def _host(preload="", number=0, imports=()):
    """The process that forks itself for every program; it imports these modules, too."""
    host = subprocess.Popen(
        [sys.executable, PROGRAMS / "host.py", *imports],
        env={**os.environ, **({"LD_PRELOAD": str(preload)} if preload else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    atexit.register(_end, host)
    return host


def _large(script):
    """What a program imports that takes a second: a host of its own has imported it already."""
    text = script.read_text("utf-8", "replace") if script.is_file() else ""
    return tuple(sorted({*_LARGE.findall("\n".join(_IMPORT.findall(text)))}))


def _ask(host, request):
    """The answer of a host to a request."""
    _tell(host, request)
    return json.loads(host.stdout.readline())


def _tell(host, request):
    host.stdin.write(json.dumps(request) + "\n")
    host.stdin.flush()


def _end(host):
    host.stdin.close()
    host.wait()
    host.stdout.close()


_turns = itertools.count()
_started = Counter()  # hosts that watch, by what they have imported
_idle = defaultdict(deque)  # those of them that watch nobody now


def _idle_host(imports):
    """A host that watches nobody: of several, the one that has been idle for longest."""
    if len(_idle[imports]) > 1:
        return _idle[imports].popleft()
    _started[imports] += 1
    return _host(number=1 + _started[imports], imports=imports)


def _request(words, cwd, env, first="", **files):
    """Return what a host is asked to run ``python`` with these words, as a person would."""
    cwd = os.path.abspath(cwd or ".")
    script = words[2] if words[0] == "-W" else words[0]
    beside = os.path.dirname(os.path.join(cwd, script)) if script[0] != "-" else cwd
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    return {
        "argv": words,
        "env": {name: str(value) for name, value in env.items()},
        "alone": True,
        "cwd": cwd,
        "path": [beside, *map(os.path.abspath, paths)],
        "first": first,
        **{name: str(path) for name, path in files.items()},
    }


def python(*argv, cwd=None, env=None, text="", together=False, first="", code=None):
    """``python`` with these words, to its end, and what it printed: see ``subprocess.run``.

    A fork of one of two hosts in turn: so what one start left on the disk is met by one that hashes
    strings otherwise.  With ``STEPWISE_WHOLE=1`` it is an interpreter of its own; an environment
    variable that Python itself reads needs one always.  ``stepwise`` is the command of that name.

    Args:
        text: what it can read from its stdin.
        together: what it prints on stderr is among what it prints on stdout, as on a terminal.
        first: a source that a fork executes before the program.
        code: the exit code that it must have; any, if None.
    """
    words, env = [*map(str, argv)], dict(os.environ if env is None else env)
    if WHOLE:
        command = [COMMAND, *words[1:]] if words[0] == "stepwise" else [sys.executable, *words]
        done = subprocess.run(
            command,
            cwd=cwd, env=env, input=text, text=True, check=False, timeout=900,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if together else subprocess.PIPE,
        )  # fmt: skip
        assert code in (None, done.returncode), f"{done.stdout}{done.stderr or ''}"
        return done
    with tempfile.TemporaryDirectory(prefix="stepwise-", dir=_memory()) as folder:
        files = {name: pathlib.Path(folder, name) for name in ("input", "out", "err")}
        files["input"].write_text(text, encoding="utf-8")
        if together:
            files["err"] = files["out"]
        request = _request(words, cwd, env, first, **files)
        imports = _large(pathlib.Path(request["cwd"], words[0]))
        answer = _ask(_host(number=next(_turns) % 2, imports=imports), request)
        said = [
            files[name].read_text(encoding="utf-8") if files[name].exists() else ""
            for name in ("out", "err")
        ]
        assert code in (None, answer["code"]), "".join(said)
        return subprocess.CompletedProcess(
            words, answer["code"], said[0], "" if together else said[1]
        )


def interpreted(*argv, by=sys.executable, code=0, text="", **how):
    """``python`` with these words in an interpreter of its own, to its end: see :func:`python`.

    Args:
        by: that interpreter.
        code: the exit code that it must have; any, if None.
    """
    done = subprocess.run(
        [by, *map(str, argv)],
        input=text, capture_output=True, text=True, check=False, timeout=300, **how,
    )  # fmt: skip
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


class Watched:
    """``python`` with these words in a fork, whose lines are read while it runs; as many as wanted.

    With a block around it, it is killed at the end of that.  With ``STEPWISE_WHOLE=1`` it is an
    interpreter of its own.

    Args:
        err: the file for its stderr; it is there at once.
        imports: modules that the host has imported, so that the program need not.
        first: a source that a fork executes before the program.
        terminal: what a fork reads and writes instead, and ``stdout`` is empty.
    """

    def __init__(self, *argv, cwd, env, err="", imports=(), first="", terminal=""):
        words, self._code = [*map(str, argv)], None
        if err:
            err.touch()
        self._file = err.open("a") if WHOLE else None
        if WHOLE:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                cwd=cwd,
                env={**env, "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=self._file,
                encoding="utf-8",
            )
            self.stdout, self._pid = self._process.stdout, self._process.pid
            return
        with tempfile.TemporaryDirectory(prefix="stepwise-", dir=_memory()) as folder:
            out = pathlib.Path(folder, "out")
            files = {"terminal": terminal} if terminal else {"out": out, "err": err}
            os.mkfifo(out)
            self._imports, self._host = imports, _idle_host(imports)
            _tell(self._host, {**_request(words, cwd, env, first, **files), "watched": True})
            self._pid = json.loads(self._host.stdout.readline())["pid"]
            self.stdout = io.StringIO() if terminal else out.open(encoding="utf-8")

    def kill(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def wait(self):
        """Return its exit code, once it has ended."""
        if self._code is None:
            self.stdout.read()
            self.stdout.close()
            if self._file is None:
                self._code = json.loads(self._host.stdout.readline())["code"]
                _idle[self._imports].append(self._host)
            else:
                self._file.close()
                self._code = self._process.wait()
        return self._code

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.kill()
        self.wait()


def talking(*argv, forked=True, cwd=None, env=None, first="", imports=()):
    """Start ``python`` with these words, to talk with; return what of ``Popen`` the tests use.

    It is a fork, whose end is not that of an interpreter, unless ``STEPWISE_WHOLE=1``.

    Args:
        forked: whether it may be.
        env: its environment, if not that of this process.
        first: a source that a fork executes before the program.
        imports: modules that its host has imported, so that the program need not.
    """
    if forked and not WHOLE:
        return Talking(*argv, cwd=cwd, env=env, first=first, imports=imports)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, "-u", *map(str, argv)]
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, start_new_session=True, **pipes)


class Talking:
    """``python`` with these words in a fork: see :func:`talking`."""

    _free: ClassVar = defaultdict(list)  # hosts whose program has ended, by what they imported
    stderr = None  # it is among what it prints on stdout

    def __init__(self, *argv, cwd, env, first, imports):
        self.args, self.returncode = [*map(str, argv)], None
        self._ended = self._free[imports]
        new = not self._ended and _host(number=f"talking {next(_turns)}", imports=imports)
        self._host = new or self._ended.pop()
        with tempfile.TemporaryDirectory(prefix="stepwise-", dir=_memory()) as folder:
            files = [os.path.join(folder, name) for name in ("input", "out")]
            for name in files:
                os.mkfifo(name)
            env = os.environ if env is None else env
            request = _request(self.args, cwd, env, first, input=files[0], out=files[1])
            _tell(self._host, {**request, "err": files[1], "watched": True, "session": True})
            self.pid = json.loads(self._host.stdout.readline())["pid"]
            self.stdin = os.fdopen(os.open(files[0], os.O_WRONLY), "w", encoding="utf-8")
            self.stdout = os.fdopen(os.open(files[1], os.O_RDONLY), encoding="utf-8")

    def poll(self, seconds=0):
        """Return its exit code, or ``None`` if it has not ended by then."""
        if self.returncode is None and select.select([self._host.stdout], [], [], seconds)[0]:
            self.returncode = json.loads(self._host.stdout.readline())["code"]
            self._ended.append(self._host)
        return self.returncode

    def wait(self):
        """Return its exit code, once it has ended."""
        return self.poll(None)

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its host has not said so yet
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Lab:
    """A folder in which one program is run any number of times.

    Args:
        script: a program of this folder by name, or the text of one.
        arguments: of its command line.
        preload: a library that is loaded into the process before all others.
        store: the kind of store, if not the default.
    """

    def __init__(self, script, *arguments, preload="", store="", **environment):
        self.preload = preload
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="stepwise-", dir=_memory()))
        if "\n" in script:
            self.script = self.folder / "script.py"
            self.script.write_text(script, encoding="utf-8")
        else:
            self.script = PROGRAMS / script
        self.arguments = [str(each) for each in arguments]
        self.environment = {
            "STEPWISE_HOME": str(self.folder / "home"),
            "STEPWISE_QUIET": "",
            "STEPWISE_STORE": f"{store}:{self.folder}/home/store" if store else "",
            "WORLD_LOG": str(self.folder / "log"),
            **environment,
        }
        self.said = []
        self.codes = []
        self.reached = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- running ---------------------------------------------------------------------------------

    def run(self, *, die_at="", how="kill", command=None):
        """Start the program (or the ``stepwise`` command) and wait for its end."""
        errors = self.folder / f"errors{len(self.said)}"
        errors.touch()
        request = {
            "argv": ["stepwise", *command] if command else [str(self.script), *self.arguments],
            "env": {**self.environment, "DIE_AT": die_at, "DIE_HOW": how},
            "path": [str(self.script.parent), str(PROGRAMS)],
            "out": str(errors),
            "err": str(errors),
        }
        if die_at.startswith("second "):
            request["kill_after"] = float(die_at.removeprefix("second "))
        elif self.preload:
            tally = self.folder / f"operations{len(self.said)}"
            number = die_at.removeprefix("operation ") if die_at.startswith("operation ") else "0"
            watched = {"POWER_ROOT": str(self.folder / "home"), "POWER_TALLY": str(tally)}
            request["env"].update(watched, POWER_KILL=number)
        imports = () if self.preload or command else _large(self.script)
        answer = _ask(_host(self.preload, imports=imports), request)
        ended = Ended(answer["code"], errors.read_text(encoding="utf-8"), answer["seconds"])
        self.said.append(ended.text)
        self.codes.append(ended.code)
        self.reached.append(len(self.lines))  # of the log
        return ended

    def popen(self, *, die_at="", how="kill"):
        """Start it in an interpreter of its own, as a person does."""
        dying = {"DIE_AT": die_at, "DIE_HOW": how, "PYTHONPATH": python_path(PROGRAMS)}
        return subprocess.Popen(
            [sys.executable, self.script, *self.arguments],
            env={**os.environ, **self.environment, **dying},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    # -- what happened ---------------------------------------------------------------------------

    @property
    def log(self):
        """What the program logged, all attempts together, without the places it passed."""
        return [line for line in self.lines if not line.startswith("@")]

    @property
    def places(self):
        """The places it passed."""
        return [line[1:] for line in self.lines if line.startswith("@")]

    @property
    def operations(self):
        """What each attempt did to the files of its home, or was about to do when it died."""
        return [
            path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            for path in (self.folder / f"operations{n}" for n in range(len(self.said)))
        ]

    @property
    def lines(self):
        """What it logged, with the places it passed."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def result(self):
        """What the program's run gave."""
        return json.loads((self.folder / "log.result").read_text(encoding="utf-8"))

    @property
    def did(self):
        """How often each step and tool did what it does."""
        return Counter(found[1] for line in self.log if (found := _DID.fullmatch(line)))

    def value_of(self, call):
        """What a call returned, as JSON; ``None`` if it did not do anything."""
        values = [m[2] for line in self.log if (m := _DID.fullmatch(line)) and m[1] == call]
        return values[0] if values else None

    # -- settling --------------------------------------------------------------------------------

    def settle(self, doubt, landed):
        """Settle what is in doubt, by the command line."""
        answer = ["--did-not-happen"] if landed is None else ["--landed", landed]
        ended = self.run(command=["resolve", doubt.run, doubt.number, *answer])
        assert ended.code == 0, ended.text

    def run_to_end(self, *dying, how="kill", answer=None):
        """Run the program until it ends well.

        Args:
            dying: places at which the first attempts die.
            answer: gets a doubt and what the call returned, if it did; says what to answer.  By
                default the truth.

        Returns:
            the doubts.
        """
        doubts = []
        for attempt in range(ATTEMPTS):
            die_at = dying[attempt] if attempt < len(dying) else ""
            ended = self.run(die_at=die_at, how=how)
            if ended.code == 0:
                return doubts
            if ended.died:
                assert die_at, ended.text
                continue
            doubt = Doubt.read(ended.text)
            assert doubt is not None, ended.text
            doubts.append(doubt)
            self.settle(doubt, answer(doubt) if answer else self.truth(doubt))
        raise AssertionError("\n".join(self.said))

    def truth(self, doubt):
        """What a look outside tells of a call in doubt: its result, or ``None``."""
        done = [m for line in self.log if (m := _DID.fullmatch(line))]
        return next((m[2] for m in done if called(m[1], doubt.call)), None)


def until(condition, seconds=120):
    """Wait for a condition; return its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def called(logged, recorded):
    """Whether ``post(task 10)`` in the log is ``post(text='task 10')`` in the journal."""
    name, _, rest = recorded.partition("(")
    name = name.rpartition(".")[2]
    values = [each.partition("=")[2].strip("'") for each in rest[:-1].split(", ")]
    return logged == f"{name}({', '.join(values)})"
