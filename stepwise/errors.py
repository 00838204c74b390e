"""Every exception and warning of stepwise, drawn as one tree.

::

    StepwiseError (Exception)            a problem to fix; an agent may catch it
    ├── ConfigurationError               a setting, a key or an option cannot be used
    ├── RunNotFoundError (LookupError)   no run of that id in the store
    ├── StepNotFoundError (LookupError)  no step of that number or name in the run
    ├── RunConflictError                 a run id was used again with other arguments
    ├── ThreadMovedOnError               a LangGraph thread was continued by another writer
    ├── RunBusyError                     another process or task is executing the requested run
    ├── RunSkipped                       the same, and on_owned="skip" leaves the run alone
    ├── CodeChangedError                 the code changed and the journal cannot bridge it
    ├── DigestError (TypeError)          an argument that cannot be part of an identity
    ├── NotRecordableError (TypeError)   a value that cannot be written to the journal
    ├── UnreadableValueError             a recorded value that cannot be loaded here
    ├── OutsideRunError                  a step called where its run is not visible
    ├── StepFailedError                  the summary of an exception that could not be recorded
    ├── StepTimeoutError (TimeoutError)  an attempt took longer than its timeout
    ├── StreamChangedError               an abandoned stream began differently on repeat
    ├── WaitTimeoutError (TimeoutError)  nothing came for wait_for() or approve() in time
    ├── ApprovalDenied                   a person denied what a call asked for
    ├── RunEndedError                    a signal or an answer for a run that has ended
    ├── SignalRefusedError (ValueError)  the run does not wait for a value like this one
    ├── WorkerDiedError                  the worker that executed a step's body died
    └── NoCandidateError                 each of the calls that best_of() made failed

    RunStopped (BaseException)           sticky: every later step call of the run raises it again
    ├── StepInDoubtError                 a side effect may or may not have happened
    ├── StoreError                       the store could not be read or written
    │   ├── CorruptStoreError            its contents do not verify
    │   └── JournalLostError             records that existed are gone
    ├── RunOwnedError                    inside a run: another process is executing its child run
    ├── LeaseLostError                   another process took the run over
    ├── RunSuspended                     nothing is left but to wait; the run resumes later
    ├── RunCancelled                     somebody cancelled the run
    ├── RunTimeoutError                  the run took longer than its workflow's timeout
    ├── EffectRefusedError               a branch does not make side effects
    └── BudgetExceeded                   the run has used up its budget

    StepwiseWarning (UserWarning)
    ├── ArgumentMutatedWarning           a step changed arguments; an answer cannot repeat that
    ├── ArgumentsChangedWarning          a side effect was answered though its arguments changed
    ├── UnusedRecordWarning              a recorded side effect was not reached again
    ├── UnrecordedCallWarning            a step ran without being recorded
    └── RunWarning                       anything else that a user should check once

``RunStopped`` is not an ``Exception``, so that an agent's ``except Exception`` cannot swallow it
and continue unrecorded.  The first paragraph of a class's docstring is its default message; the
cause and the way out follow, which ``stepwise explain NAME`` prints.  The facts of a case are
attributes.  Every exception survives pickle.
"""

import inspect
from typing import Any

__all__ = [
    "ApprovalDenied",
    "ArgumentMutatedWarning",
    "ArgumentsChangedWarning",
    "BudgetExceeded",
    "CodeChangedError",
    "ConfigurationError",
    "CorruptStoreError",
    "DigestError",
    "EffectRefusedError",
    "JournalLostError",
    "LeaseLostError",
    "NoCandidateError",
    "NotRecordableError",
    "OutsideRunError",
    "RunBusyError",
    "RunCancelled",
    "RunConflictError",
    "RunEndedError",
    "RunNotFoundError",
    "RunOwnedError",
    "RunSkipped",
    "RunStopped",
    "RunSuspended",
    "RunTimeoutError",
    "RunWarning",
    "SignalRefusedError",
    "StepFailedError",
    "StepInDoubtError",
    "StepNotFoundError",
    "StepTimeoutError",
    "StepwiseError",
    "StepwiseWarning",
    "StoreError",
    "StreamChangedError",
    "ThreadMovedOnError",
    "UnreadableValueError",
    "UnrecordedCallWarning",
    "UnusedRecordWarning",
    "WaitTimeoutError",
    "WorkerDiedError",
]


