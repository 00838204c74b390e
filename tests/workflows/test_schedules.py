"""Schedules of workflows: which instants become runs, whatever happens to clocks and processes."""

import contextlib
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwise
from stepwise import workflow
from stepwise._journal.journal import seal_for
from stepwise._journal.lease import Lease, supervisor_name
from stepwise._journal.schedule_rows import SCHEDULES, ScheduleRows, entry_of
from stepwise._runs import schedules as of_store
from stepwise._runtime import clock
from stepwise._runtime import settings as process_settings
from stepwise._workflows import schedules as module
from stepwise._workflows.schedules import Timetable
from stepwise.errors import ConfigurationError
from stepwise.stores import Batch, open_store
from stepwise.testing import fresh_store

BEGIN = datetime(2030, 1, 1, tzinfo=timezone.utc).timestamp()
HOUR = timedelta(hours=1)


@pytest.fixture
def moment(monkeypatch):
    """The time of day, as a list of one number that a test sets."""
    found = [BEGIN]
    monkeypatch.setattr(clock, "now", lambda: found[0])
    return found


class Process:
    """What ``up`` does for the schedules of some workflows, as a new process does it."""

    def __init__(self, moment, *workflows):
        self._moment, self.said = moment, []
        known = [each.definition for each in workflows]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "known_workflows", lambda: known)
            self._timetable = Timetable([default()], lambda *told: self.said.append(told))

    def look(self, hours):
        """Look at a moment: so many hours after the beginning."""
        self._moment[0] = BEGIN + hours * 3600
        self.said.clear()
        self._timetable.begin_due(look=True)
        while self._timetable.next <= self._moment[0]:
            self._timetable.begin_due()


def default():
    return open_store(process_settings.store())


def rows():
    return ScheduleRows(default(), seal_for(default()))


def begun(name):
    """The instants of the runs of a schedule, in hours since the beginning of the test."""
    ids = [each.id for each in stepwise.runs() if each.id.startswith(f"{name}@")]
    marks = [each.removeprefix(f"{name}@").removesuffix("-fired") for each in ids]
    at = [datetime.strptime(each, "%Y-%m-%dT%H:%M:%S%z").timestamp() for each in marks]
    return sorted((each - BEGIN) / 3600 for each in at)


def hourly(missed="once", **options):
    @workflow(name="report", every=HOUR, missed=missed, **options)
    def report():
        return None

    return report


def test_it_begins_with_the_next_instant(moment):
    """A schedule that is seen for the first time makes up for nothing."""
    process = Process(moment, hourly("all"))
    process.look(0.5)
    assert begun("report") == []
    process.look(1)
    assert begun("report") == [1]
    run = stepwise.get_run("report@2030-01-01T01:00:00Z")
    assert run.status == "suspended"


@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [
        ("all", 3.5, [1, 2, 3]),
        ("once", 3.5, [3]),
        ("skip", 3.5, []),
        ("all", 3.01, [1, 2, 3]),
        ("once", 3.01, [3]),
        ("skip", 3.01, [3]),
    ],
)
def test_missed_instants(moment, missed, late, expected):
    """An instant is missed after a minute; missed= says what becomes of it, and it is counted."""
    process = Process(moment, hourly(missed))
    process.look(0)
    process.look(late)
    assert begun("report") == expected
    assert of_store.schedules()[0][0]["missed"] == 3 - len(expected)
    process.look(4)
    assert begun("report") == [*expected, 4]


def test_many_missed_instants(moment):
    """Instants of years are passed over in parts, of which the newest one begins."""
    process = Process(moment, hourly("once"))
    process.look(0)
    process.look(1000.5)
    assert begun("report") == [1000]
    assert of_store.schedules()[0][0]["missed"] == 999


def test_a_clock_that_is_wrong_for_a_while(moment):
    """An instant never comes twice; after a clock that was years ahead, instants go on."""
    process = Process(moment, hourly())
    process.look(0)
    process.look(5)
    process.look(3)
    process.look(4)
    process.look(5)
    assert begun("report") == [5]
    process.look(50_000)
    process.look(6)
    process.look(7)
    assert begun("report") == [5, 7, 50_000]


