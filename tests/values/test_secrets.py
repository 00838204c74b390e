"""``secret=``, ``ignore=`` and ``redact=``: what is stored nowhere, and what is not shown."""

import base64
import json
import os
import pathlib
import signal
import sys
import threading
from urllib.parse import quote, quote_plus

import pytest
from harness import python
from resuming import crashed, resumed

import stepwise
from stepwise import step, tool, workflow
from stepwise._values.preview import HIDDEN, SecretReferences, Secrets, restored
from stepwise.testing import fresh_store

KEY = "sk-S3CR3T-0123456789"
ODD = "p\"a\\ss'w\u00f6rd\u20ac42"
CALLS: list = []


@pytest.fixture(autouse=True)
def store():
    CALLS.clear()
    with fresh_store() as opened:
        yield opened


# -- every byte below STEPWISE_HOME ----------------------------------------------------------------

PROGRAM = """
import dataclasses, os, sys, threading
import stepwise
from stepwise import step, tool, workflow

KEY = os.environ["THE_KEY"]
DIE = os.environ.get("DIE", "")

def here(place):
    if place == DIE and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)

@dataclasses.dataclass
class Config:
    url: str
    key: str

class Client:
    def __init__(self, key):
        self.key, self.lock = key, threading.Lock()

@step(SECRET_KEY)
def declared(api_key, q):
    here("declared")
    return q.upper()

@step
def undeclared(key, q, **more):
    here("undeclared")
    return len(key)

@step
def plain(n):
    here(f"plain {n}")
    return {"n": n, "text": "x" * 600}

@step
def failing(key):
    raise ValueError(f"refused: {key}", key, [key.encode()])

@tool(side_effect=True, compensate=lambda call: None)
def pay(amount, api_key):
    here("pay")
    return amount

@workflow(SECRET_KEY)
def child(api_key, q):
    text = f"{q}:{api_key}"
    size = undeclared(text, q)
    here("child")
    plain(7)
    raise LookupError(f"child: {api_key}")

class Agent:
    def __init__(self, key):
        self.api_key, self.history = key, []

    @step(SECRET_SELF)
    def ask(self, q):
        raise PermissionError(f"not with {self.api_key}")

    @workflow(SECRET_SELF)
    def work(self, q):
        self.history.append(q)
        token = self.api_key
        try:
            self.ask(q)
        except PermissionError:
            plain(8)
        here("agent")
        plain(9)
        assert token == self.api_key == KEY
        return len(self.history)

@workflow(SECRET_MAIN OPTIONS)
def main(q, api_key, config, client=None):
    header, alias, raw = f"Bearer {api_key}", api_key, api_key.encode()
    box = {"Authorization": header, "all": [api_key, (raw, config)]}
    messages = [{"role": "system", "content": header, "n": n} for n in range(40)]
    made = Client(api_key) if client is None else client
    del made
    declared(api_key, q)
    declared(api_key=api_key, q="again")
    for n in range(3):
        messages.append({"content": plain(n), "key": api_key})
    undeclared(api_key, q)
    undeclared(q=q, key=api_key, headers={"Authorization": header})
    try:
        failing(api_key)
    except ValueError as error:
        found = len(error.args)
        plain("handled")
        here("handler")
    pay(5, api_key)
    pay(6, api_key=api_key)
    try:
        child(api_key, q)
    except LookupError:
        plain("after child")
    size = Agent(api_key).work(q)
    plain(10)
    here("end")
    assert (alias, header, raw) == (KEY, f"Bearer {KEY}", KEY.encode())
    assert box["all"][0] == KEY and config.key == KEY and messages[0]["content"] == header
    if os.environ.get("FAIL"):
        raise RuntimeError(f"at the end: {api_key}")
    return [q, size]

print(main("question", KEY, Config("https://example.org", KEY)))
"""
DECLARED = {
    "SECRET_KEY": 'secret=("api_key",)',
    "SECRET_SELF": 'secret=("self.api_key",)',
    "SECRET_MAIN": 'secret=("api_key", "config", "client"),',
}
UNDECLARED = {"SECRET_KEY": "", "SECRET_SELF": "", "SECRET_MAIN": 'ignore=("client",),'}