class _Facts(BaseException):
    """An exception with a message and facts; ``BaseException.__reduce__`` then pickles both."""

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        super().__init__(message or _message(type(self)))
        self.__dict__.update(facts)

    def __str__(self) -> str:
        # The inherited method would not do: LookupError's children and OSError format their
        # arguments.
        return escaped(str(self.args[0]))


def escaped(text: str) -> str:
    r"""Return a text with characters that a terminal or browser obeys written as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each in "\n\t"
        else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def _message(cls: type) -> str:
    """Return the first paragraph of a class's docstring, as one line."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())


class StepwiseError(_Facts, Exception):
    """Something went wrong in stepwise.

    Cause: An operation of stepwise failed; the class of the exception says which.

    What to do: Catch the classes below by their own names, or all of them by this one.
    """


class ConfigurationError(StepwiseError):
    """A setting cannot be used.

    Cause: A setting, an option, an environment variable or a key has an invalid value, two of them
    exclude each other, or a package of an extra is not installed.

    What to do: The message names the setting, its value and the values that it takes. Correct it,
    and start the program again.
    """


class RunNotFoundError(StepwiseError, LookupError):
    """There is no such run in the store. `stepwise runs` lists its runs.

    Cause: The run id is misspelled, the run was deleted (`stepwise forget`, `stepwise prune`), or
    the program looks into another store than the one that has the run.

    What to do: Compare the id with `stepwise runs`. If the list is not what you expect, `stepwise
    doctor` prints which store is open; `STEPWISE_STORE`, `STEPWISE_HOME` and `--store` choose
    another.
    """

    run_id: str


class StepNotFoundError(StepwiseError, LookupError):
    """The run has no such step. `stepwise show RUN` lists its steps.

    Cause: The run has no call of this number or name; or the call is there, but there is nothing to
    settle: it is not in doubt.

    What to do: Look up the number in the column STEP of `stepwise show RUN`, and what is in doubt
    with `stepwise in-doubt`.
    """

    run_id: str
    step: int | str


class RunConflictError(StepwiseError):
    """The run id belongs to a run with other arguments. Use another run id, or forget that run.

    Cause: `options(run_id=...)` named a run that was begun with other arguments, of another
    workflow, or with other state of the instance or of captured variables. Its records cannot
    answer this call. The message shows both calls, and what differs. Or a run was to be copied into
    a store that holds another history of the run: both continued after an earlier copy. Or a new
    run would begin beside an unfinished run with side effects, whose workflow is no longer in the
    file. If that workflow was renamed, the new run would repeat the side effects.

    What to do: Give this call another run id. Continue the run of a renamed workflow with
    `STEPWISE_RESUME=RUN`, or begin anew with `.options(fresh=True)`. If the argument should not
    distinguish runs, name it in `ignore=` of the workflow. If the recorded run is no longer needed,
    delete it with `stepwise forget RUN`.
    """

    run_id: str
    recorded: str
    given: str


class ThreadMovedOnError(StepwiseError):
    """Another writer has continued this LangGraph thread. Invoke the graph again to continue there.

    Cause: A graph with a `StepwiseSaver` was executing, and meanwhile another process, thread or
    task stored checkpoints after the one that it continues: this process was suspended while
    another took the thread over, or two requests came for one thread. A checkpoint of this process
    would have become the newest, and hidden the work of the other writer.

    What to do: Invoke the graph again; it continues at the newest checkpoint. Code that means to
    branch gives the `checkpoint_id` of the older checkpoint in its config, or makes the saver with
    `on_stale="branch"`.
    """

    thread_id: str
    checkpoint_id: str
    newest_id: str


