"""``evaluate``: many recorded runs, each continued with variations, and a score for each result.

The branches are those of ``Run.branch``.  A score is a run of its own, whose id follows from the
scored run, its end and the code of the score: so it is made once, and anew when the score was
edited, or when the scored run was deleted and executed anew.

Rejected: a record of the score in the branch.  The journal of a run that has ended stays as it is.
"""

from __future__ import annotations

import asyncio
import collections
import csv
import inspect
import io
import itertools
import json
import math
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Literal

from stepwise._calls.branching import BranchCall, policy_of
from stepwise._calls.edits import edits_in
from stepwise._calls.parallel import variations_of
from stepwise._calls.steps import step_of
from stepwise._display import render
from stepwise._execution.account import Account, pooled
from stepwise._execution.budget import Budget
from stepwise._execution.viewer import result_of
from stepwise._identity.following import version_of
from stepwise._identity.identity import random_id, whole
from stepwise._journal.journal import facts_of, read_end
from stepwise._journal.records import RunFacts
from stepwise._runs.branching import (
    RunBranch,
    RunBranches,
    check,
    execute,
    make,
    shown_variables,
    variation_text,
    workflow_of,
)
from stepwise._runs.run import Run, current_run
from stepwise._runs.steps import moved, settled
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple, public
from stepwise._runtime.messages import notice, thread_context
from stepwise._runtime.options import check_kind
from stepwise._values import digest
from stepwise._values.preview import preview
from stepwise._workflows.best_of import CalledFunction, callee_of
from stepwise._workflows.workflow import workflow
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError
from stepwise.stores import open_store

BASE = "base"
"""The variation in the row of a run that is no branch."""

_SCORES = "scores"  # the tag of a run that scores another one
_LOCKS = (type(threading.Lock()), type(threading.RLock()))  # hold nothing

# -- the score of a run ----------------------------------------------------------------------------


_scoring: ContextVar[_Scorer | None] = ContextVar("stepwise_scoring", default=None)
"""The score that the run which begins here makes.

Rejected: the function as an argument of that run.  Each score would record it, with all that it
holds.
"""


@workflow(name="score")
def score_run(run_id: str) -> float:
    """Score the result of a run."""
    return _score_here(run_id)


def _score_here(run_id: str) -> float:
    this, scorer = current_run(), _scoring.get()
    if this is None or scorer is None:
        raise ConfigurationError(
            f"run {run_id!r} is scored by a function that only the call of evaluate() has: call it "
            "again"
        )
    return scorer.judge(Run(this.store, run_id))


async def _awaited(value: Any) -> Any:
    return await value


def _takes_run(score: Any) -> bool:
    """Return whether a score has a second parameter without a default, for the run."""
    try:
        parameters = inspect.signature(score).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    by_place = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(each.kind in by_place and each.default is each.empty for each in parameters) > 1


