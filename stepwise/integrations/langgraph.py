"""``StepwiseSaver``: LangGraph's checkpoints in a store of stepwise.

    from stepwise.integrations.langgraph import StepwiseSaver

    graph = builder.compile(checkpointer=StepwiseSaver())

All data is sealed, verified before it is deserialized, and stored once: a checkpoint of a long
conversation adds only its new messages.  A graph that a ``@workflow`` invokes continues at its last
checkpoint after a kill.  The journal then answers the steps and tools that its nodes call.

The beginning of each *invocation* by code of a run is a recorded step, whose result is the
invocation's id.  The saver puts the id on everything that the invocation stores.  When the run
resumes, its code invokes the graph once more, and the journal answers with the same id.  The saver
then knows what this very invocation has stored.  The graph continues there instead of starting over
from its input.

Calls of steps and tools made by nodes are matched by node: each node of a superstep is a branch.
The names of branches do not contain ids of checkpoints and tasks, since these are new if a kill
came before the checkpoint was stored.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import importlib.util
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import uuid4

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, notice
from stepwise._values.unpickling import check_trust
from stepwise._workflows import host
from stepwise.errors import ConfigurationError, CorruptStoreError, ThreadMovedOnError
from stepwise.integrations import _langgraph_threads as threads
from stepwise.integrations._supported import does_not_fit, require

require("langgraph.checkpoint")

from langgraph.checkpoint.base import (  # noqa: E402 -- its version is checked first
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_metadata,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StepwiseSaver"]

Config = Mapping[str, Any]
T = TypeVar("T")
_Tuples = builtins.list  # the class below has a method named list
_FACTS = ("v", "ts", "updated_channels")
_BRANCHES = "__stepwise_branches_at"  # in the config of a graph's loop: an older checkpoint
_read_newest: ContextVar[tuple[str, str, str] | None] = ContextVar(
    "stepwise_graph_read_newest", default=None
)
_KNOWN = {*_FACTS, "id", "channel_values", "channel_versions", "versions_seen"}


# -- invocations ----------------------------------------------------------------------------------

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

    stored: threads.Stored | None
    goes_on: bool
    invocation: str


def _invoked(thread_id: str) -> str:  # noqa: ARG001 -- it distinguishes the calls
    """Make the id of an invocation."""
    made = uuid4().hex
    _made.add(made)
    return made


async def _ainvoked(thread_id: str) -> str:
    return _invoked(thread_id)


_step = host.Step(_invoked, kind="step", name="langgraph")
_astep = host.Step(_ainvoked, kind="step", name="langgraph")


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
    if not host.is_in_run():
        _current.set(_NONE)
        _latest.pop(str(facts["thread_id"]), None)
    return host.is_in_run()


def begin(thread_id: str) -> bool:
    """Begin an invocation; return whether it began before a crash."""
    return _begun(thread_id, _step(thread_id))


async def abegin(thread_id: str) -> bool:
    """Begin an invocation; return whether it began before a crash."""
    return _begun(thread_id, await host.call(_astep, (thread_id,)))


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
    host.name_branches(_branch)
    if len(_latest) >= _MOST:
        _latest.pop(next(iter(_latest)))
    _latest[thread_id] = invocation, host.run_here()
    _current.set(_latest[thread_id])
    _around.set(("", ""))
    if invocation in _made:
        _made.discard(invocation)
        return False
    host.continue_branches(f"{_PREFIX}{invocation}/")
    return True


def continued(thread: threads.Thread, config: Mapping[str, Any]) -> Whence:
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


# -- saver -----------------------------------------------------------------------------------------


def _in_thread(method: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """Return the async form of a saver's method, which also calls an override in a subclass."""
    name = method.__name__

    @functools.wraps(method)
    async def in_thread(self: Any, *args: Any, **kwargs: Any) -> T:
        return await asyncio.to_thread(getattr(self, name), *args, **kwargs)

    in_thread.__name__ = f"a{name}"
    in_thread.__qualname__ = f"StepwiseSaver.a{name}"
    return in_thread