class RunBusyError(StepwiseError):
    """Somebody else is executing this run. Wait for it with on_owned="wait", or use another id.

    Cause: A process, thread or task that is alive holds the lease of the run: the program was
    started twice, or one request came twice.

    What to do: Let the other execution finish, and follow it with `stepwise watch RUN`. A workflow
    with `on_owned="wait"` waits for its result; with `on_owned="skip"` it leaves the run alone. If
    the calls are meant to be two runs, use `start="new"` or another run id.
    """

    run_id: str
    owner: Any


class RunSkipped(StepwiseError):  # noqa: N818 -- not an error: the caller asked for it
    """Somebody else is executing this run, and on_owned="skip" leaves the run alone.

    Cause: Somebody else is executing the run, and the workflow has `on_owned="skip"`.

    What to do: Catch it where the workflow is called, and continue with other work.
    `workflow.execute(...)` returns the run instead of raising.
    """

    run_id: str
    owner: Any


class CodeChangedError(StepwiseError):
    """The workflow's code changed, and its remaining journal cannot bridge the change.

    Cause: The run cannot resume inside the edited function, and cannot replay from the top either,
    since its early records were deleted (`prune_journal=True`).

    What to do: Bring back the code as it was, let the run finish, and edit then. Or start over:
    `stepwise forget RUN`.
    """

    run_id: str


class DigestError(StepwiseError, TypeError):
    """This value cannot be part of an identity: equal values would not give equal digests.

    Cause: An argument distinguishes calls by its value, but the call uses the value up: a
    generator, an open file, a stream; or it is data of a kind that is not known here. In the result
    of `key=`, in the input of a graph and in the state of a step loop, a client or a lock is an
    error, too; as an argument it counts by its class. The message says where.

    What to do: Pass a list of what a generator or stream yields. Leave another parameter out of the
    identity with `ignore=("name",)`, or choose with `key=` what distinguishes two calls.
    """

    path: str = ""
    type_name: str = ""


class NotRecordableError(StepwiseError, TypeError):
    """This value cannot be recorded. Return plain data instead.

    Cause: A step returned, or was given, a value that cannot be pickled (or is not data, with
    `codec="json"`): a connection, a generator, a lock, a coroutine that nobody awaited. The message
    says where in the value it is.

    What to do: Return plain data, and make the object inside the step that uses it. Await every
    call of a coroutine function.
    """

    path: str = ""
    type_name: str = ""


class UnreadableValueError(StepwiseError):
    """A recorded value cannot be loaded by this program.

    Cause: A class or module that the value needs is gone or has changed, the value was written by
    another Python version, or it is a pickle and `trust="data"` loads none.

    What to do: Bring the class back under its old name, or run with the Python version that wrote
    the value. Otherwise make the step run again: `stepwise forget RUN STEP`. To resume a run whose
    arguments cannot be loaded, give them: `stepwise.get_run(RUN).resume(name=value)`.
    """


class OutsideRunError(StepwiseError):
    """A step was called where its run is not visible, so that it would have gone unrecorded.

    Cause: A step was called in a forked or worker process of the run, or by a task or thread that
    outlived the workflow. Only the process that executes the run can record, and only until the
    workflow returns.

    What to do: Call the step in the workflow's own process; make the worker's whole job one step,
    or give `stepwise.map` the executor. Await or join what the workflow starts before it returns.
    Work that does not belong to the run goes under `with stepwise.background():`.
    """

    run_id: str


class StepFailedError(StepwiseError):
    """A step failed with an exception that could not be recorded as it was; this is its summary.

    Cause: The exception class could not be pickled when the step failed, or cannot be loaded now.
    The type, the message and the traceback of the original are kept as text.

    What to do: Read `type_name` and `traceback_text`, and treat it as the original exception. To
    get the original class after a restart, make it picklable: define it in a module, and pass all
    its arguments to `super().__init__`.
    """

    type_name: str
    traceback_text: str


