"""When a failed attempt is tried again, and after how long."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import math

import pytest
import tenacity
from flows import flow_of
from harness import interpreted
from hypothesis import given
from hypothesis import strategies as st

from examples import sweep
from stepwise import errors, runs, step
from stepwise._runtime.retries import Attempts
from stepwise.errors import ConfigurationError
from stepwise.testing import fresh_store


def delays(attempts, error=None):
    """The delays until the attempts are given up."""
    failed = error if error is not None else ValueError("failed")
    return list(itertools.takewhile(lambda delay: delay is not None, _asked(attempts, failed)))


def _asked(attempts, error):
    while True:
        yield attempts.next_delay(error)


# -- how often -------------------------------------------------------------------------------------


@sweep
@given(st.integers(0, 50))
def test_retries(retries):
    """After the first attempt, at most ``retries`` more are made."""
    attempts = Attempts(retries, Exception, 0)
    assert attempts.number == 1
    assert delays(attempts) == [0.0] * retries
    assert attempts.number == retries + 1
    assert attempts.next_delay(ValueError()) is None
    assert attempts.number == retries + 1


def test_only_a_second_attempt_loads_tenacity():
    """Without retries the first failure is the last, and nothing is loaded for it."""
    code = (
        "import sys\n"
        "from stepwise._runtime.retries import Attempts\n"
        "assert Attempts(0, Exception, None).next_delay(ValueError()) is None\n"
        "assert Attempts(2, KeyError, None).next_delay(ValueError()) is None\n"
        "assert 'tenacity' not in sys.modules\n"
        "assert Attempts(1, Exception, None).next_delay(ValueError()) > 0\n"
        "assert 'tenacity' in sys.modules\n"
    )
    interpreted("-c", code)


def test_attempts_are_counted():
    """The number of the attempt grows with each that is granted, not with one that is refused."""
    attempts = Attempts(2, ValueError, 0)
    numbers = []
    for error in (ValueError(), KeyError(), ValueError(), ValueError()):
        attempts.next_delay(error)
        numbers.append(attempts.number)
    assert numbers == [2, 2, 3, 3]


# -- what is worth it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry_on", "error", "again"),
    [
        (ValueError, ValueError(), True),
        (ValueError, UnicodeDecodeError("utf-8", b"", 0, 1, ""), True),
        (ValueError, KeyError(), False),
        ((ValueError, KeyError), KeyError(), True),
        ((ValueError, KeyError), TypeError(), False),
        ((), ValueError(), False),
        (Exception, errors.StepTimeoutError(), True),
        (TimeoutError, errors.StepTimeoutError(), True),
        (lambda error: "busy" in str(error), ValueError("busy"), True),
        (lambda error: "busy" in str(error), ValueError("gone"), False),
        (lambda error: 1, ValueError(), True),
        (lambda error: [], ValueError(), False),
    ],
)
def test_retry_on(retry_on, error, again):
    """Only what ``retry_on`` says is tried again: by a class, several, or a function."""
    assert (Attempts(1, retry_on, 0).next_delay(error) is not None) == again


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(),
        GeneratorExit(),
        asyncio.CancelledError(),
        errors.StepInDoubtError(),
        errors.StoreError(),
        errors.JournalLostError(),
        errors.RunOwnedError(),
        errors.LeaseLostError(),
        errors.RunStopped(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("retry_on", [BaseException, lambda error: True], ids=["class", "function"])
def test_never_retried(error, retry_on):
    """Ctrl-C, exits, cancellation and what stops the run are never tried again."""
    attempts = Attempts(5, retry_on, 0)
    assert attempts.next_delay(error) is None
    assert attempts.number == 1


def test_the_function_is_not_asked_in_vain():
    """The ``retry_on`` function is asked once per failure, and not when no attempt is left."""
    asked = []
    attempts = Attempts(2, lambda error: asked.append(error) or True, 0)
    failures = [ValueError(number) for number in range(4)]
    for failure in failures:
        attempts.next_delay(failure)
    assert asked == failures[:2]


# -- after how long --------------------------------------------------------------------------------


def test_the_default_backoff():
    """By default 0.1 s, doubling up to 30 s, however often, each with up to 0.1 s of jitter."""
    for number, delay in enumerate(delays(Attempts(1_100, Exception, None))):
        least = min(0.1 * 2 ** min(number, 20), 30)
        assert least - 1e-9 <= delay <= least + 0.1 + 1e-9
    firsts = {Attempts(1, Exception, None).next_delay(ValueError()) for _ in range(20)}
    assert len(firsts) > 1


class WaitAsTold(tenacity.wait.wait_base):
    """Waits as the server's error says."""

    def __call__(self, retry_state):
        return retry_state.outcome.exception().args[0]


BACKOFFS = {
    "seconds": (2.5, [2.5, 2.5, 2.5, 2.5]),
    "function": (lambda number: number * 10, [10, 20, 30, 40]),
    "fixed": (tenacity.wait_fixed(2), [2, 2, 2, 2]),
    "timedelta": (tenacity.wait_fixed(dt.timedelta(seconds=3)), [3, 3, 3, 3]),
    "incrementing": (tenacity.wait_incrementing(start=1, increment=2), [1, 3, 5, 7]),
    "exponential": (tenacity.wait_exponential(multiplier=1, max=5), [1, 2, 4, 5]),
    "sum": (tenacity.wait_fixed(1) + tenacity.wait_incrementing(0, 1), [1, 2, 3, 4]),
    "chain": (
        tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(9)),
        [1, 9, 9, 9],
    ),
    "none": (tenacity.wait_none(), [0, 0, 0, 0]),
    "told by the error": (WaitAsTold(), [7, 7, 7, 7]),
}


@pytest.mark.parametrize("what", BACKOFFS)
def test_backoffs(what):
    """Seconds, a function of the number of the attempt, or a wait strategy of tenacity."""
    backoff, expected = BACKOFFS[what]
    assert delays(Attempts(4, Exception, backoff), ValueError(7)) == expected


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, None, "soon"], ids=str)
def test_backoff_functions_that_return_nonsense(wrong):
    """Seconds that cannot be waited are refused, with the option, the step and the attempt."""
    attempts = Attempts(1, Exception, lambda number: wrong, "step 'think'")
    with pytest.raises(ConfigurationError) as caught:
        attempts.next_delay(ValueError("the step's own"))
    assert f"backoff= of step 'think' returned {wrong!r} after attempt 1" in str(caught.value)


@pytest.mark.parametrize("option", ["retry_on", "backoff"])
def test_mistakes_in_a_run(option):
    """A mistake in such a function is raised from the step's failure, which is recorded."""
    broken = [True]

    def mistaken(_):
        raise ZeroDivisionError

    @step(retries=1, **{option: mistaken})
    def think():
        if broken:
            raise ValueError("the step's own")
        return "thought"

    flow = flow_of(think)
    with fresh_store():
        with pytest.raises(ZeroDivisionError) as caught:
            flow()
        assert str(caught.value.__cause__) == "the step's own"
        assert [each.status for each in runs()[0].steps] == ["failed"]
        broken.clear()
        assert flow() == "thought"


def test_attempts_are_independent():
    """Two calls of one step do not share their attempts."""
    strategy = tenacity.wait_incrementing(start=1, increment=1)
    one, other = Attempts(3, Exception, strategy), Attempts(3, Exception, strategy)
    assert [one.next_delay(ValueError()) for _ in range(2)] == [1, 2]
    assert other.next_delay(ValueError()) == 1
