"""Checkpoints: a position in the workflow function, its variables, and the journal's position.

A checkpoint is stored beside the journal.  It needs no separate flush: the journal is the truth,
and without a checkpoint the run resumes at an older one, or by replay.  A checkpoint is loaded only
after it verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from stepwise._checkpoints.references import (
    KnownValues,
    Needs,
    Reader,
    References,
    Vault,
    chunk_name,
    digest_of,
)
from stepwise._journal import journal as journals
from stepwise._journal.records import Entry, RunFacts, Sums
from stepwise._journal.seal import Seal, named
from stepwise._runtime.facts import NamedTuple
from stepwise._values import codec
from stepwise._values.preview import Secrets
from stepwise._values.unpickling import Data
from stepwise.stores import Store

Retention = Literal["latest_only", "prune_old", "thinned", "all"]
ClassicRetention = Literal["latest_only", "prune_old", "all"]
PREFIX = "checkpoint/"
_READS_FILES = "+"  # so that it is stored beside the one before the loop, after the same record
_PRUNE_AT_LEAST = 200  # records at a time
_NEEDS_NOTHING: Mapping[str, Any] = {}
_NONE_TAKEN: Mapping[str, Sequence[int]] = {}


class State(NamedTuple):
    """The contents of a checkpoint, apart from the local variables.

    Args:
        position: the structural position of the last finished statement; see ``rewrite.transform``.
        line, file: the line and file of that statement.
        prefix: the fingerprint of the executed code.
        visited: the paths of the branches that were entered.
        step: the number of done steps.
        calls: the highest number of a call.
        ordinals: the number of calls, by name.
        children: the number of equal calls of child workflows, by name and digest.
        journal: the last record, the link to it, the number of intents, and the sums so far.
        unused: earlier records that no call had used: origin, last, and their flags.
        arguments: the objects that are kept by reference, name and kind.
        python, at: the Python version that wrote it; the time, in seconds since 1970.
        seconds, usage: the time and usage of the done steps; see :class:`.account.Progress`.
        needs: the values stored elsewhere that it refers to; see :class:`.references.Needs`.
        changed: variables that a fork gave other values, as name, form and size of the bytes at the
            end of the payload.
        state: the parts of instances that steps changed, as owner and part; see ``subjects``.
        serial: the highest number of an instance.
        before: for a checkpoint that holds only while files are unchanged, the checkpoint to use
            otherwise; empty for the beginning of the run.
        taken: the taken messages, by the names of the signals; see :class:`.waits.Taken`.
        told: True if the workflow had been notified that the run is to end, and had continued.
        said: the ends of the run's streams; see :meth:`.emissions.Emissions.state`.
    """

    position: str
    line: int
    file: str
    prefix: str
    visited: list[str]
    step: int
    calls: int
    ordinals: dict[str, int]
    children: list[list[Any]]
    journal: list[Any]
    unused: list[list[Any]]
    arguments: dict[str, str]
    python: str
    at: float
    seconds: float
    usage: Mapping[str, float]
    needs: Mapping[str, Any] = _NEEDS_NOTHING
    changed: Sequence[list[Any]] = ()
    state: Sequence[list[str]] = ()
    serial: int = 0
    before: str | None = None
    taken: Mapping[str, Sequence[int]] = _NONE_TAKEN
    told: bool = False
    said: Sequence[Any] = ()

    @property
    def where(self) -> str:
        """The place, as ``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def start(self) -> journals.Position:
        """The journal position at which the checkpoint was taken."""
        return journals.Position.from_kept(self.journal)

    def earlier(
        self, store: Store, seal: Seal, run_id: str
    ) -> Iterator[tuple[Entry, tuple[bool, bool, bool]]]:
        """Yield the unused records before the checkpoint, with their flags."""
        for origin, last, *flags in self.unused:
            for number in dict.fromkeys((origin, last)):
                entry = journals.read_one(store, seal, run_id, number)
                if entry is not None:
                    yield entry, (*flags,)

    def header(self) -> list[Any]:
        """Return the state for a header: without the fields with defaults, if all have them."""
        always, rest = self[:_FIRST], self[_FIRST:]
        return [*always] if rest == _USUAL else [*self]


AT_TOP = State(
    position="",
    line=0,
    file="",
    prefix="",
    visited=[],
    step=0,
    calls=0,
    ordinals={},
    children=[],
    journal=journals.Position().kept(),
    unused=[],
    arguments={},
    python="",
    at=0.0,
    seconds=0.0,
    usage={},
)
"""The state of a run before its first statement: nothing is counted, and all records follow."""

