"""The classic checkpoint objects: a step loop that recovers, on the journal of a run.

For users of a function that is called once per step, instead of a workflow function.  A
:class:`RecoverableAgent` calls the function and saves a :class:`Checkpoint` every few steps. After
an exception or a killed process the agent resumes at the newest checkpoint that verifies, with the
results of all tools that have returned since.

Checkpoints lie in a store beside the records of their run, and are sealed like the records.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import inspect
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from stepwise._display.render import facts_html
from stepwise._runtime.facts import public
from stepwise._runtime.messages import notice
from stepwise._runtime.options import check_kind, check_takes, check_values
from stepwise._values import codec, digest
from stepwise._values.codec import canonical_bytes
from stepwise._values.preview import error_text, preview
from stepwise._workflows import host
from stepwise.errors import ConfigurationError, DigestError, NotRecordableError, OutsideRunError
from stepwise.stores import Store, open_store
from stepwise.stores.memory import MemoryStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpoint", "CheckpointStore", "RecoverableAgent", "StepContext"]

# -- checkpoints -----------------------------------------------------------------------------------


_PREFIX = "agent/"
_FIELD = re.compile(r"^\['(\w+)'\]")  # the first part of a path
_Names = list[str]  # the class below has a method called list


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


@dataclass
class Checkpoint:
    """The knowledge of an agent after a step.

    Args:
        checkpoint_id: unique; made if empty.
        run_id: id of the checkpoint's run.
        step_number: how many steps were done.
        state, messages, tool_results: of the agent.
        timestamp: UTC, ISO 8601.
        is_valid: False if the checkpoint was found to be damaged.
        checksum: SHA-256 over all other fields but ``is_valid``, as 64 hexadecimal digits; computed
            if empty.

    Raises:
        DigestError: the checkpoint holds a value that is neither data nor an object of data.
    """

    checkpoint_id: str
    run_id: str
    step_number: int
    state: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tool_results: dict[str, Any] = field(default_factory=dict)
    timestamp: str = field(default_factory=_now)
    is_valid: bool = True
    checksum: str = ""

    def __post_init__(self) -> None:
        self.checkpoint_id = self.checkpoint_id or uuid4().hex
        if not self.checksum:
            self.checksum = _Computed(self.compute_checksum())

    def _repr_html_(self) -> str:
        shown = {name: preview(value, 20_000) for name, value in self._facts().items()}
        return facts_html(f"checkpoint of {self.run_id} after step {self.step_number}", shown)

    def compute_checksum(self) -> str:
        """Return the SHA-256 over every field but ``is_valid`` and ``checksum``, in hexadecimal.

        The order of the keys of a dictionary counts.

        Raises:
            DigestError: the checkpoint holds a value that is neither data nor an object of data.
        """
        facts = self._facts()
        del facts["is_valid"], facts["checksum"]
        data = canonical_bytes(facts)
        if data is None:
            try:
                data = digest.digest(facts).encode()
            except DigestError as error:
                where = _FIELD.sub(r"\1", error.path)
                raise DigestError(
                    f"{where} of the checkpoint after step {self.step_number} of run "
                    f"{self.run_id!r} cannot be kept: {str(error).rpartition(' (at ')[0]}. A "
                    "checkpoint holds data: make this object where it is used, or reach it from "
                    "the function by a global or a closure",
                    path=where,
                    type_name=error.type_name,
                ) from None
        return hashlib.sha256(data).hexdigest()

    def _facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        facts = {each.name: getattr(self, each.name) for each in fields(Checkpoint)}
        return {**facts, "checksum": str(self.checksum)}

    def _renew(self) -> bool:
        """Renew the checksum if it was computed here; return whether it fits now."""
        now = _Computed(self.compute_checksum())
        if not self.checksum or isinstance(self.checksum, _Computed):
            self.checksum = now
        return self.checksum == now


class _Computed(str):
    """A checksum that was computed here, or was right when the checkpoint was loaded.

    A checkpoint that is changed, copied or made from another one keeps this checksum until it is
    saved, and then gets a new one.  A checksum given by the caller is a plain string, and is never
    replaced.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return str, (str(self),)

    def __deepcopy__(self, memo: object) -> Self:
        return self


_WHEN_SAVED = _Computed("computed when it is saved")
"""Placeholder for a checksum that is not needed before ``save`` computes it."""


