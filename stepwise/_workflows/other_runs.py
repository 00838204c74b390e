"""Other runs of a workflow: those it had under another name, and those that are unfinished.

A run belongs to a workflow by its name: the script's path, and the function's.  A name that is gone
is told, since the new one begins from the start; so is a new run beside an unfinished one.  Where
that would repeat recorded side effects, the call is refused.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from stepwise._execution.active_run import live_runs
from stepwise._execution.process_memory import memory
from stepwise._identity.call_parts import Parts, spoken
from stepwise._identity.module_names import file_of, holds_name, other_places, place_of
from stepwise._journal.chain import is_of_file, place_of_run
from stepwise._journal.heads import open_head, unfinished_heads
from stepwise._journal.journal import facts_of
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._runtime.messages import kernel_shell, notice, reports, shell_word
from stepwise._workflows.definition import Callee, is_defined
from stepwise.errors import RunConflictError
from stepwise.stores import Head, Store

__all__ = ["is_call_of", "look_beside"]


def is_call_of(store: Store, seal: Seal, old: RunFacts, callee: Callee) -> bool:
    """Return whether a run is of this call of a workflow, which may have been moved."""
    workflow, digest = callee.workflow, callee.digest
    return (
        (old.workflow, old.digest) == (workflow.full_name, digest)
        or _was_moved(old, workflow.full_name, digest, workflow.code)
        or (
            old.digest == digest
            and is_of_file(store, seal, old, workflow.other_names, workflow.file)
        )
        or (old.digest == digest and _was_renamed(store, seal, old, workflow.function.__module__))
    )


def _was_moved(old: RunFacts, workflow: str, digest: str, code: str) -> bool:
    """Return whether a run is of the same call of the same code, in a script that is gone."""
    place = place_of_run(old)
    return (
        bool(code)
        and (old.digest, old.code) == (digest, code)
        and workflow.endswith(f":{old.label}")
        and os.path.isabs(place)
        and not os.path.exists(place)
    )


def _was_renamed(store: Store, seal: Seal, old: RunFacts, module: str) -> bool:
    """Return whether a run is of a workflow that its module no longer has.

    Not in a notebook, whose other cells may not have been executed yet.

    Args:
        module: that of the workflow which is called now.
    """
    label = old.label
    names = [f"{place}:{label}" for place in (place_of(module), *other_places(module))]
    if old.workflow not in names or kernel_shell():
        return False
    if holds_name(module, label.partition(".")[0]) or is_defined(module, label):
        return False
    file = file_of(module)
    is_here = place_of_run(old) == place_of(module) or is_of_file(store, seal, old, names, file)
    return is_here and not _may_be_made(file, label)


def _may_be_made(file: str, label: str) -> bool:
    """Return whether a file has a function or workflow of that name, which is not made yet."""
    text = "".join(linecache.getlines(file)) if file else ""
    last = re.escape(label.rpartition(".")[2])
    given = re.escape(label)
    return bool(re.search(rf"def\s+{last}\b|name\s*=\s*(['\"]){given}\1", text))


# -- unfinished runs beside a new one ------------------------------------------------------------


def look_beside(
    store: Store, seal: Seal, new: RunFacts, callee: Callee, *, is_asked_for: bool
) -> None:
    """A new run starts beside an unfinished one of the same workflow: that may be a mistake.

    Or beside one of a workflow that is gone, with equal parts: perhaps it was renamed.

    Args:
        is_asked_for: somebody asked for a new run, or chose its id.

    Raises:
        RunConflictError: a run of a workflow that is gone has side effects, which this one may
            repeat.
    """
    _tell_of_unfinished(store, seal, new, callee.parts)
    for old in _under_other_names(store, seal, new, callee) or ():
        effects = _effects_of(store, seal, old)
        resume = f"STEPWISE_RESUME={shell_word(old.run_id)}, or .options(run_id={old.run_id!r})"
        beside, place = f"{old.run_id}({old.arguments}){effects} of", place_of_run(old)
        if is_moved := _was_moved(old, new.workflow, new.digest, new.code):
            beside += (
                f" the same code in {place}, which no longer exists. To resume that run instead: "
                f"{resume}"
            )
        else:
            beside += (
                f" a workflow {old.label!r}, which is no longer in {place}. If {new.label!r} is "
                f"the same one, to resume that run instead: {resume}; for all its runs: "
                f"@workflow(name={old.label!r})"
            )
        if is_moved or is_asked_for or not effects:
            if memory.is_first(f"unfinished {old.run_id} beside {new.workflow}"):
                notice(f"{new.run_id} starts; unfinished: {beside}")
            continue
        raise RunConflictError(
            f"{new.label}({new.arguments}) would begin a new run beside an unfinished one whose "
            f"side effects it may repeat: {beside}. If it is another workflow, begin a new run "
            f"all the same: .options(fresh=True), or STEPWISE_FRESH=1; stepwise forget "
            f"{shell_word(old.run_id)} deletes the unfinished one",
            run_id=old.run_id,
            recorded=f"{old.label}({old.arguments})",
            given=f"{new.label}({new.arguments})",
        )


@reports
def _tell_of_unfinished(store: Store, seal: Seal, new: RunFacts, parts: Parts | None) -> None:
    unfinished = list(_unfinished(store, seal, new.workflow))
    if unfinished:
        newest = max(unfinished, key=lambda facts: facts.updated_at)
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        notice(
            f"{new.run_id} starts; unfinished beside it: {newest.run_id}({newest.arguments})"
            f"{_effects_of(store, seal, newest)}{more}. "
            f"{_difference(new, newest, parts)}; stepwise forget deletes it"
        )


def _difference(new: RunFacts, old: RunFacts, parts: Parts | None) -> str:
    """In what an unfinished run differs from a new one, and how to resume it."""
    differing = parts.differing(old.parts, momentary=True) if parts is not None else []
    edited = ", its code has changed" if old.code and new.code and old.code != new.code else ""
    if differing:
        return f"It differs in {spoken(differing)}{edited}; called as it was, it resumes"
    if old.digest != new.digest:
        return f"Its arguments differ{edited}; called with them, it resumes"
    if old.parts is None and parts is not None and parts.has_instance:
        return (
            f"Its arguments are equal{edited}; its instance's attributes are not recorded. To "
            f"resume it: .options(run_id={old.run_id!r})"
        )
    return (
        f"Its arguments are equal{edited}. To resume it: .options(run_id={old.run_id!r}), or "
        "start='unfinished'"
    )


_MOST = 1000  # unfinished runs that the search examines, once for each workflow and process
_BESIDE = 30  # of the same workflow: there may be a million, and each is asked for its owner

_of_gone: dict[tuple[str, str], list[RunFacts]] = {}
"""The unfinished runs of workflows that are gone, by store and workflow that may be such a one."""


@reports
def _under_other_names(store: Store, seal: Seal, new: RunFacts, callee: Callee) -> list[RunFacts]:
    """Return the unfinished runs that this call may have begun under another name."""
    workflow, digest, parts = callee.workflow, callee.digest, callee.parts
    module, key = workflow.function.__module__, (store.url, new.workflow)
    if key not in _of_gone:
        _of_gone[key] = [
            old
            for old in _begun(seal, store.heads(unfinished=True), _MOST)
            if _was_moved(old, new.workflow, old.digest, new.code)
            or _was_renamed(store, seal, old, module)
        ]
    equal = [
        old
        for old in _of_gone[key]
        if old.digest == digest and not (parts is not None and parts.differing(old.parts))
    ]
    now = [facts_of(store, seal, old.run_id) for old in equal if store.owner(old.run_id) is None]
    return [facts for facts in now if facts is not None and facts.status != "completed"]


def _unfinished(store: Store, seal: Seal, workflow: str) -> Iterator[RunFacts]:
    """Yield the unfinished runs of a workflow that nobody executes and no run called."""
    for facts in _begun(seal, unfinished_heads(store, seal, workflow), _BESIDE):
        if store.owner(facts.run_id) is None:
            yield facts


def _begun(seal: Seal, heads: Iterable[Head], most: int) -> Iterator[RunFacts]:
    """Yield the runs of these heads that no run called, without those of this process.

    Args:
        most: how many runs are looked at.
    """
    mine = {run.run_id for run in list(live_runs)}
    for head in itertools.islice(heads, most):
        # What this process executes is left out without asking the store, which may be far away.
        facts = open_head(seal, head) if head.run_id not in mine else None
        if facts is not None and not facts.parent:
            yield facts


def _effects_of(store: Store, seal: Seal, facts: RunFacts) -> str:
    """Return the side effects that a run had, in words; empty if it had none."""
    effects = Counter(course_of(store, seal, facts).effects)
    told = ", ".join(f"{name} x{count}" for name, count in effects.most_common(4))
    return f" with side effects {told}" if told else ""