def program(folder, declared, options=""):
    """The path of a script of the program, with its options."""
    text = PROGRAM.replace("OPTIONS", options)
    for name, value in declared.items():
        text = text.replace(name, value)
    script = folder / "agent.py"
    script.write_text(text, "utf-8")
    return script


def run(script, home, *command, **environment):
    """A process: its exit code, and all that it said."""
    environment = {"STEPWISE_HOME": str(home), "STEPWISE_QUIET": "0", **environment}
    command = command or ("-W", "ignore", str(script))
    ended = python(*command, cwd=script.parent, env={**os.environ, **environment})
    return ended.returncode, ended.stdout + ended.stderr


def forms(secret):
    """A secret as it may lie in a file."""
    plain = secret.encode()
    escaped = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    found = {plain, secret.encode("utf-16-le"), plain.hex().encode(), repr(secret)[1:-1].encode()}
    found |= {each.encode() for each in escaped}
    for before in range(3):  # as base64, wherever it begins
        coded = base64.b64encode(b"?" * before + plain)
        found.add(coded[4 if before else 0 : -4])
    return found


def found_in(home, secret):
    """The files in which a secret lies, in any form."""
    files = [path for path in pathlib.Path(home).rglob("*") if path.is_file()]
    assert any(path.stat().st_size > 1000 for path in files)
    return [
        (path.name, form) for path in files for form in forms(secret) if form in path.read_bytes()
    ]


DEATHS = ["declared", "undeclared", "plain 2", "handler", "child", "agent", "end"]
OPTIONS = ["", "checkpoint_every=3", "codec='json'", "codec='json', checkpoint_every=3"]


@pytest.mark.parametrize("place", DEATHS)
def test_no_byte_of_a_secret_is_stored(tmp_path, place):
    """After a kill anywhere, and after the end, no file holds a secret, and the run resumes."""
    home, options = tmp_path / "home", OPTIONS[DEATHS.index(place) % len(OPTIONS)]
    script = program(tmp_path, DECLARED, options)
    secret = ODD if len(place) % 2 else KEY
    environment = {"THE_KEY": secret, "DIE": place}
    code, said = run(script, home, **environment)
    assert code == -signal.SIGKILL, said
    assert found_in(home, secret) == []
    code, again = run(script, home, **environment)
    assert (code, "['question', 1]" in again) == (0, True), again
    assert found_in(home, secret) == []
    for command in (("runs",), ("show", "--all", "--locals", "."), ("export", ".")):
        words = ["main-" if word == "." else word for word in command]
        _, told = run(script, home, "-m", "stepwise", *words, **environment)
        assert "question" in told
        said += told
    assert not [form for form in forms(secret) if form.decode("utf-8", "replace") in said + again]


@pytest.mark.parametrize("options", OPTIONS[::3])
def test_no_byte_of_a_secret_of_a_failed_run(tmp_path, options):
    """What a workflow raises is recorded without the secret, for the run and in its listing."""
    home, script = tmp_path / "home", program(tmp_path, DECLARED, options)
    code, said = run(script, home, THE_KEY=KEY, FAIL="1")
    assert (code, f"RuntimeError: at the end: {KEY}" in said) == (1, True)  # the caller's own
    assert found_in(home, KEY) == []
    _, told = run(script, home, "-m", "stepwise", "show", "main-", THE_KEY=KEY)
    assert f"at the end: {HIDDEN}" in told


def test_the_scan_finds_what_is_stored(tmp_path):
    """Without ``secret=`` the same scan finds the key of the same program."""
    home, script = tmp_path / "home", program(tmp_path, UNDECLARED)
    code, said = run(script, home, THE_KEY=KEY, DIE="end")
    assert code == -signal.SIGKILL, said
    assert found_in(home, KEY)


def test_a_run_that_fails_before_and_after(tmp_path):
    """Another key at the next start is another start of the same run, which uses the new one."""
    home, script = tmp_path / "home", program(tmp_path, DECLARED)
    code, _ = run(script, home, THE_KEY=KEY, DIE="agent")
    assert code == -signal.SIGKILL
    other = "sk-rotated-987654321"
    code, said = run(script, home, THE_KEY=other, DIE="agent")
    assert (code, "resumes" in said, "['question', 1]" in said) == (0, True, True), said
    assert found_in(home, other) == []