def test_an_edited_schedule(moment):
    """An edited schedule makes up for nothing, and the live program that started last counts."""
    before = Process(moment, hourly("all"))
    before.look(0)
    before.look(1)

    @workflow(name="report", every="30 * * * *", missed="all")
    def report():
        return None

    moment[0] = BEGIN + 2.75 * 3600
    after = Process(moment, report)
    after.look(2.75)
    after.look(3.5)
    with Lease(default(), supervisor_name(report.full_name, "30 * * * * UTC")).acquire():
        before.look(4)
    assert "a program that was started later says '30 * * * * UTC'" in before.said[0][1]
    assert begun("report") == [1, 3.5]


def test_a_program_that_is_put_back(moment):
    """If an older program is started again, what it says counts."""
    test_an_edited_schedule(moment)
    process = Process(moment, hourly("all"))
    process.look(4.5)
    process.look(5)
    assert begun("report") == [1, 3.5, 5]


def test_a_later_program_that_died(moment):
    """When the later program has died, the older one begins the instants since the last minute."""
    before = Process(moment, hourly("all"))
    before.look(0)
    moment[0] = BEGIN + 1800
    after = Process(moment, workflow(name="report", every="30 * * * *")(lambda: None))
    after.look(0.5)
    after.look(1.5)
    before.look(3.01)
    before.look(4)
    assert begun("report") == [1.5, 3, 4]


def test_pausing(moment):
    """The instants of a pause come to nothing; a run can be asked for meanwhile."""
    process = Process(moment, hourly("all"))
    process.look(0)
    of_store.act("pause", "report")
    process.look(3)
    assert begun("report") == []
    facts, told = of_store.act("fire", "report")
    assert (facts["asked"], facts["run"]) == (1, "report@2030-01-01T03:00:00Z-fired")
    assert facts["run"] in told
    process.look(3.5)
    assert begun("report") == [3]
    of_store.act("resume", "report")
    process.look(4)
    assert begun("report") == [3, 4]
    assert of_store.schedules()[0][0]["missed"] == 0


def test_asking_twice_in_a_second(moment):
    """Each request is a run of its own, also after the first one was begun."""
    process = Process(moment, hourly())
    process.look(0)
    ids = [of_store.act("fire", "report")[0]["run"], of_store.act("fire", "report")[0]["run"]]
    process.look(0)
    ids.append(of_store.act("fire", "report")[0]["run"])
    process.look(0)
    assert sorted(each.id for each in stepwise.runs()) == ids
    assert len(set(ids)) == 3


def test_arguments(moment):
    """A run gets what the function of its instant returns, in the time zone of the schedule."""

    @workflow(every="0 9 * * *", timezone="Asia/Tokyo", arguments=lambda at: {"day": at.date()})
    def daily(day):
        return day.isoformat()

    process = Process(moment, daily)
    process.look(0)
    process.look(24)
    (run,) = stepwise.runs(daily)
    assert run.id == "daily@2030-01-02T00:00:00Z"
    assert daily.options(run_id=run.id)(datetime(2030, 1, 2).date()) == "2030-01-02"  # noqa: DTZ001


@pytest.mark.parametrize("wrong", [lambda at: 1 / 0, lambda at: "text", lambda at: (1, 2)])
def test_arguments_that_fail(moment, wrong):
    """A wrong function of the instant is a problem that is told; the instant stays due."""
    answers = [wrong, lambda _: (7,)]

    def answer(at):
        return answers[0](at)

    @workflow(every=HOUR, arguments=answer)
    def daily(day):
        return day

    process = Process(moment, daily)
    process.look(0)
    process.look(1)
    assert [kind for kind, _ in process.said] == ["problem"]
    assert "daily" in process.said[0][1]
    assert begun("daily") == []
    del answers[0]
    process.look(1.01)
    assert begun("daily") == [1]


def test_two_workflows_of_one_name(moment):
    """Two schedules of one name in a process are refused; the one of a live supervisor stays."""

    @workflow(name="report", every=HOUR)
    def other():
        return None

    process = Process(moment, other)
    process.look(0)
    with rows().owned() as epoch:
        row = rows().read("report")._replace(workflow="elsewhere:report")
        rows().write(epoch, "report", row)
    with Lease(default(), supervisor_name("elsewhere:report")).acquire():
        process.look(1)
        assert "belongs to elsewhere:report" in process.said[0][1]
        assert begun("report") == []
    process.look(1)
    assert begun("report") == [1]
    with pytest.raises(ConfigurationError, match="both have every="):
        Process(moment, other, hourly())


