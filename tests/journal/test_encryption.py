"""Encryption of what is stored, for who wants it."""

import builtins
import pathlib

import pytest

import stepwise
from stepwise import step, workflow
from stepwise._journal.seal import DamagedError, Seal
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

SECRET = "the-eagle-has-landed"


@step
def secret_step(secret):
    return f"{secret}!"


@workflow
def agent(secret):
    local = [secret, secret_step(secret)]
    local.append(secret_step("2"))
    return local


def stored(folder):
    return b"".join(path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file())


def crash_and_look(folder):
    with fresh_store(folder), pytest.raises(SimulatedCrash), crash_at(secret_step, call=2):
        agent.options(run_id="job")(SECRET)
    return stored(folder)


def test_nothing_readable_is_stored(tmp_path):
    """Encrypted, neither arguments nor results, variables or names of functions can be read."""
    assert SECRET.encode() in crash_and_look(tmp_path / "plain")  # the control: it would be seen
    stepwise.configure(encrypt=True)
    found = crash_and_look(tmp_path / "encrypted")
    for text in (SECRET, "secret_step", "agent", __name__):
        assert text.encode() not in found


PLAIN = {"STEPWISE_ENCRYPT": "0", "STEPWISE_KEY": "a" * 32}
ENCRYPTED = {"STEPWISE_ENCRYPT": "1", "STEPWISE_KEY": "a" * 32}
ROTATED = {"STEPWISE_ENCRYPT": "1", "STEPWISE_KEY": f"{'b' * 32},{'a' * 32}"}


@pytest.mark.parametrize(
    ("first", "then"),
    [(PLAIN, ENCRYPTED), (ENCRYPTED, PLAIN), (ENCRYPTED, ROTATED), (ENCRYPTED, ENCRYPTED)],
    ids=["switched on", "switched off", "another key", "as before"],
)
@pytest.mark.parametrize("how", [{"start": "unfinished"}, {"run_id": "job"}], ids=str)
def test_an_encrypted_run_goes_on(tmp_path, first, then, how, monkeypatch):
    """A run resumes, is listed and verified after encryption was switched, or the key rotated."""
    resuming = agent.options(**how)
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    with fresh_store(tmp_path), pytest.raises(SimulatedCrash), crash_at(secret_step, call=2):
        resuming(SECRET)
    for name, value in then.items():
        monkeypatch.setenv(name, value)
    with fresh_store(tmp_path):
        assert resuming(SECRET) == [SECRET, f"{SECRET}!", "2!"]
        (run,) = stepwise.runs(agent)
        assert (run.status, run.steps_skipped) == ("completed", 1)
        assert [each.result for each in run.steps] == [f"{SECRET}!", "2!"]
        assert run.verify().ok


def test_encrypted_records_are_refused_elsewhere():
    """An encrypted record is refused in another place, with a flipped byte, or marked as plain.

    The same record encrypted twice gives different bytes, so that repeats do not show.
    """
    seal = Seal((bytes(32),), encrypts=True)
    data, other = (seal.close("here", {"kind": "x"}, b"payload")[0] for _ in range(2))
    assert data != other
    assert seal.open("here", data).payload == seal.open("here", other).payload == b"payload"
    with pytest.raises(DamagedError):
        seal.open("there", data)
    for at in range(len(data)):
        with pytest.raises(DamagedError):
            seal.open("here", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_without_the_extra(tmp_path, monkeypatch):
    """Without the extra, the error names it, and nothing is stored in the clear instead."""
    stepwise.configure(encrypt=True)
    found = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return found(name, *args, **kwargs)

    stepwise._journal.seal._cipher.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with (
        fresh_store(tmp_path),
        pytest.raises(stepwise.ConfigurationError, match=r"stepwise-agents\[encryption\]"),
    ):
        agent(SECRET)
    assert SECRET.encode() not in stored(tmp_path)