def test_a_secret_on_the_command_line(tmp_path):
    """A key among the words of a command is not recorded; ``stepwise resume`` says why it stops."""
    home, script = tmp_path / "home", tmp_path / "agent.py"
    script.write_text(
        """
import os, sys
from stepwise import step, workflow

@step
def die():
    if "die" in sys.argv:
        os.kill(os.getpid(), 9)

@workflow(secret=("key",))
def main(key):
    die()

main(sys.argv[1].partition("=")[2])
"""
    )
    code, _ = run(script, home, str(script), f"--key={KEY}", "die")
    assert code == -signal.SIGKILL
    assert found_in(home, KEY) == []
    for which in ("main-", "--all-crashed"):
        _, said = run(script, home, "-m", "stepwise", "resume", which)
        assert "its command line held a secret" in said
    code, said = run(script, home, str(script), f"--key={KEY}")
    assert code == 0
    assert "resumes" in said or "begins again" in said


# -- what comes again ------------------------------------------------------------------------------


@step
def end() -> None:
    CALLS.append("end")


@step
def last() -> str:
    CALLS.append("last")
    return "last"


def test_secrets_come_from_the_call_again():
    """Variables that hold a secret, or a text with it, have that of the call that resumes."""

    @workflow(secret=("key", "client", "pin"))
    def flow(key, client, pin):
        CALLS.append("begun")
        header, parts = f"Bearer {key}", [key, {"raw": key.encode(), "pin": pin}]
        mine = client
        last()
        end()
        return header, parts, mine is client, pin

    crashed(flow, "first-key", threading.Lock(), 123456, at=end)
    result = flow("other-key", threading.Lock(), 654321)
    parts = ["other-key", {"raw": b"other-key", "pin": 654321}]
    assert result == ("Bearer other-key", parts, True, 654321)
    assert CALLS == ["begun", "last", "end"]


def test_a_secret_is_no_part_of_the_identity():
    """Calls and runs that differ in a secret alone are the same."""

    @step(secret=("key",))
    def ask(key, q):
        CALLS.append(key)
        return q

    @workflow(secret=("key",))
    def flow(key, q):
        found = ask(key, q)
        end()
        return found

    assert flow.run_id_for("one", "q") == flow.run_id_for("two", "q") != flow.run_id_for("one", "r")
    crashed(flow, "one-key", "q", at=end)
    assert flow("two-key", "q") == "q"
    assert CALLS == ["one-key", "end"]


def test_attributes_of_the_instance():
    """``ignore`` and ``secret`` take attributes of an instance out of the identity of a run."""

    class Agent:
        def __init__(self, key, session, topic):
            self.key, self.session, self.topic = key, session, topic

        @workflow(secret=("self.key",), ignore=("self.session",))
        def work(self):
            last()
            return self.key

    one, two = Agent("k1-secret", "s1", "t"), Agent("k2-secret", "s2", "t")
    assert one.work.run_id_for() == two.work.run_id_for()
    assert one.work.run_id_for() != Agent("k1-secret", "s1", "u").work.run_id_for()
    parameters = type(one).work.definition.parameters
    assert parameters.instance_ignored == {"key", "session"}


def test_a_secret_that_only_a_step_declares():
    """No checkpoint holds the secret of a step that the workflow does not get from its caller."""

    @step(secret=("key",))
    def ask(key):
        CALLS.append("ask")

    @workflow
    def flow():
        key = "made-inside-the-workflow"
        ask(key)
        last()
        return len(key)

    told = r"variable 'key' is a str, .*it holds the secret 'key', .* name it in secret="
    with pytest.warns(stepwise.RunWarning, match=told):
        assert resumed(flow, at=last) == 24
    assert CALLS == ["ask", "last"]