def _number(score: Any, judge: CalledFunction) -> float:
    """Return a score as a number.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(score, int):
        return int(score)
    number = float(score) if hasattr(score, "__float__") else math.nan
    if math.isfinite(number):
        return number
    raise ConfigurationError(
        f"score= of evaluate(): {judge.name!r} returned {preview(score)}, not a number; "
        "a score that raises is made again at the next call"
    )


def _version_of(judge: CalledFunction) -> tuple[str, list[object]]:
    """Return what tells a score from others, and from itself before an edit.

    Returns:
        a digest; and the objects that it holds and that nothing tells from others of their class.
    """
    recorded = step_of(judge.function)
    if recorded is not None:
        function, code = recorded.function, recorded.code
        name = f"{recorded.module}:{recorded.qualname}"
    else:
        definition = judge.function.definition
        function, name = definition.function, definition.full_name
        code = version_of(function, definition.source).id
    instance = getattr(judge.function, "__self__", None)  # of a workflow that is a method
    held, unknown = whole([function, instance, judge.args, dict(judge.kwargs)])
    return digest.combine(name, code, held), [each for each in unknown if type(each) not in _LOCKS]


class _Scorer:
    """Scores runs, each once.

    Args:
        score: the function.
    """

    def __init__(self, score: Any) -> None:
        self._judge = callee_of(score, "score", "score= of evaluate()")
        self._takes_run = _takes_run(score)
        self._version, unknown = _version_of(self._judge)
        if unknown:
            self._version += random_id("")
            notice(
                f"evaluate() makes its scores anew at each call: {self._judge.name!r} holds "
                f"{digest.noun(unknown[0])}, and nothing tells whether it is the same one the next "
                "time. Hold the data that it is made of instead"
            )

    def judge(self, scored: Run) -> float:
        """Return what the function says of a run."""

        def read(facts: RunFacts, _: Any) -> Any:
            if facts.status != "completed":  # it is executed again since it was found
                raise moved(scored.store, scored.id)
            return result_of(scored.store, scored._seal, facts)

        result = settled(scored.store, scored._seal, scored.id, read)
        given = (result, scored) if self._takes_run else (result,)
        value = self._judge.call(*given)
        value = asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
        return _number(value, self._judge)

    def run(self, scored: Run) -> tuple[Run, RunFacts | None]:
        """Return the run that scores another one, and its facts if it has begun.

        A run whose results come from a step that was edited since keeps them; another one begins.
        """
        store, seal = scored.store, scored._seal
        end = read_end(store, seal, scored._facts())
        result = end.ended.at if end is not None and end.ended is not None else None
        version = digest.combine(self._version, f"{result}")[:12]
        for number in itertools.count(1):
            run_id = f"{scored.id}.score-{version}{f'.{number}' if number > 1 else ''}"
            facts = facts_of(store, seal, run_id)
            if facts is None or not edits_in(store, seal, run_id):
                break
        return Run(store, run_id, seal), facts

    def __call__(self, scored: Run) -> float:
        """Return the score of a run that has completed."""
        run, facts = self.run(scored)
        if facts is not None and facts.status == "completed":
            score: float = run.result
            return score
        scoring = score_run.options(run_id=run.id, store=run.store, tags={_SCORES: scored.id})
        token = _scoring.set(self)
        try:
            return scoring(scored.id)
        finally:
            _scoring.reset(token)


# -- the table -------------------------------------------------------------------------------------


@public
class Evaluation(list[dict[str, Any]]):
    """The scores of many runs and their branches, one row each, displayed as a table.

    A row has ``run``; ``base``, the id of the run that it is a branch of, or its own;
    ``variation``, which is ``base`` for that run itself; ``status``, ``score``, ``error``,
    ``result`` as short text, ``steps``, ``usd`` and ``seconds``.
    """

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as plain data."""
        return [*self]

    def means(self) -> list[dict[str, Any]]:
        """Return a row for each variation: how many have a score, and the means over these."""
        found = dict[str, list[dict[str, Any]]]()
        for row in self:
            found.setdefault(row["variation"], []).append(row)
        return [_mean_of(variation, rows) for variation, rows in found.items()]

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as JSON, and write them to a file if ``path`` is given."""
        return _written(json.dumps(self.rows(), indent=1, ensure_ascii=False), path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV, and write them to a file if ``path`` is given."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self)
        return _written(text.getvalue(), path)

    def to_pandas(self) -> Any:
        """Return the rows as a ``DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ConfigurationError(
                "to_pandas() needs pandas, which is not installed: pip install pandas; or use "
                "rows(), to_json() or to_csv()"
            ) from None
        return pd.DataFrame(self.rows(), columns=[*COLUMNS])

    def __str__(self) -> str:
        return render.evaluation_text(self, self.means())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return render.evaluation_html(self, self.means())


COLUMNS = (
    "run",
    "base",
    "variation",
    "status",
    "score",
    "error",
    "result",
    "steps",
    "usd",
    "seconds",
)


