"""``evaluate``: branches of many runs, and a score for each, which is made once."""

import asyncio
import csv
import functools
import io
import json
import os
import socket
import sys
import threading
import tracemalloc

import pytest
from click.testing import CliRunner
from harness import python

import stepwise
import stepwise._workflows.handles  # pytest reads its source: in 3.11, not beside other threads
from stepwise import Budget, cli, evaluate, step, tool, workflow
from stepwise._runs import fork as forking
from stepwise._workflows import evaluation

made = []


@pytest.fixture(autouse=True)
def nothing_made():
    made.clear()


@step
def think(topic, model):
    made.append(("think", topic, model))
    stepwise.spend(usd=0.01)
    return f"{topic} {model}"


@tool(side_effect=True)
def send(text):
    made.append(("send", text))
    return f"sent {text}"


@workflow(retention="all")
def agent(topic, model="a"):
    first = think(topic, model)
    second = think(first, model)
    return send(second)


@workflow(retention="all")
async def aagent(topic, model="a"):
    first = await athink(topic, model)
    return await athink(first, model)


@step
async def athink(topic, model):
    await asyncio.sleep(0)
    return f"{topic} {model}"


@step
def judge(text):
    made.append(("judge", text))
    return len(text)


def answer(call):
    """Say what a side effect would return."""
    return call.arguments["text"]


MODELS = [{"model": "bb"}, {"model": "cccc"}]
everything = functools.partial(evaluate, at=1, variations=MODELS, score=judge, effects=answer)


def scores(found):
    """The scores, by the run and the variation."""
    return {(row["base"], row["variation"]): row["score"] for row in found}


def judged():
    """What was scored."""
    return [each[1] for each in made if each[0] == "judge"]


# -- rows ------------------------------------------------------------------------------------------


def test_each_run_and_each_branch_has_a_score():
    """Each run has a row with the score of what happened, and one for each of its branches."""
    runs = [agent.options(run_id=topic).execute(topic) for topic in ("tides", "winds")]
    found = everything(runs)
    assert scores(found) == {
        ("tides", "base"): len("sent tides a a"),
        ("tides", "model='bb'"): len("tides a bb"),
        ("tides", "model='cccc'"): len("tides a cccc"),
        ("winds", "base"): len("sent winds a a"),
        ("winds", "model='bb'"): len("winds a bb"),
        ("winds", "model='cccc'"): len("winds a cccc"),
    }
    assert [row["usd"] for row in found] == pytest.approx([0.02, 0.01, 0.01] * 2)
    assert [row["error"] for row in found] == [""] * 6
    assert made.count(("send", "tides a a")) == 1
    branches = runs[0].branch(at=1, variations=MODELS, effects=answer)
    assert [row["run"] for row in found[1:3]] == [each.run.id for each in branches]


def test_called_again_nothing_is_made_again():
    """The same call, given all runs again, executes no branch and makes no score, and says so."""
    for topic in ("tides", "winds"):
        agent(topic)
    found = everything(stepwise.runs(agent))
    made.clear()
    assert everything(stepwise.runs(agent)) == found
    assert everything(stepwise.runs()) == found
    assert everything(each.id for each in stepwise.runs(agent)) == found
    assert made == []
    more = everything(stepwise.runs(agent), variations=[*MODELS, {"model": "d"}])
    assert sorted(judged()) == ["tides a d", "winds a d"]  # threads make them
    assert len(more) == 8


def test_one_run():
    """One run may be given, or its id."""
    run = agent.execute("tides")
    assert everything(run) == everything(run.id)


def test_a_run_that_was_executed_anew_is_scored_anew():
    """A score belongs to one result: a branch or a run deleted and made anew is scored again."""
    run = agent.options(run_id="base").execute("tides")
    found = everything(run)
    made.clear()
    run.branches[0].run.delete()
    assert scores(everything(run)) == scores(found)
    assert judged() == ["tides a bb"]
    for branch in run.branches:
        branch.run.delete()
    run.delete()
    agent.options(run_id="base")("winds")
    assert scores(everything("base"))["base", "base"] == len("sent winds a a")


