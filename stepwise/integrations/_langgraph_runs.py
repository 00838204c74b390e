"""Invocations of a graph by code of a run: their ids, and the points where they continue.

The beginning of each invocation is a recorded step, whose result is the invocation's id.  The saver
puts the id on everything that the invocation stores.  When the run resumes, its code invokes the
graph once more, and the journal answers with the same id.  The saver then knows what this very
invocation has stored.  The graph continues there instead of starting over from its input.

Calls of steps and tools made by nodes are matched by node: each node of a superstep is a branch.
The names of branches do not contain ids of checkpoints and tasks, since these are new if a kill
came before the checkpoint was stored.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from stepwise._runtime.facts import NamedTuple
from stepwise._workflows.host import (
    Step,
    call,
    continue_branches,
    is_in_run,
    name_branches,
    run_here,
)
from stepwise.integrations._langgraph_threads import Stored, Thread
from stepwise.integrations._supported import does_not_fit

NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""LangGraph's task of the writes that come with the input, such as those of a ``Command``."""

_PREFIX = "graph "
_NONE, _MOST = ("", ""), 1000
_current: ContextVar[tuple[str, str] | None] = ContextVar("stepwise_graph_invocation", default=None)
_around: ContextVar[tuple[str, str]] = ContextVar("stepwise_graph_around", default=("", ""))
_addressed: ContextVar[str] = ContextVar("stepwise_graph_addressed", default="")
_made: set[str] = set()  # ids that this process made
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_latest: dict[str, tuple[str, str]] = {}  # by thread: LangGraph calls back in other contexts
RUNTIME, TASK = "__pregel_runtime", "__pregel_task_id"  # in the config of a graph's loop, a task


def current(config: Mapping[str, Any]) -> str:
    """Return the id of the invocation around the caller; empty for none."""
    return _invocation(config)[0]