class StepTimeoutError(StepwiseError, TimeoutError):
    """An attempt of a step took longer than its timeout.

    Cause: An attempt took longer than `timeout=` of the step. A coroutine was cancelled; a plain
    function runs on in its thread, and its late result is dropped.

    What to do: Raise the timeout, or let `retries=` try again: this error counts as a failed
    attempt. Better, give the client inside the step its own timeout, which stops the work as well.
    """

    step: str
    timeout: float


class StreamChangedError(StepwiseError):
    """A stream that was left before its end began in another way when it was requested again.

    Cause: An earlier attempt of the run closed the stream of a model before its end, so that only
    its beginning is recorded; the code now reads on. The second response of a model cannot be
    joined to the first.

    What to do: Run the program again: the old beginning is forgotten, and the whole request is made
    again.
    """

    run_id: str


class WaitTimeoutError(StepwiseError, TimeoutError):
    """The message or answer that the run waited for did not come in time.

    Cause: `wait_for(..., timeout=...)` or `approve(..., timeout=...)` reached its timeout, counted
    over all attempts of the run, and nobody sent or answered anything.

    What to do: Catch it in the workflow and continue without, or send the missing message and start
    the program again: a run that ended with this error waits anew.
    """

    run_id: str
    step: int
    name: str


class ApprovalDenied(StepwiseError):  # noqa: N818 -- not a fault: a person said no
    """A person denied what a call asked for; it was not made.

    Cause: The call needs a yes (`approve=` of a tool, or `approve(...)`), and somebody answered
    with no. The message says who, when and why.

    What to do: Catch it in the workflow and take another way. A run that ended with this error asks
    again when it is started again.
    """

    run_id: str
    step: int
    by: str
    note: str


class RunEndedError(StepwiseError):
    """The run has ended, so nothing in it can take this.

    Cause: A signal, an answer or a request to cancel came after the run had completed, failed or
    been cancelled.

    What to do: Look at the run with `stepwise show RUN`. Resume a run that failed or was cancelled,
    then send again: a run in progress or a waiting run receives it.
    """

    run_id: str
    status: str


class SignalRefusedError(StepwiseError, ValueError):
    """The value does not fit what the run waits for, or is not JSON.

    Cause: The run waits with `wait_for(name, type=...)`, and the value does not fit the JSON schema
    of that type; or the value has no form in JSON.

    What to do: The message says where the value differs, and `stepwise show RUN` prints what the
    run waits for. Send a value that fits.
    """

    run_id: str
    name: str


class WorkerDiedError(StepwiseError):
    """The worker that executed the body of a step died.

    Cause: The step has an `executor=`, and the process or the node in which its body was executed
    is gone: killed, out of memory, cut off. The body may have done its work, in part or whole.

    What to do: This error is a failed attempt: give a plain step `retries=`. A broken process pool
    executes nothing more, so start the program again. A side effect is in doubt, unless the
    workflow handles this error: look outside whether it happened, and settle it.
    """

    run_id: str
    step: int
    name: str
    where: str


class NoCandidateError(StepwiseError):
    """Each of the calls that best_of() made has failed, so that there is no result to choose.

    Cause: Every call of the function raised an exception. `exceptions` has all of them, in the
    order of the calls.

    What to do: Mend what they say. At the next start of the run all these calls are made again.
    """

    exceptions: tuple[Exception, ...]


class RunStopped(_Facts):
    """The run cannot continue; every later step call of the run raises this again.

    Cause: The message of the derived class says what happened.

    What to do: Settle it as the message says, then start the program again: the run resumes. Do not
    catch it inside a workflow: every later step would raise it again.
    """

    run_id: str


