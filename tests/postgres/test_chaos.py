"""Three nodes and a database server that are killed, again and again, while workflows act."""

import zlib

import pytest
from chaos import Chaos, Evidence, can_be_elsewhere, judge, runs_of
from server import with_options
from sweeping import SEED, WHOLE, size

import stepwise

RUNS, MOST = 8, 50
KILLING = 600 if WHOLE else 14  # seconds, at most: all runs have ended before, mostly
LEASE = 3  # seconds


@pytest.fixture
def chaos(tmp_path, request):
    """Make a :class:`Chaos`, which ends with the test."""
    made = []

    def make(url, count, *, only="any", **options):
        runs = runs_of(count, f"{only}-{SEED}-{zlib.crc32(request.node.name.encode()) % 1000}")
        made.append(Chaos(tmp_path, url, runs, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("deaths", ["proven", "elsewhere", "paused"])
def test_every_run_ends_and_nothing_happens_twice(chaos, postgres, server, deaths, tally):
    """Whatever is killed, runs go on in the middle, and no completed step or effect is repeated.

    Where nodes see each other's processes, and where a lease has to run out; and where a node may
    be paused until another one has its runs, with effects of which the service drops repeats.
    """
    if deaths != "proven" and not can_be_elsewhere():
        pytest.skip("needs namespaces of process ids: unshare --pid")
    trial = chaos(
        with_options(postgres, lease_seconds=LEASE),
        size(RUNS, MOST),
        server=server,
        only="keyed.keyed.look.child.sleep.wait.long" if deaths == "paused" else "any",
        elsewhere=deaths != "proven",
        pauses=LEASE + 2.0 if deaths == "paused" else 0.0,
        pace=5 if WHOLE else 3,
    )
    trial.begin()
    trial.go_on(KILLING)
    found = trial.judged()
    assert not found.wrong, "\n".join([*found.wrong, trial.story()])
    assert found.figures["resumed"] > len(trial.runs)
    assert trial.kills["node"], trial.kills
    assert trial.kills["server"], trial.kills
    tally(
        f"chaos on Postgres, deaths {deaths}",
        found.figures["steps"],
        kills_of_a_node=trial.kills["node"],
        kills_of_the_server=trial.kills["server"],
        pauses_of_a_node=trial.kills["paused"],
        resumed_in_the_middle=found.figures["resumed"],
        effects_once=found.figures["effects"],
        settled_by_a_person=len(trial.settled),
        brought_back_by_a_person=len(trial.brought_back),
    )


def test_nodes_on_one_machine(chaos, tmp_path, tally):
    """The same holds for the nodes of one machine, with its store in a file."""
    trial = chaos(f"disk:{tmp_path}/store", size(6, MOST))
    trial.begin(1.0)
    trial.go_on(KILLING / 2)
    found = trial.judged()
    assert not found.wrong, "\n".join([*found.wrong, trial.story()])
    assert found.figures["resumed"] > len(trial.runs)
    tally("chaos on one machine", found.figures["steps"], kills=trial.kills["node"])


# -- what the judge sees ---------------------------------------------------------------------------


def test_the_judge_sees_a_repeated_effect(chaos, tmp_path):
    """Effects that happen again, since the program denies that they did, are seen."""
    lies = chaos(f"disk:{tmp_path}/store", 6, only="asked", CHAOS_MUTANT="a reconciler lies")
    lies.begin(1.0)
    lies.go_on(0)
    assert any("happened 2 times" in each for each in lies.judged().wrong)


def test_the_judge_sees_runs_that_begin_anew(chaos, tmp_path):
    """Functions that are executed from the top again are seen."""
    anew = chaos(f"disk:{tmp_path}/store", 6, only="look", CHAOS_MUTANT="runs begin anew")
    anew.begin(1.0)
    anew.go_on(0)
    assert any("passed turn 0 again" in each for each in anew.judged().wrong)


def test_the_judge_knows_a_plain_step_that_was_cut_off(chaos, tmp_path):
    """A plain step may begin with a value that is drawn again after a kill; no other call may."""
    trial = chaos(f"disk:{tmp_path}/store", 2, only="look")
    trial.begin(1.0)
    trial.go_on(0)
    asked, passed = trial.read("service"), trial.read("trace")

    def with_another(line, **other):
        lost = {**line, "token": 1, "key": "sw-lost", **other}
        return judge(Evidence(trial.url, trial.runs, [*asked, lost], passed)).wrong

    assert with_another(asked[0], process="killed") == []
    ways = {(each["run"], each["process"], each["number"]) for each in passed}
    returned = next(
        each for each in asked if (each["run"], each["process"], each["number"] + 1) in ways
    )
    assert "belongs to no recorded step" in with_another(returned)[0]
    for other in ({"what": "happened"}, {"token": asked[0]["token"]}):
        assert "belongs to no recorded step" in with_another(asked[0], process="killed", **other)[0]


def test_the_judge_sees_a_lost_run(chaos, tmp_path):
    """A run that has not ended, and one that is not in the store, are seen."""
    loses = chaos(f"disk:{tmp_path}/store", 2)
    loses.begin(0)
    stepwise.get_run(loses.runs[0], store=loses.url).delete()
    lost, crashed = loses.judged().wrong
    assert lost == f"{loses.runs[0]} is lost"
    assert crashed == f"{loses.runs[1]} is crashed"