def test_a_superseded_base_keeps_its_score():
    """A base whose branch was adopted still has the score of what happened, and no error."""
    run = agent.execute("tides")
    [branch] = run.branch(at=1, variations=MODELS[:1], effects="collect")
    branch.adopt()
    row = everything(run)[0]
    assert (row["status"], row["error"], row["result"]) == ("superseded", "", repr(run.result))
    assert row["score"] == len("sent tides a a")


def test_an_edited_score_is_made_anew():
    """A score with other code, or that holds another value, is another score."""
    agent("tides")
    scored = [
        everything(stepwise.runs(agent), score=each)[0]["score"]
        for each in (
            lambda text: len(text),  # noqa: PLW0108 -- to be edited
            lambda text: len(text) + 1,
            *(functools.partial(longer, by=by) for by in (2, 3)),
            *(longer_by(by) for by in (4, 5)),
        )
    ]
    least = len("sent tides a a")
    assert scored == [*range(least, least + 6)]


def longer(text, by):
    return len(text) + by


def longer_by(by):
    return lambda text: longer(text, by)


class Scale:
    """A judge that holds a number beside an object without a digest."""

    def __init__(self, by, beside):
        self.by, self.beside = by, beside

    def score(self, text):
        made.append(("judge", text))
        return self.by

    __call__ = score

    @workflow
    def flow(self, text):
        return self.by

    @step
    def step(self, text):
        return self.by


def through(function):
    return lambda text: function(text) + 0


JUDGES = {
    "a method": lambda by: Scale(by, threading.Lock()).score,
    "an object": lambda by: Scale(by, None),
    "a workflow": lambda by: Scale(by, None).flow,
    "a step": lambda by: Scale(by, threading.Lock()).step,
    "a partial": lambda by: functools.partial(Scale.score, Scale(by, threading.RLock())),
    "a captured method": lambda by: through(Scale(by, threading.Lock()).score),
    "captured code": lambda by: through((lambda _: 1) if by == 1 else (lambda _: 2)),
    "a default": lambda by: lambda text, by=by: by,
}


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_another_object_scores_anew(judge):
    """The scores of one object are not answered for another of its class, but for an equal one."""
    agent("tides")
    for by in (1, 2):
        found = [everything(stepwise.runs(agent), score=judge(by)) for _ in range(2)]
        assert [[row["score"] for row in each] for each in found] == [[by] * 3] * 2
    assert len(judged()) in (0, 6)  # by the objects that count


def test_a_run_that_goes_on_before_it_is_scored(monkeypatch):
    """A run that has no result any more when its score is made gets no score of a missing one."""
    run, scored, whole = agent.execute("tides"), [], evaluation._Scorer.run

    def found(self, of):
        scoring = whole(self, of)
        if of == run:
            run.forget(2)
        return scoring

    monkeypatch.setattr(evaluation._Scorer, "run", found)
    rows = evaluate([run], at=1, score=lambda value: scored.append(value) or 1, effects="collect")
    base = next(row for row in rows if row["variation"] == "base")
    assert (base["score"], None in scored) == (None, False)
    assert "look again" in base["error"]


def test_a_run_that_is_deleted_before_it_is_branched(monkeypatch):
    """A run that somebody deletes while its branches are made is gone, not to be repaired."""
    run, whole = agent.execute("tides"), forking.whole_records

    def records(*place):
        run.delete()
        return whole(*place)

    monkeypatch.setattr(forking, "whole_records", records)
    (row,) = evaluate([run], at=1, score=len, effects="collect")
    assert "is gone from" in row["error"]


def test_runs_that_score_are_not_told_of(told):
    """A score that failed is made again, and nobody is told of the run that makes it."""
    broken = [True]

    def score(result):
        if broken:
            raise ValueError(result)
        return len(result)

    runs = [agent.execute(topic) for topic in ("tides", "winds")]
    for expected in ({None}, {14}):
        rows = evaluate(runs, at=1, variations=1, score=score, effects="collect", max_workers=1)
        assert {row["score"] for row in rows if row["variation"] == "base"} == expected
        broken.clear()
    assert ".score-" not in told()