def _invocation(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the id of the current invocation, and the id of its run."""
    found = _current.get()
    if found is None:
        found = _latest.get(str(config["configurable"].get("thread_id")), _NONE)
    return found


class Whence(NamedTuple):
    """The point where an invocation continues that a crash cut off.

    Args:
        stored: the checkpoint; ``None`` for the newest of the thread.
        goes_on: whether the graph continues there; otherwise it gets its input again.
        invocation: the invocation whose writes count; empty for all.
    """

    stored: Stored | None
    goes_on: bool
    invocation: str


def _invoked(thread_id: str) -> str:  # noqa: ARG001 -- it distinguishes the calls
    """Make the id of an invocation."""
    made = uuid4().hex
    _made.add(made)
    return made


async def _ainvoked(thread_id: str) -> str:
    return _invoked(thread_id)


_step = Step(_invoked, kind="step", name="langgraph")
_astep = Step(_ainvoked, kind="step", name="langgraph")


def is_begun(config: Mapping[str, Any]) -> bool:
    """Return whether a graph's loop requests its checkpoint, as part of a run.

    Any other caller belongs to no invocation.
    """
    facts = config["configurable"]
    if RUNTIME not in facts:
        if not facts.get("checkpoint_ns") and _node_config() is None:
            _current.set(_NONE)
        return False
    if facts.get("checkpoint_ns") or TASK in facts:
        return False
    if facts.get("checkpoint_id"):
        _addressed.set(str(facts["thread_id"]))
    elif "checkpoint_id" in facts and _addressed.get() == str(facts["thread_id"]):
        _addressed.set("")  # the loop checks whether the checkpoint is the newest
        return False
    if not is_in_run():
        _current.set(_NONE)
        _latest.pop(str(facts["thread_id"]), None)
    return is_in_run()


def begin(thread_id: str) -> bool:
    """Begin an invocation; return whether it began before a crash."""
    return _begun(thread_id, _step(thread_id))


async def abegin(thread_id: str) -> bool:
    """Begin an invocation; return whether it began before a crash."""
    return _begun(thread_id, await call(_astep, (thread_id,)))


def check_fits() -> None:
    """Check that LangGraph is a version whose invocations can be distinguished.

    Raises:
        ConfigurationError: the version is not supported.
    """
    try:
        from langgraph._internal import _constants as found
    except ImportError:
        if importlib.util.find_spec("langgraph.pregel") is None:
            return  # without LangGraph no graph is invoked
        found = None
    names = ("CONFIG_KEY_RUNTIME", "CONFIG_KEY_TASK_ID", "NULL_TASK_ID")
    if [getattr(found, name, None) for name in names] != [RUNTIME, TASK, NULL_TASK]:
        raise does_not_fit(
            "langgraph.checkpoint",
            "the installed LangGraph calls the parts of its configs by other names",
        )


def _begun(thread_id: str, invocation: str) -> bool:
    name_branches(_branch)
    if len(_latest) >= _MOST:
        _latest.pop(next(iter(_latest)))
    _latest[thread_id] = invocation, run_here()
    _current.set(_latest[thread_id])
    _around.set(("", ""))
    if invocation in _made:
        _made.discard(invocation)
        return False
    continue_branches(f"{_PREFIX}{invocation}/")
    return True


def continued(thread: Thread, config: Mapping[str, Any]) -> Whence:
    """Return where the current invocation continues."""
    invocation = current(config)
    checkpoints = list(thread.checkpoints.values())
    all_writes = {place: list(writes.items()) for place, writes in list(thread.writes.items())}
    own = [each for each in checkpoints if each.invocation == invocation and not each.ns]
    bases = {
        place
        for place, writes in all_writes.items()
        if not place[0] and any(each.invocation == invocation for _, each in writes)
    }
    with_input = [
        place
        for place in bases
        if any(
            task == NULL_TASK and each.invocation == invocation
            for (task, _), each in all_writes[place]
        )
    ]
    if config["configurable"].get("checkpoint_id"):
        return Whence(None, goes_on=False, invocation="")  # it replays a separate branch
    if own and not with_input:
        newest = max(own, key=lambda each: each.number)
        return Whence(newest, goes_on=True, invocation=invocation)
    # A Command is applied again at its own checkpoint: later, it would answer another question.
    first = min(
        (thread.checkpoints[each].number for each in bases if each in thread.checkpoints), default=0
    )
    found = [each for each in checkpoints if each.number == first]
    return Whence(found[0] if found else None, goes_on=False, invocation=invocation)


def note_nested(config: Mapping[str, Any]) -> None:
    """Note that a node invokes a graph, whose nodes' branches are inside the node's own branch."""
    namespace = config["configurable"].get("checkpoint_ns", "")
    if namespace and current(config):
        _around.set((namespace, _name(config)))


def _branch(run_id: str) -> str:
    """Return the name of the branch that executes this code of a run."""
    config = _node_config()
    if config is None or _invocation(config)[1] != run_id:
        return ""  # a child run has its own calls
    return _name(config)


def _node_config() -> Mapping[str, Any] | None:
    """Return the config of the node around the caller; ``None`` outside of any node."""
    from langchain_core.runnables.config import var_child_runnable_config

    config: Mapping[str, Any] | None = var_child_runnable_config.get()
    return config if config is not None and TASK in config.get("configurable", {}) else None


def _name(config: Mapping[str, Any]) -> str:
    facts, place = config.get("metadata") or {}, config["configurable"].get("checkpoint_ns", "")
    around, prefix = _around.get()
    if not around or not place.startswith(f"{around}|"):
        names = [_UUID.sub("", each).rstrip(":") for each in place.split("|")[:-1]]
        prefix = f"{_PREFIX}{current(config)}/" + "".join(f"{each}/" for each in names)
    path = ",".join(_parts(facts.get("langgraph_path", ())))
    return f"{prefix}{facts.get('langgraph_step', '')}:{path}/"


def _parts(path: Any) -> list[str]:
    """Return the names and numbers of a task's path, without ids, which differ between attempts."""
    if isinstance(path, (tuple, list)):
        return [part for each in path for part in _parts(each)]
    if isinstance(path, bool) or not isinstance(path, (str, int)) or _UUID.search(str(path)):
        return []
    return [str(path).removeprefix("__pregel_")]
