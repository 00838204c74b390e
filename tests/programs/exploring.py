"""Visits every state of a model of a protocol, and looks whether it keeps its promises."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """The result of an exploration.

    Args:
        states: how many were visited.
        wrong: the broken promise; empty if all hold.
        trace: the moves that lead there, one of the shortest ways.
    """

    states: int
    wrong: str = ""
    trace: tuple = ()

    def __str__(self):
        lines = [f"{number:3} {label}" for number, label in enumerate(self.trace, 1)]
        about = f"{self.states} states: {self.wrong or 'every promise holds'}"
        return "\n".join([about, *lines])


def visit(first, moves, broken, is_over=None):
    """Visit every state, the nearest first, until a promise is broken.

    Args:
        moves: gives of a state what can happen next: a label, the state after it, which promise
            the move breaks, and whether it is a fault.
        broken: the promise that a state breaks, or an empty text.
        is_over: whether a state is an end; each state must lead to one without another fault.
    """
    came, into, over = {first: None}, {}, []
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        if is_over is not None and is_over(state):
            over.append(state)
        for label, after, wrong, fault in moves(state):
            is_new = after not in came
            problem = wrong or (broken(after) if is_new else "")
            if problem:
                return Found(len(came), problem, (*_trace(came, state), label))
            if is_new:
                came[after] = state, label
                waiting.append(after)
            if is_over is not None and not fault:
                into.setdefault(after, []).append(state)
    leads, waiting = {*over}, deque(over)
    while waiting:
        for before in into.get(waiting.popleft(), ()):
            if before not in leads:
                leads.add(before)
                waiting.append(before)
    stuck = next((each for each in came if each not in leads), None)
    if is_over is not None and stuck is not None:
        return Found(len(came), "the run can never end", _trace(came, stuck))
    return Found(len(came))


def _trace(came, state):
    back = []
    while came[state] is not None:
        state, label = came[state]
        back.append(label)
    return (*back[::-1],)
