"""The frame of a workflow function: the times and the contents of its checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import itemgetter
from types import CodeType
from typing import TYPE_CHECKING, Any

from stepwise._checkpoints.checkpoints import Checkpoints, Loaded, State
from stepwise._checkpoints.given import root_of
from stepwise._checkpoints.references import HEAVY, References
from stepwise._checkpoints.resources import LetGo, is_reenterable
from stepwise._checkpoints.stored_values import Looked
from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import (
    UnpicklableError,
    dump_apart,
    dump_few,
    dump_values,
    load_values,
)
from stepwise._execution.active_run import ActiveRun
from stepwise._execution.location import Helper
from stepwise._execution.other_tasks import others_alive
from stepwise._identity.clients import has_key
from stepwise._journal.records import Record, holds_plainly
from stepwise._rewrite import Frame, Point, Rewritten, prefix_fingerprint, renamed
from stepwise._runtime.events import heard
from stepwise._runtime.limits import stopped
from stepwise._runtime.messages import file_name, reports
from stepwise._values.buffers import Data
from stepwise._values.preview import error_text
from stepwise._values.synchronizers import is_synchronizer, lock_of
from stepwise._workflows import usual_save
from stepwise._workflows.complaints import Complaints, why_shut
from stepwise._workflows.definition import BoundCall
from stepwise._workflows.loops import Counted, FileChangedError, Skipped, count, names_of, reopened
from stepwise._workflows.module_state import ModuleState, is_global
from stepwise._workflows.reach import Outlooks, Reach, outlook
from stepwise._workflows.remade_clients import Remade, remade
from stepwise._workflows.takeover import state_of
from stepwise.errors import RunStopped

if TYPE_CHECKING:
    from stepwise._checkpoints.sdk_clients import SdkClients

__all__ = ["RestoreFailedError", "WorkflowFrame"]

_MANY = 20  # steps in one statement, by one helper
_SEVERAL = 3  # steps without a boundary
_ALLOWED = 0.05  # seconds for checkpoints before statements that only may call a step
_GUESSES = 0.05  # share of the run's time for such checkpoints, in a long run
_SHARE, _COST, _SETTLED = 0.1, 0.002, 30.0  # share of the run's time; seconds each; seconds run
_NO_ITERATORS = ("generator", "async_generator", "coroutine")


class RestoreFailedError(BaseException):
    """The local variables of a checkpoint cannot be brought back; raised before any code ran.

    Args:
        why: for the user.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class WorkflowFrame(Frame):
    """One execution of a workflow function in a run.

    Args:
        begun: called once the frame stands, before any code of the function runs.
        loaded: the checkpoint to resume at.
        target: the point at which it was taken, in the function as it is now.
    """

    __slots__ = (
        "active",
        "around",
        "asked",
        "begun",
        "callee",
        "checkpoints",
        "clients",
        "complaints",
        "cost",
        "count",
        "drawn",
        "entered",
        "every",
        "file",
        "guessed",
        "guesses",
        "helped",
        "inside",
        "known",
        "last",
        "loaded",
        "managers",
        "module",
        "names",
        "outlooks",
        "prefixes",
        "references",
        "refused",
        "reopened",
        "rewritten",
        "seen",
        "settled",
        "shut",
        "started",
        "taken",
        "tried",
        "wanted",
        "without",
    )

    def __init__(
        self,
        active: ActiveRun,
        callee: BoundCall,
        rewritten: Rewritten,
        checkpoints: Checkpoints,
        begun: Callable[[], None],
        loaded: Loaded | None = None,
        target: int = 0,
    ) -> None:
        super().__init__()
        self.active = active
        self.callee = callee
        self.clients: SdkClients | None = None
        self.rewritten = rewritten
        self.every = callee.options.checkpoint_every
        self.checkpoints = checkpoints
        self.begun = begun
        self.file = file_name(callee.workflow.source.filename)
        self.loaded = loaded
        self.target = target
        self.around = Surroundings()
        self.known = checkpoints.known_values(active.secrets)
        self.references = References(self.known)
        self.module = ModuleState(active, rewritten.function, rewritten.assigned)
        self.managers: dict[int, tuple[int, str]] = {}  # steps done before; why it stays shut
        self.inside: dict[tuple[int, int], Any] = {}  # locks that ``with`` statements entered
        self.complaints = Complaints(active, self.file, rewritten)
        # By what they depend on: see _state() and _state_of().
        self.prefixes: dict[tuple[int, int], tuple[list[str], str | None]] = {}
        self.names: dict[tuple[object, ...], list[str]] = {}
        self.asking = rewritten.ahead.keys() - {0}
        self.asked = 0  # the last point before which something may have called a step
        self.seen: set[int] = set()  # points after which a step was called
        self.tried: set[int] = set()  # points after which a step might have been called
        self.refused: set[int] = set()
        self.entered: set[int | str] = set()  # ``with`` statements and loops with checkpoints
        self.outlooks = Outlooks(rewritten, self.entered)
        self.settled: dict[int, usual_save.SettledPoint | None] = {}  # by point
        self.shut: set[int] = set()  # blocks that were not reported yet
        self.reopened: dict[int, Any] = {}  # the files of ``with`` statements to be entered again
        self.guesses = False
        self.drawn = False  # whether an executed statement may produce other values next time
        self.count = self.taken = self.without = 0
        self.cost = self.guessed = self.last = 0.0
        self.wanted = False  # a checkpoint, at the next boundary where one can be taken
        self.helped: dict[CodeType, int] = {}  # steps that helpers made since the last boundary
        self.started = time.perf_counter()

    def begin(self, captured: Callable[[], Any] | None = None) -> int:
        """Restore the frame; see the base class.

        Raises:
            RestoreFailedError: the variables cannot be loaded.
        """
        super().begin(captured)
        callee, rewritten, function = self.callee, self.rewritten, self.rewritten.function
        self.around = Surroundings.of(
            function, captured, callee.bound, callee.instance, callee.secret
        )
        self.around.stored = frozenset(name.rpartition(".")[2] for name in rewritten.stored)
        self.around.references = self.references
        self.around.clients = self._sdk_clients
        self.around.subjects = self.active.subjects
        if self.active.progress.resumed_from == 0:
            self.module.replayed()
        values: Mapping[str, Any] = callee.bound
        if self.loaded is not None:
            state = self.loaded.state
            self.around = self.around.only(state.arguments)
            reader = self.loaded.reader()
            try:
                self.values = load_values(
                    self.loaded.payload, self.around, reader, named=self._of_today
                )
                self.known.adopt(reader)
                self.values.update(self.loaded.changes())
                self.references.restored(self.values.values(), self.around.arguments.values())
                self.module.restore(self.values)
            except MemoryError as error:
                doing = f"the variables at {state.where} were loaded"
                raise self.active.stop(stopped(doing, error)) from error
            except FileChangedError as error:
                raise RestoreFailedError(str(error)) from error
            except Exception as error:
                why = f"{type(error).__name__}: {error_text(error)}"
                why = f"the variables at {state.where} cannot be loaded ({why})"
                raise RestoreFailedError(why) from error
            blocks = rewritten.blocks
            self.visited.update(blocks.index(path) for path in state.visited if path in blocks)
            self.loaded, values = None, self.values
        first = rewritten.ahead.get(self.target)  # no checkpoint is requested before it
        if first is not None:
            self.drawn = outlook(first, values, rewritten, ()).drawn
        self.begun()
        for name, value in self.values.items():
            if isinstance(value, Counted):  # whose file was opened again
                self.complaints.skipping(name, value.given)
        return self.target

    def _sdk_clients(self) -> SdkClients:
        if self.clients is None:
            from stepwise._checkpoints.sdk_clients import SdkClients  # on use: few make one

            self.clients = SdkClients(self._tag, self._stop)
        return self.clients

    def _tag(self, data: bytes) -> bytes:
        """Return a MAC over what a client gets from the environment."""
        return self.active.journal.seal.tag(f"{self.active.run_id}/client", data)

    def _stop(self, why: str) -> RunStopped:
        """Stop the run, whose client could not be made again."""
        run_id = self.active.run_id
        return self.active.stop(RunStopped(f"run {run_id!r} cannot go on: {why}", run_id=run_id))

    def _of_today(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of a checkpoint under the names that this version gives them.

        Raises:
            LookupError: an iterator is missing, or could not be made again, nor could a client; or
                a file is not what it was.
        """
        named = renamed(values)
        if not named.keys() >= {*self.rewritten.points[self.target].loops}:
            raise LookupError("another version of stepwise wrote them")
        rewritten = self.rewritten
        for name in rewritten.points[self.target].loops:
            head, before = rewritten.heads.get(name), named[name]
            if type(before) is not Skipped:
                continue
            reading = rewritten.files.get(name)
            known = head is not None and names_of(head, named, rewritten) is not None
            if not known or (reading is None) != (before.file is None):
                raise LookupError(f"the loop at line {rewritten.loops[name]} is a different one")
            if reading is not None:
                assert head is not None
                try:
                    again = reopened(before, head, reading.code, named, rewritten)
                except FileChangedError as error:
                    where = f"{self.file}:{rewritten.loops[name]}"
                    why = f"the file that the loop at {where} reads has changed ({error})"
                    raise FileChangedError(why) from error
                named[name] = again
                if reading.within is not None:
                    self.reopened[reading.within] = again.file
        for name in rewritten.made.keys() & named.keys():
            value = named[name]
            if (
                type(value) is Remade
                and remade(name, value.cls, named, rewritten, self._tag) != value
            ):
                raise LookupError(f"what makes {name!r} has changed: its class or an argument")
        return named

    def look(self, result: object) -> Looked | None:
        """Capture a result before it is recorded; return ``None`` if it is not referred to."""
        return self.known.look(result)

    def recorded(self, number: int, record: Record, looked: Looked | None) -> None:
        """Note that an examined result is in the journal."""
        if self.shut:
            self.due = True  # an answered step belongs to the block, too
        if looked is not None and holds_plainly(record):
            self.known.recorded(number, looked)

    def done(self, *, effect: bool, helper: Helper | None) -> None:
        """A step of the workflow's own code, or of a helper that it calls, ended."""
        self.count += 1
        if effect or self.every == 1:
            self.seen.add(self.asked)
        if effect or self.count >= self.every:
            self.due = self.wanted = True
        if self.refused:
            self.asking |= self.refused
            self.refused.clear()
        if helper is not None:
            self.due = True  # the next boundary is the end of this statement
            self.helped[helper.code] = calls = self.helped.get(helper.code, 0) + 1
            if calls == _MANY:
                self.complaints.helped(helper, calls)
        self.without += 1  # boundaries
        if self.without % _SEVERAL == 0 and helper is None:
            node, function = self.callee.workflow.source.node(), self.rewritten.function
            self.complaints.within_handler(node, function.__code__)

    # -- saving ----------------------------------------------------------------------------------

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Take a checkpoint here, if one is wanted and can be taken; else ``due`` stays."""
        if usual_save.save_usual(self, number, values):
            return
        names = [*values]
        self.helped.clear()
        self.without = 0
        if self.shut:
            self._tell_shut(self.rewritten.points[number], values)
        tells = self.wanted  # an event is for due checkpoints only
        if self.active.stopped is not None or not self._wants(number, values):
            # A thread may have swallowed what stopped the run: nothing after it counts.
            self.due = self.wanted and self.active.stopped is None
            self.settled[number] = usual_save.settled_at(self, number, names, [])
            values.clear()
            return
        began = time.perf_counter()
        point = self.rewritten.points[number]
        kept = self._state_of(values, point, number)
        values.clear()  # before Python 3.13 it is the frame's, and would keep what the code drops
        read = self._files_read(point, kept)
        if not self._can_be_taken(point, kept, read, tells=tells):
            return
        if others_alive(self.active):
            if tells:
                self.complaints.skipped(point.line)
            return
        self.around.entered = self._entered(point)
        payload = self._pickled(kept, point, tells=tells)
        if payload is None:
            return
        self.active.note_handled()
        state = self._state(number)
        if state is None:
            return
        facts = self.active.facts
        self.active.facts = self.checkpoints.write(
            state, payload, facts, self.references, reads_files=bool(read)
        )
        if heard():
            self.active.tell("checkpoint_taken", detail=state.where, step=state.step)
        self.entered.update(point.withs, point.loops)
        if read:
            self.shut -= read  # blocks after the loop are not reported
            self.entered -= read  # only in the loop
        self.note_taken(began, kept)
        self.settled[number] = usual_save.settled_at(self, number, names, [*kept])

    def note_taken(self, began: float, kept: dict[str, Any]) -> None:
        """Note that a checkpoint was taken.

        Args:
            began: when, on the clock that measures.
            kept: the variables in it.
        """
        self.due = self.wanted = False
        self.complaints.in_a_row = self.count = 0
        now = time.perf_counter()
        self.last = now - began
        self.cost += self.last
        if self.guesses:
            self.guessed += self.last
        self.taken += 1
        if now - self.started >= _SETTLED:
            self._weigh(kept)

    def _wants(self, number: int, values: dict[str, Any]) -> bool:
        """Return whether to take a checkpoint before the next statement.

        Before what waits, always.  Before what certainly calls a step, or did before: what was
        executed since the last checkpoint flows into that.  One that is due need not wait for that
        where nothing does.
        """
        rewritten, before = self.rewritten, self.drawn
        ahead = rewritten.ahead[number]
        reach, drawn = self.outlooks.at(number, ahead, values)
        self.drawn = before or drawn
        self.guesses, seen, new = False, number in self.seen, number not in self.tried
        if reach > Reach.UNSURE:
            self.asked = number
            self.tried.add(number)
        if self.wanted or reach is Reach.WAIT:  # which another process may well go on with
            if reach is Reach.NOTHING and not (ahead.ends or ahead.escapes):
                return not self.drawn  # else there would be a second one
            if reach is not Reach.PERHAPS or seen or new:
                return True
        elif reach <= Reach.UNSURE or (reach is Reach.STEP and self.every > 1 and not seen):
            self.asking.discard(number)
            return False
        elif not before:  # the executed statements produce the same values again
            return False
        elif (seen or reach >= Reach.STEP) and not self.active.pool:
            return True
        elapsed = time.perf_counter() - self.started
        self.guesses = self.guessed + self.last <= max(_ALLOWED, _GUESSES * elapsed)
        if not self.guesses:
            self.asking.discard(number)
            self.refused.add(number)  # until a step was done
        return self.guesses

    def _state_of(self, values: dict[str, Any], point: Point, number: int) -> dict[str, Any]:
        """The variables that are state.

        Not ours, not those of enclosing functions, not those that an open ``with`` binds again.
        """
        rewritten, here = self.rewritten, (number, *values)
        names = self.names.get(here)
        if names is None:
            again = {name for each in point.withs for name in rewritten.withs[each].names}
            again.update(rewritten.function.__code__.co_freevars)
            names = self.names[here] = [
                name
                for name in values
                if (name[0] != "@" or name in point.loops) and name not in again
            ]
        kept = {name: values[name] for name in names}
        for name in rewritten.made.keys() & kept.keys() if rewritten.made else ():
            client: Any = kept[name]
            cls: Any = type(client)
            if has_key(cls) and self._sdk_clients().options_of(client) is not None:
                continue
            anew = remade(name, type(kept[name]), kept, rewritten, self._tag)
            # Where a global is another one later, an older checkpoint or the journal is needed.
            if anew is not None and not (anew.globals and self.checkpoints.prunes_journal):
                kept[name] = anew
        kept.update(self.module.kept())
        return kept

    def _can_be_taken(
        self, point: Point, values: dict[str, Any], read: Collection[int | None], *, tells: bool
    ) -> bool:
        for number in point.withs:
            if self.managers.get(number, (0, ""))[1] and number not in read:
                return False
        for name in point.loops:
            iterator = values.get(name)
            if isinstance(iterator, Counted):
                changed = iterator.changed(values)
                if changed and tells:
                    self.complaints.changed(name, changed)
                if changed:
                    return False
            if type(iterator).__name__ in _NO_ITERATORS:
                why = f"cannot pickle {type(iterator).__name__!r} object"
                error = UnpicklableError({name: (iterator, why)})
                if tells:
                    self.complaints.unpicklable(error, point.line)
                return False
        # A value that did not pickle the last time and is still there will not pickle now.
        return not self.complaints.is_still_there({**self.around.arguments, **values})

    def _pickled(self, values: dict[str, Any], point: Point, *, tells: bool) -> Data | None:
        """Return the pickled variables; ``None`` if that cannot be done, which is reported."""
        try:
            payload = self._referring(values)
            if self.active.secrets:
                self._refuse_secrets(values, payload)
            return payload
        except UnpicklableError as error:
            if tells:
                self.complaints.unpicklable(error, point.line)
        except MemoryError as error:
            error.with_traceback(None)  # its frames hold values that were pickled so far
            self.complaints.no_memory(point.line)
        return None

    def _referring(self, values: dict[str, Any]) -> Data:
        """Return the variables without values that are stored already or put into chunks now."""
        apart = dump_apart(values, self.around)
        if apart is not None:
            return apart
        few = dump_few(values, self.around)
        if few is not None:
            self.references.prepare_none()
            return few
        self.references.prepare(values.values(), self.around.arguments.values())
        payload = dump_apart(values, self.around, prepared=True) or self._dump(values)
        if len(payload) > HEAVY and self.references.split_heavy():
            return self._dump(values)
        return payload

    def _refuse_secrets(self, values: dict[str, Any], payload: Data) -> None:
        """Refuse a checkpoint that holds a secret which the call of the workflow does not give."""
        secrets = self.active.secrets
        name = secrets.found_in(payload)
        if not name:
            return
        why = (
            f"it holds the secret {name!r}, which is stored nowhere; name it in secret= of the "
            "workflow, too, whose call then gives it again"
        )
        alone = self.around.holding({})
        alone.references = None
        found = {n: v for n, v in values.items() if secrets.found_in(dump_values({n: v}, alone))}
        raise UnpicklableError({n: (v, why) for n, v in (found or {"": None}).items()})

    def _dump(self, values: dict[str, Any]) -> Data:
        try:
            return dump_values(values, self.around)
        except UnpicklableError as error:
            # Values bound by a ``with`` that has ended (a closed file, a client) are dropped.
            over = {name for each in self.rewritten.withs for name in each.released}
            found, left = error.culprits.items(), {*map(root_of, error.culprits)}
            culprits = {n: each for n, each in found if root_of(n) not in over and not is_global(n)}
            if culprits:
                raise UnpicklableError(culprits) from error
            kept = {n: value for n, value in values.items() if n not in left}
            gone = {n: LetGo(type(values[n]).__name__) for n in left & over}
            return dump_values({**kept, **gone}, self.around)

    def _state(self, number: int) -> State | None:
        rewritten, point = self.rewritten, self.rewritten.points[number]
        here = number, len(self.visited)  # branches are only ever added: the count tells which
        if here not in self.prefixes:
            node = self.callee.workflow.source.node()
            visited = [rewritten.blocks[n] for n in sorted(self.visited)]
            known = prefix_fingerprint(node, point.position, visited) if node is not None else None
            self.prefixes[here] = visited, known
        visited, prefix = self.prefixes[here]
        if prefix is None:
            return None
        return state_of(
            self.active,
            position=point.position,
            line=point.line,
            file=self.file,
            prefix=prefix,
            visited=visited,
            arguments=self.around.kinds(),
        )

    def remakes(self, name: str) -> bool:
        """Return whether a variable has to be made again."""
        return type(self.values.get(name)) is Remade

    # -- loops -----------------------------------------------------------------------------------

    def anew(self, iterator: Any) -> bool:
        """Return whether the iterator of a resumed loop has to be made again."""
        if isinstance(iterator, Counted):  # only the loop holds its file
            self.values = {n: value for n, value in self.values.items() if value is not iterator}
        return isinstance(iterator, Skipped)

    def counted(self, name: str, iterator: Iterator[Any], values: dict[str, Any]) -> Iterator[Any]:
        """Count the items of an iterator that cannot be recorded; on resume, skip the earlier."""
        counted = count(iterator, self.rewritten.heads[name], values, self.rewritten)
        before = values.get(name)
        values.clear()
        if isinstance(before, Skipped):
            assert isinstance(counted, Counted)
            self.complaints.skipping(name, before.items)
            counted.skip(before)
        return counted

    def _files_read(self, point: Point, values: Mapping[str, Any]) -> set[int | None]:
        """Return the ``with`` statements whose files the loops around a point read.

        ``None`` for a loop that opens its file itself.
        """
        files = self.rewritten.files
        if not files:
            return set()
        return {
            files[name].within
            for name in point.loops
            if name in files and isinstance(values.get(name), Counted)
        }

    # -- with ------------------------------------------------------------------------------------

    def opening(self, number: int) -> None:
        """The managers of a ``with`` statement are about to be evaluated."""
        self.managers[number] = self.active.progress.done, ""

    def manager(self, number: int, index: int, manager: Any) -> Any:
        """One of them was."""
        if number in self.reopened:
            manager.close()
            manager = self.reopened.pop(number)
        if is_synchronizer(manager):
            self.inside[number, index] = manager
        else:
            self.inside.pop((number, index), None)
        done, why = self.managers[number]
        if not why and (not is_reenterable(manager) or self.active.progress.done != done):
            why = why_shut(manager, calls=self.active.progress.done != done)
            self.managers[number] = self.active.progress.done, why
            self.shut.add(number)
        return manager

    def _entered(self, point: Point) -> Mapping[int, int]:
        """Count how often the open blocks have entered each lock: a resumed run does so again."""
        entered = [held for (number, _), held in self.inside.items() if number in point.withs]
        return Counter(id(each) for held in entered for each in (held, lock_of(held)))

    def _tell_shut(self, point: Point, values: Mapping[str, Any]) -> None:
        """Report blocks around a point in which a step was done and no checkpoint is possible."""
        for number in self.shut.intersection(point.withs) - self._files_read(point, values):
            done, why = self.managers[number]
            if self.active.progress.done > done:
                self.shut.discard(number)
                self.complaints.no_entry(number, why)

    # -- costs -----------------------------------------------------------------------------------

    @reports
    def _weigh(self, values: dict[str, Any]) -> None:
        """Report once that checkpoints cost too much, and the heaviest variable.

        In a notice: a warning could be made an error, and a busy machine would fail the run.
        """
        elapsed = time.perf_counter() - self.started
        dear = self.cost > _SHARE * elapsed and self.cost / self.taken > _COST
        if elapsed < _SETTLED or not dear or not self.complaints.first("cost"):
            return
        self.complaints.dear(self.cost / elapsed, *self._heaviest(values))

    def _heaviest(self, values: Mapping[str, Any]) -> tuple[str, int]:
        """Return the variable that takes most of a checkpoint, and its bytes; 0 for none."""
        whole, found = self.around.holding({}), ("", 0)
        whole.references = None
        for name, value in values.items():
            with contextlib.suppress(UnpicklableError):  # the object was released
                found = max(
                    found, (name, len(dump_values({name: value}, whole))), key=itemgetter(1)
                )
        return found
