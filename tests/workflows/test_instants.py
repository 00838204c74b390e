"""The instants of schedules: cron expressions in time zones, and periods."""

import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwise._workflows.schedules import Instants
from stepwise.errors import ConfigurationError

WHAT = "workflow 'report'"


def seen(every, zone, start, number, fold=0):
    """The first instants after a time of day, as the clock on the wall shows them."""
    instants = Instants(every, zone, WHAT)
    at = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()
    found = []
    for _ in range(number):
        at = instants.after(at)
        found.append(instants.at(at).strftime("%d %H:%M %z"))
    return found


SKIPPED = [  # the clock leaves these times out, or shows them twice
    ("Europe/Zurich", "2026-03-28T12:00", "30 2 * * *", ["29 03:00 +0200", "30 02:30 +0200"]),
    ("Europe/Zurich", "2026-03-28T12:00", "30 3 * * *", ["29 03:30 +0200", "30 03:30 +0200"]),
    ("Europe/Zurich", "2026-03-28T12:00", "0,30 2 * * *", ["29 03:00 +0200", "30 02:00 +0200"]),
    ("Europe/Zurich", "2026-03-29T01:20", "*/30 * * * *", ["29 01:30 +0100", "29 03:00 +0200"]),
    ("Europe/Zurich", "2026-03-29T01:20", "*/30 2 * * *", ["30 02:00 +0200", "30 02:30 +0200"]),
    ("America/New_York", "2026-03-08T01:00", "30 2 * * *", ["08 03:00 -0400", "09 02:30 -0400"]),
    ("Australia/Lord_Howe", "2026-10-04T01:00", "15 2 * * *", ["04 02:30 +1100", "05 02:15 +1100"]),
    ("Australia/Lord_Howe", "2026-10-04T01:00", "45 2 * * *", ["04 02:45 +1100", "05 02:45 +1100"]),
    ("Pacific/Apia", "2011-12-29T08:00", "0 9 * * *", ["29 09:00 -1000", "31 09:00 +1400"]),
    ("Pacific/Apia", "2011-12-29T08:00", "0 9 * * mon-fri", ["29 09:00 -1000", "02 09:00 +1400"]),
    ("Pacific/Apia", "2011-12-29T08:00", "0 */12 * * *", ["29 12:00 -1000", "31 00:00 +1400"]),
]
DOUBLED = [
    ("Europe/Zurich", "2026-10-24T12:00", "30 2 * * *", ["25 02:30 +0200", "26 02:30 +0100"]),
    ("America/New_York", "2026-11-01T00:00", "30 1 * * *", ["01 01:30 -0400", "02 01:30 -0500"]),
    ("Australia/Lord_Howe", "2026-04-05T00:00", "45 1 * * *", ["05 01:45 +1100", "06 01:45 +1030"]),
    ("Europe/Zurich", "2026-10-25T02:40", "30 * * * *", ["25 02:30 +0100", "25 03:30 +0100"]),
    ("Europe/Zurich", "2026-10-25T01:00", "0 */2 * * *", ["25 02:00 +0200", "25 02:00 +0100"]),
    (
        "Australia/Lord_Howe",
        "2026-04-05T01:50",
        "*/30 1 * * *",
        ["05 01:30 +1030", "06 01:00 +1030"],
    ),
    (
        "Australia/Lord_Howe",
        "2026-04-04T12:00",
        "*/30 5 * * *",
        ["05 05:00 +1030", "05 05:30 +1030"],
    ),
]


@pytest.mark.parametrize(("zone", "start", "every", "expected"), SKIPPED)
def test_times_that_the_clock_leaves_out(zone, start, every, expected):
    """A time of the day that summer time leaves out comes at the end of the jump, once."""
    assert seen(every, zone, start, len(expected)) == expected


@pytest.mark.parametrize(("zone", "start", "every", "expected"), DOUBLED)
def test_times_that_the_clock_shows_twice(zone, start, every, expected):
    """A time of the day that the clock shows twice comes once; with a star, each comes."""
    assert seen(every, zone, start, len(expected)) == expected


@pytest.mark.parametrize("start", ["2026-10-25T02:10", "2026-10-25T02:40"])
def test_asked_in_the_hour_that_comes_twice(start):
    """In the second hour, the time of the first one is over."""
    assert seen("30 2 * * *", "Europe/Zurich", start, 1, fold=1) == ["26 02:30 +0100"]


ZONES = ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "America/Santiago",
         "Africa/Casablanca", "Asia/Beirut", "Antarctica/Troll"]  # fmt: skip
