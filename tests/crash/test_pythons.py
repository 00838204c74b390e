"""A run that one version of Python began is finished by another, or refused; none crashes.

What the other interpreters get is told in ``programs/pythons.py``.
"""

import itertools
import os

import pytest
from harness import PROGRAMS, Lab, interpreted
from pythons import interpreters
from sweeping import some

HEAD = """
import stepwise
from stepwise import step, tool, workflow
from world import doing, got, main

@step
def plain(n):
    return doing(f"plain({n})", n * 10)

@step
def code(n):
    doing(f"code({n})", n)
    class Local:
        def add(self, other):
            return [each + n for each in (other,)][0]
    return Local()

@tool(side_effect=True)
def send(n):
    return doing(f"send({n})", f"sent {n}")
"""
DATA = """
@workflow
def agent():
    found = [plain(1), send(2)]
    double = lambda n: [2 * each for each in (n,)][0]
    found.append(double(plain(3)))
    got("plain(3)")
    return [*found, double(plain(4)), send(5)]

main(agent)
"""
CODE = """
@workflow
def agent():
    maker = code(7)
    found = [plain(1), send(2)]
    got("plain(3)")
    return [*found, maker.add(plain(4)), send(5)]

main(agent)
"""
UNCHECKED = """
from stepwise._values import codec as _codec
from stepwise._workflows import resume as _resume
_codec.PYTHON = _resume.PYTHON = "any"
"""


def run(lab, library, version, **dying):
    """Run the program of a lab with another Python; its exit code, and what it said."""
    path = os.pathsep.join([str(library), str(PROGRAMS)])
    ended = interpreted(
        lab.script,
        by=interpreters()[version],
        env={**os.environ, **lab.environment, "PYTHONPATH": path, **dying},
        code=None,
    )
    return ended.returncode, ended.stderr


def pairs(sample):
    """Pairs of different versions."""
    if len(interpreters()) < 2:
        pytest.skip(f"one Python is installed here: {interpreters()}")
    return some(itertools.permutations(interpreters(), 2), sample, "pythons")


def test_data_of_another_python_is_read(library, tally):
    """Begun by one Python and finished by another, a run ends as if nothing had happened."""
    tried = pairs(1)
    for first, second in tried:
        with Lab(HEAD + DATA) as lab:
            code, text = run(lab, library, first, DIE_AT="plain(3) returned")
            assert code == -9, text
            code, text = run(lab, library, second)
            assert code == 0, (first, second, text)
            assert lab.result == [10, "sent 2", 60, 80, "sent 5"]
            assert set(lab.did.values()) == {1}
    tally("a run of another Python: data", len(tried), read=len(tried))


def test_code_of_another_python_is_refused(library, tally):
    """A recorded value that holds another Python's code is not loaded: its step runs again."""
    tried = pairs(1)
    for first, second in tried:
        with Lab(HEAD + CODE) as lab:
            assert run(lab, library, first, DIE_AT="plain(3) returned")[0] == -9
            code, text = run(lab, library, second)
            assert code == 0, (first, second, text)
            assert f"holds code recorded by Python {first}, which Python {second} cannot" in text
            assert lab.result == [10, "sent 2", 47, "sent 5"]
            assert {call for call, times in lab.did.items() if times > 1} == {"code(7)"}
    tally("a run of another Python: code", len(tried), refused=len(tried))


@pytest.mark.skipif(
    not {"3.11", "3.12"} <= interpreters().keys(), reason="needs Python 3.11 and 3.12"
)
def test_without_the_check_code_of_another_python_does_harm(library):
    """Where versions are not compared, the code of 3.11 crashes 3.12, or gives something else."""
    with Lab(HEAD + UNCHECKED + CODE) as lab:
        assert run(lab, library, "3.11", DIE_AT="plain(3) returned")[0] == -9
        code, text = run(lab, library, "3.12")
        assert "holds code recorded by" not in text
        assert code != 0 or lab.result != [10, "sent 2", 47, "sent 5"]


COMPREHENSIONS = """
@step
def kept(text):
    return doing(f"kept({text})", text.upper())

def made(item, n):
    @workflow
    def agent(items):
        ids = {id for id in items}                      # a builtin's name
        names = [kept for kept in items if kept]        # a global's
        pairs = {item: n for item in names for n in item}  # a free variable's and an own one's
        later = [lambda: each for each in items]        # a cell's
        first = kept(names[0])
        got(first)
        n = kept(item)
        each = [[each for each in item] for item in names]
        got(n)
        return id(ids) > 0, first, n, sorted(pairs), each, [one() for one in later], item, kept("c")
    return agent

agent = made("b", 2)
main(lambda: agent(["a", "", "xy"]))
"""


@pytest.mark.parametrize("version", some(sorted(interpreters()), 1, "comprehensions"))
def test_names_of_comprehensions_are_their_own(library, version):
    """A comprehension's variable hides no other one of its name: in a run, after it was killed."""
    for dying in ("", "B returned"):
        with Lab(HEAD + COMPREHENSIONS) as lab:
            if dying:
                assert run(lab, library, version, DIE_AT=dying)[0] == -9
            code, text = run(lab, library, version)
            assert code == 0, text
            assert "cannot be resumed" not in text
            each = [["a"], ["x", "y"]]
            assert lab.result == [True, "A", "B", ["a", "xy"], each, [*3 * ["xy"]], "b", "C"]
            assert set(lab.did.values()) == {1}
