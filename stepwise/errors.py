"""Every exception and warning of stepwise, drawn as one tree.

::

    StepwiseError (Exception)            a problem to fix; an agent may catch it
    ├── ConfigurationError               a setting, a key or an option cannot be used
    ├── RunNotFoundError (LookupError)   no run of that id in the store
    ├── StepNotFoundError (LookupError)  no step of that number or name in the run
    ├── RunConflictError                 a run id was used again with other arguments
    ├── RunBusyError                     another process or task is executing the requested run
    ├── RunSkipped                       the same, and on_owned="skip" leaves the run alone
    ├── CodeChangedError                 the code changed and the journal cannot bridge it
    ├── DigestError (TypeError)          an argument that cannot be part of an identity
    ├── NotRecordableError (TypeError)   a value that cannot be written to the journal
    ├── UnreadableValueError             a recorded value that cannot be loaded here
    ├── OutsideRunError                  a step called where its run is not visible
    ├── StepFailedError                  the summary of an exception that could not be recorded
    └── StepTimeoutError (TimeoutError)  an attempt took longer than its timeout

    RunStopped (BaseException)           sticky: every later step call of the run raises it again
    ├── StepInDoubtError                 a side effect may or may not have happened
    ├── StoreError                       the store could not be read or written
    │   ├── CorruptStoreError            its contents do not verify
    │   └── JournalLostError             records that existed are gone
    ├── RunOwnedError                    inside a run: another process is executing its child run
    └── LeaseLostError                   another process took the run over

    StepwiseWarning (UserWarning)
    ├── ArgumentMutatedWarning           a step changed one of its arguments
    ├── ArgumentsChangedWarning          a side effect was answered though its arguments changed
    ├── UnusedRecordWarning              a recorded side effect was not reached again
    ├── UnrecordedCallWarning            a step ran without being recorded
    └── RunWarning                       anything else that a user should check once

``RunStopped`` is not an ``Exception``, so that an agent's ``except Exception`` cannot swallow it
and continue unrecorded.  A class's docstring is its default message; the facts of a case are
attributes.  Every exception survives pickle.
"""

import inspect
from typing import Any

__all__ = [
    "ArgumentMutatedWarning",
    "ArgumentsChangedWarning",
    "CodeChangedError",
    "ConfigurationError",
    "CorruptStoreError",
    "DigestError",
    "JournalLostError",
    "LeaseLostError",
    "NotRecordableError",
    "OutsideRunError",
    "RunBusyError",
    "RunConflictError",
    "RunNotFoundError",
    "RunOwnedError",
    "RunSkipped",
    "RunStopped",
    "RunWarning",
    "StepFailedError",
    "StepInDoubtError",
    "StepNotFoundError",
    "StepTimeoutError",
    "StepwiseError",
    "StepwiseWarning",
    "StoreError",
    "UnreadableValueError",
    "UnrecordedCallWarning",
    "UnusedRecordWarning",
]


class _Facts(BaseException):
    """Message first, facts as attributes; ``BaseException.__reduce__`` then pickles both."""

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))
        self.__dict__.update(facts)

    def __str__(self) -> str:
        # Not the inherited one: LookupError's children and OSError format their arguments.
        return str(self.args[0])


class StepwiseError(_Facts, Exception):
    """Something went wrong in stepwise."""


class ConfigurationError(StepwiseError):
    """A setting cannot be used."""


class RunNotFoundError(StepwiseError, LookupError):
    """There is no such run in the store. `stepwise runs` lists its runs."""

    run_id: str


class StepNotFoundError(StepwiseError, LookupError):
    """The run has no such step. `stepwise show RUN` lists its steps."""

    run_id: str
    step: int | str


class RunConflictError(StepwiseError):
    """The run id belongs to a run with other arguments. Use another run id, or forget that run."""

    run_id: str
    recorded: str
    given: str


class RunBusyError(StepwiseError):
    """Somebody else is executing this run. Wait for it with on_owned="wait", or use another id."""

    run_id: str
    owner: Any


class RunSkipped(StepwiseError):  # noqa: N818 -- not an error: the caller asked for it
    """Somebody else is executing this run, and on_owned="skip" leaves the run alone."""

    run_id: str
    owner: Any


class CodeChangedError(StepwiseError):
    """The workflow's code changed, and its remaining journal cannot bridge the change."""

    run_id: str


class DigestError(StepwiseError, TypeError):
    """This value cannot be part of an identity: equal values would not give equal digests."""

    path: str
    type_name: str


class NotRecordableError(StepwiseError, TypeError):
    """This value cannot be recorded. Return plain data instead."""

    path: str
    type_name: str


class UnreadableValueError(StepwiseError):
    """A recorded value cannot be loaded by this program."""


class OutsideRunError(StepwiseError):
    """A step was called where its run is not visible, so that it would have gone unrecorded."""

    run_id: str


class StepFailedError(StepwiseError):
    """A step failed with an exception that could not be recorded as it was; this is its summary."""

    type_name: str
    traceback_text: str


class StepTimeoutError(StepwiseError, TimeoutError):
    """An attempt of a step took longer than its timeout."""

    step: str
    timeout: float


class RunStopped(_Facts):
    """The run cannot continue; every later step call of the run raises this again."""

    run_id: str


class StepInDoubtError(RunStopped):
    """A side effect was started and never finished: it may or may not have happened."""

    step: int
    name: str
    arguments: str
    idempotency_key: str | None


class StoreError(RunStopped):
    """The store could not be read or written."""

    path: str
    errno: int | None


class CorruptStoreError(StoreError):
    """The stored data do not verify: they were damaged, or written with another key."""


class JournalLostError(StoreError):
    """Records that were acknowledged are gone from the store."""


class RunOwnedError(RunStopped):
    """Somebody else is executing this child run, or the store refuses its lease."""

    owner: Any


class LeaseLostError(RunStopped):
    """Another process took this run over; nothing more can be written from here."""


class StepwiseWarning(UserWarning):
    """Base of the warnings of stepwise."""


class ArgumentMutatedWarning(StepwiseWarning):
    """A step changed one of its arguments; return the change instead."""


class ArgumentsChangedWarning(StepwiseWarning):
    """A side effect was answered from the journal although its arguments changed."""


class UnusedRecordWarning(StepwiseWarning):
    """A side effect that is recorded in the run was not reached again when it resumed."""


class UnrecordedCallWarning(StepwiseWarning):
    """A step ran without being recorded, beside a run that it may have belonged to."""


class RunWarning(StepwiseWarning):
    """Something about a run that its author should check once."""


for _name in __all__:
    globals()[_name].__module__ = "stepwise"  # tracebacks and pickles show the public name
