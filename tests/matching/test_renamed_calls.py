"""A tool or step that was renamed between a kill and the next start: nothing happens twice."""

import itertools
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from restarted import Program
from sweeping import WHOLE, some

import stepwise
from examples import sweep


def run_of(workflow="w"):
    (run,) = stepwise.runs()
    return run


PAY = """
@tool(side_effect=True)
def pay(cents):
    did(f"paid {cents}")
    crash("in pay")
    return cents

@workflow
def w():
    paid = pay(500)
    crash("after pay")
    return paid

print(w())
"""
RENAMED = {
    "the name": [("pay(", "charge(")],
    "the name and the arguments": [
        ("pay(cents)", "charge(cents, currency)"),
        ("pay(500)", 'charge(500, "EUR")'),
    ],
    "the name and the module's other lines": [
        ("pay(", "charge("),
        ("@tool", "LIMIT = 3\n\n\n@tool"),
        ("    paid =", "    limit = LIMIT\n    paid ="),
    ],
    "the function into a class": [
        (
            '@tool(side_effect=True)\ndef pay(cents):\n    did(f"paid {cents}")',
            """class Bank:
  @staticmethod
  @tool(side_effect=True)
  def pay(cents):
    did(f"paid {cents}")""",
        ),
        ("paid = pay(", "paid = Bank.pay("),
    ],
    "the function into a factory": [
        ("@tool(side_effect=True)\ndef pay(cents):", "def charge(cents):"),
        ("    paid = pay(", "    paid = tool(charge, side_effect=True)("),
    ],
    "the option name=": [
        ("side_effect=True", 'side_effect=True, name="charge"'),
        ("= pay(500)", "= pay(500 + 0)"),
    ],
}


@pytest.mark.parametrize(
    ("how", "answer"), some(itertools.product(RENAMED, ["same", "another"]), 7, "renamed")
)
def test_a_renamed_tool_stops_and_asks(tmp_path, how, answer):
    """A tool under another name is not called before a person says whether it is the same act."""
    program = Program(tmp_path / "p", PAY)
    program.run(die="after pay")
    program.edit(*RENAMED[how])
    told = program.run(code=1)
    assert "StepInDoubtError" in told
    assert "In its place pay is recorded, which the program no longer defines" in told
    assert f"stepwise resolve {run_of().id} 1 --{answer}" in told
    assert program.bank == ["paid 500"]
    run_of().resolve(1, **{answer: True})
    assert "500\n" in program.run()
    assert program.bank == ["paid 500"] * (1 if answer == "same" else 2)


def test_a_renamed_tool_in_doubt_is_settled_first(tmp_path):
    """An attempt of a tool under its old name is settled, and is then the outcome of the call."""
    program = Program(tmp_path / "p", PAY)
    program.run(die="in pay")
    program.edit(("pay(", "charge("))
    told = program.run(code=1)
    assert f"stepwise resolve {run_of().id} 1 --landed" in told
    run_of().resolve(1, landed=500)
    assert "StepInDoubtError" in program.run(code=1)
    run_of().resolve(1, same=True)
    assert "500\n" in program.run()
    assert program.bank == ["paid 500"]


def test_each_candidate_for_a_renamed_tool_asks(tmp_path):
    """Of two new tools in the place of one that is gone, either may be that one."""
    program = Program(tmp_path / "p", PAY)
    program.run(die="after pay")
    second = '@tool(side_effect=True)\ndef bill(cents):\n    did(f"billed {cents}")\n\n@workflow'
    program.edit(
        ("pay(", "charge("), ("@workflow", second), ("    paid =", "    bill(9)\n    paid =")
    )
    assert "bill is called and is not recorded" in program.run(code=1)
    run_of().resolve(1, another=True)
    assert "charge is called and is not recorded" in program.run(code=1)
    assert program.bank == ["paid 500", "billed 9"]
    run_of().resolve(1, same=True)
    assert "500\n" in program.run()
    assert program.bank == ["paid 500", "billed 9"]


INNER = """
@tool(side_effect=True)
def pay(cents):
    did(f"paid {cents}")

@step
def settle(cents):
    pay(cents)
    return cents

@workflow
def w():
    settled = settle(500)
    crash("after settle")
    return settled

print(w())
"""


def test_a_tool_in_a_renamed_step_is_not_repeated(tmp_path):
    """A renamed step with another body runs again; the tool that it had called answers, or asks."""
    program = Program(tmp_path / "p", INNER)
    program.run(die="after settle")
    program.edit(("settle(", "finish("), ("return cents", "return cents + 1"))
    assert "501\n" in program.run()
    assert program.bank == ["paid 500"]
    run_of().delete()
    program = Program(tmp_path / "q", INNER)
    program.run(die="after settle")
    program.edit(("pay(", "charge("), ("settle(500)", "settle(600)"))  # the tool is renamed
    assert "StepInDoubtError" in program.run(code=1)
    assert program.bank == ["paid 500"]