class StepwiseSaver(BaseCheckpointSaver[Any]):  # type: ignore[misc]
    """A checkpointer for LangGraph on a store of stepwise.

    Threads and processes may share a store; writers of one thread take turns.  Each write is
    durable when its method returns.  The async methods work in threads.

    Args:
        store: a URL (``"disk:/path"``, ``"memory:"``), a path or a store object; by default the
            configured store.
        serde: LangGraph's serializer; by default ``JsonPlusSerializer``.
        on_corrupt: what happens if the newest checkpoint, or a record that it needs, is damaged or
            lost.  ``"raise"``: ``CorruptStoreError``.  ``"fallback"``: use the newest intact
            checkpoint before it, with a notice.
        on_stale: what happens to a writer whose checkpoint is no longer the newest, since another
            writer has continued the thread.  ``"raise"``: ``ThreadMovedOnError``.  ``"branch"``:
            accept the write as the newest checkpoint.  A graph that is invoked or updated with the
            ``checkpoint_id`` of an older checkpoint branches there either way.

    Raises:
        ConfigurationError: LangGraph is missing, too old, or of an unsupported version;
            ``on_corrupt`` or ``on_stale`` is unknown; or ``trust="data"`` is set, and ``serde`` is
            LangGraph's own.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        serde: Any = None,
        on_corrupt: Literal["raise", "fallback"] = "raise",
        on_stale: Literal["raise", "branch"] = "raise",
    ) -> None:
        super().__init__(serde=serde)
        if serde is None:
            check_trust("LangGraph's serializer makes objects of any class, as pickles do")
        if on_corrupt not in ("raise", "fallback"):
            raise ConfigurationError(f"on_corrupt={on_corrupt!r}: use 'raise' or 'fallback'")
        if on_stale not in ("raise", "branch"):
            raise ConfigurationError(f"on_stale={on_stale!r}: use 'raise' or 'branch'")
        check_fits()
        self._threads = threads.ThreadStore(store)
        self._on_corrupt, self._on_stale = on_corrupt, on_stale

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything that was read; the store stays open for other users."""
        self._threads.forget()

    # -- reading ---------------------------------------------------------------------------------

    def get_tuple(self, config: Config) -> Any:
        """Return the config's checkpoint, otherwise the newest, with its writes.

        Returns:
            LangGraph's ``CheckpointTuple``, or ``None`` if the checkpoint is missing.

        Raises:
            CorruptStoreError: the checkpoint, or a record that it needs, is damaged or lost.
            ConfigurationError: the thread was written with another key.
        """
        again = is_begun(config) and begin(_thread_of(config))
        note_nested(config)
        return _noted(config, self._get(config, again=again))

    async def aget_tuple(self, config: Config) -> Any:
        """Return a checkpoint; see :meth:`get_tuple`."""
        again = is_begun(config) and await abegin(_thread_of(config))
        note_nested(config)
        return _noted(config, await asyncio.to_thread(self._get, config, again=again))

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 -- LangGraph's name
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Yield checkpoints with their writes, the newest first; skip damaged checkpoints.

        Args:
            config: restrict the list to its thread, namespace and checkpoint id, if it has these.
            filter: restrict the list to checkpoints whose metadata has these values.
            before: restrict the list to checkpoints with a smaller id than this config's.
            limit: the maximum number of checkpoints.
        """
        facts = config["configurable"] if config else {}
        only, ns = facts.get("checkpoint_id"), facts.get("checkpoint_ns")
        until = before["configurable"].get("checkpoint_id") if before else None
        ids = [_thread_of(config)] if config else self._threads.thread_ids()
        found = [
            (stored.id, thread_id, thread, stored)
            for thread_id in ids
            for thread in [self._threads.read(thread_id)]
            for stored in thread.newest_first(ns)
            if (not only or stored.id == only) and (not until or stored.id < until)
        ]
        found.sort(key=lambda each: each[0], reverse=True)
        for _, thread_id, thread, stored in found:
            if limit is not None and limit <= 0:
                return
            if not thread.is_certain(stored):
                notice(f"{self._named(thread_id)}: {_when(stored)} is damaged; left out of a list")
                continue
            metadata = self._loads(thread.blob(stored.metadata))
            if filter and any(metadata.get(key) != value for key, value in filter.items()):
                continue
            limit = limit - 1 if limit is not None else None
            yield self._tuple(thread_id, thread, stored, metadata, of=config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 -- LangGraph's name
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Any]:
        """Yield checkpoints; see :meth:`list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """Return channels' last stored values, and the writes since then, oldest first.

        Args:
            config: names the checkpoint, whose own writes are left out.
            channels: names of channels.
        """
        if not channels:
            return {}
        thread = self._threads.read(_thread_of(config))
        stored = self._found(config, thread)
        left, seeds = set(channels), dict[str, Any]()
        writes: dict[str, _Tuples[Any]] = {channel: [] for channel in channels}
        for each in _ancestors(thread, stored) if stored is not None else ():
            if not left:
                break
            if not thread.is_certain(each):
                raise self._damaged(_thread_of(config), each)
            for (task, _), write in reversed(thread.pending(each)):
                if write.channel in left:
                    value = self._value(thread.raw(write.value))
                    writes[write.channel].append((task, write.channel, value))
            for channel in left & each.values.keys():
                seeds[channel] = self._value(thread.raw(each.values[channel]))
                left.discard(channel)
        return {
            channel: {
                "writes": writes[channel][::-1],
                **({"seed": seeds[channel]} if channel in seeds else {}),
            }
            for channel in channels
        }

    # -- writing ---------------------------------------------------------------------------------

    def put(
        self,
        config: Config,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Store a checkpoint; return the config that names it.

        Args:
            config: names the thread, the namespace and the parent checkpoint.
            new_versions: versions of the channels that changed since the parent.

        Raises:
            RunBusyError: another process has been writing to the thread for a minute.
            ThreadMovedOnError: the parent is no longer the newest checkpoint.
        """
        thread_id, facts = _thread_of(config), config["configurable"]
        ns, parent = facts.get("checkpoint_ns") or "", facts.get("checkpoint_id") or ""
        versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
        rest = {key: each for key, each in checkpoint.items() if key not in _KNOWN}
        metadata_ = get_checkpoint_metadata(config, metadata)
        stored_facts = [checkpoint.get(name) for name in _FACTS]
        run_id = str(metadata_.get("run_id") or "")
        about = threads.About(ns, checkpoint["id"], parent, stored_facts, run_id, current(config))
        extra = self._dumps(metadata_), self._dumps(rest) if rest else None
        raw = {each: self._raw(values[each]) for each in values if each in new_versions}
        with self._threads.writing(thread_id) as writer:
            if writer.thread.moved_past(ns, parent) and _goes_on(config, metadata, parent):
                self._refuse(thread_id, writer.thread, ns, parent, checkpoint["id"])
            base = writer.thread.base_of(ns, parent)
            before = base.versions if base is not None else {}
            same = base.values.keys() if base is not None else ()
            all_raw: dict[str, threads.Raw | None] = {}
            for channel, value in values.items():
                if channel in raw:
                    all_raw[channel] = raw[channel]
                elif channel in same and before.get(channel) == versions.get(channel):
                    all_raw[channel] = None
                else:
                    all_raw[channel] = self._raw(value)
            writer.append(
                writer.thread.checkpoint_record(
                    about, versions, checkpoint["versions_seen"], all_raw, extra
                )
            )
            writer.owns(ns)
        return _config(thread_id, ns, checkpoint["id"])

    def put_writes(
        self,
        config: Config,
        writes: Iterable[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task for a checkpoint; writes that are already stored stay.

        Args:
            config: names the checkpoint, which need not be stored yet.
            writes: channels and values.

        Raises:
            RunBusyError: another process has been writing to the thread for a minute.
            ThreadMovedOnError: another process has stored checkpoints after this one.
        """
        facts = config["configurable"]
        place = facts.get("checkpoint_ns") or "", facts["checkpoint_id"]
        raw = [
            (WRITES_IDX_MAP.get(channel, index), channel, self._raw(value))
            for index, (channel, value) in enumerate(writes)
        ]
        thread_id = _thread_of(config)
        with self._threads.writing(thread_id) as writer:
            if (
                writer.thread.moved_past(*place)
                and place in writer.thread.checkpoints  # else it is being stored
                and not writer.owned(place[0])  # else its child came first, from another thread
                and _goes_on(config, {}, place[1])
            ):
                self._refuse(thread_id, writer.thread, *place, "")
            record = writer.thread.writes_record(place, (task_id, task_path), current(config), raw)
            if record is not None:
                writer.append(record)

    def get_next_version(self, current: Any, channel: Any = None) -> Any:
        """Return the version that follows a version: whole numbers from 1."""
        if isinstance(current, str):  # of a thread that another saver began
            return f"{int(current.partition('.')[0]) + 1:032}.{0:016}"
        return 1 if current is None else current + 1

    # -- deleting and copying --------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        with self._threads.writing(str(thread_id)) as writer:
            writer.delete()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints, with their writes, that the given runs of LangGraph have made.

        A checkpoint that a remaining one needs for its delta channels stays, with a notice.

        Args:
            run_ids: values of ``run_id`` in the metadata.

        Raises:
            CorruptStoreError: a record of a thread is damaged or lost, and ``on_corrupt`` is
                ``"raise"``.
        """
        unwanted = set(map(str, run_ids)) - {""}
        for thread_id in self._threads.thread_ids() if unwanted else ():
            thread = self._threads.read(thread_id)
            if any(each.graph_run in unwanted for each in thread.newest_first()):
                self._check_all(thread_id, thread)
                self._keep(thread_id, unwanted)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another thread, which keeps its own.

        Raises:
            CorruptStoreError: a record of the thread is damaged or lost, and ``on_corrupt`` is
                ``"raise"``.
        """
        source, target = str(source_thread_id), str(target_thread_id)
        thread = self._threads.read(source)
        self._check_all(source, thread)
        places = {*thread.checkpoints, *thread.writes}
        if source == target or not places:
            return
        with self._threads.writing(target) as writer:
            into = threads.Thread(writer.thread.last)
            own = list(writer.thread.rewritten({*writer.thread.checkpoints}, into))
            copied = list(thread.rewritten(places, into, of_runs=False))
            writer.replace(own + copied, into)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints that are no longer needed, and free their space.

        Args:
            strategy: ``"keep_latest"``: keep the newest checkpoint of each namespace, and the
                earlier checkpoints that its delta channels need; ``"delete"``: keep none.

        Raises:
            ConfigurationError: the strategy is unknown.
            CorruptStoreError: a record of a thread is damaged or lost, and ``on_corrupt`` is
                ``"raise"``.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ConfigurationError(f"strategy={strategy!r}: use 'keep_latest' or 'delete'")
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            thread = self._threads.read(thread_id)
            self._check_all(thread_id, thread)
            if len(thread.checkpoints) > 1:
                self._keep(thread_id)

    aget_delta_channel_history = _in_thread(get_delta_channel_history)
    aput, aput_writes = _in_thread(put), _in_thread(put_writes)
    adelete_thread, adelete_for_runs = _in_thread(delete_thread), _in_thread(delete_for_runs)
    acopy_thread, aprune = _in_thread(copy_thread), _in_thread(prune)

    def _keep(self, thread_id: str, unwanted: Collection[str] = ()) -> None:
        """Delete all checkpoints that are neither wanted nor needed by a wanted checkpoint.

        Args:
            unwanted: values of ``run_id``; without any, the newest checkpoint of each namespace is
                wanted.
        """
        with self._threads.writing(thread_id) as writer:
            thread = writer.thread
            intact = [each for each in thread.newest_first() if not each.damaged]
            kept = [each for each in intact if each.graph_run not in unwanted]
            if not unwanted:
                kept = [*{each.ns: each for each in reversed(intact)}.values()]
            places = {(each.ns, each.id) for each in kept}
            needed = {place for each in kept for place in self._needed(thread, each)} - places
            if unwanted and needed:
                notice(
                    f"{self._named(thread_id)}: keeps {count(len(needed), 'checkpoint')} of "
                    "deleted runs, which later ones need for their delta channels"
                )
            coming = thread.writes.keys() - thread.checkpoints.keys()  # these are being stored
            writer.keep({*places, *needed, *coming})

    def _needed(self, thread: threads.Thread, stored: threads.Stored) -> Iterator[threads.Place]:
        """Yield the ancestors that a checkpoint needs to rebuild its delta channels."""
        metadata = self._loads(thread.blob(stored.metadata))
        left = set(metadata.get("counters_since_delta_snapshot") or ()) - stored.values.keys()
        for each in _ancestors(thread, stored):
            if not left:
                return
            yield each.ns, each.id
            left -= each.values.keys()

    # -- inside ----------------------------------------------------------------------------------

    def _get(self, config: Config, *, again: bool) -> Any:
        thread_id = _thread_of(config)
        thread = self._threads.read(thread_id)
        if again:
            place = continued(thread, config)
            if place.stored is not None:
                stored = self._certain(thread_id, thread, place.stored)
                metadata = self._loads(thread.blob(stored.metadata))
                if place.goes_on:
                    # LangGraph continues an invocation only with the run id of its checkpoint.
                    metadata = {**metadata, "run_id": (config.get("metadata") or {}).get("run_id")}
                return self._tuple(thread_id, thread, stored, metadata, place, of=config)
        found = self._found(config, thread)
        if found is None:
            if (thread.lost or thread.gone) and not config["configurable"].get("checkpoint_ns"):
                raise self._damaged(thread_id, None)  # it only seems to be empty
            return None
        stored = self._certain(thread_id, thread, found, config)
        return self._tuple(thread_id, thread, stored, of=config)

    def _found(self, config: Config, thread: threads.Thread) -> threads.Stored | None:
        facts = config["configurable"]
        ns, wanted = facts.get("checkpoint_ns") or "", facts.get("checkpoint_id")
        if wanted:
            return thread.checkpoints.get((ns, wanted))
        return next(thread.newest_first(ns), None)

    def _certain(
        self,
        thread_id: str,
        thread: threads.Thread,
        stored: threads.Stored,
        config: Config | None = None,
    ) -> threads.Stored:
        """Return the checkpoint if it is intact, or the newest intact one before it."""
        if thread.is_certain(stored):
            return stored
        newest = config is not None and not config["configurable"].get("checkpoint_id")
        if self._on_corrupt == "fallback" and newest:
            for each in thread.newest_first(stored.ns):
                if thread.is_certain(each):
                    notice(
                        f"{self._named(thread_id)}: {_when(stored)} is damaged; {_when(each)} "
                        "takes its place"
                    )
                    return each
        raise self._damaged(thread_id, stored)

    def _check_all(self, thread_id: str, thread: threads.Thread) -> None:
        if thread.lost or thread.gone:
            if self._on_corrupt == "raise":
                raise self._damaged(thread_id, None)
            notice(f"{self._named(thread_id)}: damaged records of it are left out")

    def _damaged(self, thread_id: str, stored: threads.Stored | None) -> CorruptStoreError:
        thread = self._threads.read(thread_id)
        lost = ", ".join(map(str, sorted(thread.lost)[:10]))
        records = f"its records {lost} cannot be read" if lost else ""
        gone = f"{thread.gone} acknowledged records are missing at its end" if thread.gone else ""
        what = f"{_when(stored)} is damaged" if stored is not None else "it is damaged"
        way = (
            "continue at the newest intact checkpoint: StepwiseSaver(..., on_corrupt='fallback')"
            if any(map(thread.is_certain, thread.newest_first()))
            else f"begin anew, since no checkpoint is intact: delete_thread({thread_id!r})"
        )
        return CorruptStoreError(
            f"{self._named(thread_id)}: {what}: {' and '.join(filter(None, (records, gone)))}. "
            f"Restore the store from a backup, or {way}",
            path=self._threads.store.url,
        )

    def _refuse(
        self, thread_id: str, thread: threads.Thread, ns: str, checkpoint_id: str, own: str
    ) -> None:
        """Raise if a writer continues a checkpoint that is no longer the newest."""
        newest = thread.checkpoints[ns, thread.tips[ns][1]]
        if self._on_stale == "branch" or own == newest.id:
            return
        raise ThreadMovedOnError(
            f"{self._named(thread_id)} has moved on: this writer continues "
            f"{f'the checkpoint {checkpoint_id}' if checkpoint_id else 'an empty thread'}, and "
            f"meanwhile another one has stored {_when(newest)}. Invoke the graph again to continue "
            "there. Code that means to branch gives the checkpoint_id of the older checkpoint, or "
            "makes its saver with on_stale='branch'",
            thread_id=thread_id,
            checkpoint_id=checkpoint_id,
            newest_id=newest.id,
        )

    def _named(self, thread_id: str) -> str:
        return f"LangGraph thread {thread_id!r} in {self._threads.store.url}"

    def _tuple(
        self,
        thread_id: str,
        thread: threads.Thread,
        stored: threads.Stored,
        metadata: Any = None,
        place: Whence | None = None,
        *,
        of: Config | None,
    ) -> Any:
        facts = dict(zip(_FACTS, stored.facts, strict=True))
        rest = self._loads(thread.blob(stored.rest)) if stored.rest is not None else {}
        checkpoint = {
            **facts,
            "id": stored.id,
            "channel_versions": dict(stored.versions),
            "versions_seen": {key: dict(each) for key, each in stored.seen.items()},
            "channel_values": {
                key: self._value(thread.raw(each)) for key, each in stored.values.items()
            },
            **rest,
        }
        named = _config(thread_id, stored.ns, stored.id)
        if of and RUNTIME in of["configurable"] and thread.moved_past(stored.ns, stored.id):
            named["configurable"][_BRANCHES] = stored.id  # LangGraph's loop passes it to put()
        pending = thread.pending(stored)
        if place is not None and place.invocation:
            pending = [each for each in pending if _counts(*each, stored, place)]
        return CheckpointTuple(
            named,
            checkpoint,
            self._loads(thread.blob(stored.metadata)) if metadata is None else metadata,
            _config(thread_id, stored.ns, stored.parent) if stored.parent else None,
            [
                (task, each.channel, self._value(thread.raw(each.value)))
                for (task, _), each in pending
            ],
        )

    # -- values ----------------------------------------------------------------------------------

    def _raw(self, value: Any) -> threads.Raw:
        """Serialize a value: a list item by item, a dictionary with lists in it key by key."""
        if type(value) is list and value:
            return [self._dumps(each) for each in value]
        if (
            type(value) is dict
            and all(type(key) is str for key in value)
            and any(type(each) is list and each for each in value.values())
        ):
            return {
                key: self._raw(each) if type(each) is list else self._dumps(each)
                for key, each in value.items()
            }
        return self._dumps(value)

    def _value(self, raw: threads.Raw) -> Any:
        if isinstance(raw, tuple):
            return self._loads(raw)
        if isinstance(raw, dict):
            return {key: self._value(each) for key, each in raw.items()}
        return [self._loads(each) for each in raw]

    def _dumps(self, value: Any) -> threads.Blob:
        kind, data = self.serde.dumps_typed(value)
        return kind, bytes(data)

    def _loads(self, blob: threads.Blob) -> Any:
        return self.serde.loads_typed(blob)


def _noted(config: Config, found: Any) -> Any:
    """Remember which checkpoint was read as the newest, for ``update_state``, which stores one."""
    facts = config["configurable"]
    read = found.config["configurable"]["checkpoint_id"] if found is not None else ""
    place = _thread_of(config), facts.get("checkpoint_ns") or "", read
    _read_newest.set(None if facts.get("checkpoint_id") else place)
    return found


def _goes_on(config: Config, metadata: Mapping[str, Any], parent: str) -> bool:
    """Return whether a writer took a checkpoint for the newest, and did not name its id."""
    facts, source = config["configurable"], metadata.get("source")
    if source == "update":
        place = _thread_of(config), facts.get("checkpoint_ns") or "", parent
        return _read_newest.get() == place
    if source == "fork":
        return False
    return RUNTIME in facts and facts.get(_BRANCHES) != parent


def _counts(
    key: tuple[str, int], write: threads.StoredWrite, stored: threads.Stored, place: Whence
) -> bool:
    """Return whether a continuing invocation sees a write."""
    if place.goes_on:
        return write.invocation == place.invocation
    # The invocation began here, and gets its input again: its own results and later writes are out.
    if write.invocation == place.invocation:
        return key[0] != NULL_TASK
    return write.invocation == stored.invocation or not write.invocation


def _ancestors(thread: threads.Thread, stored: threads.Stored) -> Iterator[threads.Stored]:
    """Yield the ancestors of a checkpoint, the nearest first; stop at a cycle of parents."""
    seen = {stored.id}
    parent = thread.checkpoints.get((stored.ns, stored.parent))
    while parent is not None and parent.id not in seen:
        seen.add(parent.id)
        yield parent
        parent = thread.checkpoints.get((parent.ns, parent.parent))


def _thread_of(config: Config) -> str:
    thread_id = config["configurable"].get("thread_id")
    if thread_id is None:
        raise ConfigurationError(
            'the config names no thread: give the graph {"configurable": {"thread_id": "..."}}'
        )
    return str(thread_id)


def _config(thread_id: str, ns: str, checkpoint_id: str) -> dict[str, Any]:
    facts = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    return {"configurable": facts}


def _when(stored: threads.Stored) -> str:
    return f"the checkpoint {stored.id} of {stored.facts[1]}"
