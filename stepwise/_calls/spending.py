"""``stepwise.spend``: says what was spent, so that it counts for the budget of the run."""

from __future__ import annotations

from stepwise._calls.steps import Step
from stepwise._execution.account import SPENDS
from stepwise._execution.active_run import current_scope
from stepwise._execution.budget import amount
from stepwise._runtime.tracebacks import fold

__all__ = ["spend"]


def spend(usd: float = 0, tokens: int = 0) -> None:
    """Say that money or tokens were spent, for the budget of the run and for ``stepwise show``.

    In the body of a step, the amounts are recorded with the outcome of the step; those of failed
    attempts count, too.  In the workflow's own code it is a recorded call: answered by the journal,
    it counts nothing again.  Outside of a run it does nothing, so that a tool works there as well.

    Instrumented model requests (:func:`stepwise.instrument`) and those of pydantic-ai's engine
    report by themselves what they spend.

    Args:
        usd: US dollars, 0 or more.
        tokens: of a language model, 0 or more.

    Raises:
        ConfigurationError: an amount is not a number, or negative.
    """
    usd = amount("spend(usd=...)", usd, whole=False)
    tokens = int(amount("spend(tokens=...)", tokens, whole=True))
    scope = current_scope()
    if scope is None or not (usd or tokens):
        return
    if scope.call is not None:
        scope.run.account.spend(scope.call.number, usd, tokens)
        return
    try:
        _recorded(usd=usd, tokens=tokens)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _spend(usd: float, tokens: int) -> None:
    spend(usd, tokens)


_spend.__module__ = SPENDS  # no step of the budget: the money is gone
_recorded = Step(_spend, kind="step", name="spend")
