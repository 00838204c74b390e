"""What it costs that a function can be entered in the middle.

Outside a run a rewritten function executes its plain body: all it does more is ask for a frame when
it is entered, which the recursive function shows at its worst.  In a run statements with calls are
guarded; loops without calls are not, wherever they stand.  CPU time of the original and of the
rewritten function, in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import common

from stepwise._rewrite import Frame, build, capture, rewrite


def identity(value: Any) -> Any:
    return value


def calls_in_a_loop(count: int) -> int:
    total = 0
    for number in range(count):
        total += identity(number)
        if total % 3:
            total = identity(total) + 1
    return total


def loop_without_calls(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
        if total % 3:
            total += 1
    return total


def fibonacci(number: int) -> int:
    if number < 2:
        return number
    return fibonacci(number - 1) + fibonacci(number - 2)


def rewritten_fibonacci(number: int) -> int:
    if number < 2:
        return number
    return rewritten_fibonacci(number - 1) + rewritten_fibonacci(number - 2)


def milliseconds(function: Callable[[int], Any], count: int) -> float:
    began = time.process_time()
    function(count)
    return (time.process_time() - began) * 1e3


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    globals()["rewritten_fibonacci"] = rewrite(rewritten_fibonacci)
    in_run = build(calls_in_a_loop, capture(calls_in_a_loop), Frame).function
    in_run_without = build(loop_without_calls, capture(loop_without_calls), Frame).function
    kinds = (
        # what, rewritten, original, argument, at most
        ("outside a run, recursion", rewritten_fibonacci, fibonacci, 23, 2.0),
        ("outside a run, calls in a loop", rewrite(calls_in_a_loop), calls_in_a_loop, 200_000, 2.0),
        (
            "outside a run, a loop without calls",
            rewrite(loop_without_calls),
            loop_without_calls,
            1_000_000,
            1.1,
        ),
        ("in a run, calls in a loop", in_run, calls_in_a_loop, 200_000, None),
        ("in a run, a loop without calls", in_run_without, loop_without_calls, 1_000_000, None),
    )
    return [
        common.compare(
            what,
            "ms",
            lambda f=ours, n=argument: milliseconds(f, n),
            lambda f=original, n=argument: milliseconds(f, n),
            "the original",
            rounds=arguments.rounds if arguments.quick else 4 * arguments.rounds,
            limit=limit,
        )
        for what, ours, original, argument, limit in kinds
    ]


if __name__ == "__main__":
    common.main(measure, "Rewritten functions against the originals")