def test_a_schedule_that_is_gone(moment):
    """A schedule that its workflow no longer has is shown as such, and can be deleted."""
    report = hourly()
    Process(moment, report).look(0)
    moment[0] = BEGIN + 2 * 3600
    assert of_store.schedules()[0][0]["note"] == "no stepwise up has it"
    with Lease(default(), supervisor_name(report.full_name)).acquire():
        assert of_store.schedules()[0][0]["note"] == "no program has it"
    of_store.act("forget", "report")
    assert of_store.schedules() == ([], 0)
    with pytest.raises(ConfigurationError, match="no schedule 'report'"):
        of_store.act("forget", "report")


def test_a_damaged_row(moment):
    """A damaged row begins nothing, since it may be paused; the error says how to begin anew."""
    process = Process(moment, hourly("all"))
    process.look(0)
    with rows().owned() as epoch:
        default().write(SCHEDULES, epoch, Batch(put={entry_of("report"): b"damaged"}))
    process.look(1)
    assert "stepwise schedules forget report" in process.said[0][1]
    assert begun("report") == []
    assert of_store.schedules() == ([], 1)
    of_store.act("forget", "report")
    process.look(1.5)
    process.look(2)
    assert begun("report") == [2]


WRONG = [
    ({"timezone": "UTC"}, "needs a schedule: add every="),
    ({"missed": "all"}, "needs a schedule: add every="),
    ({"every": 60}, "a cron expression like"),
    ({"every": HOUR, "missed": "never"}, "'skip', 'once' or 'all'"),
    ({"every": HOUR, "arguments": (1,)}, "a function of the instant"),
    ({"every": "0 9 * * *", "timezone": "Mars"}, "no such zone"),
    ({"every": "0 9 * *"}, "write minute, hour, day, month and weekday"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_schedule_is_refused_by_the_decorator(options, message):
    """Each mistake is an error when the decorator runs, and not at nine o'clock."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        workflow(**options)(lambda: None)
    assert "lambda" in str(caught.value)


def test_what_no_schedule_can_call_is_refused():
    """A function that needs arguments, a method and a generator cannot be begun by a schedule."""

    def needs(day):
        return day

    def items():
        yield 1

    class Agent:
        def method(self):
            return self

    for function, message in (
        (needs, "arguments=lambda at"),
        (items, "a generator"),
        (Agent.method, "has no instance"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            workflow(every=HOUR)(function)
    copied = hourly()
    with pytest.raises(ConfigurationError, match="belongs to its decorator"):
        copied.options(every="0 9 * * *")


class Killed(BaseException):
    """The end of a process, as a test simulates it."""


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(-30, 40)),
        st.tuples(st.just("kill"), st.integers(0, 8)),
        st.tuples(st.just("start"), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=50, deadline=None)
@given(EVENTS, st.sampled_from(["all", "once", "skip"]))
def test_no_instant_twice_and_with_all_each(events, missed):
    """Whatever is killed and however clocks jump: no instant twice, and with "all" none is lost."""
    with fresh_store(), pytest.MonkeyPatch.context() as patch:
        moment, submitted, left = [BEGIN], [], [10**9]
        patch.setattr(clock, "now", lambda: moment[0])
        real, write = module.submit, ScheduleRows.write

        def one_less():
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        def submit(at, run_id, definition, *others):
            one_less()
            submitted.append(definition.options.run_id)
            return real(at, run_id, definition, *others)

        def writes(*arguments):
            one_less()
            write(*arguments)

        patch.setattr(module, "submit", submit)
        patch.setattr(ScheduleRows, "write", writes)
        report = hourly(missed, durability="os")
        both, latest = [Process(moment, report), Process(moment, report)], 0.0
        both[0].look(0)
        for number, (event, value) in enumerate(events):
            which = number % 2
            hours = (moment[0] - BEGIN) / 3600
            if event == "set":  # back by less than a day
                hours = max(0.0, latest - 20, hours + value / 2)
            elif event == "kill":
                hours, left[0] = max(latest, hours + value), value
            latest = max(latest, hours)
            with contextlib.suppress(Killed):
                both[which].look(hours)
            left[0] = 10**9
            if event != "set":
                both[which] = Process(moment, report)
        both[0].look(latest)
        assert len(submitted) == len(set(submitted)) == len(stepwise.runs())
        if missed == "all":
            assert begun("report") == [*range(1, int(latest) + 1)]
