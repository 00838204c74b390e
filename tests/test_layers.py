"""The map in ``stepwise/__init__.py`` is true: layers, dependencies, sizes, the front door."""

from __future__ import annotations

import ast
import collections
import configparser
import functools
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import interpreted

import stepwise

ROOT = Path(stepwise.__file__).parent
MODULES = {
    ".".join(("stepwise", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}

FRONT_MODULES = "agent cli errors graph http integrations mcp notebook stores testing ui"
FUNCTION_LINES = 60

ONLY_IN = {
    "IPython": {"stepwise._workflows.debugged", "stepwise.notebook"},
    "annotationlib": {"stepwise._checkpoints.variables", "stepwise._identity.identity"},
    "ast": {"stepwise._rewrite", "stepwise._runs.paths"},
    "click": {"stepwise.cli.learn", "stepwise.cli"},
    "cloudpickle": {"stepwise._values.codec"},
    "concurrent": {
        "stepwise._calls.executors",
        "stepwise._calls.parallel",
        "stepwise._calls.ray_executor",
        "stepwise._calls.steps",
        "stepwise._runs.branching",
        "stepwise._runtime.forks",
        "stepwise._workflows.evaluation",
        "stepwise.integrations",
        "stepwise.testing",
    },
    "cronsim": {"stepwise._workflows.schedules"},
    "cryptography": {"stepwise._journal.persons", "stepwise._journal.seal"},
    "debugpy": {"stepwise._workflows.debugged"},
    "diskcache": {"stepwise.stores"},
    "fcntl": {"stepwise._journal.seal", "stepwise.stores._files"},
    "framework": {"stepwise.integrations"},
    "hmac": {"stepwise._journal.seal", "stepwise.ui._access"},
    "jsonschema": {"stepwise._values.data"},
    "ipywidgets": {"stepwise._display.render"},
    "langchain_core": {"stepwise.integrations"},
    "langgraph": {"stepwise.integrations"},
    "mcp": {"stepwise.mcp"},
    "numpy": {"stepwise._values.digest"},
    "opentelemetry": {"stepwise.integrations"},
    "pandas": {"stepwise._values.digest", "stepwise._workflows.evaluation"},
    "pickle": {
        "stepwise._values.unpickling",
        "stepwise._values.codec",
        "stepwise._checkpoints.variables",
    },
    "pydantic": {"stepwise._values.data"},
    "pydantic_ai": {"stepwise.integrations"},
    "referencing": {"stepwise._values.data"},
    "starlette": {"stepwise.http", "stepwise.ui"},
    "sqlite3": {"stepwise._runs.doctor", "stepwise.stores"},
    "prometheus_client": {"stepwise.integrations"},
    "psycopg": {"stepwise.stores"},
    "ray": {"stepwise._calls.ray_executor"},
    "tenacity": {"stepwise._runtime.retries"},
    "uvicorn": {"stepwise.ui"},
    "wrapt": {"stepwise._workflows.workflow", "stepwise.integrations"},
}
"""What is known in one place only: the module (or package) that may import it."""

BASIC = "_display _runtime _values"
MAY_IMPORT = {
    "stores": "_runtime _values",
    "agent": f"{BASIC} _workflows.host",
    "graph": "_runtime _values _workflows.host",
    "notebook": (
        f"{BASIC} _journal.records _rewrite.cells _runs _workflows.handles _workflows.host"
    ),
    "integrations": (
        "_calls _checkpoints.resources _execution.account _execution.active_run "
        "_execution.outcomes _execution.tasks _identity.clients _journal.lease _runs.maintenance "
        "_runs.run _runs.steps _runtime _values _workflows.engines _workflows.handles "
        "_workflows.host _workflows.up "
        "stores._files stores._group_commit stores._postgres_presence"
    ),
    "cli": (
        "_display _execution.process_memory _journal.persons _runs _runtime.system_limits "
        "_runtime.messages _workflows.engines _workflows.preflight _workflows.rerun "
        "_workflows.up integrations._model_calls mcp._knowledge"
    ),
    "mcp": (
        "_display.words _journal.persons _runs _runtime _values.preview ui._access ui._actions "
        "ui._reading ui._server"
    ),
    "ui": (
        "_checkpoints.checkpoints _display _execution _journal _runs _runtime "
        "integrations._model_calls"
    ),
    "http": (
        "_execution.outcomes _execution.process_memory _identity.identity _journal _runs.run "
        "_runs.streaming _runtime _values.data _workflows.handles _workflows.workflow ui._access "
        "ui._events"
    ),
    "testing": (
        "_calls _execution _journal _matching _runs _runtime _values integrations._model_calls "
        "integrations._model_protocols integrations._recorded_responses _identity.clients "
        "_workflows.rerun"
    ),
}
"""The rooms, and modules of them, that a public package may import beside what is public."""


@functools.cache
def trees():
    """The parsed modules: 160 MB, which only the process that runs these tests is to have."""
    return {name: ast.parse(path.read_text("utf-8"), str(path)) for name, path in MODULES.items()}


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """The trees are gone after these tests."""
    yield
    for each in (trees, nodes, imports):
        each.cache_clear()


@functools.cache
def nodes(module):
    """The nodes of a module by their kinds: each tree is walked once."""
    found = collections.defaultdict(list)
    for node in ast.walk(trees()[module]):
        found[type(node)].append(node)
    return found


def every(kind):
    """Each node of a kind in all modules, with its module."""
    return [(module, node) for module in MODULES for node in nodes(module)[kind]]


@functools.cache
def imports(module):
    """Return (imported module, line) of every import, deferred ones included.

    ``from stepwise.stores import disk`` is an import of the submodule; ``from stepwise._rewrite
    import build`` one of what the package hands out, since it has a ``build`` of its own.
    """
    found = [(name.name, node.lineno) for node in nodes(module)[ast.Import] for name in node.names]
    for node in nodes(module)[ast.ImportFrom]:
        assert node.level == 0, f"{module}:{node.lineno}: a relative import"
        exported = _bound(trees().get(node.module))
        for name in node.names:
            inner = f"{node.module}.{name.name}"
            is_module = inner in MODULES and name.name not in exported
            found.append((inner if is_module else node.module, node.lineno))
    return found


def _bound(tree):
    """The names that a module binds by importing them from its own submodules."""
    found = set()
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ImportFrom):
            found |= {name.asname or name.name for name in node.names}
    return found


def own(module):
    """The modules of stepwise that a module imports."""
    return sorted({name for name, _ in imports(module) if name.partition(".")[0] == "stepwise"})


def unit(module):
    """What the map lists: a module, or a package as one."""
    return ".".join(module.split(".")[:2])


def layers():
    """The rows of the map in the docstring of ``stepwise``, the lowest first."""
    rows = re.findall(
        r"^ {4}(\w+(?: \w+)*) {2,}\S", inspect.cleandoc(stepwise.__doc__), re.MULTILINE
    )
    return [[f"stepwise.{name}" for name in row.split()] for row in rows]


# -- layers --------------------------------------------------------------------------------------


def test_the_map_is_complete():
    """Every module is in the map in the docstring of ``stepwise``, once, and nothing else is."""
    listed = [name for row in layers() for name in row]
    assert sorted(listed) == sorted({unit(name) for name in MODULES} - {"stepwise"})


def test_the_map_of_the_design():
    """The page of the design shows the same map."""
    page = (ROOT.parent / "docs" / "design.md").read_text("utf-8").partition("## 8. Layout")[2]
    rows = re.findall(r"^    (\w.*)$", inspect.cleandoc(stepwise.__doc__), re.MULTILINE)
    assert page.split("```")[1].split("\n")[1:-1] == rows


def modules_of(room):
    """The modules of a room in the order of its docstring, the lowest first."""
    text = (ast.get_docstring(trees()[room]) or "").partition("only from those before it::")[2]
    listed = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    return [f"{room}.{name}" for row in listed for name in row.split()]


ROOMS = sorted(n for n, path in MODULES.items() if path.name == "__init__.py" and "._" in n)


@pytest.mark.parametrize("room", ROOMS)
def test_the_modules_of_a_room(room):
    """The docstring of a room lists its modules; each imports only from those before it."""
    order = modules_of(room)
    assert sorted(order) == sorted(name for name in MODULES if name.startswith(f"{room}."))
    upward = [
        f"{name} imports {each}"
        for number, name in enumerate(order)
        for each in own(name)
        if each in order[number + 1 :]
    ]
    assert upward == []


def test_the_tests_lie_in_the_same_rooms():
    """A folder of tests is called like a room, or holds crashes, pages, frameworks or servers."""
    rooms = {name.removeprefix("stepwise.").strip("_") for row in layers() for name in row}
    tests = ROOT.parent / "tests"
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    others = {"crash", "docs", "frameworks", "postgres", "cluster", "ui/browser"}
    assert folders - {"."} <= rooms | others


def test_no_cycles():
    """No module imports one that, at any distance, imports it."""
    graph = {
        name: {each for each in own(name) if each != name and each != "stepwise"}
        for name in MODULES
        if name != "stepwise"
    }
    # A module of a package may import its siblings; the package's own face only collects them.
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    cycles = []

    def visit(name, path):
        if name in path:
            cycles.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for each in sorted(graph.get(name, ())):
                visit(each, [*path, name])
            done.add(name)

    done: set[str] = set()
    for name in sorted(graph):
        visit(name, [])
    assert cycles == []
    for package in packages - {"stepwise"}:
        inside = [name for name in MODULES if name.startswith(f"{package}.")]
        assert all(package not in graph[name] for name in inside)


def test_every_package_is_shipped():
    """setup.cfg names every package, and no other: a wheel has all modules, and can be built."""
    config = configparser.ConfigParser()
    config.read(ROOT.parent / "setup.cfg", encoding="utf-8")
    folders = config["options"]["package_dir"].strip().splitlines()  # of pages and examples
    elsewhere = {line.partition("=")[0].strip() for line in folders}
    shipped = set(config["options"]["packages"].split()) - elsewhere
    assert {n for n, path in MODULES.items() if path.name == "__init__.py"} == shipped


def test_imports_point_downward():
    """A module imports only what stands above it in the map, or before it in its row."""
    order = {name: number for number, name in enumerate(n for row in layers() for n in row)}
    assert order
    upward = [
        f"{MODULES[module].name}:{line} imports {name}"
        for module in MODULES
        if module != "stepwise" and unit(module) in order
        for name, line in imports(module)
        if name.startswith("stepwise.")
        and unit(name) != unit(module)
        and order.get(unit(name), -1) > order[unit(module)]
    ]
    assert upward == []


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_public_packages_use_the_host_api_and_public_names(package):
    """A public package imports, of what is internal, what the table says, and all of that."""
    allowed = [f"stepwise.{name}" for name in MAY_IMPORT[package].split()]
    mine = {f"stepwise.{package}"} | {n for n in MODULES if n.startswith(f"stepwise.{package}.")}
    internal = {each for name in mine for each in own(name) if "._" in each} - mine
    used = {each: [a for a in allowed if f"{each}.".startswith(f"{a}.")] for each in internal}
    assert [each for each, rooms in used.items() if not rooms] == []
    assert {room for rooms in used.values() for room in rooms} == set(allowed)


def test_every_public_package_is_in_that_table():
    """A package whose name begins with a letter says what of the internal rooms it imports."""
    packages = {n for n, path in MODULES.items() if path.name == "__init__.py" and "._" not in n}
    assert {name.partition(".")[2] for name in packages} - {""} == MAY_IMPORT.keys()


def test_nothing_imports_the_front_door():
    """Only the command line, and that of agents, see ``stepwise`` by its public names."""
    users = {unit(n) for n in MODULES if any(each == "stepwise" for each, _ in imports(n))}
    assert users == {"stepwise.cli", "stepwise.mcp"}


def test_the_top_does_not_import_itself():
    """Testing, command line and notebook stand side by side: none imports another."""
    (top,) = (row for row in layers() if "stepwise.cli" in row)
    assert [(a, b) for a in top for b in own(a) if b in top and b != a] == []


def test_the_docstring_says_what_is_imported():
    """A module that says that it imports nothing of ours does not."""
    docs = {
        name: " ".join((ast.get_docstring(each) or "").split()) for name, each in trees().items()
    }
    says = [name for name, doc in docs.items() if "imports nothing of ours" in doc.lower()]
    assert len(says) >= 3
    assert {name: own(name) for name in says} == {name: [] for name in says}
    assert [name for name, doc in docs.items() if not doc] == []  # every module has one


# -- dependencies --------------------------------------------------------------------------------


def test_one_module_per_dependency():
    """What could be exchanged is imported in one place."""
    for name, allowed in ONLY_IN.items():
        users = {module for module in MODULES for each, _ in imports(module) if _top(each) == name}
        assert users, name
        strays = {user for user in users if user not in allowed and unit(user) not in allowed}
        assert strays == set(), name


def test_pickles_are_loaded_in_one_place():
    """Only the gate loads pickles, or names what could, so ``trust="data"`` holds everywhere."""
    loaders = {"pickle", "_pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    found = {
        module
        for module, node in every(ast.Attribute)
        if isinstance(node.value, ast.Name)
        and node.value.id in loaders
        and re.search(r"load|unpickler|open", node.attr.lower())
    }
    named = {module for module, node in every(ast.ImportFrom) if node.module in loaders}
    assert (found, named) == ({"stepwise._values.unpickling"}, set())


def test_known_dependencies():
    """Nothing is imported that is neither of the standard library nor of the known dependencies."""
    known = {"stepwise", "typing_extensions", *ONLY_IN}
    foreign = {
        f"{module}: {name}"
        for module in MODULES
        for name, _ in imports(module)
        if _top(name) not in known and _top(name) not in sys.stdlib_module_names
    }
    assert foreign == set()


def test_typing_extensions_are_for_the_type_checker():
    """``typing_extensions``, which need not be installed, is imported under TYPE_CHECKING only."""
    checked = {
        id(inner)
        for _, node in every(ast.If)
        if ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body
        for inner in ast.walk(each)
    }
    for module, node in every(ast.ImportFrom):
        if node.module == "typing_extensions":
            assert id(node) in checked, f"{module}:{node.lineno}"


WRITERS = """
    _calls.approvals _calls.call _calls.compensation _calls.doubt _calls.edits _calls.limited
    _calls.streams _calls.waiting _execution.account _execution.active_run _execution.outcomes
    _runs.branching _runs.fork _runs.messages _runs.questions _runs.run _runs.verify
    _workflows.begin _workflows.execute _workflows.host _workflows.resume _workflows.submitted
    testing.crashes
"""


def test_only_writers_name_kinds_of_records():
    """A kind of record is named in ``_journal`` only, and in the modules that write it."""
    from stepwise._journal.records import KINDS

    kinds = {kind.__name__ for kind in KINDS.values()}
    imported = [
        (module, {each.name for each in node.names})
        for module, node in every(ast.ImportFrom)
        if node.module == "stepwise._journal.records"
    ]
    named = [
        (module, {node.attr})
        for module, node in every(ast.Attribute)
        if ast.unparse(node.value) == "records"
    ]
    naming = {
        module.removeprefix("stepwise.")
        for module, names in (*imported, *named)
        if kinds & names and "._journal." not in module
    }
    assert sorted(naming) == sorted(WRITERS.split())


def _top(name):
    return name.partition(".")[0]


@functools.cache
def loaded_by(code):
    """The modules that a fresh interpreter has loaded after ``code``."""
    script = f"{code}\nimport sys, threading\nprint(threading.active_count(), *sys.modules)\n"
    done = interpreted("-c", script)
    threads, *modules = done.stdout.split()
    assert threads == "1"
    return set(modules)


IMPORTED = "import stepwise; assert set(stepwise.__all__) <= set(dir(stepwise))"


FOR_LOOKING = """
    _calls.compensation _calls.doubt _calls.executors _calls.parallel _display.progress
    _display.render _display.terminal _execution.budget _execution.viewer _runs.fork
    _runs.messages _runs.overview _runs.questions _runs.run _runs.steps _runs.verify
    _workflows.engines _workflows.handles _workflows.up agent graph notebook
"""


def test_importing_is_light():
    """Importing stepwise loads no store, pickler or command line, and starts no thread.

    ``dir(stepwise)`` shows the public names all the same, those that are loaded on use as well.
    """
    modules = loaded_by(IMPORTED)
    assert "stepwise" in modules
    assert modules.isdisjoint(f"stepwise.{name}" for name in FOR_LOOKING.split())
    assert modules.isdisjoint(
        {"diskcache", "cloudpickle", "click", "tenacity", "numpy", "pandas", "pydantic"}
        | {"sqlite3", "pytest", "stepwise.stores.disk", "stepwise.stores.memory", "stepwise.cli"}
        | {"stepwise.testing", "stepwise._calls.async_driver", "typing_extensions"}
    )


def test_importing_loads_no_modules_for_rare_values():
    """Importing stepwise loads no networking, no HTML, no fractions: who has such has them."""
    modules = loaded_by(IMPORTED) - loaded_by("import wrapt")
    assert modules.isdisjoint({"asyncio", "decimal", "fractions", "html", "socket", "uuid"})


def test_programs_that_run_load_nothing_to_look_with():
    """What runs are looked at, forked, undone and settled with is loaded by who does that.

    Nor is loaded what only coroutines need.  wrapt 2 loads asyncio itself; what is tested is what
    stepwise adds.
    """
    code = textwrap.dedent(
        """
        import stepwise
        attempts = []
        @stepwise.tool(side_effect=True)
        def one(): return 1
        @stepwise.workflow(store="memory:")
        def flow():
            found = one()
            attempts.append(found)
            if len(attempts) == 1:
                raise LookupError
            return found
        try:
            flow()
        except LookupError:
            assert flow() == 1
        """
    )
    assert loaded_by(code).isdisjoint(f"stepwise.{name}" for name in FOR_LOOKING.split())
    assert "stepwise._calls.async_driver" not in loaded_by(code)


NOT_FOR_A_RESUME = """
    _calls.waiting _display.progress _execution.suspension _runtime.event
"""
RESUMED = """
import os, sys
import stepwise
os.environ["STEPWISE_QUIET"] = "1"
@stepwise.step
def one(number):
    if number == 3 and len(sys.argv) > 1:
        os._exit(0)
    return number
@stepwise.workflow
def flow():
    return [one(number) for number in range(5)]
flow()
"""


def test_a_resume_loads_little(tmp_path):
    """A synchronous run that resumes loads no diskcache, no paths, no displays and no waits."""
    script = tmp_path / "agent.py"
    script.write_text(RESUMED + "print(*sys.modules)", "utf-8")
    # Without what makes it a program of a test, whose stores are looked at more closely.
    environment = {name: each for name, each in os.environ.items() if "STEPWISE" not in name}
    environment["STEPWISE_HOME"] = str(tmp_path / "home")
    for dies in (["dies"], []):
        command = [sys.executable, str(script), *dies]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    mine = set(done.stdout.split())
    assert mine.isdisjoint(f"stepwise.{name}" for name in NOT_FOR_A_RESUME.split())
    assert mine.isdisjoint({"diskcache", "pickletools", "cloudpickle", "asyncio", "tenacity"})
    assert mine.isdisjoint({"tempfile", "shutil", "random", "bz2", "lzma"})
    assert (mine - loaded_by("pass")).isdisjoint({"pathlib", "urllib.parse", "ipaddress"})


# -- sizes and names -----------------------------------------------------------------------------


def test_sizes():
    """A function has at most 60 lines; a module is as long as its subject."""
    long = [
        f"{module}.{node.name}"
        for module, node in [*every(ast.FunctionDef), *every(ast.AsyncFunctionDef)]
        if node.end_lineno - node.lineno >= FUNCTION_LINES
    ]
    assert long == []


ENTERED = {
    "a step without a checkpoint": 27,
    "a step with its checkpoint": 35,
    # Its head counts what it did, for listings; the versions of its steps are compared.
    "a resume, to the end of its run": 56,
    "an approved tool, its owner's side": 50,  # fewer if the answer comes at once
    "an instrumented model call": 44,
}
"""How many modules a reader opens who follows such a call from its beginning to its end."""


def test_modules_that_a_call_enters():
    """A call enters no more modules than these; ``make map`` prints how many they are."""
    code = (
        "import house, json; print(json.dumps({k: len(t.seen) for k, t in house.visits().items()}))"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT.parent / "tests"
    )
    entered = json.loads(found.stdout)
    assert entered.keys() == ENTERED.keys()
    more = sys.version_info < (3, 11)  # sys.exception() is ours there
    assert {what: n for what, n in entered.items() if n > ENTERED[what] + more} == {}


def test_names_of_modules():
    """Implementation modules begin with an underscore, and none is a drawer of odds and ends."""
    public = {name for name in MODULES if not re.search(r"\._", name)} - {"stepwise"}
    assert {unit(name) for name in public} <= {f"stepwise.{name}" for name in FRONT_MODULES.split()}
    last = {name.rpartition(".")[2].strip("_") for name in MODULES}
    assert last.isdisjoint({"utils", "util", "helpers", "helper", "common", "misc", "tools"})


def test_a_class_name_means_one_class():
    """A class name is defined once in the package, with or without a leading underscore."""
    places = collections.defaultdict(list)
    for name, node in every(ast.ClassDef):
        places[node.name.strip("_")].append(f"{name}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# -- the front door ------------------------------------------------------------------------------

FRONT_DOOR = """
    ApprovalDenied ArgumentMutatedWarning ArgumentsChangedWarning AsyncHandle BranchCall Budget
    BudgetExceeded Checkpoint CheckpointStore CodeChangedError CodePlace CompletedCall
    ConfigurationError CorruptStoreError CurrentStep DidNotHappen DigestError EffectRefusedError
    Evaluation Event FirstTrue Handle InDoubtCall InboxMessage Inconclusive JournalLostError Landed
    LeaseLostError Limit NoCandidateError NotRecordableError OutsideRunError PendingWait
    PossibleStep Program Question RecordedFrame RecoverableAgent Recovered Retain Run RunBranch
    RunBranches RunBusyError RunCancelled RunCheckpoint RunConflictError RunEndedError
    RunNotFoundError RunOwnedError RunSkipped RunStopped RunStream RunSuspended RunTimeoutError
    RunWarning SignalRefusedError Spent StepAttempt StepFailedError StepInDoubtError
    StepNotFoundError StepRecord StepTimeoutError StepwiseError StepwiseWarning StoppedCall
    StoreError StreamChangedError StreamItem ThreadMovedOnError UnreadableValueError
    UnrecordedCallWarning UnusedRecordWarning VariableChange VariableHistory VariableShown
    Verification WaitTimeoutError Why WorkerDiedError Workflow approve background best_of configure
    current_run current_step emit errors evaluate get_run identity instrument map on_event recover
    reenterable resource runs sleep sleep_until spend step tool uninstrument wait_for workflow
"""


def test_the_front_door():
    """The public names are these; a change of them is a decision."""
    assert sorted(stepwise.__all__) == FRONT_DOOR.split()
    assert all(hasattr(stepwise, name) for name in stepwise.__all__)


def test_nothing_else_is_at_the_front_door():
    """What ``dir(stepwise)`` shows beside the public names are its modules, and no leftovers."""
    public = {name for name in vars(stepwise) if not name.startswith(("_", "@"))}
    others = public - set(stepwise.__all__) - {"TYPE_CHECKING", "annotations"}
    assert {f"stepwise.{name}" for name in others} <= set(MODULES)


def test_classes_show_the_public_name():
    """Exported classes say that they are of ``stepwise``; so do the exceptions of its modules."""
    classes = [
        value for name in stepwise.__all__ if isinstance(value := getattr(stepwise, name), type)
    ]
    assert {cls.__module__ for cls in classes} == {"stepwise"}
    assert all(getattr(stepwise, cls.__qualname__) is cls for cls in classes)


@functools.cache
def imported(name):
    """Import a module; ``None`` for an integration whose framework is not installed."""
    try:
        return importlib.import_module(name)
    except stepwise.ConfigurationError as error:
        assert "is not installed" in str(error)
        return None


def test_one_public_class_of_a_name():
    """No two classes that users meet have one name: in public modules, or listed by a run."""
    import typing

    from stepwise._runs.run import Run

    [listed] = typing.get_args(typing.get_type_hints(Run.checkpoints.fget)["return"])
    classes = {listed}
    for name in MODULES:
        if not re.search(r"\._", name) and unit(name) != "stepwise.cli":
            module = imported(name)
            held = (getattr(module, each) for each in getattr(module, "__all__", []))
            classes |= {each for each in held if inspect.isclass(each)}
    own = {each for each in classes if each.__module__.startswith("stepwise")}
    names = [each.__name__ for each in own]
    assert sorted(names) == sorted(set(names))


def test_every_module_says_what_is_public():
    """What a module imports from another one is in that one's ``__all__``, or private on purpose.

    ``import *`` from any module of stepwise gives no name that is not there.
    """
    for name, path in MODULES.items():
        module = imported(name)
        exported = getattr(module, "__all__", [])
        assert all(hasattr(module, each) for each in exported), path
        assert len(set(exported)) == len(exported), path
