"""The examples, run as a person runs them: started, killed with SIGKILL, started again.

The file that an example's side effect appends to is a FIFO while it is being killed: opening one
blocks until somebody reads it, so the example cannot get past its side effect and end too early.
"""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import httpx
import pytest
from harness import Watched, python

import stepwise

IMPORTS = ("openai", "openai.types.chat")  # what takes an example half a second to import
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SUBJECTS = {
    "Add a parser": "parser.py",
    "fix(parser): keep the last line": "parser.py",
    "feat!: drop the old format": "parser.py",
    "Say what the format is": "docs/format.md",
    "Try an empty file": "tests/test_parser.py",
    "parser: speed": "parser.py",
    "ümläut & <tags>, a\ttab": "a file.txt",
}


QUICK = ("--latency", "0")
BOOKED = "a night in Bergen for 95"


class Ran(NamedTuple):
    """What came of one start of an example."""

    code: int
    steps: list[str]
    result: str
    errors: str


class Example(NamedTuple):
    """An example, and what it does undisturbed; ``file`` is what its tool ``effect`` appends to."""

    command: list[str]
    effect: str
    file: str
    landed: Any
    undisturbed: Ran
    written: str


def run(command: list[str], folder: pathlib.Path, *, until=lambda steps: False, **env: str) -> Ran:
    """Start a script in a folder that also holds its runs; kill it once ``until`` holds."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("STEPWISE_", "OPENAI_"))}
    env = {**inherited, "STEPWISE_HOME": f"{folder}/home", "NO_PROXY": "*", **env}
    steps, result, errors = [], "", folder / "errors"
    errors.write_text("")
    imports = IMPORTS if command[0].endswith("_agent.py") else ()
    script = EXAMPLES / command[0]
    ran = Watched(script, *command[1:], cwd=folder, env=env, err=errors, imports=imports)
    for line in ran.stdout:
        if line.startswith("["):
            steps.append(line.strip().replace(str(folder), "."))
            if until(steps):
                ran.kill()
        else:
            result += line
    return Ran(ran.wait(), steps, result, errors.read_text())


def kill_at(count: int, effect: str):
    """Until so many lines were seen, or the side effect has begun."""
    return lambda steps: len(steps) >= count or name_of(steps[-1]) == effect


def name_of(line: str) -> str:
    return line[1 : line.index("]")]


def without_attempt(line: str) -> str:
    return line.partition(" attempt ")[0]


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> str:
    """A repository with one commit for each of the subjects."""
    folder = tmp_path_factory.mktemp("git") / "project"
    folder.mkdir()
    git = partial(subprocess.run, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    git(["git", "init", "--quiet"])
    for subject, path in SUBJECTS.items():
        file = folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(subject, "utf-8")
        git(["git", "add", "--all"])
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=no"]
        git(["git", *who, "commit", "--quiet", "--message", subject])
    return str(folder)


@pytest.fixture(scope="module")
def example(request, tmp_path_factory, history) -> Example:
    """The example of the given name, run undisturbed once."""
    command, effect, file, landed = {
        "release_notes": (["release_notes.py", history], "announce", "outbox.txt", None),
        "site_research": (["site_research.py", *QUICK], "file_report", "reports.md", None),
        "chat_agent": (["chat_agent.py", *QUICK], "save_note", "notes.txt", "saved"),
        "instrumented_agent": (["instrumented_agent.py"], "book", "bookings.txt", BOOKED),
    }[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    undisturbed = run(command, folder)
    assert undisturbed.code == 0, undisturbed.errors
    written = (folder / file).read_text("utf-8")
    return Example(command, effect, file, landed, undisturbed, written)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    """A folder to run in; this process sees the runs made there."""
    monkeypatch.setenv("STEPWISE_HOME", f"{tmp_path}/home")
    return tmp_path


def the_run() -> stepwise.Run:
    [found] = stepwise.runs()
    return found


def started_and_killed(example: Example, folder: pathlib.Path, count: int) -> Ran:
    """Kill it at its ``count``-th line; the side effect has then not happened."""
    os.mkfifo(folder / example.file)
    killed = run(example.command, folder, until=kill_at(count, example.effect))
    (folder / example.file).unlink()
    assert killed.code == -signal.SIGKILL, killed.errors
    return killed


every_example = pytest.mark.parametrize(
    "example",
    ["release_notes", "site_research", "chat_agent", "instrumented_agent"],
    indirect=True,
)
those_that_ask = pytest.mark.parametrize(
    "example", ["release_notes", "chat_agent", "instrumented_agent"], indirect=True
)


@every_example
def test_a_completed_example_recalls_its_result(example, folder):
    """Started again after it completed, an example prints the recorded result and runs nothing."""
    first, second = (run(example.command, folder) for _ in range(2))
    assert sorted(first.steps) == sorted(example.undisturbed.steps)
    assert first.result == second.result == example.undisturbed.result
    assert second.steps == []
    assert "already completed" in second.errors


@every_example
@pytest.mark.parametrize("place", [0, 0.25, 0.5, 0.75, 1])
def test_a_killed_example_goes_on(example, place, folder):
    """Killed anywhere and started again, it ends as if undisturbed and repeats nothing recorded."""
    expected = example.undisturbed.steps
    before_effect = [name_of(line) for line in expected].index(example.effect)
    killed = started_and_killed(example, folder, 1 + round(place * before_effect))
    recorded = Counter(step.name for step in the_run().steps if step.status == "completed")

    resumed = run(example.command, folder)
    if "StepInDoubtError" in resumed.errors:
        assert resumed.steps == []
        the_run().resolve(example.effect, did_not_happen=True)
        resumed = run(example.command, folder)

    assert resumed.code == 0, resumed.errors
    assert resumed.result == example.undisturbed.result
    assert "Warning" not in resumed.errors
    before, after = ({*map(without_attempt, ran.steps)} for ran in (killed, resumed))
    assert before | after == {*map(without_attempt, expected)}
    assert len(resumed.steps) == len(set(resumed.steps))
    in_flight = Counter(map(name_of, before)) - recorded
    assert Counter(map(name_of, before & after)) == in_flight


@those_that_ask
@pytest.mark.parametrize("happened", [True, False])
def test_killed_inside_a_side_effect_it_stops_and_asks(example, happened, folder):
    """Killed inside a side effect, it stops, says how to settle it, and once settled goes on."""
    started_and_killed(example, folder, sys.maxsize)
    if happened:
        (folder / example.file).write_text(example.written, "utf-8")

    stopped = run(example.command, folder)
    assert stopped.code != 0
    assert stopped.steps == []
    [doubt] = [step for step in the_run().steps if step.status == "in_doubt"]
    assert "StepInDoubtError" in stopped.errors
    assert f"stepwise resolve {the_run().id} {doubt.number} --landed" in stopped.errors
    assert f"stepwise resolve {the_run().id} {doubt.number} --did-not-happen" in stopped.errors

    run_in_doubt = stepwise.get_run(the_run().id, store=f"disk:{folder}/home/store")
    if happened:
        run_in_doubt.resolve(doubt.number, landed=example.landed)
    else:
        run_in_doubt.resolve(doubt.number, did_not_happen=True)
    done = run(example.command, folder)
    assert done.result == example.undisturbed.result
    assert (example.effect in map(name_of, done.steps)) is not happened
    assert (folder / example.file).read_text("utf-8") == example.written


@pytest.mark.parametrize("example", ["site_research"], indirect=True)
@pytest.mark.parametrize("happened", [True, False])
def test_a_report_in_doubt_settles_itself(example, happened, folder):
    """Killed while filing its report, the research looks for the report's key and files it once."""
    started_and_killed(example, folder, sys.maxsize)
    [doubt] = [step for step in the_run().steps if step.status == "in_doubt"]
    written = f"{example.undisturbed.result}<!-- {doubt.idempotency_key} -->\n\n"
    if happened:
        (folder / example.file).write_text(written, "utf-8")
    done = run(example.command, folder)
    assert done.steps == ([] if happened else example.undisturbed.steps[-1:])
    assert done.result == example.undisturbed.result
    assert (folder / example.file).read_text("utf-8") == written


