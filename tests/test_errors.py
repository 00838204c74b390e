"""Every error and warning: drawn as a tree, with a default message, pickled whole."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import pickle
import re
import sys
import traceback

import cloudpickle
import pytest
from harness import interpreted

import stepwise
from stepwise import errors
from stepwise.stores import Owner

ALL = [getattr(errors, name) for name in errors.__all__]
RAISED = [cls for cls in ALL if not issubclass(cls, Warning)]
WARNED = [cls for cls in ALL if issubclass(cls, Warning)]
ROOTS = {errors.StepwiseError, errors.RunStopped, errors.StepwiseWarning}

FACTS = {
    "run_id": "agent-0123456789ab",
    "step": 3,
    "name": "send",
    "arguments": "to='team', body='\u00fc \U0001f680'",
    "idempotency_key": None,
    "path": "/data/store",
    "type_name": "Lock",
    "errno": 28,
    "exceptions": (),
    "recorded": "agent('a')",
    "given": "agent('b')",
    "owner": Owner(42, "host", 1.5, "thread MainThread"),
    "traceback_text": "Traceback ...",
    "timeout": 0.5,
    "at": 1.5,
    "thread_id": "a thread",
    "checkpoint_id": "1f1eb2f3",
    "newest_id": "1f1eb2f4",
    "budget": stepwise.Budget(usd=5),
    "by": "ann@host",
    "in_doubt": (("agent-0123456789ab", 3),),
    "note": "not today",
    "reason": "no more \u00fc",
    "spent": stepwise.Spent(usd=5.5, steps=3),
    "status": "completed",
    "waits": (),
    "where": "its node is gone",
}


def facts_of(cls):
    """A value for each fact that the class and its bases declare."""
    names = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    return {name: FACTS[name] for name in sorted(names)}


def drawn():
    """The tree in the docstring of ``errors``: class, its bases, whether it has others inside."""
    found, above = {}, []
    for line in inspect.cleandoc(errors.__doc__).splitlines():
        match = re.match(r"^ {4}([ \u2502\u251c\u2514\u2500]*)(\w+)( \(\w+\))?(  +\S.*)?$", line)
        if match is None:
            continue
        prefix, name, other, _ = match.groups()
        depth = len(prefix) // 4
        above[depth:] = [name]
        bases = (above[depth - 1] if depth else None, other and other[2:-1])
        found[name] = [each for each in bases if each]
    return found


def test_the_tree_is_drawn():
    """The tree in the docstring of ``stepwise.errors`` names every class, with its bases."""
    mixed_in = LookupError, TypeError, TimeoutError, ValueError, UserWarning
    mixed_in += Exception, BaseException
    classes = {}
    for cls in ALL:
        bases = [base for base in cls.__bases__ if base in ALL or base in mixed_in]
        if cls is errors.RunStopped:
            bases = [BaseException]
        classes[cls.__name__] = [base.__name__ for base in bases]
    assert drawn() == classes


def test_the_list_is_the_module():
    """``errors.__all__`` is sorted and holds every public class of the module, and nothing else."""
    public = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException) and name[0] != "_"
    ]
    assert errors.__all__ == sorted(public)
    assert set(errors.__all__) <= set(stepwise.__all__)
    assert all(getattr(stepwise, name) is getattr(errors, name) for name in errors.__all__)


def test_names_say_what_they_are():
    """Errors end in ``Error``, warnings in ``Warning``; what somebody decided does neither."""
    assert {cls for cls in RAISED if not cls.__name__.endswith("Error")} == {
        errors.ApprovalDenied,
        errors.BudgetExceeded,
        errors.RunCancelled,
        errors.RunSkipped,
        errors.RunStopped,
        errors.RunSuspended,
    }
    assert all(cls.__name__.endswith("Warning") for cls in WARNED)


@pytest.mark.parametrize("cls", RAISED, ids=lambda cls: cls.__name__)
def test_the_docstring_is_the_message(cls):
    """An error made without a message says the first paragraph of its docstring, on one line.

    What a class declares are its attributes; what a terminal would obey is written out.
    """
    first = " ".join(inspect.cleandoc(cls.__doc__).partition("\n\n")[0].split())
    assert str(cls()) == first
    assert cls().args == (first,)
    assert first[0].isupper()
    assert first.endswith(".")
    assert "__doc__" in vars(cls)
    assert str(cls("another")) == "another"
    facts = facts_of(cls)
    error = cls("message", **facts)
    assert {name: getattr(error, name) for name in facts} == facts
    assert error.args == ("message",)
    shown = str(cls("run \x1b]0;owned\x07\u202e\x9b:\n\tgone", **facts))
    assert shown == "run \\x1b]0;owned\\x07\\u202e\\x9b:\n\tgone"


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_each_has_its_cause_and_the_way_out(cls):
    """Behind its first sentence, each docstring has the cause and what to do, and no more."""
    first, *sections = inspect.cleandoc(vars(cls)["__doc__"]).split("\n\n")
    assert cls in RAISED or re.fullmatch(r"[A-Z].*\.", first.partition("\n")[0])
    assert [each.partition(":")[0] for each in sections] == ["Cause", "What to do"]
    assert all(each.endswith(".") for each in sections)


def test_tracebacks_show_the_public_name():
    """A traceback names ``stepwise.RunNotFoundError``, not the module where it is defined."""
    for cls in ALL:
        assert cls.__module__ == "stepwise"
        last = traceback.format_exception_only(cls, cls("message"))[-1]
        assert last == f"stepwise.{cls.__name__}: message\n"


DUMPS = [
    *(
        lambda error, p=p: pickle.loads(pickle.dumps(error, p))
        for p in range(pickle.HIGHEST_PROTOCOL + 1)
    ),
    lambda error: pickle.loads(cloudpickle.dumps(error)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_pickle(cls):
    """Every error and warning comes out of a pickle, or a copy, with type, message and facts."""
    made = cls("what happened: \u00fc", **facts_of(cls)) if cls in RAISED else cls("text")
    for dump in DUMPS:
        again = dump(made)
        assert type(again) is cls
        assert (str(again), again.args) == (str(made), made.args)
        assert vars(again) == vars(made)
        bare = dump(cls())
        assert (type(bare), str(bare), vars(bare)) == (cls, str(cls()), {})


def test_pickle_into_another_process(tmp_path):
    """Every error comes whole into a process that has not imported stepwise yet."""
    file = tmp_path / "errors"
    file.write_bytes(pickle.dumps([cls("message", **facts_of(cls)) for cls in RAISED]))
    code = (
        "import pickle, sys\n"
        "for error in pickle.load(open(sys.argv[1], 'rb')):\n"
        "    print(type(error).__module__, type(error).__name__, error, *sorted(vars(error)))\n"
    )
    done = interpreted("-c", code, file)
    assert done.stdout.splitlines() == [
        " ".join(["stepwise", cls.__name__, "message", *facts_of(cls)]) for cls in RAISED
    ]


def test_what_stops_a_run_is_no_exception():
    """``except Exception`` catches what is to be mended, and nothing that stops a run."""
    sticky = {cls for cls in RAISED if not issubclass(cls, Exception)}
    assert sticky == {cls for cls in ALL if issubclass(cls, errors.RunStopped)}
    assert {cls.__name__ for cls in sticky} == {
        *("RunStopped", "StepInDoubtError", "StoreError", "CorruptStoreError"),
        *("JournalLostError", "RunOwnedError", "LeaseLostError"),
        *(
            "RunSuspended",
            "RunCancelled",
            "RunTimeoutError",
            "BudgetExceeded",
            "EffectRefusedError",
        ),
    }
    for cls in RAISED:
        with pytest.raises(cls), contextlib.suppress(*([] if cls not in sticky else [Exception])):
            raise cls


def test_python_names_for_it():
    """Who does not know stepwise catches them as what Python calls them; the message stays whole.

    ``KeyError`` would show the repr of its message, and ``OSError`` format its arguments.
    """
    usual = {
        errors.RunNotFoundError: LookupError,
        errors.StepNotFoundError: LookupError,
        errors.DigestError: TypeError,
        errors.NotRecordableError: TypeError,
        errors.StepTimeoutError: TimeoutError,
    }
    for cls, builtin in usual.items():
        with pytest.raises(builtin) as caught:
            raise cls("a 'quoted' message", run_id="x", step=1, path="p", type_name="T", timeout=1)
        assert str(caught.value) == "a 'quoted' message"
    if sys.version_info >= (3, 11):  # where it is the built-in one
        assert issubclass(errors.StepTimeoutError, asyncio.TimeoutError)


def test_notes_and_causes():
    """A pickle keeps notes; as always with exceptions, it does not keep the cause."""
    error = errors.StoreError("no space", path="/data", errno=28)
    if sys.version_info >= (3, 11):
        error.add_note("while sending")
    error.__cause__ = OSError(28, "no space")
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert again.__cause__ is None


def test_the_whole_tree_has_three_roots():
    """Every error and warning of stepwise is below one of three classes that a user can catch."""
    assert all(sum(issubclass(cls, root) for root in ROOTS) == 1 for cls in ALL)
