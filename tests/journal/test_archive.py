"""This version reads the stores of released formats in ``tests/data``, and continues their runs."""

import sys
import tarfile

import golden
import pytest

import stepwise
from stepwise.stores.base import FORMAT

STATUS = {
    "asking": "suspended",
    "cancelled": "cancelled",
    "failed": "failed",
    "in doubt": "crashed",
    "killed": "crashed",
    "submitted": "suspended",
    "waiting": "suspended",
    "whole": "completed",
}


@pytest.fixture(params=sorted(golden.DATA.glob("format-*.tar.xz")), ids=lambda path: path.name[:8])
def archive(request, tmp_path, monkeypatch):
    """A copy of the store of a format; it is the store of this process."""
    with tarfile.open(request.param) as file:
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(tmp_path, **options)
    for each in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
    monkeypatch.setenv("STEPWISE_KEY", golden.KEY)
    monkeypatch.setenv("STEPWISE_STORE", f"disk:{tmp_path}/store")
    stepwise.configure(suspend_after=0)
    return tmp_path / "store"


def test_there_is_an_archive_of_this_format():
    """A format that is raised gets a store of its own: ``python tests/programs/golden.py``."""
    assert (golden.DATA / f"format-{FORMAT}.tar.xz").exists()


def test_the_runs_are_listed_as_they_were(archive):
    """Status, result, steps, messages and streams of each run are those that were recorded."""
    runs = {run.id: run for run in stepwise.runs()}
    assert {name: runs[name].status for name in STATUS} == STATUS
    run = runs["whole"]
    assert run.result == golden.WHOLE
    assert [(each.name, each.status) for each in run.steps] == [
        ("shaky", "completed"),
        ("shaky", "completed"),
        ("adds", "completed"),
        ("fails", "failed"),
        ("inner", "completed"),
        ("large", "completed"),
        ("send", "completed"),
        ("stepwise.wait_for", "completed"),
    ]
    assert [each.value for each in run.stream()] == ["almost done", "completed"]
    assert runs["failed"].tags == {"team": "blue"}
    assert runs["cancelled"].steps[0].status == "compensated"
    assert [each.text for each in runs["asking"].questions] == ["make this call of pay?"]
    if sys.version_info[:2] == (3, 11):  # which wrote the archive; frames are of one Python
        assert runs["killed"].locals()["total"] == 1  # the checkpoint before the last record
    else:
        with pytest.raises(stepwise.UnreadableValueError, match=r"written by Python 3\.11"):
            runs["killed"].locals()


def test_nothing_of_it_is_damaged(archive):
    """``verify`` finds every record, checkpoint, mark, message and batch of every run intact."""
    for run in stepwise.runs():
        assert run.verify().ok, run.verify()


def test_what_was_killed_goes_on(archive, capsys):
    """A killed run makes no step again whose result was recorded; a completed one makes none."""
    assert golden.whole.options(run_id="whole")(["tides", "winds"]) == golden.WHOLE
    assert capsys.readouterr().out == ""
    assert golden.loop.options(run_id="killed")(4) == (14, 4)
    assert capsys.readouterr().out == "plain 3\n"


def test_what_is_in_doubt_asks(archive, capsys):
    """A side effect that was cut off is not repeated; once it is settled, the run goes on."""
    with pytest.raises(stepwise.StepInDoubtError) as caught:
        golden.letter.options(run_id="in doubt")("a parcel")
    stepwise.get_run("in doubt").resolve(caught.value.step, landed="sent, it says")
    assert golden.letter.options(run_id="in doubt")("a parcel") == ("sent, it says", 1)
    assert capsys.readouterr().out == ""


def test_what_waited_goes_on(archive, capsys):
    """A message that had come is taken, a question can be answered, a submitted run begins."""
    assert golden.question.options(run_id="waiting")() == 8
    (question,) = stepwise.get_run("asking").questions
    question.approve()
    assert golden.payment.options(run_id="asking")(900) == "paid 900"
    assert golden.later.options(run_id="submitted")(5) == {"number": 5, "square": 25}
    assert capsys.readouterr().out == "pay\nplain 5\n"
