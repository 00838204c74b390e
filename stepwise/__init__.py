"""Durable execution for ordinary Python functions.

A script that can be killed anywhere::

  from stepwise import step, tool, workflow

  @step(retries=3)                  # recorded once per run
  def research(topic): ...

  @tool(side_effect=True)           # never repeated silently
  def send_email(to, body): ...

  @workflow
  def agent(topics):
      notes = [research(topic) for topic in topics]
      send_email("team@example.org", "; ".join(notes))

  agent(["tides", "winds"])         # killed, and run again: it resumes where it stopped

The next start of the script resumes the run inside the function, with its local variables, at
the statement where it stopped. Completed steps and tools do not run again.

Recording
  step, tool            decorators for the calls that are recorded
  map                   calls a step for each item, several at a time
  best_of               calls a function several times, and chooses by a score
  resource, reenterable objects to create again on resume: clients, context managers
  identity              which attributes distinguish two clients
  background            exempts a task that does not belong to the run
Running
  workflow              decorator for the function that resumes; makes a Workflow
  Handle, AsyncHandle   a run that ``Workflow.start()`` started
  recover               resumes the crashed runs, when a server starts
  current_run, current_step   the run and the step in progress
  Budget, spend         a limit for what a run spends; says what was spent (Run.spent)
  RecoverableAgent      a step loop with explicit checkpoints (Checkpoint, CheckpointStore)
Waiting
  Limit                 what a provider allows, shared by all runs: requests, tokens, at a time
  sleep, sleep_until    a run waits for a time, which a resumed one does not begin anew
  wait_for              waits for a value that somebody sends to the run: Run.send
  approve               waits for a person's yes: Run.approve, Run.deny; a tool has ``approve=``
Saying
  emit                  says something while the run works, for readers: Run.stream
Looking
  runs, get_run         the recorded runs; a Run has steps, checkpoints, locals, result, error
  Run.why, Run.history, Run.bisect   why a run stopped, and when a variable changed
  on_event              a callback for each Event; the logger ``stepwise`` reports the same
Settling
  Run.resolve           answers a call in doubt: did the side effect happen?
  Landed, DidNotHappen, Inconclusive   what an ``in_doubt=`` function returns
  Run.fork, Run.compensate, Run.forget, Run.delete
  Run.branch            one moment of a run, continued many times, without side effects
  evaluate              branches of many runs, each with a score; makes an Evaluation
Configuring
  configure             where runs are stored, encryption, what distinguishes calls
  Retain                what stepwise up keeps of ended runs: configure(retain=...)
Errors
  stepwise.errors       shows all exceptions and warnings as one tree

Environment variables: STEPWISE_HOME (the folder, ~/.stepwise), STEPWISE_STORE (the URL of a store),
STEPWISE_FRESH=1 (start new runs), STEPWISE_START, STEPWISE_RESUME=RUN, STEPWISE_ENCRYPT=1,
STEPWISE_KEY, STEPWISE_PROGRESS, STEPWISE_QUIET=1 (no notices), STEPWISE_DEBUG=1 (full tracebacks).

More: README.md, docs/index.md (tutorial, how-to guides, concepts, reference), docs/design.md (every
promise and its limits); ``stepwise --help`` lists the commands.

For maintainers
---------------
The rooms of the house, each importing only from those above it::

    errors         every exception and warning, as one tree
    _runtime       the process: settings, messages, signals, threads, forks, events
    _values        values: digests, encoding, pickling, comparison, previews, secrets
    _display       text and HTML of runs; live progress
    _rewrite       functions that can be entered in the middle: syntax tree in, function out
    stores         public: where runs are kept: memory, disk, postgres; group commit
    _identity      what tells calls and runs apart: arguments, attributes, captured variables
    _changes       what a call changes in what it was given: found, described, put back
    _journal       what is recorded: sealed, chained, append-only; one owner for each run
    _checkpoints   positions with local variables, to bytes and back
    _matching      which recorded call answers which call
    _execution     a run in progress: its tasks, threads, call sites, outcomes and totals
    _calls         one call of a step: look up, run, retry, doubt, record, undo
    _runs          looking at runs; settling and forking them
    _workflows     @workflow: which run a call means, where it resumes, how it executes; host API
    agent          public: a step loop that recovers, and its checkpoints
    graph          public: graphs of functions, by the classic names
    notebook       public: cells of a notebook that are steps
    integrations   public: classes for users of agent frameworks
    ui             public: the page of runs in a browser
    http           public: runs and their streams over HTTP
    mcp            public: the tools of coding agents
    cli            public: the command line
    testing        public: for the tests of users
    __main__       python -m stepwise
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

import stepwise.errors as errors  # noqa: PLR0402 -- this module is not made yet
from stepwise._calls.steps import step, tool
from stepwise._checkpoints.resources import reenterable, resource
from stepwise._execution.tasks import background
from stepwise._identity.clients import identity
from stepwise._runtime.settings import configure
from stepwise._workflows.workflow import Workflow, workflow
from stepwise.errors import *  # noqa: F403

if TYPE_CHECKING:
    from stepwise._calls.approvals import approve
    from stepwise._calls.branching import BranchCall
    from stepwise._calls.doubt import CompletedCall, DidNotHappen, Inconclusive, InDoubtCall, Landed
    from stepwise._calls.emitting import emit
    from stepwise._calls.limited import Limit
    from stepwise._calls.parallel import map  # noqa: A004
    from stepwise._calls.steps import spend
    from stepwise._calls.waiting import sleep, sleep_until, wait_for
    from stepwise._execution.budget import Budget, Spent
    from stepwise._execution.suspension import PendingWait
    from stepwise._runs.branching import RunBranch, RunBranches
    from stepwise._runs.messages import InboxMessage
    from stepwise._runs.overview import Program
    from stepwise._runs.questions import Question
    from stepwise._runs.run import CurrentStep, Run, current_run, current_step, get_run, runs
    from stepwise._runs.steps import (
        PossibleStep,
        RecordedFrame,
        RunCheckpoint,
        StepAttempt,
        StepRecord,
        StoppedCall,
    )
    from stepwise._runs.streaming import RunStream, StreamItem
    from stepwise._runs.verify import Verification
    from stepwise._runs.why import (
        CodePlace,
        FirstTrue,
        VariableChange,
        VariableHistory,
        VariableShown,
        Why,
    )
    from stepwise._runtime.event import Event, on_event
    from stepwise._runtime.settings import Retain
    from stepwise._workflows.best_of import best_of
    from stepwise._workflows.evaluation import Evaluation, evaluate
    from stepwise._workflows.handles import AsyncHandle, Handle, Recovered, recover
    from stepwise.agent import Checkpoint, CheckpointStore, RecoverableAgent
    from stepwise.integrations.instrument import instrument, uninstrument

__all__ = [
    "AsyncHandle",
    "BranchCall",
    "Budget",
    "Checkpoint",
    "CheckpointStore",
    "CodePlace",
    "CompletedCall",
    "CurrentStep",
    "DidNotHappen",
    "Evaluation",
    "Event",
    "FirstTrue",
    "Handle",
    "InDoubtCall",
    "InboxMessage",
    "Inconclusive",
    "Landed",
    "Limit",
    "PendingWait",
    "PossibleStep",
    "Program",
    "Question",
    "RecordedFrame",
    "RecoverableAgent",
    "Recovered",
    "Retain",
    "Run",
    "RunBranch",
    "RunBranches",
    "RunCheckpoint",
    "RunStream",
    "Spent",
    "StepAttempt",
    "StepRecord",
    "StoppedCall",
    "StreamItem",
    "VariableChange",
    "VariableHistory",
    "VariableShown",
    "Verification",
    "Why",
    "Workflow",
    "approve",
    "background",
    "best_of",
    "configure",
    "current_run",
    "current_step",
    "emit",
    "errors",
    "evaluate",
    "get_run",
    "identity",
    "instrument",
    "map",
    "on_event",
    "recover",
    "reenterable",
    "resource",
    "runs",
    "sleep",
    "sleep_until",
    "spend",
    "step",
    "tool",
    "uninstrument",
    "wait_for",
    "workflow",
]
__all__ += errors.__all__

__version__ = "0.1.0"

_ON_USE = {
    **dict.fromkeys(("CurrentStep", "current_step"), "_runs.run"),
    **dict.fromkeys(
        ("CompletedCall", "DidNotHappen", "Inconclusive", "InDoubtCall", "Landed"), "_calls.doubt"
    ),
    "Event": "_runtime.event",
    "approve": "_calls.approvals",
    "emit": "_calls.emitting",
    **dict.fromkeys(("AsyncHandle", "Handle"), "_workflows.handles"),
    "InboxMessage": "_runs.messages",
    **dict.fromkeys(("StepAttempt", "StepRecord"), "_runs.steps"),
    **dict.fromkeys(("current_run", "get_run", "runs"), "_runs.run"),
    **dict.fromkeys(("instrument", "uninstrument"), "integrations.instrument"),
    "on_event": "_runtime.event",
    "PendingWait": "_execution.suspension",
    "Program": "_runs.overview",
    "Question": "_runs.questions",
    "RunCheckpoint": "_runs.steps",
    **dict.fromkeys(("RunStream", "StreamItem"), "_runs.streaming"),
    "Verification": "_runs.verify",
    **dict.fromkeys(("CodePlace", "FirstTrue", "VariableChange"), "_runs.why"),
    "BranchCall": "_calls.branching",
    **dict.fromkeys(("RunBranch", "RunBranches"), "_runs.branching"),
    **dict.fromkeys(("VariableHistory", "VariableShown", "Why"), "_runs.why"),
    **dict.fromkeys(("RecordedFrame", "PossibleStep", "StoppedCall"), "_runs.steps"),
    "Limit": "_calls.limited",
    "map": "_calls.parallel",
    "best_of": "_workflows.best_of",
    **dict.fromkeys(("Evaluation", "evaluate"), "_workflows.evaluation"),
    **dict.fromkeys(("sleep", "sleep_until", "wait_for"), "_calls.waiting"),
    "spend": "_calls.steps",
    **dict.fromkeys(("Budget", "Spent"), "_execution.budget"),
    **dict.fromkeys(("Recovered", "recover"), "_workflows.handles"),
    "Retain": "_runtime.settings",
    "Run": "_runs.run",
    **dict.fromkeys(("Checkpoint", "CheckpointStore", "RecoverableAgent"), "agent"),
    **dict.fromkeys(("load_ipython_extension", "unload_ipython_extension"), "notebook"),
}


def __getattr__(name: str) -> object:
    """Load a name that recording programs do not need, when it is first used."""
    module = _ON_USE.get(name)
    if module is None:
        raise AttributeError(f"module 'stepwise' has no attribute {name!r}")
    value = getattr(_import_module(f"stepwise.{module}"), name)
    if name in __all__:
        globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


Workflow.__module__ = "stepwise"  # tracebacks and pickles show the public name