def test_an_object_that_nothing_tells_from_others(capfd):
    """Where nothing tells two judges apart, each call scores anew, and says why."""
    stepwise.configure(quiet=False)
    agent("tides")
    with socket.socket() as one, socket.socket() as two:
        for by, held in ((1, one), (2, two), (2, two)):
            found = everything(stepwise.runs(agent), score=Scale(by, held).score)
            assert [row["score"] for row in found] == [by] * 3
            assert "'Scale.score' holds a socket.socket" in capfd.readouterr().err


PROGRAM = """
import stepwise
from stepwise import step, workflow

RATE = 1

def helper(text):
    return RATE

@step
def think(topic):
    return topic

@step
def judge(text):
    print("judged", text)
    return helper(text)

@workflow
def child(text):
    return judge(text)

@workflow(retention="all")
def agent(topic):
    return think(topic)

if __name__ == "__main__":
    if not stepwise.runs(agent):
        agent("tides")
    for score in (judge, child, lambda text: judge(text), lambda text: child(text) + 0):
        found = stepwise.evaluate(stepwise.runs(agent), at=1, score=score)
        print([row["score"] or row["error"] for row in found])
"""


def test_an_edited_step_of_a_score_is_made_anew(tmp_path):
    """A score whose steps or what they read were edited is made anew, once for each version."""
    path = tmp_path / "program.py"
    env = {**os.environ, "STEPWISE_QUIET": "1"}

    def ran(rate):
        path.write_text(PROGRAM.replace("RATE = 1", f"RATE = {rate}"))
        done = python("program.py", cwd=tmp_path, env=env, code=0)
        lines = done.stdout.splitlines()
        assert [line for line in lines if line[0] == "["] == [f"[{rate}, {rate}]"] * 4
        return len(lines) - 4

    assert [ran(rate) for rate in (1, 1, 2, 2, 1, 3)] == [8, 0, 8, 0, 0, 8]


def test_what_a_score_may_be():
    """A step, a workflow and a function score, plain and awaited, with the run if they take it."""

    @workflow
    def child(text):
        return judge(text)

    @workflow
    async def achild(text):
        return judge(text)

    async def awaited(text, run):
        await asyncio.sleep(0)
        return judge(text) if run.inputs["topic"] == "tides" else 0

    def plain(text, run):
        return judge(text) if run.inputs["topic"] == "tides" else 0

    agent("tides")
    wanted = everything(stepwise.runs(agent))
    for score in (child, achild, awaited, plain, len):
        assert scores(everything(stepwise.runs(agent), score=score)) == scores(wanted)


def test_what_a_score_holds_is_not_recorded():
    """A score may hold what cannot be pickled, and what is large: no score records it."""
    lock, wanted = threading.Lock(), {"tides": "x" * 1_000_000}

    def known(text, run):
        with lock:
            return len(wanted[run.inputs["topic"]])

    run = agent.execute("tides")
    found = everything(run, score=known)
    assert [row["score"] for row in found] == [1_000_000] * 3
    for each in stepwise.runs(tags={"scores": run.id}):
        assert each.inputs == {"run_id": run.id}
        assert sum(len(bytes(data)) for _, data in each.store.read(each.id)) < 10_000


def test_a_score_without_its_function():
    """A score that another process goes on with says that the function is missing."""
    run = agent.execute("tides")

    def failing(text):
        raise OSError("away")

    everything(run, score=failing)
    scoring = stepwise.runs(tags={"scores": run.id})[0]
    with pytest.raises(stepwise.ConfigurationError, match=r"only the call of evaluate\(\) has"):
        scoring.resume().result()


def test_scores_are_no_runs_of_their_own():
    """Lists leave scores out, as they do child runs, unless they are asked for."""
    from stepwise._runs.run import find_run
    from stepwise.mcp._agent_tools import list_runs
    from stepwise.ui._reading import parsed

    run = agent.options(run_id="tides").execute("tides")
    everything(run)
    scores = {each.id for each in stepwise.runs(tags={"scores": run.id})}
    scores |= {each.id for each in stepwise.runs("score")}
    assert len(scores) == 3

    def listed(*words):
        return {
            each["id"]
            for each in json.loads(CliRunner().invoke(cli.main, ["runs", "--json", *words]).stdout)
        }

    own = {run.id, *(each.run.id for each in run.branches)}
    assert listed() == {each["id"] for each in list_runs()["recorded"]["runs"]} == own
    assert listed("--children") == own | scores
    assert listed("--workflow", "score") == scores
    assert listed("--tag", f"scores={run.id}") < scores
    assert find_run(None).id in own
    for words, found in {"": own, "workflow:score": scores}.items():
        meant = parsed(words, 0.0).is_meant
        kept = [each.id for each in stepwise.runs() if meant(each._facts())]
        assert found <= {*kept} <= own | scores
        assert scores.isdisjoint(kept) == (not words)