RETRIED = """
@tool(side_effect=True)
def pay(cents):
    did(f"paid {cents}")
    return cents

@step
def ask():
    did("asked")
    crash("in ask")
    return open("bank").read().count("asked") > 2

@step(retries=1, backoff=0)
def settle(cents):
    for _ in range(2):
        pay(cents)
    if not ask():
        raise ValueError("nonsense")
    return cents

@workflow
def w():
    settled = settle(500)
    pay(settled)
    return settled

print(w())
"""


def test_a_retry_meets_a_renamed_tool_as_it_was_resolved(tmp_path):
    """A person is asked once for each call of a renamed tool, and not again by a retry."""
    program = Program(tmp_path / "p", RETRIED)
    program.run(die="in ask")
    program.edit(("pay(", "charge("))
    for _ in range(2):
        told = program.run(code=1)
        run_of().resolve(int(re.search(r"resolve \S+ (\d+) --same", told)[1]), same=True)
    assert "500\n" in program.run()
    assert program.bank == ["paid 500"] * 2 + ["asked"] * 3 + ["paid 500"]


DELETED = """
@tool(side_effect=True)
def pay(n): did(f"paid {n}")

@tool(side_effect=True)
def mail(n): did(f"mailed {n}")

@workflow
def w():
    for n in range(6):
        pay(n)
        mail(n)
        crash(f"after {n}")
    return "done"

print(w())
"""


PAY_DELETED = (
    ('def pay(n): did(f"paid {n}")', "def unused(n): pass"),
    ("        pay(n)\n", ""),
)


def test_a_deleted_tool_asks_once_for_each_tool_that_was_there(tmp_path):
    """A tool that was called beside a deleted one needs one answer, not one for each call."""
    program = Program(tmp_path / "p", DELETED)
    program.run(die="after 2")
    program.edit(*PAY_DELETED)
    told = program.run(code=1)
    run_of().resolve(re.search(r"resolve \S+ (\d+) --another", told)[1], another=True)
    program.run()
    mailed = [each for each in program.bank if each.startswith("mailed")]
    assert mailed == [f"mailed {n}" for n in range(6)]


def test_a_deleted_tool_stops_no_recorded_call(tmp_path):
    """A tool is deleted with its statement; where the other calls are recorded, nothing asks."""
    program = Program(tmp_path / "p", DELETED)
    program.run(die="after 5")
    program.edit(*PAY_DELETED)
    assert "done\n" in program.run()
    assert sorted(program.bank) == sorted(
        f"{did} {n}" for n in range(6) for did in ("paid", "mailed")
    )


def test_the_record_of_a_deleted_tool_can_be_given_up(tmp_path):
    """A new tool in the place of a deleted one asks until the record of that is forgotten."""
    program = Program(tmp_path / "p", PAY)
    program.run(die="after pay")
    program.edit(("pay(", "greet("), ('"paid {cents}"', '"greeted {cents}"'))
    told = program.run(code=1)
    assert f"stepwise forget {run_of().id} 1" in told
    run_of().forget(1)
    program.run()
    assert program.bank == ["paid 500", "greeted 500"]


# -- plain steps -----------------------------------------------------------------------------------

SEARCH = """
@step
def search(q, depth=1):
    '''Look for q.'''
    did(f"searched {q}")
    names = [each for each in (q, "a") if each in {"x", "y", "z"}]
    return client.search(names)

class client:
    @staticmethod
    def search(names): return names

@workflow
def w():
    found = search("x")
    crash("after search")
    return found

print(w())
"""
EQUAL = [("def search(q", "def find(q"), ('= search("x")', '= find("x")')]
COMMENT = ("    names =", "    # those that count\n    names =")
OTHER = {
    "a text": ("searched {q}", "looked for {q}"),
    "a constant": ('"z"', '"w"'),
    "an argument": ('find("x")', 'find("y")'),
    "a default": ("depth=1", "depth=2"),
    "what it calls": ("return client.search(names)", "return client.find(names)"),
}


def test_a_renamed_step_with_an_equal_body_is_answered(tmp_path):
    """A step whose function has another name now, and else the same code, does not run again."""
    program = Program(tmp_path / "p", SEARCH)
    program.run(die="after search")
    program.edit(*EQUAL, COMMENT)
    assert "['x']" in program.run()
    assert program.bank == ["searched x"]


@pytest.mark.parametrize("how", OTHER)
def test_a_renamed_step_with_another_body_runs_again(tmp_path, how):
    """A step in the place of another one, which differs in more than the name, runs."""
    program = Program(tmp_path / "p", SEARCH)
    program.run(die="after search")
    old, new = OTHER[how]
    program.edit(*EQUAL, (old, new))
    program.edit(("class client:", "class client:\n    find = staticmethod(lambda names: names)\n"))
    program.run()
    assert len(program.bank) == 2


