"""Budgets: what a run may spend, and what it has spent, as users see them.

Rejected: recording a run's budget.  The decorator states the budget; a copy would only state an old
one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import index
from typing import Any

from stepwise._runtime.facts import public
from stepwise._runtime.messages import count
from stepwise.errors import BudgetExceeded, ConfigurationError

_WHOLE = ("tokens", "steps")


def amount(what: str, value: Any, *, whole: bool) -> float:
    """Return an amount as a number.

    Raises:
        ConfigurationError: the value is not a number, or negative; the message names it.
    """
    if not isinstance(value, (bool, str)) and hasattr(value, "__index__" if whole else "__float__"):
        number = index(value) if whole else float(value)
        if 0 <= number < math.inf:
            return number
    kind = "a whole number" if whole else "a number"
    raise ConfigurationError(f"{what}: it must be {kind}, 0 or more, not {value!r}")


@public
@dataclass(frozen=True)
class Budget:
    """The amounts that a run may spend, over all its attempts; see ``@workflow(budget=...)``.

    Before a step begins, the spending of the run and its child runs is compared with the budget.
    If a limit is reached, the run stops with :class:`BudgetExceeded`.  With a larger budget, the
    next start continues.

    Args:
        usd: US dollars, as instrumented model requests and :func:`spend` report them.
        tokens: tokens of language models, input and output, as reported by the same sources.
        steps: the number of executed steps; a step that the journal answers does not count.
        seconds: the execution time; waiting and the time between attempts do not count.

    Raises:
        ConfigurationError: an amount is not a number or is negative, or no limit is given.
    """

    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                limit = amount(f"Budget({each.name}=...)", value, whole=each.name in _WHOLE)
                object.__setattr__(self, each.name, limit)
        if not self.limits:
            raise ConfigurationError(
                "Budget() limits nothing: give it usd=, tokens=, steps= or seconds="
            )

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by unit."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {unit: limit for unit, limit in given.items() if limit is not None}


@public
@dataclass(frozen=True)
class Spent:
    """The amounts that a run has spent, over all its attempts; see :attr:`Run.spent`.

    Args:
        usd: US dollars.
        tokens: tokens of language models, input and output.
        steps: the number of executed steps.
        seconds: the execution time, without waiting and downtime.
        at_least: True if more may have been spent: an attempt ended without a record of its end,
            and the spending of its steps in flight is unknown.
        saved: the spending of calls that the last attempt did not repeat: ``usd``, ``tokens`` and
            ``seconds``, by unit.
        lost: seconds between the attempts of the run, each from the last record of one to the next.
        saved_by_cache: what the answers of the cache had taken when they were made, by unit.
        cached_tokens: the part of the tokens that the prompt caches of providers held.
    """

    usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    at_least: bool = False
    saved: Mapping[str, float] | None = None
    lost: float = 0.0
    saved_by_cache: Mapping[str, float] | None = None
    cached_tokens: int = 0

    def __str__(self) -> str:
        told = amounts_text(vars(self))
        saved = amounts_text({**(self.saved or {}), "seconds": 0})
        told = f"at least {told}" if self.at_least else told
        cached = amounts_text(self.saved_by_cache or {})
        more = [f"resuming saved {saved}" * bool(saved), f"the cache saved {cached}" * bool(cached)]
        return "; ".join(filter(None, [told, *more]))

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data, for JSON."""
        return {
            **vars(self),
            "saved": dict(self.saved or {}),
            "saved_by_cache": dict(self.saved_by_cache or {}),
        }


def amounts_text(amounts: Mapping[str, Any]) -> str:
    """Return amounts as text: the nonzero ones, and seconds from 1 s on."""
    cached = amounts.get("cached_tokens")
    told = [
        _money(amounts["usd"]) if amounts.get("usd") else "",
        count(int(amounts["tokens"]), "token") if amounts.get("tokens") else "",
        f"{int(cached):,} of them cached" if cached else "",
        count(amounts["steps"], "step") if amounts.get("steps") else "",
        f"{amounts['seconds']:,.1f} s" if amounts.get("seconds", 0) >= 1 else "",
    ]
    return ", ".join(filter(None, told))


def _money(usd: float) -> str:
    """Return dollars with cents; an amount with fractions of a cent below $1 keeps its digits."""
    cents = round(usd, 2)
    return f"${cents:,.2f}" if usd >= 1 or abs(usd - cents) < 1e-9 else f"${usd:.4g}"


# -- a budget that is used up --------------------------------------------------------------------


def exceeded(run_id: str, budget: Budget, spent: Spent) -> BudgetExceeded | None:
    """Return the error if the run may not begin another step, else ``None``."""
    reached = _reached(budget, spent)
    if not reached:
        return None
    told = [f"{_text(u, getattr(spent, u))} of the {_text(u, limit)}" for u, limit in reached]
    return BudgetExceeded(
        f"run {run_id!r} has spent {' and '.join(told)} that its budget allows, so no other step "
        "begins. What was done is recorded: with a larger budget, "
        ".options(budget=Budget(...)), the same call continues where the run stopped",
        run_id=run_id,
        spent=spent,
        budget=budget,
    )


def exceeded_text(error: BudgetExceeded) -> str:
    """Return the limits that were reached, in a few words."""
    told = [
        f"{_text(unit, getattr(error.spent, unit))} of {_text(unit, limit)}"
        for unit, limit in _reached(error.budget, error.spent)
    ]
    return f"its budget: {', '.join(told)} spent"


def _reached(budget: Budget, spent: Spent) -> list[tuple[str, float]]:
    """Return the reached limits; a limit of 0 is reached by the first amount or the first step."""
    found = ((unit, limit, getattr(spent, unit)) for unit, limit in budget.limits.items())
    # Rounded, since eight times $0.1 is a little less than $0.8.
    return [(u, limit) for u, limit, n in found if round(n, 9) >= limit and (n or u == "steps")]


def _text(unit: str, amount: float) -> str:
    if unit == "usd":
        return _money(amount)
    if unit == "seconds":
        return f"{amount:,.6g} s"
    return f"{amount:,} {unit}"
