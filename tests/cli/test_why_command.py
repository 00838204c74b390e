"""The commands that find out why a run stopped: ``why``, ``locals PATH``, ``bisect``."""

import json

import pytest
from command import run

import stepwise
from stepwise import step, workflow


@step
def ask(number):
    return {"text": f"answer {number}", "parts": [number] * 200}


@workflow(retention="all")
def talk(upto):
    answers = []
    for number in range(upto):
        answers.append(ask(number))
    return answers[upto]


@pytest.fixture
def talked():
    """The id of a run that failed after three steps."""
    with pytest.raises(IndexError):
        talk(3)
    return stepwise.runs()[0].id


def test_why(talked):
    """``why`` is one screen, of the latest run if none is named; as JSON it is ``Run.why()``."""
    result = run("why", env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "> 22      return answers[upto]" in result.stdout
    assert f"stepwise resume {talked}" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:20])) <= 80
    assert len(result.stdout.splitlines()) <= 40
    facts = json.loads(run("why", talked, "--json").stdout)
    assert facts == json.loads(json.dumps(stepwise.get_run(talked).why().to_dict()))
    earlier = json.loads(run("why", talked, "--at", "2", "--json").stdout)
    assert earlier["checkpoint"]["step"] == 2
    assert "answers[1]" in [each["path"] for each in earlier["changes"]]
    assert "keeps no checkpoint" in str(run("why", talked, "--at", "0").exception)


def test_a_part_of_a_variable(talked):
    """A PATH is printed whole; as JSON it is shortened, and its cut parts are named."""
    assert run("locals", talked, "answers[1].text").stdout == "'answer 1'\n"
    assert run("locals", talked, "answers[1].parts[0:3]", "--at", "2").stdout == "[1, 1, 1]\n"
    facts = json.loads(run("locals", talked, "answers", "--json").stdout)
    assert len(facts["value"]) < 6000
    for path in facts["cut"]:
        assert run("locals", talked, path).exit_code == 0
    with_path = run("locals", talked, "answers[7]")
    assert "answers has no [7]: it is a list of 3 items" in str(with_path.exception)


def test_a_part_of_a_step(talked):
    """``show RUN STEP --path`` prints a part of a step's arguments or result."""
    assert run("show", talked, "2", "--path", "result.text").stdout == "'answer 1'\n"
    facts = json.loads(run("show", talked, "2", "--path", "result.parts", "--json").stdout)
    assert (facts["step"], facts["path"]) == (2, "result.parts")
    assert run("show", talked, "--path", "arguments.upto").stdout == "3\n"
    assert "is no path of it" in str(run("show", talked, "2", "--path", "text").exception)
    assert "it has no result: it is failed" in str(
        run("show", talked, "--path", "result").exception
    )
    assert "were not recorded in full" in str(
        run("show", talked, "2", "--path", "arguments.number").exception
    )


def test_changes(talked):
    """``locals --changes`` prints the history of a variable, and takes no PATH beside it."""
    told = run("locals", talked, "--changes", "number")
    assert "number: 1 -> 2" in told.stdout
    assert "for number in range(upto):" in told.stdout
    facts = json.loads(run("locals", talked, "--changes", "answers", "--json").stdout)
    assert [each["path"] for each in facts["changes"]][-2:] == ["answers[1]", "answers[2]"]
    assert {each["statement"] for each in facts["changes"]} == {"answers.append(ask(number))"}
    assert run("locals", talked, "answers", "--changes", "answers").exit_code == 2


def test_bisect(talked):
    """``bisect`` names the checkpoint, and ends with 1 if there is none."""
    result = run("bisect", talked, "len(answers) == 2")
    assert result.exit_code == 0
    assert "is true after step 2" in result.stdout
    assert run("bisect", talked, "len(answers) == 9").exit_code == 1
    facts = json.loads(run("bisect", talked, "len(answers) == 2", "--json").stdout)
    assert (facts["step"], facts["exact"]) == (2, True)


@workflow(retention="all")
def connect(count):
    config = {"headers": {"password": "sesame opens"}, "api_keys": ["opens it"]}
    key_of = [{"authorization": "Bearer x", "password": "hunter-2-hunter"}]
    for number in range(count):
        ask(number)
        pages = ["x" * 900] * 50
    raise ValueError(len(config) + len(key_of) + len(pages))


def test_no_view_of_variables_shows_a_secret():
    """No command shows a value under a secret's name, nor one in a statement of the source."""
    with pytest.raises(ValueError, match="53"):
        connect(3)
    run_id = stepwise.runs()[0].id
    for arguments in (
        *(["locals", run_id], ["locals", run_id, "config"], ["locals", run_id, "key_of"]),
        *(["locals", run_id, "--changes", "key_of"], ["show", run_id, "--locals"]),
        ["bisect", run_id, "key_of"],
    ):
        for as_json in ([], ["--json"]):
            told = run(*arguments, *as_json)
            assert told.exit_code == 0
            assert "opens it" not in told.output
            assert "hunter-2" not in told.output
            assert "sesame" not in told.output


def test_all_variables_as_json_are_bounded():
    """``locals --json`` has 8,000 characters at most, and names the paths of what is cut."""
    with pytest.raises(ValueError, match="53"):
        connect(1)
    run_id = stepwise.runs()[0].id
    result = run("locals", run_id, "--json")
    assert len(result.stdout) <= 8000
    facts = json.loads(result.stdout)
    assert facts["left_out"] == 0
    assert "pages" in facts["locals"]
    for path in facts["cut"]:
        assert run("locals", run_id, path).exit_code == 0


def test_an_expression_that_fails_at_length(talked):
    """The exception of an expression is shown in short, without what looks like a credential."""
    fails = "{}['api_key=abcdef123456' + 'x' * 10**6]"
    told = run("bisect", talked, fails, "--json")
    assert told.exit_code == 1
    assert len(told.stdout) <= 8000
    assert "abcdef123456" not in json.loads(told.stdout)["note"].replace(fails, "")
    names = " and ".join(["answers", "number", "upto"] * 300)
    assert len(run("bisect", talked, names, "--json").stdout) <= 8000 + 2 * len(names)