@pytest.mark.parametrize("example", ["chat_agent"], indirect=True)
def test_killed_after_its_side_effect_it_does_not_repeat_it(example, folder):
    """Killed at the question after a saved note, the agent does not save the note again."""
    last = len(example.undisturbed.steps)
    run(example.command, folder, until=lambda steps: len(steps) == last)
    resumed = run(example.command, folder)
    assert resumed.result == example.undisturbed.result
    assert example.effect not in map(name_of, resumed.steps)
    assert (folder / example.file).read_text("utf-8") == example.written


# -- what each of them does -----------------------------------------------------------------------


@pytest.mark.parametrize("place", range(1, 10))
@pytest.mark.parametrize("by", ["script", "up"])
def test_a_killed_night_goes_on(place, by, folder):
    """Killed at any line, a digest is continued by its script or ``up``, and delivered once."""
    command = ["nightly_digest.py"]
    undisturbed = run(command, folder)
    [spent] = [each.spent for each in stepwise.runs()]
    digests = folder / "digests.md"
    written = digests.read_text("utf-8").splitlines()[:-1]
    digests.unlink()
    os.mkfifo(digests)
    killed = run(command, folder, until=kill_at(place, "deliver"))
    digests.unlink()
    assert killed.code == -signal.SIGKILL, killed.errors
    assert [each.status for each in stepwise.runs()] == ["crashed", "completed"]
    again = run(command, folder).steps if by == "script" else brought_up("nightly_digest")
    assert [each.status for each in stepwise.runs()] == ["completed"] * 2
    assert digests.read_text("utf-8").splitlines()[:-1] == written
    known = len(killed.steps)  # the last of them may have been recorded
    assert again in (undisturbed.steps[known - 1 :], undisturbed.steps[known:])
    killed_night = stepwise.runs()[0].spent  # nothing is spent in the step that may run twice
    assert (killed_night.tokens, killed_night.usd) == (spent.tokens, pytest.approx(spent.usd))
    assert run(command, folder).steps == undisturbed.steps  # the next night