class StepInDoubtError(RunStopped):
    """A side effect was started and never finished: it may or may not have happened.

    Cause: The process died, or an exception other than `fails_cleanly=` came, between the start of
    a tool with `side_effect=True` and the record of its outcome. Or the arguments of a recorded
    side effect differ at this start, so that it could be repeated under another name.

    What to do: Look outside whether it happened (the message has the idempotency key). Then
    `stepwise resolve RUN STEP --landed JSON` records the result, or `stepwise resolve RUN STEP
    --did-not-happen` lets it run; start the program again. `stepwise in-doubt` lists all such
    steps. To have it settled automatically, give the tool `in_doubt=` a function, or
    `in_doubt="retry"` if the other side drops repeats of an idempotency key.
    """

    step: int
    name: str
    arguments: str
    idempotency_key: str | None


class StoreError(RunStopped):
    """The store could not be read or written.

    Cause: The disk is full or read-only, the folder belongs to another user, was deleted during the
    run, lies on a network file system, or was made by a newer version of stepwise. With a store on
    Postgres, the server stayed away for longer than `patience_seconds`, or refused. The message has
    the place and the cause.

    What to do: Remove the cause and start the program again: nothing that was recorded is lost.
    `stepwise doctor` checks the store, the disk, the permissions and the key.
    """

    path: str = ""
    errno: int | None = None


class CorruptStoreError(StoreError):
    """The stored data do not verify: they were damaged, or written with another key.

    Cause: Bytes of the store were changed from outside: by a failing disk, an editor, a copy of
    half a folder, or a restored file beside newer ones.

    What to do: `stepwise verify` lists what is damaged, and `stepwise verify --repair` repairs what
    can be repaired. Else put the whole folder back from a backup and run `stepwise restore`; the
    runs then ask about side effects that the backup lacks.
    """


class JournalLostError(StoreError):
    """Records that were acknowledged are gone from the store.

    Cause: The store has fewer records of the run than were acknowledged: a backup was put back
    without `stepwise restore`, or files were deleted. Continuing could repeat side effects that the
    lost records prove.

    What to do: Put back the newest backup of the whole folder, and run `stepwise restore`. If
    repeating the lost steps is harmless: `stepwise verify RUN --repair --accept-loss`. To start
    over: `stepwise forget RUN`.
    """


class RunOwnedError(RunStopped):
    """Somebody else is executing this child run, or the store refuses its lease.
    `stepwise explain RunOwnedError` says what to do.

    Cause: A workflow called another one, whose run a living process, thread or task is executing.
    This run stops, since it cannot have the answer.

    What to do: Wait until the other one has ended, and start the program again. With
    `on_owned="wait"` the child workflow waits by itself.
    """  # noqa: D205 -- two sentences are the message

    owner: Any


class LeaseLostError(RunStopped):
    """Another process took this run over; nothing more can be written from here.
    `stepwise explain LeaseLostError` says how that happens.

    Cause: Another process took the run. In a store on Postgres this process was silent for longer
    than `lease_seconds` (suspended, or cut off from the server); in a folder, somebody deleted the
    store's lock file. The store refuses the writes of this process, so that two processes never
    write one run.

    What to do: Nothing, if the other process continues the run: follow it with `stepwise watch
    RUN`. Otherwise start the program again.
    """  # noqa: D205 -- two sentences are the message


