"""The pytest plugin: each test gets a store of its own, and fixtures for tests of agents.

A module of its own beside the package, since a plugin is loaded in every test run of an environment
where stepwise is installed: it sets environment variables, and imports stepwise only for a test
that asks for one of its fixtures.  Imports: pytest.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepwise.testing.crashes import CrashReport

__all__ = ["crash_everywhere"]

_WHICH = ("own", "real")
_SET = ("STEPWISE_HOME", "STEPWISE_TEST_HOME")  # to the home of the test
_TAKEN = ("STEPWISE_RESUME",)  # it means a run of the real store


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--stepwise-store`` and the setting ``stepwise_store``."""
    about = (
        "own: each test, and each wider scope of fixtures, has a store of its own (the default); "
        "real: the one that the program has outside of tests"
    )
    group = parser.getgroup("stepwise")
    group.addoption("--stepwise-store", choices=_WHICH, default=None, help=about)
    parser.addini("stepwise_store", about, default="own")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a store of its own."""
    config.addinivalue_line(
        "markers",
        "stepwise_store(which): the store of this test: 'own', or 'real' for the one that the "
        "program has outside of tests",
    )
    which = config.getoption("--stepwise-store") or config.getini("stepwise_store")
    if which not in _WHICH:
        raise pytest.UsageError(f"stepwise_store = {which}: it is own or real")
    config.pluginmanager.register(_Homes(config, which), "stepwise-homes")


class _Homes:
    """Sets the home that is in force: of a test, of a scope of fixtures, or the real one.

    Args:
        which: of tests that have no marker.
    """

    def __init__(self, config: pytest.Config, which: str) -> None:
        self._config = config
        self._which = which
        self._real = {name: os.environ.get(name) for name in (*_SET, *_TAKEN)}
        self._base = ""
        self._made_base = False
        self._count = 0
        self._now: str | None = None  # the home that is in force; None for the real one
        self._scopes: dict[object, str] = {}  # by scope and node
        self._fixtures: collections.Counter[str] = collections.Counter()  # that use a scope's
        self._homes: dict[pytest.Item, str | None] = {}
        self._by_user = 0  # fixtures in force that chose a home themselves
        self._configured: Any = None  # the store that wider scopes, or modules, configured

    # -- the home in force -----------------------------------------------------------------------

    def _choose(self, home: str | None) -> None:
        if self._by_user:
            return
        self._now = home
        if home is None:
            self._restore()
            return
        os.environ.update(dict.fromkeys(_SET, home))
        for name in _TAKEN:
            os.environ.pop(name, None)

    def _restore(self) -> None:
        for name, value in self._real.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _new(self, name: str) -> str:
        """Name a folder that nobody has used; who stores something makes it."""
        if not self._base:
            factory = getattr(self._config, "_tmp_path_factory", None)
            self._made_base = factory is None
            base = tempfile.mkdtemp(prefix="pytest-") if factory is None else factory.getbasetemp()
            self._base = os.path.join(os.path.realpath(base), "stepwise")
        self._count += 1
        readable = re.sub(r"\W+", "-", name)[:40].strip("-")
        return os.path.join(self._base, f"{self._count}-{readable}")

    def _is_real(self, node: Any) -> bool:
        marker = node.get_closest_marker("stepwise_store")
        return bool((self._which if marker is None else marker.args[0]) == "real")

    def _of_scope(self, scope: str, node: Any) -> str | None:
        if self._is_real(node):
            return None
        if (scope, node) not in self._scopes:
            self._scopes[scope, node] = self._new(f"{scope} {node.name}")
        return self._scopes[scope, node]

    # -- what pytest calls -----------------------------------------------------------------------

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Outside of tests (modules that are imported), the session's own home is in force."""
        if session.config.pluginmanager.hasplugin("dsession"):
            return  # the workers of pytest-xdist execute the tests, and start with this environment
        self._choose(self._of_scope("session", session))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse a marker that means nothing."""
        for item in items:
            marker = item.get_closest_marker("stepwise_store")
            if marker is not None and (marker.kwargs or marker.args not in [(w,) for w in _WHICH]):
                raise pytest.UsageError(
                    f"the marker stepwise_store of {item.nodeid}: write "
                    "@pytest.mark.stepwise_store('real') or ('own')"
                )

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Give a test a home; one that is executed again gets another one."""
        self._homes[item] = None if self._is_real(item) else self._new(item.name)
        self._choose(self._homes[item])
        self._configured = _configured()
        yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Take it away when all fixtures are finished."""
        yield
        home = self._homes.pop(item, None)
        self._forget_configured(home)
        _close(home)
        self._choose(self._of_scope("session", item.session))

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None]:
        """Give a fixture that outlives its test the home of its scope, to its end."""
        if fixturedef.scope == "function":
            yield
            return
        home, before = self._of_scope(fixturedef.scope, request.node), self._now
        outer: list[str | None] = []
        configured = _configured()

        def leave() -> None:
            self._configured = configured
            self._forget_configured(home)
            self._fixtures[home or ""] -= 1
            if not self._fixtures[home or ""]:
                _close(home)
            self._choose(outer.pop() if outer else self._now)

        def enter() -> None:
            self._forget_configured(home)
            outer.append(self._now)
            self._choose(home)

        self._fixtures[home or ""] += 1
        fixturedef.addfinalizer(leave)  # the last of its finalizers
        self._choose(home)
        yield
        if _configured() is not configured:
            self._configured = _configured()
        if home is not None and not self._by_user and os.environ.get(_SET[0]) != home:
            self._by_user += 1
            fixturedef.addfinalizer(self._leave_to_us)
        fixturedef.addfinalizer(enter)  # the first
        self._choose(before)

    def _leave_to_us(self) -> None:
        self._by_user -= 1

    def _forget_configured(self, home: str | None) -> None:
        """Take back what a test or fixture configured: what comes next has a store of its own."""
        settings = sys.modules.get("stepwise._runtime.settings")
        if home is not None and settings is not None:
            settings._settings.store = self._configured

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any]:
        """Say where the runs of a test are that failed."""
        outcome = yield
        home = self._homes.get(item)
        report = outcome.get_result()
        if report.failed and home is not None and os.path.isdir(home):
            report.sections.append(("stepwise", f"its runs: STEPWISE_HOME={home} stepwise runs"))

    def pytest_unconfigure(self) -> None:
        """Leave the environment as it was."""
        for home in self._scopes.values():
            _close(home)
        self._by_user = 0
        self._choose(None)
        if self._made_base:
            shutil.rmtree(pathlib.Path(self._base).parent, ignore_errors=True)


def _configured() -> Any:
    """The store of ``stepwise.configure()``, if stepwise was used at all."""
    settings = sys.modules.get("stepwise._runtime.settings")
    return None if settings is None else settings._settings.store


def _close(home: str | None) -> None:
    """Close the stores in a home, if stepwise was used at all; those of live runs stay open."""
    stores, runs = (
        sys.modules.get("stepwise.stores"),
        sys.modules.get("stepwise._execution.active_run"),
    )
    if home is not None and stores is not None:
        live = list(runs.live_runs) if runs is not None else []
        stores.close_under(home, [run.journal.store for run in live])


# -- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def crash_everywhere() -> Callable[..., CrashReport]:
    """``crash_everywhere(workflow, *args, setup=, effects=, compare=, limit=, vary=, twins=)``.

    Kills the workflow at every point that makes a difference, runs it again, and compares; see
    :func:`stepwise.testing.crash_everywhere`.
    """
    from stepwise.testing.crashes import crash_everywhere as crash

    def crash_everywhere(workflow: Any, /, *args: Any, **kwargs: Any) -> CrashReport:
        return crash(workflow, *args, **kwargs)

    return crash_everywhere
