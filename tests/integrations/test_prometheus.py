"""Metrics and health: read by a parser of Prometheus, and compared with what the journal has."""

import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from harness import until

pytest.importorskip("prometheus_client", reason="needs the extra metrics")

from prometheus_client.parser import text_string_to_metric_families

import stepwise
import stepwise.http
from stepwise import Limit, step, tool, workflow
from stepwise._journal.lease import Lease
from stepwise._runs import maintenance
from stepwise._runs.maintenance import Census
from stepwise._runtime import observers, settings
from stepwise._workflows.engines import RunOutput
from stepwise._workflows.up import Supervisor, Terms
from stepwise.errors import ConfigurationError, CorruptStoreError, StoreError
from stepwise.integrations import prometheus
from stepwise.stores import open_store
from stepwise.stores._group_commit import write_times
from stepwise.stores.memory import MemoryStore

broken = {}
gate = threading.Event()  # closed, the body of ``ask`` waits


@step(retries=2, backoff=0)
def work(name):
    if broken.get(name, 0) > 0:
        broken[name] -= 1
        raise ValueError(name)
    return name


@step(limit=Limit("api", concurrent=1, requests=1, per=0.2))
def ask(name):
    assert gate.wait(300)
    return name


@step(limit=Limit("api['a']", concurrent=1, key=lambda name: name))
def ask_for(name):
    assert gate.wait(300)
    return name


@tool(side_effect=True)
def act(name):
    raise SystemExit


@workflow
def job(name):
    return work(name)


@workflow
def asking(name):
    return ask(name)


@workflow(start="new")
def by_name(name):
    return ask_for(name)


@workflow
def acting(name):
    return act(name)


@workflow
def sleeper(seconds):
    stepwise.sleep(seconds)


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """What counts in a test counts no more after it."""
    monkeypatch.setattr(observers, "listeners", ())
    broken.clear()


def store():
    return open_store(settings.store())


def scraped(page):
    """The samples of a page by name and labels."""
    status, kind, content = page()
    assert status == 200
    assert kind.startswith("text/plain")
    return samples(content.decode())