def brought_up(module: str) -> list[str]:
    """Continue what crashed as cron does; return the lines of the steps that were executed."""
    done = python("stepwise", "up", "--once", module, cwd=EXAMPLES, code=0)
    printed = [line.partition(" | ")[2] for line in done.stderr.splitlines()]
    return [line for line in printed if line.startswith("[")]


@pytest.mark.parametrize("place", [1, 7, 13, 19, 24, 28])
def test_a_killed_fleet_goes_on(place, folder):
    """Killed at any line, many runs at once all end, and each report is filed once."""
    command = ["research_fleet.py", "--latency", "0"]
    undisturbed = run(command, folder)
    assert len(undisturbed.steps) == 30
    reports = folder / "reports.txt"
    reports.unlink()
    for each in stepwise.runs():
        each.delete()
    killed = run(command, folder, until=lambda steps: len(steps) >= place)
    assert killed.code == -signal.SIGKILL, killed.errors
    resumed = run(command, folder)
    assert resumed.code == 0, resumed.errors
    assert resumed.result == undisturbed.result
    filed = [line.partition(" <!--")[0] for line in reports.read_text("utf-8").splitlines()]
    assert sorted(filed) == sorted(undisturbed.result.splitlines())
    assert {*killed.steps, *resumed.steps} == set(undisturbed.steps)
    again = Counter(line.split()[1] for line in {*killed.steps} & {*resumed.steps})
    assert max(again.values(), default=0) <= 1  # the step in flight of each run, at most


def answered_until_it_ends(folder: pathlib.Path, until=lambda steps: False) -> list[Ran]:
    """Start the bot, each time in a new process, and answer what it asks."""
    starts = []
    while not starts or starts[-1].code in (75, -signal.SIGKILL):
        starts.append(run(["approval_bot.py"], folder, until=until))
        for question in the_run().questions if starts[-1].code == 75 else ():
            answer = question.deny if "'payee': 'Roofer'" in question.details else question.approve
            answer("said by a person")
    return starts


def test_an_approval_bot_asks(folder):
    """The bot gives up its process when it asks, and goes on after the answer, in a new one."""
    starts = answered_until_it_ends(folder)
    assert [each.code for each in starts] == [75, 75, 75, 0]
    assert "and start the program again" in starts[0].errors
    assert [name_of(line) for each in starts for line in each.steps] == [
        *("read_bills", "pay", "pay", "pay", "note_denial")
    ]
    assert starts[-1].result.splitlines() == [
        "Water works got 42 euros",
        "Printer & Sons got 780 euros",
        "Post got 12 euros",
        "Roofer gets nothing: said by a person",
        "closed: said by a person",
    ]
    paid = (folder / "payments.txt").read_text("utf-8").splitlines()
    assert [line.partition(" (")[0] for line in paid] == [
        *("42 to Water works", "780 to Printer & Sons", "12 to Post")
    ]


@pytest.mark.parametrize("place", range(1, 6))
def test_a_killed_approval_bot_goes_on(place, folder):
    """Killed at any line of its processes, the bot pays each bill once, and none without a yes."""
    printed: list[str] = []

    def until(steps: list[str]) -> bool:
        printed.append(steps[-1])
        return len(printed) == place

    starts = answered_until_it_ends(folder, until)
    assert -signal.SIGKILL in [each.code for each in starts]
    assert starts[-1].result.splitlines()[-1] == "closed: said by a person", starts[-1].errors
    paid = (folder / "payments.txt").read_text("utf-8").splitlines()
    assert [line.partition(" (")[0] for line in paid] == [
        *("42 to Water works", "780 to Printer & Sons", "12 to Post")
    ]