def test_long_variations_are_told_apart():
    """Variations whose texts are shortened to the same one are not one in the means."""
    models = [{"model": "x" * 5000 + end + "x" * 5000} for end in ("a", "b", "bb")]
    agent("tides")
    found = everything(stepwise.runs(agent), variations=[*models, models[0]])
    names = [each["variation"] for each in found.means()]
    assert len({*names}) == 4
    assert "(variation 2)" in names[2]
    assert [each["rows"] for each in found.means()] == [1, 2, 1, 1]


def test_asynchronous_workflows():
    """Branches of asynchronous workflows are executed, too."""
    asyncio.run(aagent("tides"))
    found = evaluate(stepwise.runs(aagent), at=1, variations=MODELS, score=judge)
    assert [row["score"] for row in found] == [9, 10, 12]


# -- what has no score -----------------------------------------------------------------------------


@workflow(retention="all")
def outer(topic):
    return agent(topic)


@workflow
def forgetful():
    return [think(number, "a") for number in range(9)]


def test_runs_that_cannot_be_branched():
    """A run that is gone, is a child or keeps no checkpoint there has a row with the reason."""
    fine = agent.execute("tides")
    child = next(each.child for each in outer.execute("winds").steps)
    found = everything([forgetful.execute(), child, "gone", fine], at=2)
    reasons = {row["base"]: row["error"] for row in found if row["variation"] == "base"}
    assert "child run" in reasons[child]
    assert "gone" in reasons["gone"]
    assert "has no variable" in reasons[found[0]["base"]]
    assert reasons[fine.id] == ""
    assert len(found) == 6
    assert found[1]["score"] == len("sent winds a a")


def test_branches_without_a_result():
    """A branch that was refused or proposes something has no score, and its row says what."""
    run = agent.execute("tides")
    refused = evaluate(run, at=1, variations=MODELS, score=judge)
    assert [row["error"] for row in refused[1:]] == [
        "refused: send(text='tides a bb')",
        "refused: send(text='tides a cccc')",
    ]
    proposed = evaluate(run, at=1, variations=MODELS, score=judge, effects="collect")
    assert [row["result"] for row in proposed[1:]] == [
        "proposes send(text='tides a bb')",
        "proposes send(text='tides a cccc')",
    ]
    assert [row["score"] for row in proposed] == [len(run.result), None, None]


def test_a_score_that_raises():
    """A score that raised is named in its row, and made again at the next call, alone."""
    agent("tides")

    def shaky(text):
        made.append(("judge", text))
        if text.endswith("bb") and judged().count(text) == 1:
            raise OSError("away")
        return len(text)

    found = everything(stepwise.runs(agent), score=shaky)
    assert [row["error"] for row in found] == ["", "OSError: away", ""]
    assert found[1]["score"] is None
    assert scores(everything(stepwise.runs(agent), score=shaky)) == scores(
        everything(stepwise.runs(agent), score=len)
    )
    assert sorted(judged()) == ["sent tides a a", *["tides a bb"] * 2, "tides a cccc"]


@pytest.mark.parametrize("score", [None, "text", float("nan"), float("inf"), [1]])
def test_scores_that_are_no_numbers(score):
    """A score that is no number is an error of its row, which names the function."""
    agent("tides")
    found = everything(stepwise.runs(agent), score=lambda text: score)
    assert all("'<lambda>' returned" in row["error"] for row in found)
    assert found.means()[0]["score"] is None


