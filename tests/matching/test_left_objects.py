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


def test_a_dict_that_a_stopped_attempt_changed_makes_no_twin():
    """The next attempt is given a new object, and the steps that are recorded do not run again."""
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
    def w(peer):
        table = {"peer": peer}
        note(table)
        end()
        return table["n"]

    with pytest.raises(Interrupted):
        w(Peer())
    assert w(Peer()) == 1
    assert done == ["note"]


MADE = """
class Agent:
    def __init__(self):
        self.lock, self.notes = threading.Lock(), []

    @step
    def note(self):
        self.notes.append(1)
"""


def test_a_class_of_a_module_without_a_file_is_the_users_own(monkeypatch):
    """What a step changes in an agent of such a class is recorded, though it holds a lock."""
    stops = [Interrupted()]

    @stepwise.step
    def end():
        if stops:
            raise stops.pop()

    @stepwise.workflow(checkpoint_every=1000)
    def w(agent):
        agent.note()
        end()
        return agent.notes

    module = types.ModuleType("made_while_it_runs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(step=stepwise.step, threading=threading)
    exec(MADE, vars(module))
    with pytest.raises(Interrupted):
        w(module.Agent())
    assert w(module.Agent()) == [1]