_USUAL = (*State._field_defaults.values(),)
_FIRST = len(State._fields) - len(_USUAL)


class Loaded(NamedTuple):
    """A checkpoint that verified: its name, its state, the pickled local variables.

    ``vault`` holds the values that it refers to, which verified as well.
    """

    name: str
    state: State
    payload: bytes
    vault: Vault

    def reader(self) -> Reader:
        """Return a reader for the objects that the checkpoint refers to."""
        return Reader(self.vault, Needs.of(self.state.needs))

    def changes(self) -> dict[str, Any]:
        """Return the variables that a fork gave other values; of two values, the later one.

        Raises:
            UnreadableValueError: a variable cannot be loaded.
        """
        found, end = dict[str, Any](), len(self.payload)
        for name, form, size in reversed(self.state.changed):
            if name not in found:
                found[name] = codec.decode(self.payload[end - size : end], form)
            end -= size
        return found


class Checkpoints:
    """The checkpoints of a run in progress.

    Args:
        keep: the number of checkpoints that ``prune_old`` keeps.
        prune_journal: True to delete the records that no kept checkpoint needs.
    """

    def __init__(
        self,
        journal: journals.Journal,
        retention: Retention,
        keep: int,
        *,
        prune_journal: bool = False,
    ) -> None:
        self._journal = journal
        self._keep = {"latest_only": 1, "prune_old": keep}.get(retention, 0)
        self._thins = retention == "thinned"
        self.prunes_journal = prune_journal
        self._names = journal.names(PREFIX)
        self._chunks = _Chunks(journal, none=not self._names)
        self._refused: list[str] = []
        self._before: dict[str, str] = {}  # by name: the checkpoint to use if a file has changed

    def load(self) -> Iterator[Loaded | str]:
        """Yield checkpoints, newest first; a checkpoint that does not verify only by its name."""
        vault = Vault(self._journal.store, self._journal.seal, self._journal.run_id)
        for name in reversed(list(self._names)):
            loaded = load_checkpoint(vault, name)
            if loaded is None:
                self.refuse(name)
            elif loaded.state.before is not None:
                self._before[name] = loaded.state.before
            yield loaded if loaded is not None else name

    def refuse(self, name: str) -> None:
        """Reject a checkpoint: the next write deletes it, and it no longer counts."""
        if name in self._names:
            self._names.remove(name)
            self._refused.append(name)

    def known_values(self, secrets: Secrets) -> KnownValues:
        """Return an empty record of stored values, which never puts a secret into a chunk."""
        journal = self._journal
        return KnownValues(
            records=not self.prunes_journal,
            seal=lambda number, chunk: chunk.seal(journal.seal, journal.run_id, number),
            next_chunk=self._chunks.next,
            refuses=secrets.found_in,
        )

    def write(
        self,
        state: State,
        payload: Data,
        facts: RunFacts,
        references: References,
        *,
        reads_files: bool = False,
    ) -> RunFacts:
        """Write a checkpoint and prune; return the facts of the run for its listing.

        Args:
            reads_files: True if it holds only while files are unchanged.  The checkpoint before the
                loop that reads the files is then kept as long as this one.
        """
        needs, chunks = references.needs()
        if reads_files:
            state = state._replace(before="")
        name = _name(state)
        # The first checkpoint of a fork or a branch says which variables it was given.
        is_fork = facts.base or (facts.forked_from and not self.prunes_journal)
        first = self._names[0] if is_fork and self._names else ""
        kept, gone, whole = self._sorted_out(name, reads_files=reads_files, stays=first)
        if reads_files:
            state = state._replace(before=self._before[name])
        gone += self._chunks.unneeded(name, needs, kept, pruning=bool(gone))
        behind = 0 if whole else self._behind(kept, state)
        prunes = behind - facts.pruned >= _PRUNE_AT_LEAST and not self._is_shared(facts)
        after = facts
        if prunes:
            after = facts._replace(pruned=behind)
            gone += self._beside_ended_calls(kept[0], state)
        referred = needs.header()
        self._journal.put(
            name,
            (state._replace(needs=referred) if referred else state).header(),
            payload,
            also={chunk_name(number): data for number, data in chunks.items()} if chunks else None,
            delete=tuple(gone),
            prune=behind if prunes else 0,
            head=after if prunes else None,
        )
        self._names, self._refused = kept, []
        references.stored(needs)
        return after

    def _is_shared(self, facts: RunFacts) -> bool:
        """Return whether the run shares records with another one, so that it keeps its own."""
        journal, run_id = self._journal, facts.run_id
        return bool(facts.base or journals.branches_of(journal.store, journal.seal, run_id))

    def _sorted_out(
        self, name: str, *, reads_files: bool, stays: str
    ) -> tuple[list[str], list[str], bool]:
        """Return the checkpoints to keep, now that ``name`` is the newest, and those to delete.

        The third value says whether the whole journal is needed.

        Args:
            stays: the name of a checkpoint to keep in any case; empty for none.
        """
        # The second was taken in a loop that has ended.
        replaced = [each for each in (name, name + _READS_FILES) if each in self._names]
        names = [each for each in self._names if each not in replaced] if replaced else self._names
        names = [*names, name]
        pruned = names[: -self._keep] if self._keep else thinned_out(names) if self._thins else []
        if stays:
            pruned = [each for each in pruned if each != stays]
        needed: set[str] = set()
        kept = [each for each in names if each not in pruned] if pruned else names
        if reads_files or self._before:
            self._before.pop(name, None)
            if reads_files:
                last = names[-2] if names[1:] else ""
                self._before[name] = self._before.get(last, last)
            needed = {self._before[each] for each in kept if each in self._before}
            pruned = [each for each in pruned if each not in needed]
            kept = [each for each in names if each not in pruned]
            self._before = {each: self._before[each] for each in kept if each in self._before}
        if replaced or self._refused:
            pruned = [*pruned, *({*self._refused, *replaced} - {name})]
        # Without the checkpoint to fall back to, the whole journal is needed.
        return kept, pruned, not self.prunes_journal or not needed <= {*kept}

    def _beside_ended_calls(self, oldest: str, state: State) -> list[str]:
        """Return the objects beside the calls that had ended at the oldest kept checkpoint.

        Args:
            state: the state of the newest checkpoint.
        """
        journal, calls = self._journal, state.calls
        beside = journals.names_beside(journal.store, journal.run_id)
        if beside and oldest in self._names:
            opened = _open(Vault(journal.store, journal.seal, journal.run_id), oldest)
            if opened is None:
                return []
            calls = opened[0].calls
        return [name for name, call in beside.items() if call <= calls]

    def _behind(self, kept: list[str], state: State) -> int:
        """Return the last record that neither the oldest checkpoint nor an unused call needs.

        The record at the checkpoint itself stays: the following records link to it.
        """
        needed: list[int] = [each[0] for each in state.unused]
        needed += (n.lowest for n in self._chunks.read(kept).values() if n.lowest)
        return min(number_of(kept[0]), *needed, 1 << 62) - 1