def samples(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found[(each.name, *sorted(each.labels.values()))] = each.value
    return found


# -- what is counted ------------------------------------------------------------------------------


def test_what_runs_do():
    """Runs and steps are counted by status, retries by step, and each write is timed."""
    page = prometheus.pages([store()])["/metrics"]
    written = "stepwise_store_write_duration_seconds_count"
    before = sum(write_times.counts)
    broken.update(b=1, c=9)
    job("a")
    job("b")
    with pytest.raises(ValueError, match="c"):
        job("c")
    found = scraped(page)
    name = "stepwise_step_duration_seconds_count"
    assert found[name, "completed", "job", "work"] == 2
    assert found[name, "failed", "job", "work"] == 1
    assert found["stepwise_step_retries_total", "job", "work"] == 3
    assert found["stepwise_run_attempts_total", "job", "started"] == 3
    assert found["stepwise_run_ends_total", "completed", "job"] == 2
    assert found["stepwise_run_ends_total", "failed", "job"] == 1
    assert found["stepwise_runs", "completed"] == 2
    assert found["stepwise_runs", "failed"] == 1
    assert found[(written,)] >= before + 6
    bucket = "stepwise_store_write_duration_seconds_bucket"
    assert found[bucket, "0.0001"] <= found[bucket, "10.0"] <= found[bucket, "+Inf"]
    assert found[bucket, "+Inf"] == found[(written,)]
    assert found[("stepwise_store_write_duration_seconds_sum",)] > 0
    assert found[("stepwise_store_up",)] == 1


def test_what_goes_on():
    """A resumed run, an answered step, a step in doubt and a wait for a limit are counted."""
    page = prometheus.pages([store()])["/metrics"]
    broken.update(c=3)
    waits = "stepwise_limit_waits_total", "api"
    gate.clear()
    asked = [asking.start(name) for name in "xy"]
    until(lambda: scraped(page).get(waits))
    gate.set()
    assert [each.result(300) for each in asked] == ["x", "y"]
    with pytest.raises(ValueError, match="c"):
        job("c")
    job("c")
    with pytest.raises(SystemExit):
        acting("a")
    with pytest.raises(stepwise.StepInDoubtError):
        acting("a")
    found = scraped(page)
    assert found["stepwise_run_attempts_total", "job", "resumed"] == 1
    assert found["stepwise_steps_in_doubt_total", "act", "acting"] == 1
    assert found[waits] >= 1


def test_a_limit_counts_by_its_name():
    """A wait for a limit counts by the limit's own name, without the value of its key."""
    page, told = prometheus.pages([store()])["/metrics"], []
    end = stepwise.on_event(told.append)
    gate.clear()
    asked = [by_name.start(name) for name in ("x", "x", "y", "y")]
    until(lambda: scraped(page).get(("stepwise_limit_waits_total", "api['a']")))
    gate.set()
    assert [each.result(300) for each in asked] == ["x", "x", "y", "y"]
    end()
    limits = {each.limit for each in told if each.kind == "step_waiting"}
    assert (limits, {each.limit for each in told if each.kind != "step_waiting"}) == (
        {"api['a']"},
        {""},
    )


def test_names_are_bounded(monkeypatch):
    """Beyond a number of names, all others count together."""
    monkeypatch.setattr(prometheus, "_MOST", 2)
    page = prometheus.pages([store()])["/metrics"]
    for number in range(4):
        workflow(job.__wrapped__, name=f"w{number}")("a")
    name = "stepwise_step_duration_seconds_count"
    found = {key[2:]: value for key, value in scraped(page).items() if key[0] == name}
    assert found == {("w0", "work"): 1, ("w1", "work"): 1, ("other", "other"): 2}


def test_a_process_that_counts_nothing_has_no_code_for_it():
    """Without metrics no event is made."""
    assert not observers.heard()
    prometheus.pages([store()])
    assert observers.heard()


# -- runs by status -------------------------------------------------------------------------------


def test_the_census_says_what_the_listing_says(tmp_path):
    """Runs are counted by the status that a listing shows, and their heads are opened once."""
    broken.update(bad=9)
    for name in "abc":
        job(name)
    with pytest.raises(ValueError, match="bad"):
        job("bad")
    with pytest.raises(SystemExit):
        acting("x")
    stepwise.runs(job, limit=1)
    counting = Census(store())
    found = counting.count()
    listed = [run.status for run in stepwise.runs()]
    assert {s: n for s, n in found.by_status.items() if n} == {
        s: listed.count(s) for s in set(listed)
    }
    assert "crashed" in listed
    assert counting.count().late > 0
    before = counting._opened
    assert counting.count().by_status == found.by_status
    assert all(counting._opened[each] is before[each] for each in before)


def test_a_suspended_run_that_is_late(monkeypatch):
    """A run is late by the seconds since its moment; a submitted run is suspended, too."""
    settings.suspend_soon(0)
    try:
        with pytest.raises(stepwise.RunSuspended):
            sleeper(1000)
    finally:
        settings.suspend_soon(60)
    job.submit("later")
    by_status = {"suspended": 2, "cancelled": 0, "superseded": 0, "completed": 0}
    assert Census(store()).count() == (by_status, 0.0)
    monkeypatch.setattr(maintenance.time, "time", lambda: time.monotonic() + 2**33)
    assert Census(store()).count().late > 2**32


def test_a_run_that_is_being_cancelled():
    """A run that was asked to end counts as cancelling until it has unwound, as in a listing."""
    with pytest.raises(SystemExit):
        acting("x")
    stepwise.get_run(acting.run_id_for("x")).cancel()
    [run] = stepwise.runs()
    counted = Census(store()).count()
    assert run.status == "cancelling"
    assert counted.by_status["cancelling"] == 1
    assert counted.late > 0


def test_a_run_that_cannot_be_read_hides_no_other(monkeypatch):
    """A crashed run whose journal is damaged counts as unreadable, and the others as they are."""
    job("a")
    with pytest.raises(SystemExit):
        acting("x")

    def deaths_of(*_):
        raise CorruptStoreError("damaged")

    monkeypatch.setattr(maintenance, "deaths_of", deaths_of)
    found = Census(store()).count().by_status
    assert (found["completed"], found["unreadable"]) == (1, 1)


def test_a_run_that_is_executed_is_not_late():
    """A run with a living owner is running."""
    with pytest.raises(SystemExit):
        acting("x")
    with Lease(store(), acting.run_id_for("x")).acquire():
        found = Census(store()).count()
    assert (found.by_status["running"], found.late) == (1, 0.0)


# -- health ---------------------------------------------------------------------------------------


class Away(MemoryStore):
    """A store that does not answer, or refuses."""

    gate = None

    def acquire(self, run_id, owner):
        if self.gate is not None:
            self.gate.wait()
            return super().acquire(run_id, owner)
        raise StoreError("the disk is full")


def test_a_store_that_refuses():
    """A store that takes no write is named with its reason."""
    status, _, text = prometheus.Health([Away()]).ready()
    assert status == 503
    assert b"the disk is full" in text


def test_a_store_that_does_not_answer(monkeypatch):
    """A store that does not answer makes the process not ready, and keeps one thread."""
    monkeypatch.setattr(prometheus, "_ANSWERS", 0.05)
    away = Away()
    away.gate = threading.Event()
    health, before = prometheus.Health([away]), {*threading.enumerate()}
    for _ in range(3):
        status, _, text = health.ready()
        assert (status, b"not answered" in text) == (503, True)
    assert len({*threading.enumerate()} - before) == 1
    away.gate.set()
    health._asking[away.url].join()
    assert health.ready()[0] == 200


def test_a_loop_that_does_not_come_round():
    """A supervisor that has not looked for long, or that ends, is not ready."""
    job("a")
    supervisor = Supervisor([store()], Terms(), lambda _: None, RunOutput())
    health = prometheus.Health([store()], supervisor)
    assert health.ready()[0] == 200
    supervisor.looked -= 60
    assert health.ready()[::2] == (503, b"up has not looked for due runs for 60 seconds\n")
    supervisor.stop()
    assert health.ready()[::2] == (503, b"up is ending\n")


def get(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_server():
    """The pages are served on this machine; a wrong address is refused with the right one."""
    job("a")
    supervisor = Supervisor([store()], Terms(most=3), lambda _: None, RunOutput())
    url = prometheus.serve("0", [store()], supervisor)
    assert url.startswith("http://127.0.0.1:")
    assert get(f"{url}/healthz") == (200, "alive\n")
    assert get(f"{url}/readyz") == (200, "ready\n")
    assert get(f"{url}/other")[0] == 404
    found = samples(get(f"{url}/metrics")[1])
    assert found[("stepwise_up_slots",)] == 3
    assert found[("stepwise_up_slots_in_use",)] == 0
    for wrong in ("x", "nowhere.invalid:80", url.rpartition(":")[2], "99999"):
        with pytest.raises(ConfigurationError, match=r"write PORT, or HOST:PORT"):
            prometheus.serve(wrong, [store()], supervisor)


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"), [(True, 200), ("ann", 403), (False, 403)], ids=["all", "user", "nobody"]
)
def test_an_application(said, code):
    """``metrics=True`` serves metrics to whom may see all runs, and health to anybody."""
    testclient = pytest.importorskip("starlette.testclient")
    asked = []

    def authorize(request, run_id, action):
        asked.append((run_id, action))
        return said

    app = stepwise.http.app(workflows=[typed], authorize=authorize, metrics=True)
    with testclient.TestClient(app) as client:
        assert client.get("/healthz").text == "alive\n"
        assert client.get("/readyz").text == "ready\n"
        assert asked == []
        answer = client.get("/metrics")
    assert answer.status_code == code
    assert asked == [(None, "metrics")]
    assert ("stepwise_runs" in answer.text) is (code == 200)


@workflow
def typed(name: str) -> str:
    return name


def test_an_application_without_metrics():
    """Without ``metrics=True`` there are no such addresses."""
    testclient = pytest.importorskip("starlette.testclient")
    app = stepwise.http.app(workflows=[typed], authorize=lambda *_: True)
    with testclient.TestClient(app) as client:
        codes = [client.get(f"/{each}").status_code for each in ("metrics", "healthz", "readyz")]
    assert codes == [404] * 3


def test_workflows_of_one_name_count_together():
    """Workflows of several files with one name have one sample: Prometheus refuses two."""
    supervisor = Supervisor([store()], Terms(most=3), lambda _: None, RunOutput())
    supervisor.deaths.update({"/a.py:agent": 1, "/b.py:agent": 2})
    page = prometheus.pages([store()], supervisor)["/metrics"]
    text = page()[2].decode()
    assert text.count('stepwise_run_deaths_total{workflow="agent"}') == 1
    assert 'stepwise_run_deaths_total{workflow="agent"} 3.0' in text


def test_the_server_with_ipv6():
    """An address of IPv6 is written in brackets, as in URLs."""
    supervisor = Supervisor([store()], Terms(most=3), lambda _: None, RunOutput())
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    url = prometheus.serve("[::1]:0", [store()], supervisor)
    assert url.startswith("http://[::1]:")
    assert get(f"{url}/healthz") == (200, "alive\n")
