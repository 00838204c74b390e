"""The page of schedules, and of a run that has not begun."""

from datetime import timedelta

from stepwise import workflow
from stepwise._journal.journal import seal_for
from stepwise._journal.schedule_rows import SCHEDULES, ScheduleRow, ScheduleRows, entry_of
from stepwise._runtime import settings
from stepwise.stores import Batch, open_store


def test_the_page_of_schedules(page):
    """The page lists what the command lists, and says how many rows are damaged."""
    empty = page.get("/schedules")
    assert "stepwise up has seen no workflow with every=" in empty
    assert 'class="note"' not in empty

    @workflow(every=timedelta(hours=1))
    def report():
        return 1

    report.options(run_id="report@2030-01-01T00:00:00Z")()
    store = open_store(settings.store())
    rows = ScheduleRows(store, seal_for(store))
    row = ScheduleRow("<report>", report.full_name, "0 9 * * *", 0, 0, 0, paused=True, missed=1234)
    with rows.owned() as epoch:
        rows.write(epoch, row.name, row._replace(ran="report@2030-01-01T00:00:00Z"))
        store.write(SCHEDULES, epoch, Batch(put={entry_of("other"): b"damaged"}))
    text = page.get("/schedules")
    for shown in (
        "&lt;report&gt;",
        "0 9 * * *",
        "completed",
        "1,234",
        "paused",
        "1 schedule damaged",
    ):
        assert shown in text


def test_the_page_of_a_submitted_run(page):
    """A run that has not begun is shown as submitted, with the command that begins it."""

    @workflow
    def later():
        return 1

    run = later.submit(run_id="later")
    text = page.get(f"/runs/{run.id}")
    assert "submitted" in text
    assert "begun by" in text
    assert "stepwise up" in text
    assert "resumes" not in text