_NEWEST = 20  # checkpoints that thinning keeps


def thinned_out(names: list[str]) -> list[str]:
    """Return the checkpoints that thinning deletes; the newest name comes last.

    The numbers of the records are divided into blocks, and the oldest checkpoint of each block
    stays.  A block has 2, 4, 8, ... numbers, an eighth of its age at most.  Blocks of twice the
    size begin where smaller ones begin, so that what stays today is a part of what stayed before.
    """
    numbers = [*map(number_of, names)]
    newest, last, gone = numbers[-1], (0, -1), []
    for name, number in zip(names[:-_NEWEST], numbers, strict=False):
        bits = max(0, (newest - number).bit_length() - 4)
        block = bits, number >> bits
        if block == last:
            gone.append(name)
        last = block
    return gone


_LONGEST_NUMBER = 18  # digits


def number_of(name: str) -> int:
    """Return the number of the record that a checkpoint follows; 0 for other names."""
    digits = name.removeprefix(PREFIX).removesuffix(_READS_FILES)
    return int(digits) if digits.isdecimal() and len(digits) <= _LONGEST_NUMBER else 0


def _name(state: State) -> str:
    suffix = "" if state.before is None else _READS_FILES
    return f"{PREFIX}{state.journal[0]:012d}{suffix}"


def sealed(
    seal: Seal,
    run_id: str,
    loaded: Loaded,
    state: State,
    payload: bytes,
) -> dict[str, Data]:
    """Return a checkpoint for another run, with the chunks that it needs, by their names.

    The records to which it refers have the same numbers in that run.

    Args:
        state: the new state, made from the state of ``loaded``.
    """
    needs, links, put = Needs.of(loaded.state.needs), [], {}
    for number in needs.all_chunks:
        chunk = loaded.vault.chunk(number)
        assert chunk is not None
        put[chunk_name(number)], link = chunk.seal(seal, run_id, number)
        links.append(link)
    needs = needs._replace(links=digest_of(links))
    name = _name(state)
    header = state._replace(needs=needs.header()).header()
    put[name] = seal.close(named(name, run_id), header, payload)[0]
    return put


