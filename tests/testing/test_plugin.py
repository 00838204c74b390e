"""The pytest plugin: what a test of an agent sees is its own, and costs nothing where unused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest
from harness import interpreted

import stepwise

AGENT = """
import os, stepwise
from stepwise import step, workflow

calls = []

@step
def think(question):
    calls.append(question)
    return question.upper()

def executed(question):
    # else it was answered by an earlier run
    calls.clear()
    agent(question)
    return bool(calls)

@workflow
def agent(question):
    return think(question)
"""


class Suite:
    """A project with tests, executed by pytest in a process of its own."""

    def __init__(self, folder, patch):
        self.folder = folder / "project"
        self.folder.mkdir()
        self.real = folder / "real"
        for name in ("STEPWISE_TEST_HOME", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            patch.delenv(name, raising=False)
        patch.setenv("STEPWISE_HOME", str(self.real))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        self.write("agent", AGENT)
        self.write("pytest.ini", "[pytest]\n")

    def write(self, name, text):
        path = self.folder / (name if "." in name else f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, *arguments, plugins=False, **expected):
        """Execute the tests, check how many of them passed, and return what pytest printed.

        Other plugins, which take half of the time, are loaded on demand.
        """
        unused = ["cacheprovider", *(() if plugins else ("hypothesispytest", "anyio"))]
        without = [f"-pno:{name}" for name in unused]
        base = f"--basetemp={self.folder.parent / 'base'}"
        command = [sys.executable, "-m", "pytest", *without, base, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=600
        )
        said = done.stdout + done.stderr
        counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", said)}
        assert counts == expected, said
        return said


@pytest.fixture
def suite(tmp_path, monkeypatch):
    return Suite(tmp_path, monkeypatch)


KINDS = {
    "unittest": """
        import unittest
        from agent import agent
        class TestAgent(unittest.TestCase):
            def test_agent(self):
                self.assertEqual(agent("why"), "WHY")
    """,
    "asynchronous unittest": """
        import unittest
        from agent import aagent
        class TestAgent(unittest.IsolatedAsyncioTestCase):
            async def test_agent(self):
                self.assertEqual(await aagent("why"), "WHY")
    """,
    "coroutine": """
        import pytest
        from agent import aagent
        @pytest.fixture
        def anyio_backend():
            return "asyncio"
        @pytest.mark.anyio
        async def test_agent():
            assert await aagent("why") == "WHY"
    """,
    "subprocess": """
        import subprocess, sys
        def test_agent():
            code = "from agent import agent; print(agent('why'))"
            command = [sys.executable, "-c", code]
            assert subprocess.run(command, capture_output=True, text=True).stdout == "WHY\\n"
            from agent import agent, stepwise
            assert [run.result for run in stepwise.runs()] == ["WHY"]
    """,
    "fixture of a module": """
        import pytest
        from agent import agent
        @pytest.fixture(scope="module")
        def answer():
            return agent("why")
        def test_agent(answer):
            assert answer == "WHY"
    """,
    "setUpClass": """
        import unittest
        from agent import agent
        class TestAgent(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.answer = agent("why")
            def test_agent(self):
                self.assertEqual(self.answer, "WHY")
    """,
    "import": """
        from agent import agent
        answer = agent("why")
        def test_agent():
            assert answer == "WHY"
    """,
    "doctest": """
        def function():
            '''
            >>> from agent import agent
            >>> agent("why")
            'WHY'
            '''
    """,
    "store of the decorator": """
        from agent import agent
        def test_agent():
            assert agent.options(store="disk:runs")("why") == "WHY"
    """,
    "configured store": """
        import stepwise
        from agent import agent
        def test_agent():
            stepwise.configure(store="disk:runs")
            assert agent("why") == "WHY"
    """,
    "store of the environment": """
        import os
        from agent import agent
        def test_agent(monkeypatch):
            monkeypatch.setenv("STEPWISE_STORE", "disk:runs")
            assert agent("why") == "WHY"
    """,
    "function": """
        from agent import agent
        def test_agent():
            assert agent("why") == "WHY"
    """,
}


def test_every_kind_of_test(suite):
    """A function that was broken since the last test run fails each test; the real store is left.

    Whatever executes the agent in a test: what an earlier test run recorded is not seen.
    """
    more = "\n@workflow\nasync def aagent(question):\n    return think(question)\n"
    suite.write("agent", AGENT + more)
    for number, text in enumerate(KINDS.values()):
        suite.write(f"test_kind_{number}", text)
    arguments = ["--doctest-modules", "-W", "ignore"]
    suite.run(*arguments, passed=len(KINDS), plugins=True)
    suite.write("agent", (AGENT + more).replace("upper()", "lower()"))
    suite.run(*arguments, failed=len(KINDS), plugins=True)
    assert not suite.real.exists()
    assert not (suite.folder / "runs").exists()


# -- a project of which each file shows something ------------------------------------------------

PROJECT = {
    "test_alone": """
        import pytest
        from agent import agent, calls, stepwise
        @pytest.mark.parametrize("number", range(3))
        @pytest.mark.parametrize("store", ["memory:", "memory:x", None])
        def test_agent(number, store):
            calls.clear()
            agent.options(store=store)("why")
            assert calls == ["why"]
            assert len(stepwise.runs()) == (store is None)
    """,
    "test_scopes": """
        import os, pytest
        from agent import agent, stepwise
        homes = {}
        def executed():
            return sorted(run.arguments for run in stepwise.runs())
        @pytest.fixture(scope="session")
        def session():
            agent("session")
            yield
            assert executed() == ["question='session'"]
        @pytest.fixture(scope="module")
        def module(session):
            agent("module")
            yield
            assert executed() == ["question='module'"]
            agent("module again")
        @pytest.fixture(scope="module")
        def other(module):
            assert executed() == ["question='module'"]
            yield
            assert executed() == ["question='module'"]
        @pytest.fixture(scope="class")
        def of_class(other):
            assert executed() == []
            agent("class")
        @pytest.fixture
        def function(of_class):
            agent("function")
        class TestAgent:
            def test_one(self, function):
                assert executed() == ["question='function'"]
            def test_two(self, module):
                assert executed() == []
        class TestOther:
            def test_one(self, function):
                assert executed() == ["question='function'"]
            def test_late(self, request):
                agent("test")
                request.getfixturevalue("late")
                assert executed() == ["question='test'"]
        @pytest.fixture(scope="class")
        def late():
            assert executed() == ["question='class'"]
    """,
    "test_configured": """
        import pytest
        from agent import agent, stepwise
        from stepwise.stores.memory import MemoryStore
        @pytest.fixture(scope="module")
        def wide():
            stepwise.configure(store=MemoryStore())
            yield
            assert len(stepwise.runs()) == 2
        @pytest.mark.parametrize("number", range(2))
        def test_alone(number, tmp_path):
            assert stepwise.runs() == []
            stepwise.configure(store=tmp_path)
            agent("why")
            assert len(stepwise.runs()) == 1
        @pytest.mark.parametrize("number", range(2))
        def test_wide(number, wide, tmp_path):
            assert len(stepwise.runs()) == number
            agent(f"why {number}")
            stepwise.configure(store=tmp_path)
            assert stepwise.runs() == []
    """,
    "test_files": """
        import os, pytest
        from agent import agent
        counts = []
        @pytest.mark.parametrize("number", range(30))
        def test_agent(number):
            assert agent("why") == "WHY"
            counts.append(len(os.listdir("/proc/self/fd")))
            assert counts[-1] <= counts[0] + 3
    """,
    "again/conftest": """
        from _pytest.runner import runtestprotocol
        def pytest_runtest_protocol(item, nextitem):
            if item.path.parent.name != "again":
                return None
            runtestprotocol(item, nextitem=item, log=False)
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """,
    "again/test_again": """
        from agent import executed
        def test_agent():
            assert executed("why")
    """,
    "mine/conftest": """
        import os, pytest
        @pytest.fixture(scope="module", autouse=True)
        def home(tmp_path_factory):
            before = os.environ["STEPWISE_HOME"]
            os.environ["STEPWISE_HOME"] = str(tmp_path_factory.mktemp("mine"))
            yield
            os.environ["STEPWISE_HOME"] = before
    """,
    "mine/test_mine": """
        import os
        from agent import agent, stepwise
        def test_one():
            assert "mine" in os.environ["STEPWISE_HOME"]
            agent("why")
        def test_two():
            assert len(stepwise.runs()) == 1
    """,
    "mine/test_other": "from test_mine import *\n",
}


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """How many tests of each file of the project passed; all do."""
    with pytest.MonkeyPatch.context() as patch:
        suite = Suite(tmp_path_factory.mktemp("together"), patch)
        for name, text in PROJECT.items():
            suite.write(name, text)
        said = suite.run("-rA", passed=52)
    return lambda file: len(re.findall(rf"^PASSED {file}\.py::", said, re.MULTILINE))


def test_tests_see_nothing_of_each_other(passed):
    """A run of one test is not there in the next, in memory neither."""
    assert passed("test_alone") == 9


def test_fixtures_of_a_wider_scope_have_a_store_of_their_scope(passed):
    """Fixtures of one scope share a store, set-up and tear-down alike; tests do not see it."""
    assert passed("test_scopes") == 4


def test_a_store_that_a_test_configures_is_its_own(passed):
    """The next test has the store of before: that of its scope, or one of its own."""
    assert passed("test_configured") == 4


def test_stores_are_closed_after_their_test(passed):
    """However many tests there are, the files of their stores do not stay open."""
    assert passed("test_files") == 30


def test_a_test_that_is_executed_again_begins_anew(passed):
    """What executes a failed test again (pytest-rerunfailures) does not resume its failed run."""
    assert passed("again/test_again") == 1


def test_a_home_that_the_user_chooses(passed):
    """A home that a fixture of the user's sets is in force as long as the fixture is."""
    assert passed("mine/test_mine") == passed("mine/test_other") == 2


# -- which store ---------------------------------------------------------------------------------

MARKED = """
import pytest
from agent import executed
pytestmark = pytest.mark.stepwise_store("MARK")
@pytest.fixture(scope="module")
def answer():
    return executed("fixture")
def test_agent(answer):
    assert executed("why")
    assert answer
"""
PLAIN = MARKED.replace('pytestmark = pytest.mark.stepwise_store("MARK")\n', "")


@pytest.mark.parametrize(
    ("mark", "setting", "option", "used"),
    [
        ("", "", "real", "real"),
        ("", "real", "", "real"),
        ("real", "", "", "real"),
        ("", "real", "own", "own"),
        ("own", "", "real", "own"),
    ],
)
def test_the_real_store(suite, mark, setting, option, used):
    """An option, a setting and a marker give tests the store that the program has outside, or not.

    The nearest one counts.
    """
    suite.write("test_agent", MARKED.replace("MARK", mark) if mark else PLAIN)
    suite.write(
        "pytest.ini", f"[pytest]\nstepwise_store = {setting}\n" if setting else "[pytest]\n"
    )
    suite.run("--strict-markers", *([f"--stepwise-store={option}"] if option else ()), passed=1)
    assert suite.real.exists() == (used == "real")
    if used == "real":
        assert len(stepwise.runs(store=f"disk:{suite.real}/store")) == 2


def test_what_the_store_cannot_be(suite):
    """Another word than own and real is refused, with the words that there are."""
    suite.write("test_agent", MARKED.replace("MARK", "reel"))
    assert "stepwise_store('real')" in suite.run()
    suite.write("pytest.ini", "[pytest]\nstepwise_store = reel\n")
    assert "stepwise_store = reel: it is own or real" in suite.run()


# -- processes -----------------------------------------------------------------------------------


def test_workers_do_not_collide(suite):
    """Tests that pytest-xdist executes at once, with equal calls, have stores of their own."""
    suite.write(
        "test_agent",
        """
        import os, pytest
        from agent import executed
        @pytest.fixture(scope="session")
        def answer():
            return executed("session")
        @pytest.mark.parametrize("number", range(8))
        def test_agent(number, answer):
            assert executed("why")
            assert answer
        @pytest.mark.stepwise_store("real")
        def test_real():
            assert os.environ["STEPWISE_HOME"].endswith("real")
        """,
    )
    suite.run("-n", "2", passed=9)


def test_a_failed_test_says_where_its_runs_are(suite):
    """The report of a failed test names the home that it had, if it stored something."""
    suite.write(
        "test_agent",
        """
        from agent import agent
        def test_agent():
            assert agent("why") == "x"
        def test_other():
            assert 0
        """,
    )
    said = suite.run(failed=2)
    (home,) = re.findall(r"its runs: STEPWISE_HOME=(\S+) stepwise runs", said)
    environment = {**os.environ, "STEPWISE_HOME": home}
    listed = interpreted("-m", "stepwise", "runs", env=environment)
    assert "agent" in listed.stdout


def test_who_does_not_use_it_does_not_pay(suite):
    """A test suite that never touches stepwise does not load it, and no folder is made for it."""
    suite.write(
        "test_other",
        """
        import os, sys, pytest
        @pytest.fixture(scope="module")
        def wide():
            return 1
        @pytest.mark.parametrize("number", range(3))
        def test_other(number, wide):
            loaded = {name.partition(".")[0] for name in sys.modules}
            assert "stepwise_pytest" in loaded
            assert loaded.isdisjoint({"stepwise", "wrapt", "cloudpickle", "sqlite3"})
            assert not os.path.exists(os.environ["STEPWISE_HOME"])
        """,
    )
    suite.run(passed=3)
    assert not (suite.folder.parent / "base" / "stepwise").exists()


def test_the_environment_is_as_before(suite):
    """After a test run in this process, the environment is what it was."""
    suite.write("test_agent", KINDS["function"])
    suite.write(
        "outer",
        """
        import os, pytest
        os.environ["STEPWISE_RESUME"] = "agent-1"
        def settings():
            return {name: value for name, value in os.environ.items() if "STEPWISE" in name}
        before = settings()
        assert pytest.main(["-q", "-p", "no:cacheprovider", "test_agent.py"]) == 0
        assert settings() == before
        """,
    )
    interpreted("outer.py", cwd=suite.folder)