@pytest.mark.parametrize("example", ["release_notes"], indirect=True)
def test_commits_are_sorted_by_kind(example):
    """Notes have a section per kind of change, told by subject or else by the touched paths."""
    sections = example.undisturbed.result.split("## ")[1:]
    found = {
        heading: [line[2:].rpartition(" (")[0] for line in lines if line]
        for heading, *lines in map(str.splitlines, sections)
    }
    assert found == {
        "Breaking changes": ["drop the old format"],
        "Features": ["Add a parser"],
        "Fixes": ["parser: keep the last line"],
        "Documentation": ["Say what the format is"],
        "Tests": ["Try an empty file"],
        "Other changes": ["ümläut & <tags>, a\ttab", "parser: speed"],
    }
    assert example.written.endswith(
        ": 1 breaking, 1 feature, 1 fix, 1 docs, 1 tests, 2 other\n",
    )


def test_notes_cover_what_is_asked_for(folder, history):
    """A new commit is another run, and revisions that are already out are left out."""
    run(["release_notes.py", history, "--limit", "1"], folder)
    since = run(["release_notes.py", history, "--since", "HEAD~2"], folder)
    nothing = run(["release_notes.py", history, "--since", "HEAD"], folder)
    assert [name_of(line) for line in since.steps].count("classify") == 2
    assert nothing.code == 0
    assert len(stepwise.runs()) == 3


def test_a_folder_without_history_is_refused(folder):
    """Where there is no repository, or none with a commit, the message says so."""
    (folder / "plain").mkdir()
    plain = run(["release_notes.py", "plain"], folder, GIT_CEILING_DIRECTORIES=str(folder))
    assert plain.code == 1
    assert f"{folder / 'plain'} is not a git repository" in plain.errors
    subprocess.run(["git", "init", "--quiet", "new"], cwd=folder, check=True)
    new = run(["release_notes.py", "new"], folder)
    assert new.code == 1
    assert f"{folder / 'new'} has no commit" in new.errors
    assert not (folder / "home").exists()


@pytest.mark.parametrize("example", ["site_research"], indirect=True)
def test_pages_that_fail_are_fetched_again(example):
    """A page whose server answered 500 is asked for once more, and only such a page."""
    again = [line for line in example.undisturbed.steps if line.endswith("attempt 2")]
    first = [line for line in example.undisturbed.steps if line.endswith("attempt 1")]
    assert 0 < len(again) < len(first) == 7
    assert "7 pages" in example.undisturbed.result
    assert "Most linked: /chronometer.html, from 5 pages" in example.undisturbed.result


def test_a_broken_link_is_a_finding(folder):
    """A page that is not there is reported with the pages that link to it."""
    (folder / "index.html").write_text('<title>A</title>b c <a href="no.html#x">d</a>', "utf-8")
    ran = run(["site_research.py", ".", "--latency", "0"], folder)
    assert "- /index.html: A. 3 words, links to /no.html" in ran.result
    assert "Broken: /no.html, status 404, linked from /index.html" in ran.result


def test_a_site_is_read_from_a_url(folder):
    """Given a URL, the research reads that site and does not leave it."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    site = partial(Handler, directory=EXAMPLES / "site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), site) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/index.html"
        ran = run(["site_research.py", url, "--limit", "3"], folder)
        server.shutdown()
    assert "3 pages" in ran.result
    assert f"- {url}: Finding longitude at sea." in ran.result


@pytest.fixture
def model_url(folder):
    """The base URL of the local model, in a process of its own."""
    command = [sys.executable, EXAMPLES / "chat_server.py", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().strip()
        server.kill()


def test_the_agent_asks_the_server_it_is_given(folder, model_url):
    """With OPENAI_BASE_URL set, the agent asks that server; a tool's error is told to the model."""
    command = ["chat_agent.py", "What is 3 * 4? What is 1 / 0?", "--model", "any"]
    ran = run(command, folder, OPENAI_BASE_URL=model_url, OPENAI_API_KEY="none")
    assert ran.result == "3 * 4 = 12. calculate gave error: division by zero.\n"
    assert not (folder / "notes.txt").exists()


