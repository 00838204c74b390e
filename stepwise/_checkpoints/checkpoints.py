"""Checkpoints: a position in the workflow function, its variables, and the journal's position.

A checkpoint lies in the store beside the journal, needs no flush of its own (the journal is the
truth; without a checkpoint the run resumes at an older one, or by replay), and is only ever loaded
after it verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Literal

from stepwise._checkpoints.chunks import NO_NEEDS, Needs, Reader, Vault, chunk_name, digest_of
from stepwise._checkpoints.references import References
from stepwise._checkpoints.stored_values import KnownValues
from stepwise._journal.header_text import (
    counts_text,
    list_text,
    mapping_text,
    quoted,
    truth_text,
)
from stepwise._journal.journal import Journal, Position, holds, read, read_one, seal_for
from stepwise._journal.records import Entry, RunFacts
from stepwise._journal.seal import DamagedError, Seal, to_json
from stepwise._journal.spending import NO_SUMS, Sums
from stepwise._runtime.facts import NamedTuple
from stepwise._values import codec
from stepwise._values.buffers import Data
from stepwise._values.pickling import PYTHON
from stepwise._values.secrets import Secrets
from stepwise.stores import Store

__all__ = [
    "PREFIX",
    "Checkpoints",
    "Loaded",
    "Retention",
    "State",
    "load_checkpoint",
    "number_of",
    "place_text",
    "sealed",
    "spent_so_far",
    "thousandths",
    "usual_text",
]

Retention = Literal["latest_only", "prune_old", "all"]
PREFIX = "checkpoint/"
_READS_FILES = "+"  # so that it stands beside the one before the loop, after the same record
_PRUNE_AT_LEAST = 200  # records at a time
_THIS_PYTHON = quoted(PYTHON)
_FLAGS = {(a, b): f"{truth_text(a)},{truth_text(b)}" for a in (True, False) for b in (True, False)}
_NEEDS_NOTHING: Mapping[str, Any] = {}
_NO_USAGE: Mapping[str, float] = {}
_NONE_TAKEN: Mapping[str, Sequence[int]] = {}


class State(NamedTuple):
    """The contents of a checkpoint, apart from the local variables.

    Args:
        position: of the last finished statement, structurally; see ``rewrite.transform``.
        line, file: of it.
        prefix: fingerprint of what had been executed.
        visited: paths of the branches that were entered.
        step: how many steps were done.
        calls: the highest number of a call.
        ordinals: how many calls there were, by name.
        children: how many equal calls of child workflows, by name and digest.
        journal: the last record, the link to it, the number of intents, and the sums so far.
        unused: records before it that no call had used: origin, last, and their flags.
        arguments: the objects that are kept by reference, name and kind.
        python, at: the Python version that wrote it; when, in seconds since 1970.
        needs: what is stored elsewhere that it refers to; see :class:`.chunks.Needs`.
        changed: variables that a fork gave other values, as name, form and size of what stands at
            the end of the payload.
        state: what steps changed of their instances, as owner and part; see ``subjects``.
        serial: the highest number of an instance.
        before: if it holds only as long as files are what they were: the checkpoint to go back to
            otherwise; empty for the beginning of the run.
        seconds, usage: what the done steps had taken; see :class:`.counters.Progress`.
        taken: the messages that were taken, by the names of the signals; see :class:`.waits.Taken`.
        told: the workflow had been told that the run is to end, and had gone on.
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
    python: str = PYTHON
    at: float = 0.0
    needs: Mapping[str, Any] = _NEEDS_NOTHING
    changed: Sequence[list[Any]] = ()
    state: Sequence[list[str]] = ()
    serial: int = 0
    before: str | None = None
    seconds: float = 0.0
    usage: Mapping[str, float] = _NO_USAGE
    taken: Mapping[str, Sequence[int]] = _NONE_TAKEN
    told: bool = False

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    @property
    def start(self) -> Position:
        """Return the journal position at which it was taken."""
        return Position.from_kept(self.journal)

    def earlier(
        self, store: Store, seal: Seal, run_id: str
    ) -> Iterator[tuple[Entry, tuple[bool, bool, bool]]]:
        """The unused records before it, with their flags."""
        for origin, last, *flags in self.unused:
            for number in dict.fromkeys((origin, last)):
                entry = read_one(store, seal, run_id, number)
                if entry is not None:
                    yield entry, (*flags,)