def test_a_step_that_still_exists_answers_no_other(tmp_path):
    """A second step with the same body is another step while the first one exists."""
    program = Program(tmp_path / "p", SEARCH)
    program.run(die="after search")
    body = program.file.read_text().partition("@step\n")[2].partition("\n\n")[0]
    program.edit(
        ("class client", f"@step\n{body.replace('def search', 'def find')}\n\nclass client")
    )
    program.edit(('found = search("x")', 'found = find("x")'))
    program.run()
    assert len(program.bank) == 2


# -- random programs, random renames -----------------------------------------------------------

TOOLS = ("pay", "mail", "book")
FRESH = {"pay": "charge", "mail": "notify", "book": "reserve"}
BLOCKS = st.recursive(
    st.tuples(st.just("call"), st.sampled_from(TOOLS)),
    lambda inner: st.tuples(
        st.sampled_from(["loop", "helper", "step"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


def source(blocks, names, cents, comment):
    """The text of a program: each call has an id, which nothing changes, and an amount."""
    tools = [
        f'@tool(side_effect=True)\ndef {name}(id, cents):\n    did(id)\n    crash("in " + id)\n'
        for name in names.values()
    ]
    helpers, count = [], iter(range(1000))

    def lines(block, within):
        kind, held = block
        number = next(count)
        if kind == "call":
            call = f'f"{number}{within}"'
            return [f"{names[held]}({call}, {cents})", f'crash("after " + {call})']
        inner_within = f"{within}-{{i{number}}}" if kind == "loop" else within
        inner = [line for each in held for line in lines(each, inner_within)]
        if kind == "loop":
            return [f"for i{number} in range(2):", *(f"    {line}" for line in inner)]
        variables = ", ".join(re.findall(r"i\d+", within))
        decorated = ["@step"] if kind == "step" else []
        helpers.append(
            "\n".join([*decorated, f"def h{number}({variables}):", *(f"    {x}" for x in inner)])
        )
        return [f"h{number}({variables})"]

    body = [line for block in blocks for line in lines(block, "")]
    body = ["'a comment'", *body] if comment else body
    return "\n".join(
        [*tools, *helpers, "@workflow\ndef w():", *(f"    {x}" for x in body), "print(w())"]
    )


def ids(blocks):
    """The ids of the calls that the program makes, each once."""
    count = iter(range(1000))

    def of(block, within):
        kind, held = block
        number = next(count)
        if kind == "call":
            return [(held, f"{number}{within}")]
        found = [of(each, within + ("-%d" if kind == "loop" else "")) for each in held]
        return [one for each in found for one in each]

    made = []
    for block in blocks:
        for _, pattern in of(block, ""):
            passes = itertools.product(range(2), repeat=pattern.count("%d"))
            made += [pattern % each for each in passes]
    return made


def answer(told):
    """Say what a person says who knows which id is which act."""
    run = run_of()
    called = re.search(r"called    \w+\(id='([^']+)'", told)
    recorded = re.findall(r"(?:recorded|step)  +(\d+)  \w+\(id='([^']+)'", told)
    open_ = re.findall(r"resolve \S+ (\d+) --landed", told)
    if open_:
        run.resolve(int(open_[0]), landed=None)
        return
    same = [number for number, each in recorded if each == called[1]]
    if same:
        run.resolve(int(same[0]), same=True)
    else:
        run.resolve(int(recorded[0][0]), another=True)


@settings(sweep, max_examples=int(os.environ.get("STEPWISE_EXAMPLES", "60" if WHOLE else "8")))
@given(
    blocks=st.lists(BLOCKS, min_size=1, max_size=4),
    renamed=st.sets(st.sampled_from(TOOLS)),
    other_amount=st.booleans(),
    comment=st.booleans(),
    where=st.integers(0, 1000),
    inside=st.booleans(),
)
def test_random_renames(tmp_path_factory, blocks, renamed, other_amount, comment, where, inside):
    """Whatever was renamed and changed after a kill, each effect happens once, if one answers."""
    made = ids(blocks)
    folder = tmp_path_factory.mktemp("p")
    program = Program(folder, source(blocks, {each: each for each in TOOLS}, 5, comment=False))
    victim = made[where % len(made)]
    program.run(die=f"{'in' if inside else 'after'} {victim}")
    names = {each: FRESH[each] if each in renamed else each for each in TOOLS}
    program.write(source(blocks, names, 6 if other_amount else 5, comment))
    for _ in range(4 * len(made) + 2):
        told = program.run(code=None)
        if program.code == 0:
            break
        assert "StepInDoubtError" in told, told
        answer(told)
    assert program.code == 0, told
    assert sorted(program.bank) == sorted(made)
    run_of().delete()