def test_what_an_exception_says_and_holds(store):
    """A recorded exception has its class and its place for the secret; the live one says it."""

    class Refused(Exception):
        pass

    @step(secret=("key", "pin"))
    def ask(key, pin):
        error = KeyError(f"refused {key}", (key, 3), pin, f"?pin={pin}&q={quote(key)}")
        error.key = key
        error.__notes__ = [f"with {key}"]
        raise error from ValueError(f"cause {key}")

    def flow(key, pin):
        try:
            ask(key, pin)
        except KeyError as error:
            said = [str(error.args), error.key, str(error.__cause__), *error.__notes__]
        last()
        last()
        return said

    for options in ({"codec": "json"}, {}):
        made = workflow(name=str(options), secret=("key", "pin"), **options)(flow)
        crashed(made, KEY, 87654321, at=last)
        (asked, *_) = stepwise.runs(workflow=str(options))[0].steps
        urls = f"?pin={HIDDEN}&q={HIDDEN}"
        assert asked.error.args == (f"refused {HIDDEN}", (HIDDEN, 3), HIDDEN, urls)
        assert asked.error.key == HIDDEN
        assert str(asked.error.__cause__) == f"cause {HIDDEN}"
        assert KEY not in asked.traceback
        assert f"with {HIDDEN}" in asked.traceback or sys.version_info < (3, 11)


def test_the_arguments_of_a_compensation():
    """A secret is not recorded for a compensation; one that is inside an argument is refused."""
    undone = []

    @tool(side_effect=True, secret=("key",), compensate=lambda call: undone.append(call.arguments))
    def pay(amount, key, same=None):
        return amount

    @tool(side_effect=True, compensate=lambda call: None)
    def send(headers):
        CALLS.append("sent")

    @workflow(secret=("key",))
    def flow(key, amount):
        pay(amount, key, key)
        if amount > 5:
            send({"Authorization": f"Bearer {key}"})

    assert flow.execute(KEY, 5).compensate() == 1
    assert [dict(each) for each in undone] == [{"amount": 5}]
    with pytest.raises(stepwise.NotRecordableError, match=r"'send' .* the secret 'key'"):
        flow(KEY, 6)
    assert CALLS == []


def test_a_result_that_holds_a_secret_is_told(capsys, monkeypatch):
    """A step that returns a secret is told once, since what it returns is recorded."""
    monkeypatch.delenv("STEPWISE_QUIET")

    @step
    def echo(key):
        return {"key": key}

    @workflow(secret=("key",), name="telling")
    def flow(key):
        echo(key)
        echo(key + "x")

    with fresh_store():
        flow(KEY)
        (run,) = stepwise.runs(workflow="telling")
    said = capsys.readouterr().err
    assert said.count("'secret") == 0
    assert said.count("holds the secret 'key' and is recorded with it") == 1
    assert KEY not in said
    assert all(KEY not in step.preview + step.arguments for step in run.steps)


def test_whether_a_run_lacks_secrets():
    """A run says which of its arguments are stored nowhere."""

    @workflow(secret=("key", "token", "self.nothing"))
    def flow(key, token=None, q=1):
        last()

    assert flow.execute(KEY).secrets == ("key",)
    assert flow.execute(KEY, "token-1234").secrets == ("key", "token")
    assert workflow(name="none")(last.__wrapped__).execute().secrets == ()


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "who='ada', card='4242 4242'"),
        ({"ignore": "card"}, "who='ada', card=<ignored>"),
        ({"secret": "card"}, "who='ada', card=<secret>"),
        ({"redact": "card"}, "who='ada', card=<redacted>"),
        ({"redact": lambda n, v: f"...{v[-2:]}" if n == "card" else None}, "who='ada', card=...42"),
        ({"redact": lambda n, v: v[99]}, "who=<IndexError in redact>, card=<IndexError in redact>"),
    ],
)
def test_what_is_shown_of_arguments(options, shown):
    """Ignored, secret and redacted arguments are shown as such, of steps, tools and workflows."""
    events = []

    @step(**options)
    def ask(who, card):
        return who

    @tool(**options)
    def pay(who, card):
        return who

    @workflow(name=str(shown), **options)
    def flow(who, card):
        ask(who, card)
        return pay(who, card)

    stop = stepwise.on_event(events.append)
    run = flow.execute("ada", "4242 4242")
    stop()
    assert [run.arguments, *(each.arguments for each in run.steps)] == [shown] * 3
    assert {each.arguments for each in events} <= {shown, ""}


