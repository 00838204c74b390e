"""Other runs of a workflow: those it had under another name, and those that are unfinished.

A run belongs to a workflow by its name: the script's path, and the function's.  A name that is gone
is told, since the new one begins from the start; so is a new run beside an unfinished one.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator

from stepwise._execution.active_run import live_runs
from stepwise._identity.call_parts import Parts, spoken
from stepwise._identity.module_names import place_of
from stepwise._journal.chain import is_of_file, place_of_run
from stepwise._journal.heads import open_head, unfinished_heads
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._runtime.messages import kernel_shell, notice, reports, shell_word
from stepwise._workflows.definition import Callee, is_defined
from stepwise.stores import Store

__all__ = ["is_call_of", "tell_of_unfinished"]


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


def _was_renamed(old: RunFacts, digest: str, module: str) -> bool:
    """Return whether a run is of an equal call of a workflow that its module no longer has.

    Not in a notebook, whose other cells may not have been executed yet.

    Args:
        module: that of the workflow which is called now.
    """
    if (place_of_run(old), old.digest) != (place_of(module), digest) or kernel_shell():
        return False
    # Only names are compared: reading an attribute of an arbitrary object in a module may run
    # arbitrary code (a proxy outside of its request raises).
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return old.label.partition(".")[0] not in names and not is_defined(module, old.label)


# -- unfinished runs beside a new one ------------------------------------------------------------


@reports
def tell_of_unfinished(
    store: Store, seal: Seal, new: RunFacts, module: str, parts: Parts | None = None
) -> None:
    """A new run starts beside an unfinished one of the same workflow: that may be a mistake.

    Or beside one of a workflow that is gone, with the same arguments: perhaps it was renamed.

    Args:
        module: that of the workflow.
        parts: what tells the new run's call apart.
    """
    unfinished = list(_unfinished(store, seal, new.workflow, _BESIDE))
    if unfinished:
        newest = max(unfinished, key=lambda facts: facts.updated_at)
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        notice(
            f"{new.run_id} starts; unfinished beside it: {_told(store, seal, newest)}{more}. "
            f"{_difference(new, newest, parts)}; stepwise forget deletes it"
        )
    elif new.workflow not in _looked_for:
        _looked_for.add(new.workflow)
        _tell_of_renamed(store, seal, new, module)


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


_looked_for: set[str] = set()  # workflows that were searched under another name
_MOST = 300  # unfinished runs that the search examines
_BESIDE = 30  # of the same workflow: there may be a million, and each is asked for its owner


def _tell_of_renamed(store: Store, seal: Seal, new: RunFacts, module: str) -> None:
    for old in _unfinished(store, seal, None, _MOST):
        if _was_moved(old, new.workflow, new.digest, new.code):
            told = (
                f"the same code in {place_of_run(old)}, which no longer exists. To resume that "
                f"run instead: STEPWISE_RESUME={shell_word(old.run_id)}, or "
                f".options(run_id={old.run_id!r})"
            )
        elif _was_renamed(old, new.digest, module):
            told = (
                f"a workflow {old.label!r}, which is no longer in {place_of_run(old)}. If "
                f"{new.label!r} is the same one, to resume that run instead: "
                f"@workflow(name={old.label!r})"
            )
        else:
            continue
        notice(f"{new.run_id} starts; unfinished: {_told(store, seal, old)} of {told}")


def _unfinished(
    store: Store, seal: Seal, workflow: str | None, most: int | None = None
) -> Iterator[RunFacts]:
    """The unfinished runs of a workflow, or of all, that nobody executes and no run called.

    Args:
        most: how many runs are looked at.
    """
    if workflow is None:
        heads = store.heads(unfinished=True)
    else:
        heads = unfinished_heads(store, seal, workflow)
    mine = {run.run_id for run in list(live_runs)}
    for head in itertools.islice(heads, most):
        if head.run_id in mine:
            continue  # without asking the store, which may be far away
        facts = open_head(seal, head)
        if facts is not None and not facts.parent and store.owner(facts.run_id) is None:
            yield facts


def _told(store: Store, seal: Seal, facts: RunFacts) -> str:
    """A run as it was called, and the side effects that it had."""
    effects = Counter(course_of(store, seal, facts).effects)
    told = ", ".join(f"{name} x{count}" for name, count in effects.most_common(4))
    return f"{facts.run_id}({facts.arguments}){f' with side effects {told}' if told else ''}"
