"""The attempts of a step: how many there are, and the seconds between two of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Union

from stepwise._runtime import asyncio_state
from stepwise.errors import ConfigurationError, RunStopped

RetryOn = Union[
    type[BaseException], tuple[type[BaseException], ...], Callable[[BaseException], bool]
]
Backoff = Union[float, Callable[..., float], None]

_FIRST_WAIT, _LONGEST_WAIT, _JITTER = 0.1, 30.0, 0.1  # seconds


def is_seconds(value: Any) -> bool:
    """Return whether a value is a number of seconds that a program can wait."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= threading.TIMEOUT_MAX


class Attempts:
    """The attempts of one call.

    Args:
        retries: the number of further attempts after the first.
        retry_on: the exceptions that are worth another attempt.
        backoff: seconds between two attempts; a function of the number of the attempt that failed
            (1, 2, ...); a tenacity wait strategy; ``None`` for 0.1 s doubling up to 30 s, each with
            up to 0.1 s of jitter.
        what: for messages: ``step 'think'``.

    Attributes:
        number: the number of the current attempt, from 1.
    """

    def __init__(
        self, retries: int, retry_on: RetryOn, backoff: Backoff, what: str = "a step"
    ) -> None:
        self.number = 1
        self._what = what
        self._retries = retries
        self._retry_on = retry_on
        self._backoff = backoff
        self._state: Any = None

    def next_delay(self, error: BaseException) -> float | None:
        """Return the seconds to wait after a failed attempt, or ``None`` to give up.

        Raises:
            ConfigurationError: ``backoff`` returned an invalid number of seconds.
        """
        if self.number > self._retries or not self._is_worth(error):
            return None
        import tenacity  # on the first retry: most calls need none

        if self._state is None:
            self._state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        self._state.set_exception((type(error), error, error.__traceback__))
        delay = self._wait(tenacity)
        self._state.prepare_for_next_attempt()
        self.number += 1
        return delay

    def _is_worth(self, error: BaseException) -> bool:
        if isinstance(error, (RunStopped, KeyboardInterrupt, SystemExit, GeneratorExit)):
            return False
        if asyncio_state.is_cancellation(error):
            return False
        if isinstance(self._retry_on, (type, tuple)):
            return isinstance(error, self._retry_on)
        return bool(self._retry_on(error))

    def _wait(self, tenacity: Any) -> float:
        if self._backoff is None:
            doubling = tenacity.wait_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT)
            return float((doubling + tenacity.wait_random(0, _JITTER))(self._state))
        if isinstance(self._backoff, tenacity.wait.wait_base):
            delay = self._backoff(self._state)
        elif callable(self._backoff):
            delay = self._backoff(self.number)
        else:
            delay = self._backoff
        if not is_seconds(delay):
            raise ConfigurationError(
                f"backoff= of {self._what} returned {delay!r} after attempt {self.number}: it "
                "must return seconds to wait, 0 or more"
            )
        return float(delay)