def header_text(state: State) -> str:
    """Return the state as the JSON of a mapping, byte for byte as ``json`` writes it.

    What belongs to the place in the function is the same each time, and most other facts are empty.
    """
    (
        position, line, file, prefix, visited, step, calls, ordinals, children, journal,
        unused, arguments, python, at, needs, changed, objects, serial, before,
        seconds, usage, taken, told,
    ) = state  # fmt: skip
    if not isfinite(at + seconds):
        return to_json(state._asdict())
    place = place_text(position, line, file, prefix, *visited)
    if not (
        children or unused or arguments or changed or objects or usage or taken or told
        or before is not None or python is not PYTHON
    ):  # mostly  # fmt: skip
        return usual_text(
            place, step, calls, ordinals, journal, at, serial, repr(seconds), mapping_text(needs)
        )
    return (
        f'{place}"step":{step},"calls":{calls},"ordinals":{counts_text(ordinals)},'
        f'"children":{list_text(children)},"journal":{_journal_text(journal)},'
        f'"unused":{list_text(unused)},"arguments":{mapping_text(arguments)},'
        f'"python":{quoted(python)},"at":{at!r},"needs":{mapping_text(needs)},'
        f'"changed":{list_text(changed)},"state":{list_text(objects)},"serial":{serial},'
        f'"before":{"null" if before is None else quoted(before)},"seconds":{seconds!r},'
        f'"usage":{mapping_text(usage)},"taken":{mapping_text(taken)},"told":{truth_text(told)}}}'
    )


def usual_text(
    place: str,
    step: int,
    calls: int,
    ordinals: Mapping[str, int],
    journal: Sequence[Any],
    at: float,
    serial: int,
    seconds: str,
    needs: str,
) -> str:
    """Return the text of a state of which all that is not given here is empty.

    Args:
        place: see :func:`place_text`.
        seconds: as text.
        needs: see :meth:`.Needs.text`; the others are facts of a :class:`State`.
    """
    return (
        f'{place}"step":{step},"calls":{calls},"ordinals":{counts_text(ordinals)},"children":[],'
        f'"journal":{_journal_text(journal)},"unused":[],"arguments":{{}},'
        f'"python":{_THIS_PYTHON},"at":{at!r},"needs":{needs},"changed":[],"state":[],'
        f'"serial":{serial},"before":null,"seconds":{seconds},"usage":{{}},"taken":{{}},'
        '"told":false}'
    )


def thousandths(seconds: float) -> str:
    """Return ``repr(round(seconds, 3))``, in half the time, for fewer than ten thousand years."""
    text = f"{seconds:.3f}".rstrip("0")
    return f"{text}0" if text[-1] == "." else text


def _journal_text(journal: Sequence[Any]) -> str:
    last, link, effects, *sums = journal
    usd, tokens, steps, seconds, at_least, is_open = sums[0] if sums else NO_SUMS
    if not sums or not isfinite(usd + tokens + seconds):  # an earlier version kept no sums
        return to_json(journal)
    flags = _FLAGS[bool(at_least), bool(is_open)]
    return f'[{last},"{link}",{effects},[{usd!r},{tokens!r},{steps},{seconds!r},{flags}]]'


@lru_cache(256)
def place_text(position: str, line: int, file: str, prefix: str, *visited: str) -> str:
    """Return what a state's text begins with: all that belongs to the place in the function."""
    facts = {"position": position, "line": line, "file": file, "prefix": prefix, "visited": visited}
    return to_json(facts)[:-1] + ","


class Loaded(NamedTuple):
    """A checkpoint that verified: its name, its state, the pickled local variables.

    ``vault`` holds what it refers to, which verified as well.
    """

    name: str
    state: State
    payload: bytes
    vault: Vault

    def reader(self) -> Reader:
        """Return a reader for the objects that the checkpoint refers to."""
        return Reader(self.vault, Needs.of(self.state.needs))

    def changes(self) -> dict[str, Any]:
        """The variables that a fork gave other values.

        Raises:
            UnreadableValueError: one of them cannot be loaded.
        """
        found, end = {}, len(self.payload)
        for name, form, size in reversed(self.state.changed):
            found[name] = codec.decode(self.payload[end - size : end], form)
            end -= size
        return found


