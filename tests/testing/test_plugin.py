"""The pytest plugin: what a test of an agent sees is its own, and costs nothing where unused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

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

    def __init__(self, folder, monkeypatch):
        self.folder = folder / "project"
        self.folder.mkdir()
        self.real = folder / "real"
        for name in ("STEPWISE_TEST_HOME", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("STEPWISE_HOME", str(self.real))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        self.write("agent", AGENT)
        self.write("pytest.ini", "[pytest]\n")

    def write(self, name, text):
        path = self.folder / (name if "." in name else f"{name}.py")
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, *arguments, passed=0, failed=0, errors=0, plugins=False):
        """Execute the tests, check how many of them passed, and return what pytest printed.

        Other plugins, which take half of the time, are loaded on demand.
        """
        unused = ["cacheprovider", *(() if plugins else ("hypothesispytest", "anyio"))]
        without = [f"-pno:{name}" for name in unused]
        command = [sys.executable, "-m", "pytest", *without, *arguments]
        if not any("basetemp" in each for each in arguments):
            command.append(f"--basetemp={self.folder.parent / 'base'}")
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )
        said = done.stdout + done.stderr
        counts = {
            word.rstrip("s"): int(n)
            for n, word in re.findall(r"(\d+) (passed|failed|errors?)", said)
        }
        found = tuple(counts.get(word, 0) for word in ("passed", "failed", "error"))
        assert found == (passed, failed, errors), said
        return said


@pytest.fixture
def suite(tmp_path, monkeypatch):
    return Suite(tmp_path, monkeypatch)


QUESTION = """
from agent import agent
def test_agent():
    assert agent("why") == "WHY"
"""


def test_yesterdays_run_does_not_answer(suite):
    """A function that was broken since the last test run fails its test; the real store is left."""
    suite.write("test_agent", QUESTION)
    suite.run(passed=1)
    suite.write("agent", AGENT.replace("upper()", "lower()"))
    suite.run(failed=1)
    assert not suite.real.exists()


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
            stepwise.configure(store="sqlite:runs")
            assert agent("why") == "WHY"
    """,
    "store of the environment": """
        import os
        from agent import agent
        def test_agent(monkeypatch):
            monkeypatch.setenv("STEPWISE_STORE", "disk:runs")
            assert agent("why") == "WHY"
    """,
}


def test_every_kind_of_test(suite):
    """Whatever executes the agent in a test: what an earlier test run recorded is not seen."""
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


def test_tests_see_nothing_of_each_other(suite):
    """A run of one test is not there in the next, in memory neither."""
    suite.write(
        "test_agent",
        """
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
    )
    suite.run(passed=9)


def test_fixtures_of_a_wider_scope_have_a_store_of_their_scope(suite):
    """Fixtures of one scope share a store, set-up and tear-down alike; tests do not see it."""
    suite.write(
        "test_agent",
        """
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
    )
    suite.run(passed=4)


def test_a_test_that_is_executed_again_begins_anew(suite):
    """What executes a failed test again (pytest-rerunfailures) does not resume its failed run."""
    suite.write(
        "conftest",
        """
        from _pytest.runner import runtestprotocol
        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, nextitem=item, log=False)
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                item.ihook.pytest_runtest_logreport(report=report)
            return True
        """,
    )
    suite.write(
        "test_agent",
        """
        from agent import executed
        def test_agent():
            assert executed("why")
        """,
    )
    suite.run(passed=1)


REAL = """
import pytest
from agent import executed
@pytest.fixture(scope="module")
def answer():
    return executed("fixture")
def test_agent(answer):
    assert executed("why")
    assert answer
"""


@pytest.mark.parametrize("how", ["option", "setting", "marker", "one of the two"])
def test_the_real_store(suite, how):
    """An option, a setting and a marker give tests the store that the program has outside."""
    text = REAL
    if how == "marker":
        text = text.replace(
            "@pytest.fixture", "pytestmark = pytest.mark.stepwise_store('real')\n@pytest.fixture"
        )
    suite.write("test_agent", text)
    if how in ("setting", "one of the two"):
        suite.write("pytest.ini", "[pytest]\nstepwise_store = real\n")
    arguments = ["--stepwise-store=real"] if how == "option" else []
    if how == "one of the two":
        arguments = ["--stepwise-store=own"]
    suite.run("--strict-markers", *arguments, passed=1)
    suite.run(
        "--strict-markers",
        *arguments,
        passed=how == "one of the two",
        failed=how != "one of the two",
    )
    assert (suite.real / "store").exists() == (how != "one of the two")


def test_own_by_marker(suite):
    """Where the real store is the rule, a marker gives a test its own."""
    suite.write(
        "test_agent",
        REAL.replace(
            "@pytest.fixture", "pytestmark = pytest.mark.stepwise_store('own')\n@pytest.fixture"
        ),
    )
    suite.run("--stepwise-store=real", passed=1)
    suite.run("--stepwise-store=real", passed=1)
    assert not suite.real.exists()


def test_what_the_store_cannot_be(suite):
    """Another word than own and real is refused, with the words that there are."""
    suite.write(
        "test_agent", "import pytest\n@pytest.mark.stepwise_store('reel')\ndef test(): pass\n"
    )
    assert "stepwise_store('real')" in suite.run()
    suite.write("pytest.ini", "[pytest]\nstepwise_store = reel\n")
    assert "stepwise_store = reel: it is own or real" in suite.run()


def test_a_home_that_the_user_chooses(suite):
    """A home that a fixture of the user's sets is in force as long as the fixture is."""
    suite.write(
        "conftest",
        """
        import os, pytest
        @pytest.fixture(scope="module", autouse=True)
        def home(tmp_path_factory):
            before = os.environ["STEPWISE_HOME"]
            os.environ["STEPWISE_HOME"] = str(tmp_path_factory.mktemp("mine"))
            yield
            os.environ["STEPWISE_HOME"] = before
        """,
    )
    suite.write(
        "test_a",
        """
        import os
        from agent import agent, stepwise
        def test_one():
            assert "mine" in os.environ["STEPWISE_HOME"]
            agent("why")
        def test_two():
            assert len(stepwise.runs()) == 1
        """,
    )
    suite.write("test_b", "from test_a import *\n")
    suite.run(passed=4)


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
    listed = subprocess.run(
        [sys.executable, "-m", "stepwise", "runs"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "agent" in listed.stdout


def test_stores_are_closed_after_their_test(suite):
    """However many tests there are, the files of their stores do not stay open."""
    suite.write(
        "test_agent",
        """
        import os, pytest
        from agent import agent
        @pytest.mark.parametrize("number", range(30))
        def test_agent(number):
            assert agent("why") == "WHY"
            assert len(os.listdir("/proc/self/fd")) < 40
        """,
    )
    suite.run(passed=30)


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
    suite.write("test_agent", QUESTION)
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
    subprocess.run([sys.executable, "outer.py"], cwd=suite.folder, check=True, timeout=300)