def test_a_score_that_waits_for_a_person():
    """A score may wait for a person; the call after the answer has it."""

    @workflow
    def asking(text):
        return stepwise.wait_for("score")

    stepwise.configure(suspend_after=0)
    run = agent.execute("tides")
    found = evaluate(run, at=1, variations=MODELS[:1], score=asking)
    assert found[0]["error"].startswith("RunSuspended")
    for each in stepwise.runs(tags={"scores": run.id}):
        [wait] = each.waits
        stepwise.get_run(wait.run_id).send("score", 7)
    assert evaluate(run, at=1, variations=MODELS[:1], score=asking)[0]["score"] == 7


def test_a_budget_for_all():
    """The budget is for all branches and scores together, and for those of earlier calls."""
    for number in range(4):
        agent(f"t{number}")
    budget = Budget(usd=0.03)
    found = everything(stepwise.runs(agent), budget=budget, max_workers=1)
    spent = sum(row["usd"] for row in found if row["variation"] != "base")
    assert spent == pytest.approx(0.03)
    assert any("budget" in row["error"] for row in found)
    made.clear()
    everything(stepwise.runs(agent), budget=budget, max_workers=1)
    assert [each for each in made if each[0] == "think"] == []
    assert [row["error"] for row in everything(stepwise.runs(agent))] == [""] * 12


REFUSED = {
    "no variations": ({"variations": 0}, "variations=0"),
    "no workers": ({"max_workers": 0}, "max_workers=0 of evaluate"),
    "no budget": ({"budget": 1}, "expected a Budget"),
    "no policy": ({"effects": "make"}, "effects='make'"),
    "no function": ({"score": 1}, "score= of evaluate.. must be a function"),
    "no runs": ({"runs": [1]}, "give runs or their ids"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    """An argument that cannot be used is refused, whatever the runs are."""
    given, why = REFUSED[what]
    with pytest.raises(stepwise.ConfigurationError, match=why):
        evaluate(**{"runs": [], "score": judge, **given})


def test_inside_of_a_run():
    """Inside of a run the call is refused: nothing would record it."""

    @workflow
    def flow():
        everything([])

    with pytest.raises(stepwise.ConfigurationError, match="inside run"):
        flow()


# -- the table -------------------------------------------------------------------------------------


def test_the_table(monkeypatch, tmp_path):
    """The table begins with the means of each variation; files hold all rows."""
    monkeypatch.setenv("COLUMNS", "200")
    agent.options(run_id="tides")("tides")
    found = everything("tides")
    lines = f"{found}".splitlines()
    assert lines[1].split() == ["VARIATION", "SCORED", "SCORE", "STEPS", "COST", "TIME"]
    assert lines[3].split()[:5] == ["model='bb'", "1/1", "10", "2", "$0.01"]
    assert lines[7].split()[:4] == ["tides", "base", "completed", "14"]
    assert lines[8].split()[1:4] == ["model='bb'", "completed", "10"]
    assert found.means()[1]["score"] == 10
    assert json.loads(found.to_json()) == found.rows()
    text = found.to_csv(tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_text("utf-8") == text
    assert [row["score"] for row in csv.DictReader(io.StringIO(text))] == ["14", "10", "12"]
    found.to_json(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text("utf-8")) == found.rows()
    assert "1/1" in found._repr_html_()
    assert repr(found) == f"{found}"


def test_pandas(monkeypatch):
    """Where pandas is installed the rows are a frame; where not, the error says so."""
    agent("tides")
    found = everything(stepwise.runs(agent))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(stepwise.ConfigurationError, match="pip install pandas"):
        found.to_pandas()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    assert found.to_pandas().groupby("variation")["score"].mean()["model='bb'"] == 10
    assert isinstance(found.to_pandas(), pandas.DataFrame)


def test_results_are_not_kept_in_memory():
    """However many runs there are, the results of a few are in memory."""

    @workflow(retention="all")
    def large(number, more=""):
        think(number, "a")
        return f"{number}{more}" + "x" * 1_000_000

    for number in range(12):
        large(number)
    runs = [each.id for each in stepwise.runs(large)]
    tracemalloc.start()
    found = evaluate(runs, at=1, variations=[{"more": "m"}], score=len, max_workers=2)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row["score"] > 1_000_000 for row in found] == [True] * 24
    assert most < 15_000_000  # of 24 MB