class Checkpoints:
    """The checkpoints of a run that is in progress.

    Args:
        keep: how many ``prune_old`` keeps.
        prune_journal: delete the records that no kept checkpoint needs.
    """

    def __init__(
        self, journal: Journal, retention: Retention, keep: int, *, prune_journal: bool = False
    ) -> None:
        self._journal = journal
        self._keep = {"latest_only": 1, "prune_old": keep}.get(retention, 0)
        self.prunes_journal = prune_journal
        self._names = journal.store.names(journal.run_id, PREFIX)
        tracks = bool(self._keep) or prune_journal
        self._chunks = _Chunks(journal, tracks=tracks, none=not self._names)
        self._refused: list[str] = []
        self._before: dict[str, str] = {}  # by name: what to go back to if a file has changed

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
            reads_files: it holds only as long as files are what they were: the one before the loop
                that reads them is kept as long as it.
        """
        needs, chunks = references.needs()
        if reads_files:
            state = state._replace(before="")
        name = _name(state)
        kept, gone, whole = self._sorted_out(name, reads_files=reads_files)
        if reads_files:
            state = state._replace(before=self._before[name])
        gone += self._chunks.unneeded(name, needs, kept, pruning=bool(gone))
        behind = 0 if whole else self._behind(kept[0], state)
        prunes = behind - facts.pruned >= _PRUNE_AT_LEAST
        after = facts._replace(pruned=behind) if prunes else facts
        referred = needs.header()
        self._journal.put(
            name,
            header_text(state._replace(needs=referred) if referred else state),
            payload,
            also={chunk_name(number): data for number, data in chunks.items()} if chunks else None,
            delete=tuple(gone),
            prune=behind if prunes else 0,
            head=after if prunes else None,
        )
        self._names, self._refused = kept, []
        references.stored(needs)
        return after

    def usual_name(self, last: int) -> str:
        """Return the name of the next checkpoint; empty if more than its name is to be thought of.

        Args:
            last: the number of the record that it follows.
        """
        name = f"{PREFIX}{last:012d}"
        names = self._names
        return (
            ""
            if self.prunes_journal
            or self._before
            or self._refused
            or name in names
            or name + _READS_FILES in names
            else name
        )

    def write_usual(
        self, name: str, header: str, payload: Data, needs: Needs, chunks: Mapping[int, Data]
    ) -> None:
        """Write a checkpoint under its :meth:`usual_name`, and prune.

        Args:
            needs, chunks: see :meth:`.References.needs`.
        """
        names = [*self._names, name]
        kept = names[-self._keep :]
        gone = names[: len(names) - len(kept)]
        if needs is not NO_NEEDS or not self._chunks.are_none:
            gone += self._chunks.unneeded(name, needs, kept, pruning=bool(gone))
        also = {chunk_name(number): data for number, data in chunks.items()} if chunks else None
        self._journal.put(name, header, payload, also=also, delete=tuple(gone))
        self._names = kept

    def _sorted_out(self, name: str, *, reads_files: bool) -> tuple[list[str], list[str], bool]:
        """Return the checkpoints to keep, now that ``name`` is the newest, and those to delete.

        The third says whether the whole journal is needed.
        """
        if not (reads_files or self._before or self._refused) and name not in self._names:
            names = [*self._names, name]  # mostly: no loop that reads a file
            if name + _READS_FILES not in names:
                kept = names[-self._keep :]
                return kept, names[: len(names) - len(kept)], not self.prunes_journal
        over = {name, name + _READS_FILES}  # the latter was taken in a loop that ended since
        names = [*(each for each in self._names if each not in over), name]
        self._before.pop(name, None)
        if reads_files:
            last = names[-2] if names[1:] else ""
            self._before[name] = self._before.get(last, last)
        pruned = names[: -self._keep] if self._keep else []
        needed = {self._before[each] for each in names[len(pruned) :] if each in self._before}
        pruned = [each for each in pruned if each not in needed]
        kept = [each for each in names if each not in pruned]
        self._before = {each: self._before[each] for each in kept if each in self._before}
        gone = [*pruned, *({*self._refused, *(over & {*self._names})} - {name})]
        # Without the checkpoint to go back to, the whole journal is needed.
        return kept, gone, not self.prunes_journal or not needed <= {*kept}

    def _behind(self, oldest: str, state: State) -> int:
        """The last record that neither the oldest checkpoint nor an unused call needs.

        The record at the checkpoint itself stays: its link is what the rest hangs on.
        """
        needed: list[int] = [each[0] for each in state.unused]
        needed += (n.lowest for n in self._chunks.read(()).values() if n.lowest)
        return min(number_of(oldest), *needed, 1 << 62) - 1


def number_of(name: str) -> int:
    """Return the number of the journal record that a checkpoint of this name follows."""
    return int(name.removeprefix(PREFIX).removesuffix(_READS_FILES))


def _name(state: State) -> str:
    suffix = "" if state.before is None else _READS_FILES
    return f"{PREFIX}{state.journal[0]:012d}{suffix}"


def sealed(
    seal: Seal,
    run_id: str,
    loaded: Loaded,
    state: State,
    records: Mapping[int, int],
    payload: bytes,
) -> dict[str, Data]:
    """A checkpoint as another run keeps it, with the chunks that it needs, by their names.

    Args:
        state: what becomes of that of ``loaded``.
        records: where the records stand in the other run, by where they stand in this one.
    """
    needs, links, put = Needs.of(loaded.state.needs), [], {}
    lowest = [records[number] for number in needs.records]
    for number in needs.all_chunks:
        chunk = loaded.vault.chunk(number)
        assert chunk is not None
        chunk = chunk._replace(records=[records[each] for each in chunk.records])
        lowest += chunk.records
        put[chunk_name(number)], link = chunk.seal(seal, run_id, number)
        links.append(link)
    needs = needs._replace(
        records=lowest[: len(needs.records)],
        links=digest_of(links),
        lowest=min(lowest, default=0),
    )
    name = _name(state)
    header = header_text(state._replace(needs=needs.header()))
    put[name] = seal.close(f"{name}/{run_id}", header, payload)[0]
    return put


def load_checkpoint(vault: Vault, name: str) -> Loaded | None:
    """The checkpoint of that name; ``None`` if it does not verify."""
    try:
        opened = vault.open(name)
        state = State(**opened.header)
    except (DamagedError, TypeError):
        return None
    if not vault.holds(Needs.of(state.needs)):
        return None
    return Loaded(name, state, opened.payload, vault)


def spent_so_far(store: Store, run_id: str, seal: Seal | None = None) -> Sums:
    """Return what the records of a run say it has spent, those before a checkpoint included."""
    seal = seal or seal_for(store)
    vault, at = Vault(store, seal, run_id), Position()
    for name in reversed(store.names(run_id, PREFIX)):
        loaded = load_checkpoint(vault, name)
        if loaded is not None and holds(store, seal, run_id, loaded.state.start):
            at = loaded.state.start
            break
    for _, following in read(store, seal, run_id, at):
        at = following
    return at.sums


class _Chunks:
    """The chunks that the kept checkpoints of a run need.

    What those of an earlier attempt need is read when it matters first: when one is pruned.

    Args:
        tracks: checkpoints are pruned, or records.
        none: there are no checkpoints yet.
    """

    def __init__(self, journal: Journal, *, tracks: bool, none: bool) -> None:
        self._vault = Vault(journal.store, journal.seal, journal.run_id)
        self._last: int | None = None
        self._needs: dict[str, Needs] | None = {} if tracks and none else None
        self._tracks = tracks
        self._spare: set[int] = set()

    @property
    def are_none(self) -> bool:
        """True if no kept checkpoint needs any, and none is left to be deleted."""
        return not self._tracks or not (self._needs is None or self._needs or self._spare)

    def next(self) -> int:
        """A number that no chunk had."""
        if self._last is None:
            numbers = self._vault.numbers()
            self._last = max(numbers, default=0)
            if self._needs is not None:
                self._spare.update(numbers)
        self._last += 1
        return self._last

    def read(self, kept: Iterable[str]) -> dict[str, Needs]:
        """Return the needs of those of these checkpoints that need something, by name."""
        if self._needs is None:
            needed = {each: self._vault.needs(each) for each in kept}
            self._needs = {
                name: each for name, each in needed.items() if each.all_chunks or each.lowest
            }
            self._spare.update(self._vault.numbers())
        return self._needs

    def unneeded(self, name: str, needs: Needs, kept: list[str], *, pruning: bool) -> list[str]:
        """The chunks that no checkpoint needs any more, now that ``name`` is the newest.

        Args:
            pruning: checkpoints are deleted.
        """
        if not self._tracks and not pruning:
            return []
        known = self._needs
        if known is None:
            known = self.read(each for each in kept if each != name)
        if not (known or needs.all_chunks or needs.lowest or self._spare):
            return []  # mostly
        for each in [*known]:
            if each == name or each not in kept:
                self._spare.update(known.pop(each).all_chunks)
        if needs.all_chunks or needs.lowest:
            known[name] = needs
        if not self._tracks:
            self._needs = None
        if not self._spare:
            return []
        spare = self._spare.difference(*(each.all_chunks for each in known.values()))
        self._spare.clear()
        return [chunk_name(number) for number in sorted(spare)]