MINUTES = ["*", "*/7", "*/20", "0", "30", "15,45", "5-10"]
HOURS = ["*", "*/5", "0", "1", "2", "3", "1-4", "23"]
DAYS = ["* * *", "* * sun", "1 * *", "25-31 3,10 *", "* 4,9-11 sun"]


def by_trying(every, zone, low, high):
    """The instants of two moments, minute by minute: the definition, without any cleverness."""
    minutes, hours, day, month, weekday = every.split()
    star = minutes.startswith("*") or hours.startswith("*")
    both = day.startswith("*") or weekday.startswith("*")
    utc = timezone.utc

    def numbers(text, low, high):
        found = set()
        for part in text.replace("sun", "0").split(","):
            span, _, step = part.partition("/")
            first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
            found.update(range(int(first), int(last or first) + 1, int(step or 1)))
        return found

    sets = [numbers(minutes, 0, 59), numbers(hours, 0, 23), numbers(day, 1, 31)]
    sets += [numbers(month, 1, 12), numbers(weekday, 0, 6)]

    def fits(at):
        days = at.day in sets[2], at.isoweekday() % 7 in sets[4]
        day_fits = all(days) if both else any(days)
        return at.minute in sets[0] and at.hour in sets[1] and at.month in sets[3] and day_fits

    found, shown = set(), None
    for second in range(low - low % 60, high + 1, 60):
        at = datetime.fromtimestamp(second, utc).astimezone(ZoneInfo(zone))
        local = at.replace(tzinfo=None, fold=0)
        if shown is None:
            shown = local
        if fits(local) and (star or local > shown):
            found.add(second)
        if not star:
            skipped = shown + timedelta(minutes=1)
            while skipped < local:
                if fits(skipped):
                    found.add(second)
                skipped += timedelta(minutes=1)
            shown = max(shown, local)
    return sorted(each for each in found if low < each <= high)


@given(
    st.sampled_from(MINUTES), st.sampled_from(HOURS), st.sampled_from(DAYS), st.sampled_from(ZONES),
    st.sampled_from(["2026-03-07", "2026-03-28", "2026-04-04", "2026-09-05", "2026-10-03",
                     "2026-10-24", "2026-10-31", "2026-02-14", "2026-03-21", "2026-06-30"]),
    st.integers(0, 2 * 86400),
)  # fmt: skip
def test_as_the_clock_on_the_wall_shows(minutes, hours, days, zone, day, shift):
    """Around changes of the clock, the instants are those that trying each minute finds."""
    every = f"{minutes} {hours} {days}"
    low = int(datetime.fromisoformat(f"{day}T00:00+00:00").timestamp())
    high, start = low + 3 * 86400, low + shift
    instants, found, at = Instants(every, zone, WHAT), [], start
    while (at := instants.after(at)) <= high:
        found.append(at)
    expected = [each for each in by_trying(every, zone, low - 86400, high) if each > start]
    assert found == expected


def test_periods_are_counted_from_1970():
    """Each process computes the instants of a period alike, whenever it began."""
    instants = Instants(timedelta(minutes=15), None, WHAT)
    assert [instants.after(at) for at in (0, 899.5, 900, -1)] == [900, 900, 1800, 0]
    assert instants.at(900) == datetime(1970, 1, 1, 0, 15, tzinfo=timezone.utc)


WRONG = [
    ("@daily", None, "write minute, hour, day, month and weekday"),
    ("0 9 * *", None, "write minute, hour, day, month and weekday"),
    ("0 0 9 * * *", None, "write minute, hour, day, month and weekday"),
    ("0 25 * * *", None, "bad hour"),
    ("0 9 * * sat-sun", None, "bad day-of-week"),
    ("0 0 31 4 *", None, "bad day-of-month"),
    ("0 9 * * *", "Europe/Zürich", "did you mean 'Europe/Zurich'"),
    ("0 9 * * *", "../passwd", "no such zone"),
    (timedelta(0), None, "whole seconds, above 0"),
    (timedelta(seconds=1.5), None, "whole seconds, above 0"),
    (timedelta(hours=1), "Europe/Zurich", "write a cron expression"),
]


@pytest.mark.parametrize(("every", "zone", "message"), WRONG)
def test_what_has_no_instants_is_refused(every, zone, message):
    """A wrong expression, period or zone is an error that says what to write."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        Instants(every, zone, WHAT)
    assert WHAT in str(caught.value)


def test_without_cronsim(monkeypatch):
    """Without the library, the error of a cron expression names the extra; a period needs none."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigurationError, match=r"stepwise-agents\[schedules\]"):
        Instants("0 9 * * *", None, WHAT)
    assert Instants(timedelta(hours=1), None, WHAT).after(0) == 3600