def _mean_of(variation: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    scored = [row for row in rows if row["score"] is not None]
    means = {
        name: math.fsum(row[name] for row in scored) / len(scored) if scored else None
        for name in ("score", "steps", "usd", "seconds")
    }
    return {"variation": variation, "rows": len(rows), "scored": len(scored), **means}


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    return text


# -- evaluating ------------------------------------------------------------------------------------


class _ToScore(NamedTuple):
    """A run or a branch that is to be scored.

    Args:
        variation: what stands for its variation in the table.
        workflow: executes the branch; ``None`` for a run as it is.
        problem: why the run has no branches.
    """

    branch: RunBranch
    variation: str = BASE
    workflow: Any = None
    problem: str = ""


def evaluate(
    runs: Run | str | Iterable[Run | str],
    at: int | str | None = None,
    variations: int | Iterable[Mapping[str, Any]] = 1,
    *,
    score: Callable[..., Any],
    effects: Literal["refuse", "collect"] | Callable[[BranchCall], Any] = "refuse",
    max_workers: int = 8,
    budget: Budget | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Continue each of many recorded runs with variations, and score what comes of it.

    The runs get the branches that :meth:`Run.branch` would make.  The result of each branch that
    completes is scored, and so is the result of each run itself, to compare with.  Killed anywhere
    and called again, the same call goes on: no branch that has ended is executed again, and no
    score is made again, unless the code of the score was edited.  Branches among the runs are left
    out, so that all runs of a workflow can be given each time.

    Args:
        runs: runs, or their ids: one, or any number, which are read one by one.
        at, variations, effects, inputs: as for :meth:`Run.branch`.
        score: a function of a result that returns a number: a step, a workflow or a plain function,
            recorded in a run of its own.  A second parameter gets the :class:`Run`.
        max_workers: the number of branches that are executed and scored at the same time.
        budget: what all branches and scores together may spend; seconds are those of the clock.

    Returns:
        the rows.  The row of a run that cannot have these branches says why.

    Raises:
        ConfigurationError: an argument cannot be used, or the call is made inside of a run.
    """
    check("evaluate()", max_workers, budget)
    each_of, scorer = variations_of(variations, "branches"), _Scorer(score)
    policy_of(effects)
    with pooled("the evaluation", budget) as account:
        pool = ThreadPoolExecutor(max_workers, "stepwise evaluate")
        found, waiting = Evaluation(), collections.deque[Future[dict[str, Any]]]()
        try:
            for job in _each_to_score(runs, at, each_of, effects):
                if account is not None:
                    _count_before(account, job, scorer)
                context = thread_context()
                waiting.append(pool.submit(context.run, _done, job, scorer, inputs or {}))
                while len(waiting) > 2 * max_workers:  # else all branches would be in memory
                    found.append(waiting.popleft().result())
            found += [each.result() for each in waiting]
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def _each_to_score(
    runs: Any, at: int | str | None, variations: list[dict[str, Any]], effects: Any
) -> Iterator[_ToScore]:
    """Make the branches of each run; yield the run, and its branches."""
    seen = set[str]()
    for each in [runs] if isinstance(runs, (Run, str)) else runs:
        run = Run(open_store(settings.store()), each) if isinstance(each, str) else each
        check_kind("runs= of evaluate()", run, Run, "give runs or their ids: stepwise.runs(...)")
        facts = facts_of(run.store, run._seal, run.id)
        is_ours = facts is not None and (facts.is_branch or facts.workflow == score_run.full_name)
        if is_ours or run.id in seen:
            continue
        seen.add(run.id)
        found, names, workflow, problem = RunBranches(), list[str](), None, ""
        try:
            workflow = workflow_of(run)
            found = make(run, at, variations, effects)
            names = _names_of(variations, run._facts())
        except (StepwiseError, RunStopped) as error:
            problem = f"{error}"
        yield _ToScore(RunBranch(run, {}), problem=problem)
        for branch, name in zip(found, names, strict=True):
            yield _ToScore(branch, name, workflow)


def _names_of(variations: list[dict[str, Any]], facts: RunFacts) -> list[str]:
    """Return a text for each variation; texts that were shortened to the same one get a number."""
    names, known = [], dict[str, str]()
    for number, variation in enumerate(variations, 1):
        name = variation_text(shown_variables(facts, variation))
        identity = digest.digest(variation)
        is_other = known.setdefault(name, identity) != identity
        names.append(f"{name} (variation {number})" if is_other else name)
    return names


def _count_before(account: Account, job: _ToScore, scorer: _Scorer) -> None:
    """Count what a branch and its score have spent before, towards the budget of all."""
    run = job.branch.run
    scoring, facts = scorer.run(run)
    if job.workflow is not None:
        account.count(run.spent)
    if facts is not None:
        account.count(scoring.spent)


def _done(job: _ToScore, scorer: _Scorer, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a branch if it has not ended, score its result, and return its row."""
    branch = job.branch
    row = dict.fromkeys(COLUMNS) | {"run": branch.run.id, "base": branch.run.id, "error": ""}
    if job.workflow is not None:
        execute(job.workflow, inputs, branch)
    try:
        made = branch._row({})
        row |= {name: made[name] for name in COLUMNS if name in made}
        if branch.run._facts().status == "completed":  # also of a base that is superseded
            row["score"] = scorer(branch.run)
        elif row["status"] != "suspended":  # of which the result says what it proposes
            row |= {"error": row["result"], "result": ""}
    except (Exception, RunStopped) as error:
        row["error"] = f"{type(error).__name__}: {error}"
    if job.workflow is None:
        row |= {"base": branch.run.id, "error": job.problem or row["error"]}
    return row | {"variation": job.variation}