def load_checkpoint(vault: Vault, name: str) -> Loaded | None:
    """Return the checkpoint of that name, or ``None`` if it does not verify."""
    opened = _open(vault, name)
    if opened is None or not vault.holds(Needs.of(opened[0].needs)):
        return None
    return Loaded(name, *opened, vault)


def _open(vault: Vault, name: str) -> tuple[State, bytes] | None:
    """Return the state and the payload of a checkpoint, or ``None`` if it does not verify."""
    opened = vault.open(name)
    if opened is None:
        return None
    try:
        return State(*opened.header), opened.payload
    except TypeError:
        return None


def lost_by_replay(
    store: Store, seal: Seal, facts: RunFacts, again: Iterable[int] | None = None
) -> str:
    """Return what a replay from the top would lose, as text: the variables that a fork was given.

    Its first checkpoint has them; the arguments of the run are those of its source.

    Args:
        again: the calls that must be made again; nothing is lost if that checkpoint comes before
            all of them.
    """
    names = store.names(facts.run_id, PREFIX) if facts.forked_from else []
    loaded = load_checkpoint(Vault(store, seal, facts.run_id), names[0]) if names else None
    if loaded is not None and loaded.state.changed:
        if again is not None and all(number > loaded.state.calls for number in again):
            return ""
        given = ", ".join(dict.fromkeys(name for name, *_ in loaded.state.changed))
        return f"the variables that it was given at {loaded.state.where} ({given})"
    damaged = loaded is None and names and facts.base
    return "the variables that it was given, whose checkpoint does not verify" if damaged else ""


def spent_so_far(store: Store, run_id: str, seal: Seal | None = None) -> Sums:
    """Return the recorded spending of a run, including records before a checkpoint."""
    seal = seal or journals.seal_for(store)
    vault, names = Vault(store, seal, run_id), store.names(run_id, PREFIX)
    loaded = (load_checkpoint(vault, name) for name in reversed(names))
    starts = (each.state.start for each in loaded if each is not None)
    for at in chain(starts, (journals.Position(),)):  # every journal holds its beginning
        found = journals.read_on(store, seal, run_id, at)
        if found is not None:
            break
    for _, following in found or ():
        at = following
    return at.sums


class _Chunks:
    """The chunks that the kept checkpoints of a run need.

    The needs of an earlier attempt's checkpoints are read when they first matter: when a checkpoint
    is pruned.

    Args:
        none: True if there are no checkpoints yet.
    """

    def __init__(self, journal: journals.Journal, *, none: bool) -> None:
        self._vault = Vault(journal.store, journal.seal, journal.run_id)
        self._last: int | None = None
        self._needs: dict[str, Needs] | None = {} if none else None
        self._spare: set[int] = set()

    def next(self) -> int:
        """Return a number that no chunk has had."""
        if self._last is None:
            numbers = self._vault.numbers()
            self._last = max(numbers, default=0)
            if self._needs is not None:
                self._spare.update(numbers)
        self._last += 1
        return self._last

    def read(self, kept: Iterable[str]) -> dict[str, Needs]:
        """Return the needs of these checkpoints by name, without those that need nothing."""
        if self._needs is None:
            needed = {each: self._needed(each) for each in kept}
            self._needs = {
                name: each for name, each in needed.items() if each.all_chunks or each.lowest
            }
            self._spare.update(self._vault.numbers())
        return self._needs

    def _needed(self, name: str) -> Needs:
        """Return the references of a checkpoint; empty if the checkpoint does not verify."""
        opened = _open(self._vault, name)
        return Needs.of(opened[0].needs) if opened is not None else Needs()

    def unneeded(self, name: str, needs: Needs, kept: list[str], *, pruning: bool) -> list[str]:
        """Return the chunks that no checkpoint needs any more, now that ``name`` is the newest.

        Args:
            pruning: True if checkpoints are deleted.
        """
        if self._needs is None:
            idle = not pruning
        else:
            idle = not (self._needs or self._spare or needs.all_chunks or needs.lowest)
        if idle:
            return []
        known = self.read(each for each in kept if each != name)
        still = {*kept} - {name}
        for each in [*known] if pruning or name in known else ():
            if each not in still:
                self._spare.update(known.pop(each).all_chunks)
        if needs.all_chunks or needs.lowest:
            known[name] = needs
        if not self._spare:
            return []
        spare = self._spare.difference(*(each.all_chunks for each in known.values()))
        self._spare.clear()
        return [chunk_name(number) for number in sorted(spare)]
