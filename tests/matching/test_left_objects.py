"""Objects of an attempt that stopped in this process: they stand for none that the program has."""

import sys
import threading
import types

import pytest

import stepwise


class Peer:
    """It holds what has no digest."""

    def __init__(self):
        self.lock = threading.Lock()


class Interrupted(BaseException):
    """Ctrl-C."""


MADE = """
class Agent:
    def __init__(self):
        self.lock, self.notes = threading.Lock(), []

    @step
    def note(self):
        self.notes.append(1)
"""


@pytest.mark.parametrize("kind", ["dict", "class of a module without a file"])
def test_what_a_stopped_attempt_changed_makes_no_twin(kind, monkeypatch):
    """The next attempt is given a new object, and the steps that are recorded do not run again.

    An agent of a class of a module without a file is the user's own, though it holds a lock.
    """
    done, stops = [], [Interrupted()]

    @stepwise.step
    def note(table):
        done.append("note")
        table["n"] = 1

    @stepwise.step
    def end():
        if stops:
            raise stops.pop()

    @stepwise.workflow(checkpoint_every=1000)
    def with_dict(peer):
        table = {"peer": peer}
        note(table)
        end()
        return table["n"]

    @stepwise.workflow(checkpoint_every=1000)
    def with_agent(agent):
        agent.note()
        end()
        return agent.notes

    module = types.ModuleType("made_while_it_runs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(step=stepwise.step, threading=threading)
    exec(MADE, vars(module))
    flow, made = (with_dict, Peer) if kind == "dict" else (with_agent, module.Agent)
    with pytest.raises(Interrupted):
        flow(made())
    assert flow(made()) == (1 if kind == "dict" else [1])
    assert done == ["note"] * (kind == "dict")