class CheckpointStore:
    """A store of checkpoints, each a deep copy that later changes of live objects do not affect.

    Args:
        storage_backend: a URL (``"disk:/path"``), a path or a :class:`stepwise.stores.Store`; by
            default checkpoints are kept in memory, by this object alone.
    """

    def __init__(self, storage_backend: Any = None) -> None:
        self.store: Store = (
            MemoryStore(f"checkpoints-{uuid4().hex}")
            if storage_backend is None
            else open_store(storage_backend)
        )
        self._host = host.HostStore(self.store)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint as it is now; the checkpoint is durable on return.

        A checksum given by the caller is kept even if it does not fit: the checkpoint is then never
        loaded.

        Raises:
            ConfigurationError: the argument is no checkpoint, or has no run id or step number.
            NotRecordableError: the checkpoint holds a value that cannot be pickled; the message
                names it.
            DigestError: the checkpoint holds a value without a checksum.
            RunBusyError: another process is executing the run.
        """
        check_kind(
            "the argument of save()", checkpoint, Checkpoint, "write Checkpoint('', run_id, step)"
        )
        check_values("a checkpoint", run_id=checkpoint.run_id, step_number=checkpoint.step_number)
        active = host.live_run(self.store, checkpoint.run_id)
        if not checkpoint._renew():
            notice(
                f"{checkpoint.run_id}: the checkpoint after step {checkpoint.step_number} does not "
                "match its given checksum, and will not be loaded. With checksum='' it is stored "
                "as it is"
            )
        self._save(
            checkpoint.run_id,
            checkpoint.step_number,
            checkpoint._facts(),
            host.state_of(active) if active is not None else None,
        )

    def _save(
        self,
        run_id: str,
        step: int,
        facts: dict[str, Any],
        place: host.State | None,
        *,
        durable: bool = True,
        keep: int = 0,
    ) -> None:
        """Save the fields of a checkpoint.

        Args:
            run_id: id of the run.
            step: number of steps done.
            facts: the fields.  Without a checksum, the checksum is computed on load: the seal
                covers everything.
            place: where the run was at the time; ``None`` if the run cannot resume there.
            durable: whether the checkpoint is durable on return.
            keep: delete all checkpoints but this many of the newest; 0 to delete none.
        """
        encoded = codec.encode(facts, f"checkpoint {facts['checkpoint_id']!r}")
        header = {
            "step": step,
            "id": facts["checkpoint_id"],
            "form": encoded.form,
            "run": place.header() if place is not None else None,
        }
        with self._host.owned(run_id) as journal:
            known = _known.setdefault(journal, _KnownCheckpoints())
            names, known.names = known.names, None  # unknown until the write has succeeded
            if names is None:
                names = self.store.names(run_id, _PREFIX)
                known.serial = max((int(each.rpartition("/")[2]) for each in names), default=0)
            known.serial += 1
            name = f"{_PREFIX}{step:012d}/{known.serial:012d}"
            names = sorted([*names, name])
            pruned = [each for each in names[:-keep] if each != name] if keep else []
            journal.put(name, header, encoded.data, delete=tuple(pruned), durable=durable)
            known.names, known.written = [each for each in names if each not in pruned], name

    def load_latest(self, run_id: str) -> Checkpoint | None:
        """Return the verifying checkpoint of the highest step, the later one if there are two."""
        return next((found for found, _ in self._newest_first(run_id)), None)

    def load_at_step(self, run_id: str, step: int) -> Checkpoint | None:
        """Return the latest checkpoint of a step that verifies, or ``None``."""
        for name in reversed(self._names(run_id)):
            if _step_of(name) == step and (found := self._load(run_id, name)) is not None:
                return found[0]
        return None

    def validate(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is as it was when its checksum was computed."""
        return checkpoint.is_valid and checkpoint.checksum == checkpoint.compute_checksum()

    def list(self, run_id: str) -> list[Checkpoint]:
        """Return the checkpoints of a run, by step; a damaged one is invalid and has no content."""
        found = []
        for name in self._names(run_id):
            loaded = self._load(run_id, name)
            damaged = Checkpoint(name, run_id, _step_of(name), timestamp="", is_valid=False)
            found.append(loaded[0] if loaded is not None else damaged)
        return found

    def delete(self, run_id: str) -> int:
        """Delete the checkpoints of a run, but not its records; return the number deleted."""
        return self._delete(run_id, self._names(run_id))

    def prune(
        self, run_id: str, retention: host.ClassicRetention = "prune_old", keep: int = 3
    ) -> int:
        """Delete superfluous checkpoints; the newest checkpoint that verifies always stays.

        Args:
            run_id: id of the run.
            retention: ``"latest_only"``, ``"prune_old"`` (the newest ``keep``) or ``"all"``.
            keep: how many checkpoints ``"prune_old"`` keeps.

        Returns:
            the number of deleted checkpoints.

        Raises:
            ConfigurationError: there is no such retention, or ``keep`` is no number of 1 or more.
        """
        check_values("prune", run_id=run_id, retention=retention, keep=keep)
        if retention == "all":
            return 0
        names, known = self._names(run_id), self._known(run_id)
        kept = set(names[-(1 if retention == "latest_only" else keep) :])
        if kept == set(names):
            return 0
        newest = next(
            (n for n in reversed(names) if n == known.written or self._load(run_id, n) is not None),
            None,
        )
        return self._delete(run_id, [name for name in names if name not in {*kept, newest}])

    # -- inside ----------------------------------------------------------------------------------

    def _names(self, run_id: str) -> _Names:
        check_values("a checkpoint", run_id=run_id)
        names = self._known(run_id).names
        return names if names is not None else self.store.names(run_id, _PREFIX)

    def _load(self, run_id: str, name: str) -> tuple[Checkpoint, host.State | None] | None:
        """Return a checkpoint and its place in the run, or ``None`` for a damaged checkpoint."""
        try:
            header, payload = self._host.get(run_id, name)
        except host.DamagedError:
            return None
        facts = codec.decode(payload, header["form"])
        place = header["run"]
        with contextlib.suppress(DigestError):  # the memory of a graph is kept without a checksum
            checkpoint = Checkpoint(**facts)
            if not self.validate(checkpoint):
                return None
            checkpoint.checksum = _Computed(checkpoint.checksum)
            return checkpoint, place and host.State(*place)
        checksum = hashlib.sha256(payload).hexdigest()
        return Checkpoint(**{**facts, "checksum": checksum}), place and host.State(*place)

    def _newest_first(self, run_id: str) -> Iterator[tuple[Checkpoint, host.State | None]]:
        for name in reversed(self._names(run_id)):
            found = self._load(run_id, name)
            if found is None:
                step = _step_of(name)
                notice(f"{run_id}: its checkpoint after step {step} does not verify; left out")
            else:
                yield found

    def _delete(self, run_id: str, names: _Names) -> int:
        if names:
            with self._host.owned(run_id) as journal:
                known, left = self._known(run_id), set(self._names(run_id)).difference(names)
                known.names = None
                journal.drop(tuple(names))
                known.names = sorted(left)
        return len(names)

    def _known(self, run_id: str) -> _KnownCheckpoints:
        active = host.live_run(self.store, run_id)
        if active is None:
            return _KnownCheckpoints()
        return _known.setdefault(active.journal, _KnownCheckpoints())


