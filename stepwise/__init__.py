"""Durable execution for ordinary Python functions.

Decorate them with ``@step``, ``@tool(side_effect=True)`` and ``@workflow``; run the script, kill it
anywhere, run it again: it goes on where it stopped, and nothing that was done is done twice.

The map, each layer importing only from those above it::

    errors                         every exception and warning, as one tree
    _forks                         what a forked child can still use
    _config _notices _interrupts   settings; one-line messages; Ctrl-C held back
    _tracebacks                    exceptions without our frames
    _limits                        memory, space, open files that ran out
    _tasks _threads                what asyncio is doing; threads that belong to a run
    _pieces _group                 large bytes that are never joined; group commit
    _digest_atoms _digest_types    equal values, equal digests
    _digest_builtins _frameworks   functions, enums; what is new at every start
    _sentinels                     objects that are compared with is
    _instances                     objects of which everything is known
    _trees _grown                  data, and whether it changed; lists that grew
    _forms                         objects that pickle stores wrongly
    _digest _pickling              the same for all; code by value
    _previews _alike               values shortened to a line; a value and its copy
    _secrets _hiding               texts that must not be stored; arguments not stored, not shown
    _tagged _raised                values, exceptions as tagged JSON
    _data _codec                   values as data only; values to bytes and back
    _trust                         files that nobody else can have written
    _cipher _seal _records         encryption; the envelope; what is recorded
    _display                       runs and steps as text and HTML
    _event _events _doing          what happens; who listens; what a run is doing
    _progress_terminal             that as a line of the terminal
    _progress_notebook _progress   or as an output in a notebook; where it is shown
    _moments _places               times and random ids; what a file is called
    _classes _clients _parts       classes of one name; clients by fields; calls told apart
    _injected _identity            what frameworks inject; calls and runs told apart
    _captures                      what a workflow function captured
    _call_parts                    what tells its calls apart, part by part
    _held_parts                    the same of functions that are given: nodes, agents
    _reloading                     edits that take effect while a program runs
    _process _registry             what a process remembers; the workflows that it knows
    _resources _counts             what is made anew; counting
    rewrite                        functions that can be entered in the middle
    stores                         where runs are kept: memory, disk, sqlite
    _heads _lease                  listings; one owner per run
    _chain _marks _journal         verified records; how far they go; the append-only records
    _chunks _known _references     parts of checkpoints; what is stored; what is referred to
    _chained                       exceptions in variables
    _surroundings _snapshot        what variables refer to; variables to bytes
    _deltas _holders               changes that can be repeated; attributes and captured variables
    _sights                        what these held when they were looked at last
    _subjects _callers             instances that are called; which of them made a recorded call
    _recorded _stops _matching     what became of a call; what was said of it; what answers
    _course _summary               a run's attempts; what a long journal comes to
    _unwinding _origin             failures; where a call is made
    _contents _mutation _outcomes  what a call did to its arguments; how it ended
    _inputs                        the arguments of a run, to call it again
    _checkpoints _checkpoint_list  positions with variables; for who looks at them
    _verification _inspection      whether all of a run verifies; looking into variables
    _flows _run _others _unseen    tasks and threads; a run in progress; who else is in it
    _doubt _attempts _history      side effects in doubt; retries; what happened
    _operations _recording _claim  what takes time in a call; recording; waiting for others
    _perform                       a call from look-up to outcome
    _drive _adrive _awaitables     what takes time, executed; awaited; never awaited
    _options _caches _steps        what options take; caches of side effects; @step and @tool
    _workers _map _compensation    bodies elsewhere; many calls at once; undoing
    _fork_point _forking           a point of a run; a new run from there
    _step_stream                   steps in their order, none of them kept
    _overview _settling            what is to be said of a run; what somebody says of a step
    _runs _listing _context        looking at runs; finding them; current_step
    _going_on _interrupted         an attempt takes over from those before it; or is stopped
    _loops _remade                 iterators begun again; clients made again
    _reach _complaints             what may call a step; why there is no checkpoint
    _module_state                  globals that a workflow assigns
    _frames _resume _definition    checkpoints of a frame; where a run goes on; options
    _renamed _reports _opened      under another name; what is told of it; a run that was taken up
    _lifecycle _execute            how it is taken up; how it is executed
    _turns                         a run that somebody else executes: refused, waited for
    _called _starts                a call, one inside a run too; which run a start means
    _invoke _calling               a call of a workflow; its four forms
    _handles _recover _workflow    runs beside their caller; runs gone on with; @workflow
    _demo                          what the command line demonstrates
    _classic agent                 checkpoints as objects; a step loop that recovers
    _graph_model _graph_tokens     nodes and edges; where a branch is, with its memory
    _graph_visits _graph_walk      a visit of a node; branches that move along the edges
    _graph_result                  what came of an execution
    _graph_checkpoints _graph_run  their checkpoints; the run behind an execution
    graph                          graphs of functions, by the classic names
    _notebook_inputs               what a notebook's cell depends on
    _notebook_output               what it shows
    _notebook_run _notebook_steps  cells as steps of the notebook's run; the magic that makes them
    integrations                   their own classes, for users of agent frameworks
    testing cli notebook           for users' tests; the command line; magics for notebooks
    __main__                       python -m stepwise
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from stepwise import errors
from stepwise._clients import identity
from stepwise._config import configure
from stepwise._events import on_event
from stepwise._resources import reenterable, resource
from stepwise._steps import step, tool
from stepwise._unseen import background
from stepwise._workflow import Workflow, workflow
from stepwise.errors import (
    ArgumentMutatedWarning,
    ArgumentsChangedWarning,
    CodeChangedError,
    ConfigurationError,
    CorruptStoreError,
    DigestError,
    JournalLostError,
    LeaseLostError,
    NotRecordableError,
    OutsideRunError,
    RunBusyError,
    RunConflictError,
    RunNotFoundError,
    RunOwnedError,
    RunSkipped,
    RunStopped,
    RunWarning,
    StepFailedError,
    StepInDoubtError,
    StepNotFoundError,
    StepTimeoutError,
    StepwiseError,
    StepwiseWarning,
    StoreError,
    UnreadableValueError,
    UnrecordedCallWarning,
    UnusedRecordWarning,
)

if TYPE_CHECKING:
    from stepwise._compensation import CompletedCall
    from stepwise._context import CurrentStep, current_run, current_step
    from stepwise._doubt import DidNotHappen, Inconclusive, InDoubtCall, Landed
    from stepwise._event import Event
    from stepwise._handles import AsyncHandle, Handle
    from stepwise._history import StepRecord
    from stepwise._listing import get_run, runs
    from stepwise._map import map  # noqa: A004
    from stepwise._recover import recover
    from stepwise._runs import Run
    from stepwise.agent import Checkpoint, CheckpointStore, RecoverableAgent

__all__ = [
    "ArgumentMutatedWarning",
    "ArgumentsChangedWarning",
    "AsyncHandle",
    "Checkpoint",
    "CheckpointStore",
    "CodeChangedError",
    "CompletedCall",
    "ConfigurationError",
    "CorruptStoreError",
    "CurrentStep",
    "DidNotHappen",
    "DigestError",
    "Event",
    "Handle",
    "InDoubtCall",
    "Inconclusive",
    "JournalLostError",
    "Landed",
    "LeaseLostError",
    "NotRecordableError",
    "OutsideRunError",
    "RecoverableAgent",
    "Run",
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
    "StepRecord",
    "StepTimeoutError",
    "StepwiseError",
    "StepwiseWarning",
    "StoreError",
    "UnreadableValueError",
    "UnrecordedCallWarning",
    "UnusedRecordWarning",
    "Workflow",
    "background",
    "configure",
    "current_run",
    "current_step",
    "errors",
    "get_run",
    "identity",
    "map",
    "on_event",
    "recover",
    "reenterable",
    "resource",
    "runs",
    "step",
    "tool",
    "workflow",
]

__version__ = "0.1.0"

_ON_USE = {
    "CompletedCall": "_compensation",
    **dict.fromkeys(("CurrentStep", "current_run", "current_step"), "_context"),
    **dict.fromkeys(("DidNotHappen", "Inconclusive", "InDoubtCall", "Landed"), "_doubt"),
    "Event": "_event",
    **dict.fromkeys(("AsyncHandle", "Handle"), "_handles"),
    "StepRecord": "_history",
    **dict.fromkeys(("get_run", "runs"), "_listing"),
    "map": "_map",
    "recover": "_recover",
    "Run": "_runs",
    **dict.fromkeys(("Checkpoint", "CheckpointStore", "RecoverableAgent"), "agent"),
    **dict.fromkeys(("load_ipython_extension", "unload_ipython_extension"), "notebook"),
}


def __getattr__(name: str) -> object:
    """What a program that only records its steps does not use, loaded when it is used."""
    module = _ON_USE.get(name)
    if module is None:
        raise AttributeError(f"module 'stepwise' has no attribute {name!r}")
    value = getattr(_import_module(f"stepwise.{module}"), name)
    if name in __all__:
        globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _name in __all__:
    if isinstance(globals().get(_name), type):
        globals()[_name].__module__ = "stepwise"  # tracebacks and pickles show the public name