def test_redacted_arguments_are_stored():
    """What is redacted is stored: a variable comes back, and is not shown."""

    @workflow(redact=("card",))
    def flow(card):
        last()
        end()
        return card

    assert resumed(flow, "4242", at=end) == "4242"
    (run,) = stepwise.runs()
    assert run.locals() == {"card": "4242"}
    assert repr(run._shown_locals()) == "{'card': <not shown>}"


def test_a_conflict_shows_no_secret():
    """A run id with other arguments is refused without the secrets of either."""

    @workflow(secret=("key",))
    def flow(key, q):
        last()

    flow.options(run_id="one")(KEY, "q")
    with pytest.raises(stepwise.RunConflictError, match="key=<secret>, q='r'") as refused:
        flow.options(run_id="one")(KEY, "r")
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"secret": "c"}, r"secret=\['c'\] of step .* no parameter 'c'"),
        ({"secret": 3}, "secret=3 of step"),
        ({"redact": ["c"]}, r"redact=\['c'\]"),
        ({"redact": 3}, "redact=3 .* or a function of a name and a value"),
        ({"secret": "self.not ok"}, "no parameter 'self.not ok'"),
        ({"key": ["a"], "secret": ["a"]}, "'a' of step .* by key= and by secret="),
    ],
)
def test_options_that_mean_nothing(options, said):
    """Names that are no parameters are refused where the function is decorated."""
    with pytest.raises(stepwise.ConfigurationError, match=said):
        step(**options)(lambda a, b: a)


# -- the parts -------------------------------------------------------------------------------------


def test_masks():
    """Texts of secrets are masked as they are, and as repr, JSON, URLs and base64 write them."""
    secrets = Secrets()
    secrets.add({"key": ODD, "short": "abc", "pin": 123456, "none": None})
    secrets.add({"config": {"url": "http://x", "inner": ["a-long-text", "short"]}})
    for text in (ODD, repr(ODD)[1:-1], json.dumps(ODD)[1:-1], "123456", "a-long-text"):
        assert secrets.mask(f"<{text}>") == f"<{HIDDEN}>"
    assert secrets.mask("abc short") == "abc short"
    assert secrets.masked([(ODD, ODD.encode()), {ODD: 1}]) == [
        (HIDDEN, HIDDEN.encode()),
        {HIDDEN: 1},
    ]
    assert secrets.found_in(b"..." + ODD.encode() + b"...") == "key"
    for written in (quote(ODD, safe=""), quote(ODD).lower(), quote_plus(ODD)):
        assert secrets.mask(f"?q={written}&") == f"?q={HIDDEN}&"
        assert secrets.found_in(written.encode()) == "key"
    for user in ("", "u:", "me:", "ann:"):
        basic = base64.b64encode(f"{user}{ODD}".encode())
        assert secrets.found_in(basic) == "key"
        assert len(secrets.mask(basic.decode()).replace(HIDDEN, "")) <= len(user) * 2 + 4
    assert secrets.masked(("no", 123456, {"pin": 123456})) == ("no", HIDDEN, {"pin": HIDDEN})
    assert secrets.found_in(b"nothing") == ""
    assert secrets.preview("x" * 70 + ODD).count(HIDDEN) == 1
    assert not Secrets()


def test_references():
    """A text that contains secrets is made again of those of another call."""
    before = {"key": KEY, "more": {"a": "inner-text"}, "old": ODD + "x"}
    after = {"key": ODD, "more": {"a": "other-inner"}, "old": KEY + "x"}
    for value, expected in [
        (KEY, ODD),
        (f"a{KEY}b inner-text", f"a{ODD}b other-inner"),
        (f"{KEY}".encode(), ODD.encode()),
        (f"?q={quote_plus(ODD + 'x')}", f"?q={quote_plus(KEY + 'x')}"),
        (before["more"], after["more"]),
    ]:
        assert restored(SecretReferences(before).of(value), after) == expected
    assert SecretReferences(before).of("nothing") is None
    assert SecretReferences(before).of([KEY]) is None