@dataclass
class _KnownCheckpoints:
    """The checkpoints of a run that is executed here, so that no other process can change them.

    Args:
        names: the names of all checkpoints; ``None`` if they have to be looked up.
        written: the name of the newest written checkpoint, which verifies without being read.
        serial: the serial number of the newest written checkpoint.
    """

    names: _Names | None = None
    written: str = ""
    serial: int = 0


_known: weakref.WeakKeyDictionary[host.Journal, _KnownCheckpoints] = weakref.WeakKeyDictionary()
"""Known checkpoints by the journal that a run in progress writes its checkpoints to."""


def _step_of(name: str) -> int:
    return int(name.split("/")[1])


# -- the loop --------------------------------------------------------------------------------------


@dataclass
class StepContext:
    """The argument of a step function.

    Args:
        task: the agent's task.
        run_id: id of the run.
        step: number of the current step, from 1.
        state, messages: free for the agent's use; they are part of the next checkpoint.
        tool_results: results of the agent's tools, by name; further calls as ``name#2``,
            ``name#3``.
    """

    task: str
    run_id: str
    step: int
    state: dict[str, Any]
    messages: list[dict[str, Any]]
    tool_results: dict[str, Any]

    async def tool(
        self, function: Callable[..., Any], /, *args: Any, side_effect: bool = True, **kwargs: Any
    ) -> Any:
        """Call a tool: its result is recorded on return, and answered from the journal after that.

        Args:
            function: plain or ``async``; a function with ``@tool`` or ``@step`` keeps its own
                options.
            args: passed to the function.
            side_effect: repeating the call would double something outside, so a call during which
                the process dies is left in doubt.
            kwargs: passed to the function.

        Raises:
            ConfigurationError: ``function`` is not a function.
            OutsideRunError: the agent is not being executed here.
        """
        if not callable(function):
            raise ConfigurationError(
                f"ctx.tool calls a function, and {digest.class_name(type(function))!r} cannot be "
                "called: write ctx.tool(search, 'word'), not ctx.tool(search('word'))"
            )
        if not host.is_in_run():
            raise OutsideRunError(
                f"ctx.tool({host.label_of(function)}) was called after run {self.run_id!r} "
                "had ended, or in a thread that does not carry it",
                run_id=self.run_id,
            )
        recorded, instance = host.step_of(function), None
        if inspect.ismethod(function):
            instance, function = function.__self__, function.__func__
            args = (instance, *args)
        if recorded is None:
            recorded = host.Step(function, kind="tool", side_effect=side_effect)
        value = await host.call(recorded, args, kwargs, instance=instance)
        name = recorded.name.rpartition(".")[2]
        count = sum(key == name or key.startswith(f"{name}#") for key in self.tool_results)
        self.tool_results[f"{name}#{count + 1}" if count else name] = value
        return value


