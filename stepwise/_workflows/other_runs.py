"""The runs beside a call of a workflow: which recorded runs belong to it, and which do not.

A run belongs to a workflow by the script's path or the module's name, and the function's name.  A
new run reports unfinished runs of the workflow, and of workflows whose names are gone.  If the new
run would repeat recorded side effects, the call is refused.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from stepwise import errors
from stepwise._execution.active_run import live_runs
from stepwise._execution.outcomes import load_inputs
from stepwise._execution.process_memory import memory
from stepwise._identity.call_parts import Parts
from stepwise._identity.identity import CLASS, KEY, shown_parts
from stepwise._identity.module_names import file_of, holds_name, other_places, place_of
from stepwise._journal import journal as journals
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._runtime.messages import is_ours, kernel_shell, notice, reports, shell_word
from stepwise._values.trees import ATOMS
from stepwise._workflows.definition import BoundCall, Callee, is_defined
from stepwise.stores import Head, Store

# -- runs of this call -----------------------------------------------------------------------------


def is_call_of(store: Store, seal: Seal, old: RunFacts, callee: Callee) -> bool:
    """Return whether a run belongs to this call of a workflow, which may have been moved.

    Args:
        old: the run's facts, as from :func:`counted_here`.
    """
    workflow = callee.workflow
    if old.digest != callee.digest:
        return False
    return (
        old.workflow == workflow.full_name
        or _was_moved(old, workflow.full_name, workflow.code)
        or journals.is_of_file(store, seal, old, workflow.other_names, workflow.file)
        or _was_renamed(store, seal, old, workflow.function.__module__)
    )


def counted_here(store: Store, seal: Seal, old: RunFacts, callee: Callee) -> RunFacts:
    """Return a run's facts with the digest and the parts that its arguments have in this program.

    The classes of a script count by the script's name.  If that name has changed, the recorded
    arguments are loaded and counted again, to compare them with the arguments of ``callee``.
    """
    workflow = callee.workflow
    if not isinstance(callee, BoundCall) or not _was_moved(old, workflow.full_name, workflow.code):
        return old
    parameters = callee.workflow.parameters
    try:
        inputs = load_inputs(store, seal, old._replace(workflow=workflow.full_name))
        instance, args, kwargs = parameters.call_of(inputs.whole(), inputs.method)
        call = BoundCall(callee.workflow, instance, args, kwargs)
    except Exception:  # arguments do not load or fit, or the user's classes or key= raise
        return old
    counted = {
        name: short
        for name, short in call.parts.recorded.items()
        if name in (*inputs.values, CLASS, KEY) or name.startswith("self.")
    }
    parts = old.parts and {name: counted.get(name, short) for name, short in old.parts.items()}
    return old._replace(digest=call.digest, parts=parts)


def _differs_plainly(old: RunFacts, callee: Callee) -> bool:
    """Return whether a number or a text among the arguments differs, in any program."""
    return isinstance(callee, BoundCall) and any(
        type(callee.bound.get(name, callee)) in ATOMS for name in callee.parts.differing(old.parts)
    )


def _was_moved(old: RunFacts, workflow: str, code: str) -> bool:
    """Return whether a run belongs to a workflow with the same code, in a script that is gone."""
    place = journals.place_of_run(old)
    return (
        bool(code)
        and old.code == code
        and workflow.endswith(f":{old.label}")
        and os.path.isabs(place)
        and not os.path.exists(place)
    )


def _was_renamed(store: Store, seal: Seal, old: RunFacts, module: str) -> bool:
    """Return whether a run belongs to a workflow that its module no longer has.

    The answer is False in a notebook, whose other cells may not have been executed yet.

    Args:
        module: the module of the workflow that is called now.
    """
    label = old.label
    names = [f"{place}:{label}" for place in (place_of(module), *other_places(module))]
    if old.workflow not in names or kernel_shell():
        return False
    if holds_name(module, label.partition(".")[0]) or is_defined(module, label):
        return False
    file = file_of(module)
    is_here = journals.place_of_run(old) == place_of(module) or journals.is_of_file(
        store, seal, old, names, file
    )
    return is_here and not _may_be_made(file, label)


def _may_be_made(file: str, label: str) -> bool:
    """Return whether a file contains a function or workflow of that name, not yet defined."""
    text = "".join(linecache.getlines(file)) if file else ""
    last = re.escape(label.rpartition(".")[2])
    given = re.escape(label)
    return bool(re.search(rf"def\s+{last}\b|name\s*=\s*(['\"]){given}\1", text))


# -- unfinished runs beside a new one ------------------------------------------------------------


def look_beside(
    store: Store, seal: Seal, new: RunFacts, callee: Callee, *, is_asked_for: bool
) -> None:
    """Report unfinished runs beside a new run of the same workflow, which may be a mistake.

    Runs of a missing workflow with equal parts are reported, too: it may have been renamed.

    Args:
        is_asked_for: True if the user asked for a new run, or chose its id.

    Raises:
        RunConflictError: a run of a missing workflow has side effects that this run may repeat.
    """
    if not is_ours(callee.workflow.source.filename):
        _tell_of_unfinished(store, seal, new, callee.parts)
    for old in _under_other_names(store, seal, new, callee) or ():
        effects = _effects_of(store, seal, old)
        resume = f"STEPWISE_RESUME={shell_word(old.run_id)}, or .options(run_id={old.run_id!r})"
        beside, place = f"{old.run_id}({old.arguments}){effects} of", journals.place_of_run(old)
        if is_moved := _was_moved(old, new.workflow, new.code):
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
        raise errors.RunConflictError(
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
    heads = journals.unfinished_heads(store, seal, new.workflow)
    unfinished = [old for old in _begun(seal, heads, _BESIDE) if store.owner(old.run_id) is None]
    if unfinished:
        newest = max(unfinished, key=lambda facts: facts.updated_at)
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        notice(
            f"{new.run_id} starts; unfinished beside it: {newest.run_id}({newest.arguments})"
            f"{_effects_of(store, seal, newest)}{more}. "
            f"{_difference(new, newest, parts)}; stepwise forget deletes it"
        )


def _difference(new: RunFacts, old: RunFacts, parts: Parts | None) -> str:
    """Return how an unfinished run differs from a new one, and how to resume it."""
    differing = parts.differing(old.parts, momentary=True) if parts is not None else []
    edited = ", its code has changed" if old.code and new.code and old.code != new.code else ""
    if differing:
        return f"It differs in {shown_parts(differing)}{edited}; called as it was, it resumes"
    if old.digest != new.digest:
        return f"Its arguments differ{edited}; called with them, it resumes"
    return (
        f"Its arguments are equal{edited}. To resume it: .options(run_id={old.run_id!r}), or "
        "start='unfinished'"
    )


_MOST = 1000  # unfinished runs that the search examines, once for each workflow and process
_BESIDE = 30  # unfinished runs of the same workflow that are examined: each costs an owner look-up

_of_gone: dict[tuple[str, str], list[RunFacts]] = {}
"""The unfinished runs of missing workflows, by store and by the workflow that may replace them."""
_counted: dict[tuple[str, str], dict[str, RunFacts]] = {}
"""The runs of ``_of_gone`` whose arguments were loaded and counted here, by run id."""


@reports
def _under_other_names(store: Store, seal: Seal, new: RunFacts, callee: Callee) -> list[RunFacts]:
    """Return the unfinished runs that this call may have begun under another name."""
    workflow, digest, parts = callee.workflow, callee.digest, callee.parts
    module, key = workflow.function.__module__, (store.url, new.workflow)
    if key not in _of_gone:
        _of_gone[key] = [
            old
            for old in _begun(seal, store.heads(unfinished=True), _MOST)
            if _was_moved(old, new.workflow, new.code) or _was_renamed(store, seal, old, module)
        ]
    alike = [old for old in _of_gone[key] if not _differs_plainly(old, callee)]
    counted = _counted.setdefault(key, {})
    for old in alike:
        if old.run_id not in counted:
            counted[old.run_id] = counted_here(store, seal, old, callee)
    equal = [
        old
        for old in (counted[each.run_id] for each in alike)
        if old.digest == digest and not (parts is not None and parts.differing(old.parts))
    ]
    now = [
        journals.facts_of(store, seal, old.run_id)
        for old in equal
        if store.owner(old.run_id) is None
    ]
    return [facts for facts in now if facts is not None and facts.status != "completed"]


def _begun(seal: Seal, heads: Iterable[Head], most: int) -> Iterator[RunFacts]:
    """Yield the top-level runs of these heads that a call may continue, but those of this process.

    Args:
        most: the number of heads that are examined.
    """
    mine = {run.run_id for run in list(live_runs)}
    for head in itertools.islice(heads, most):
        # Runs of this process are skipped without asking the store, which may be remote.
        facts = journals.open_head(seal, head) if head.run_id not in mine else None
        if facts is not None and not (facts.parent or facts.is_branch):
            yield facts


def _effects_of(store: Store, seal: Seal, facts: RunFacts) -> str:
    """Return the side effects of a run, in words; empty if it had none."""
    effects = Counter(course_of(store, seal, facts).effects)
    told = ", ".join(f"{name} x{count}" for name, count in effects.most_common(4))
    return f" with side effects {told}" if told else ""