def test_the_model_asks_only_for_tools_it_is_offered(model_url):
    """The local model asks for a tool that it is offered, and without tools it just answers."""
    function = {"name": "calculate", "parameters": {"properties": {"sum": {"type": "string"}}}}
    request = {"model": "any", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    with httpx.Client(base_url=model_url, trust_env=False, timeout=60) as client:

        def ask(**more):
            return client.post("/chat/completions", json={**request, **more})

        offered = ask(tools=[{"type": "function", "function": function}]).json()["choices"][0]
        plain = ask().json()["choices"][0]
        assert ask(stream=True).status_code == ask(messages=[]).status_code == 400
        assert client.get("/models").status_code >= 400
    assert offered["finish_reason"] == "tool_calls"
    [call] = offered["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"sum": "2 + 2"}
    assert plain["finish_reason"] == "stop"
    assert plain["message"]["content"]


# -- those of the classic objects -----------------------------------------------------------------

TEXT = """# A text

It has a a word that stands twice, and a [link](missing.md) to nothing. It has a sentence. Another.

And a third paragraph, with some more words than the others have. One, two. Three, four.
"""
REVIEW = ["review_graph.py", "text.md", "--longest", "4"]
RECOVERABLE = ["recoverable_agent.py", "sources"]


@pytest.fixture
def given(folder):
    """The folder, with a text to review and sources to read."""
    (folder / "text.md").write_text(TEXT, "utf-8")
    (folder / "sources").mkdir()
    for number, name in enumerate("abcdef"):
        source = f"def {name}():\n    return {number}\n"
        (folder / "sources" / f"{name}.py").write_text(source, "utf-8")
    return folder


def told(ran: Ran) -> list[str]:
    """What it printed, without what differs after a resume."""
    lines = ran.result.splitlines()
    return [line for line in lines if not line.startswith(("(resumed", "-", "Review"))]


@pytest.mark.parametrize("place", [1, 3, 5, 99])
@pytest.mark.parametrize(
    "command", [[*REVIEW, "--answer", "yes"], RECOVERABLE], ids=["graph", "agent"]
)
def test_a_killed_graph_or_agent_goes_on(command, place, given):
    """Killed anywhere and started again, it ends as if undisturbed, and repeats nothing."""
    away = f"{given}/away"
    undisturbed = run([*command, "--outbox", "other.txt"], given, STEPWISE_HOME=away)
    assert undisturbed.code == 0, undisturbed.errors
    os.mkfifo(given / "outbox.txt")
    killed = run(command, given, until=kill_at(place, "append"))
    assert killed.code == -signal.SIGKILL, killed.errors
    (given / "outbox.txt").unlink()

    resumed = run(command, given)
    if "StepInDoubtError" in resumed.errors:
        [stopped] = [each for each in stepwise.runs() if each.status != "completed"]
        stopped.resolve("append", did_not_happen=True)
        resumed = run(command, given)
    assert resumed.code == 0, resumed.errors
    assert told(resumed) == told(undisturbed)
    assert (given / "outbox.txt").read_text("utf-8") == (given / "other.txt").read_text("utf-8")
    seen = [line.partition("] ./")[0] for line in (*killed.steps, *resumed.steps)]
    expected = [line.partition("] ./")[0] for line in undisturbed.steps]
    assert set(seen) == set(expected)
    assert len(seen) <= len(expected) + 1  # the one in flight


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_review_waits_for_its_answer(answer, given):
    """Left at its question, the review asks again when it is started again, and only that."""
    left = run(REVIEW, given)
    assert left.code == 1
    assert "EOFError" in left.errors
    assert left.steps[-1] == "[judge] 3 lines: good"
    assert "[draft] 2" in "".join(left.steps)
    done = python(EXAMPLES / REVIEW[0], *REVIEW[1:], cwd=given, text=f"{answer}\n", code=0)
    *asked, outcome = done.stdout.splitlines()
    assert [line for line in asked if line.startswith("[")] == []
    assert ("[append]" in "".join(asked)) is (answer == "yes")  # behind the question
    assert outcome == f"Outcome: {'published' if answer == 'yes' else 'not published'}"


def test_an_agent_recovers_by_itself(given):
    """An agent that fails resumes at its checkpoint; only files read since are read again."""
    done = run([*RECOVERABLE, "--fail-at", "5"], given)
    assert done.code == 0, done.errors
    assert done.result.splitlines() == [
        "6 files, 12 lines, 6 functions without docstring",
        "(resumed after step 3)",
    ]
    again = [step for step in {*done.steps} if done.steps.count(step) > 1]
    assert sorted(again) == ["[read_file] d.py", "[read_file] e.py"]
    assert (len({*done.steps}), len(done.steps)) == (8, 10)