host.uncounted[StepContext] = "tool_results"  # concurrent tools that captured the context change it

AgentFunction = Callable[[StepContext], Any]

_MISTAKES = (ConfigurationError, DigestError, NotRecordableError, OutsideRunError)
"""Errors of the program, which every attempt would repeat."""


class RecoverableAgent:
    """An agent that calls a step function until it returns a result, and recovers from failures.

    Args:
        agent_fn: plain or ``async``; gets a :class:`StepContext` and returns the result, or
            ``None`` to continue with the next step.
        checkpoint_store: where the run and its checkpoints are kept.
        checkpoint_every_n: the number of steps between checkpoints.
        max_recoveries: how many exceptions of one call are recovered from; the next one propagates.
            Mistakes in the program (a ``ConfigurationError``, a state that cannot be kept)
            propagate at once, since every further attempt would repeat them.
        retention, keep: see :meth:`CheckpointStore.prune`.
        ignore: names of captured variables, defaults and attributes of ``agent_fn`` that may differ
            when a run resumes.  Other strings, numbers, functions and classes among them may not.

    Raises:
        ConfigurationError: an argument is invalid; the message names it, and says what it takes.

    Attributes:
        store: the checkpoint store.
        recovery_count: how many exceptions the last call has recovered from.
    """

    def __init__(
        self,
        agent_fn: AgentFunction,
        checkpoint_store: CheckpointStore,
        checkpoint_every_n: int = 3,
        max_recoveries: int = 3,
        *,
        retention: host.ClassicRetention = "prune_old",
        keep: int = 10,
        ignore: Iterable[str] = (),
    ) -> None:
        check_takes("agent_fn", agent_fn, "ctx")
        check_kind(
            "checkpoint_store",
            checkpoint_store,
            CheckpointStore,
            "give CheckpointStore('disk:runs'), or CheckpointStore() for memory alone",
        )
        check_values(
            "RecoverableAgent",
            checkpoint_every_n=checkpoint_every_n,
            max_recoveries=max_recoveries,
            retention=retention,
            keep=keep,
        )
        self.agent_fn = agent_fn
        self.store = checkpoint_store
        self.checkpoint_every_n = checkpoint_every_n
        self.max_recoveries = max_recoveries
        self.retention: host.ClassicRetention = retention
        self.keep = keep
        self.ignore = {ignore} if isinstance(ignore, str) else set(ignore)
        self.recovery_count = 0

    async def run_with_recovery(self, task: str, run_id: str) -> dict[str, Any]:
        """Run the agent on a task, or resume where a run of that id stopped.

        The result is a dictionary with these keys; a completed run returns the recorded dictionary:

        - ``result``, ``run_id``, ``recovery_count``;
        - ``recovered_from_step``, the step of the checkpoint at which the run last resumed: 0 for
          the beginning, ``None`` if nothing was recovered;
        - ``steps``, the number of steps;
        - ``state``, ``messages`` and ``tool_results`` at the end.

        Raises:
            RunConflictError: the run of that id has another task, or an agent function that holds
                other values.
            RunBusyError: the run is being executed.
            DigestError, NotRecordableError: the state or a tool's result cannot be kept.
            StepInDoubtError: a tool with side effects may or may not have happened.
        """
        check_values("run_with_recovery", run_id=run_id)
        self.recovery_count = 0
        return await self._start(task, run_id, None)

    async def _start(self, task: str, run_id: str, at: Checkpoint | None) -> dict[str, Any]:
        function: Any = self.agent_fn
        if not hasattr(function, "__code__"):  # a callable object
            function = type(function).__call__
        run = host.open_run(
            host.program_of(function, host.label_of(function)),
            self.store.store,
            run_id,
            {"task": task},
            digest.combine(digest.digest(task, digest.Numbering())),
            parts=host.HeldParts({"the agent function": self.agent_fn}, self.ignore),
        )
        if isinstance(run, host.Recall):
            recalled: dict[str, Any] = run.value
            return recalled
        done: dict[str, Any] = await run.execute(_Recoveries(self, run, task, at).execute)
        return done

    async def _run_from_checkpoint(
        self, checkpoint: Checkpoint | None, task: str
    ) -> dict[str, Any]:
        """Call the step function to its end, starting after a checkpoint.

        Args:
            checkpoint: where to resume; ``None`` for the beginning.
            task: the agent's task.
        """
        recoveries = _recoveries.get()
        if recoveries is None:
            run_id = checkpoint.run_id if checkpoint is not None else uuid4().hex
            return await self._start(task, run_id, checkpoint)
        ctx = StepContext(task, recoveries.run_id, 0, {}, [], {})
        if checkpoint is not None:
            ctx.step = checkpoint.step_number
            ctx.state, ctx.messages = checkpoint.state, checkpoint.messages
            ctx.tool_results = checkpoint.tool_results
        return await self._loop(ctx, recoveries)

    async def _loop(self, ctx: StepContext, recoveries: _Recoveries) -> dict[str, Any]:
        result = None
        while result is None:
            ctx.step += 1
            result = self.agent_fn(ctx)
            if isinstance(result, Awaitable):
                result = await result
            if result is None and self._should_checkpoint(ctx.step):
                self._checkpoint(ctx)
        return {
            "result": result,
            "run_id": ctx.run_id,
            "recovered_from_step": recoveries.recovered_from,
            "recovery_count": self.recovery_count,
            "steps": ctx.step,
            "state": ctx.state,
            "messages": ctx.messages,
            "tool_results": ctx.tool_results,
        }

    def _should_checkpoint(self, step: int) -> bool:
        """Return whether to save a checkpoint after this step."""
        return step % self.checkpoint_every_n == 0

    def _checkpoint(self, ctx: StepContext) -> None:
        store, held = self.store, (ctx.state, ctx.messages, ctx.tool_results)
        store.save(Checkpoint("", ctx.run_id, ctx.step, *held, checksum=_WHEN_SAVED))
        store.prune(ctx.run_id, self.retention, self.keep)