class RunSuspended(RunStopped):
    """The run waits, and gave up its process meanwhile; it goes on at the statement where it waits.

    Cause: A wait takes longer than `suspend_after` seconds (60 by default). The run is recorded,
    and nothing of it is left in this process. At the top of a script this ends the program with
    exit code 75.

    What to do: Start the program again when the time has come, or after `stepwise send` or
    `stepwise approve`. Or leave that to `stepwise up`.
    """

    waits: Any

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows instead of a traceback: nothing has failed."""
        return [f"{type(self).__name__}: {self}"]


class RunCancelled(RunStopped):
    """Somebody cancelled the run.

    Cause: `stepwise cancel RUN` or `Run.cancel()`. The message says who, when and why.

    What to do: Nothing, if that was meant. `stepwise resume RUN` or `Run.resume()` takes the run up
    again where it stopped; `options(fresh=True)` starts a new one.
    """

    by: str
    reason: str
    at: float
    in_doubt: tuple[tuple[str, int], ...]


class RunTimeoutError(RunStopped):
    """The run took longer than the timeout of its workflow.

    Cause: `@workflow(timeout=...)` counts the seconds since the run began, over all attempts, with
    the time in which it waited or nobody executed it.

    What to do: Start the program again with a longer timeout: the run resumes where it stopped.
    """

    timeout: float


class EffectRefusedError(RunStopped):
    """A branch does not make side effects.

    Cause: A branch of a run (`run.branch()`, `stepwise branch`) called a tool or step with
    `side_effect=True` that its base had not called before.

    What to do: Have such calls answered, `run.branch(effects=lambda call: ...)`, or collected as
    proposals, `effects="collect"`; `branch.adopt()` then asks for each of them, and makes it.
    """

    name: str
    arguments: str


class BudgetExceeded(RunStopped):
    """The run has spent what it may.

    Cause: The steps so far have spent what `@workflow(budget=...)` allows, or more. Steps in flight
    were recorded; no further step began. `err.spent` and `err.budget` have the amounts.

    What to do: See with `stepwise show RUN` what the budget was spent on. With a larger budget,
    `.options(budget=...)`, the next start continues where the run stopped. Until then the run is
    `interrupted`: nothing resumes it automatically.
    """

    spent: Any
    budget: Any


class StepwiseWarning(UserWarning):
    """Base of the warnings of stepwise.

    Cause: One of the warnings below.

    What to do: Filter one with `warnings.filterwarnings("ignore", category=stepwise.RunWarning)`,
    or turn it into an error with `"error"`.
    """


class ArgumentMutatedWarning(StepwiseWarning):
    """A step changed what it was given in a way that an answer cannot repeat; return the change.

    Cause: An answer from the journal puts back what the body changed in its arguments, ``self`` and
    captured variables. That is impossible if the change is never recorded (a secret, an ignored
    argument) or has no place (an iterator, another size of an array). It is also impossible if
    another call held the object too, or if the object was changed in between.

    What to do: Return the change, and apply it in the workflow. The message names its path.
    """


class ArgumentsChangedWarning(StepwiseWarning):
    """A side effect was answered from the journal although its arguments changed.

    Cause: A call of a side effect has the name and the place of a recorded one, but other
    arguments: a text was edited, or holds a time or an id. The recorded outcome was used.

    What to do: Leave a parameter that differs at every start out of the identity, with `ignore=` or
    `key=`. If the two calls are different acts, `stepwise forget RUN STEP` makes the call run at
    the next start.
    """


class UnusedRecordWarning(StepwiseWarning):
    """A side effect that is recorded in the run was not reached again when it resumed.

    Cause: The code was edited, or decided otherwise at this start, so that a side effect that had
    happened was not called again.

    What to do: Check whether the act still fits the result of the run, and undo it by hand if it
    does not. `stepwise show RUN` lists it.
    """


class UnrecordedCallWarning(StepwiseWarning):
    """A step ran without being recorded, beside a run that it may have belonged to.

    Cause: A step was called in a thread, task or process that does not carry the run, while a run
    was in progress.

    What to do: Start the thread inside the workflow, call the step with
    `contextvars.copy_context().run(...)`, or use `stepwise.map`. If the call does not belong to the
    run, put it under `with stepwise.background():`.
    """


class RunWarning(StepwiseWarning):
    """Something about a run that its author should check once.

    Cause: A construct cannot be resumed inside, a variable cannot be part of a checkpoint, a call
    was answered by a run of another process, or the like. The message names the place.

    What to do: Read the message once and choose one of its ways out. The results are right either
    way; the message says what a crash would cost.
    """


for _name in __all__:
    globals()[_name].__module__ = "stepwise"  # tracebacks and pickles show the public name