class _Recoveries:
    """The step loop of one run, begun again after each exception."""

    def __init__(
        self, agent: RecoverableAgent, run: host.HostedRun, task: str, at: Checkpoint | None
    ) -> None:
        self.run_id = run.run_id
        self.recovered_from: int | None = None
        self._agent, self._run, self._task, self._at = agent, run, task, at

    async def execute(self) -> Any:
        """Run the steps; after an exception, resume at the newest checkpoint."""
        agent = self._agent
        checkpoint = self._at
        if not self._run.is_new:
            checkpoint = self._recover() or checkpoint
        token = _recoveries.set(self)
        try:
            while True:
                try:
                    with self._run.attempt():
                        return await agent._run_from_checkpoint(checkpoint, self._task)
                except _MISTAKES:
                    raise
                except Exception as error:
                    if self._run.interrupted or agent.recovery_count >= agent.max_recoveries:
                        raise
                    agent.recovery_count += 1
                    failure = error
                checkpoint = self._recover(failure)
        finally:
            _recoveries.reset(token)

    def _recover(self, error: Exception | None = None) -> Checkpoint | None:
        """Move to the newest checkpoint and return it; later records answer the calls after it.

        After an exception, plain calls since the last side effect are made again.
        """
        run = self._run
        found = self._agent.store._newest_first(self.run_id)
        checkpoint: Checkpoint | None = run.resume_at_newest(found, "step")
        if checkpoint is None:
            run.resume_from_start()
        run.retry_loop(error)
        self.recovered_from = checkpoint.step_number if checkpoint is not None else 0
        why = f" from {type(error).__name__}: {error_text(error)}" if error is not None else ""
        told = f"recovers at step {self.recovered_from}{why}"
        run.record_resumed(told, self.recovered_from)
        return checkpoint


_recoveries: contextvars.ContextVar[_Recoveries | None] = contextvars.ContextVar(
    "stepwise_recoveries", default=None
)

for _class in (Checkpoint, CheckpointStore, RecoverableAgent):
    public(_class)
