"""A client in a variable is not recorded: a resumed run executes the statement that made it."""

from __future__ import annotations

import pytest
from survival import lab_of, needs, survives
from sweeping import some

PROGRAM = """
    import os
    import types

    class Groq:
        def __init__(self, api_key="none", *, headers=None, **options):
            self.lock, self.key, self.limit = threading.Lock(), api_key, 1

        def asked(self, question):
            return f"{{question}} by {{self.key}} {{self.limit}}"

    class Mine(Groq):
        pass

    Groq.__module__ = "groq"
    groq = sys.modules["groq"] = types.ModuleType("groq")
    groq.Groq = Groq
    KEY = os.environ.get("KEY", "global")
    KEYS = ["global"]

    def make(outer):
        @workflow
        def run(key="secret", extra=None):
            log("begins")
            work(1)
            options = {{"api_key": key}}
            {made}
            log("made")
            work(2)
            {then}
            work(3)
            return [client.asked("first"), work(4), client.asked("second")]
        return run

    run = make("outer")
"""


def program(made, then="pass"):
    """A workflow that makes a client by a statement."""
    return PROGRAM.format(made=made, then=then)


MADE = {
    "without arguments": "client = Groq()",
    "of a module": "client = groq.Groq()",
    "with constants": "client = Groq('mine', timeout=3)",
    "with a parameter": "client: Groq = Groq(api_key=key)",
    "with a global": "client = Groq(KEY)",
    "in a branch": "if key:\n                client = Groq(key)",
}


@pytest.mark.parametrize("case", MADE)
def test_a_client_in_a_variable(case):
    """A client that one call makes of what stays the same is made again, and nothing else is."""
    said = survives(program(MADE[case], "asked = lambda question: client.asked(question)"), kills=1)
    assert not [text for text in said.values() if "no checkpoint" in text]


REFUSED = {
    "bound twice": ("client = Groq('mine')", "client = Groq('other')"),
    "made in a loop": ("for key in 'ab':\n                client = Groq(key)", "pass"),
    "an attribute that is set": ("client = Groq()", "client.limit = 2"),
    "an argument that is bound twice": ("client = Groq(extra)", "extra = 2"),
    "an argument that can change": ("client = Groq('mine', headers=options)", "pass"),
    "unpacked arguments": ("client = Groq(**options)", "pass"),
    "a call among the arguments": ("client = Groq(str(key))", "pass"),
    "a global that can change": ("client = Groq(KEYS)", "pass"),
    "a variable of an enclosing function": ("client = Groq(outer)", "pass"),
    "a class of one's own": ("client = Mine()", "pass"),
    "a function": ("client = (lambda: Groq('mine'))()", "pass"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_client_that_stays_what_it_is(case):
    """Any other client is named as what cannot be recorded, and the run goes back before it."""
    said = survives(program(*REFUSED[case]), back=["work(2)", "work(3)", "work(4)"], kills=0)
    assert "the variable 'client' is a" in said["work(2)"]
    assert ", after 1 step\n" in said["work(4)"]


def test_a_client_whose_argument_is_another_now():
    """Where a global that is passed to it is another one now, the run goes back before it."""
    text = program("client = Groq(KEY)")
    with lab_of(text) as lab:
        assert lab.run(die_at="work(3) before").died
        lab.environment["KEY"] = "rotated"
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "what makes 'client' has changed: its class or an argument" in ended.text
        assert lab.result[0] == "first by rotated 1"
        assert {*lab.did.values()} == {1}


def test_a_client_whose_argument_may_change_where_the_journal_is_pruned():
    """A checkpoint that a changed global would make useless lets no record be pruned."""
    text = program("client = Groq(KEY)").replace("@workflow", "@workflow(prune_journal=True)")
    with lab_of(text) as lab:
        first = lab.run(die_at="work(3) before")
        assert first.died
        assert "the variable 'client' is a" in first.text
        lab.environment["KEY"] = "rotated"
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result[0] == "first by rotated 1"


def test_the_key_of_a_client_is_not_stored():
    """What a client is made with is not recorded with it: of a global there is a MAC alone."""
    text = program("client = Groq(KEY)")
    with lab_of(text) as lab:
        lab.environment["KEY"] = "sk-very-secret"
        assert lab.run(die_at="work(3) before").died
        files = [each for each in (lab.folder / "home").rglob("*") if each.is_file()]
        assert files
        assert not [each for each in files if b"sk-very-secret" in each.read_bytes()]


AGENT = """
    import os
    import httpx
    import openai

    if FIXED:
        os.environ["OPENAI_API_KEY"] = "sk-fixed"

    class Agent:
        def __init__(self, name):
            self.llm = openai.OpenAI(base_url=f"http://{name}.example/v1", max_retries=7)
            self.http = httpx.Client(base_url=f"http://{name}.example"MORE)

        def shown(self):
            url, key = str(self.llm.base_url), self.llm.api_key == os.environ["OPENAI_API_KEY"]
            return [url, self.llm.max_retries, key, str(self.http.base_url)]

    @workflow
    def run():
        agents = {name: Agent(name) for name in ("ann", "bob")}
        first = agents["ann"]
        work(1)
        log("made")
        work(2)
        log("used")
        shown = [each.shown() for each in agents.values()]
        work(3)
        return [shown, agents["ann"] is first]
"""
KEY = "sk-very-secret"


def agents(more="", *, fixed=False):
    """A workflow that makes agents with clients of known packages."""
    needs("openai")
    needs("httpx")
    return AGENT.replace("MORE", more).replace("FIXED", str(fixed))


def test_clients_that_the_workflow_made():
    """Clients of known packages, wherever they are, are made again of options and environment."""
    said = survives(agents(fixed=True))
    assert not [text for text in said.values() if "no checkpoint" in text]


@pytest.mark.parametrize("sdk", ["openai.OpenAI", "anthropic.Anthropic"])
def test_clients_where_the_environment_names_proxies(sdk):
    """Clients are made again also with ``NO_PROXY`` and a proxy set, and of each SDK."""
    module = sdk.partition(".")[0]
    needs(module)
    text = (
        agents(fixed=True)
        .replace("openai.OpenAI", sdk)
        .replace("import openai", f"import {module}")
    )
    with lab_of(text.replace("OPENAI_API_KEY", f"{module.upper()}_API_KEY")) as lab:
        lab.environment["NO_PROXY"] = "127.0.0.1,localhost"
        lab.environment["HTTPS_PROXY"] = "http://proxy.example:3128"
        first = lab.run(die_at="work(3) before")
        assert first.died
        assert "no checkpoint" not in first.text
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "resumes at script.py:" in ended.text


@pytest.mark.parametrize("key", ["", "another"])
def test_a_client_whose_key_is_another_now(key):
    """With another key, or none, the run stops where it uses the client, until the key is back."""
    with lab_of(agents()) as lab:
        lab.environment["OPENAI_API_KEY"] = KEY
        assert lab.run(die_at="work(2) before").died
        files = [each for each in (lab.folder / "home").rglob("*") if each.is_file()]
        assert not [each for each in files if KEY.encode() in each.read_bytes()]
        lab.environment["OPENAI_API_KEY"] = key
        ended = lab.run()
        assert ended.code == 1
        assert "RunStopped: run" in ended.text
        why = "is not what it was" if key else "cannot be made"
        assert f"a openai.OpenAI {why}" in ended.text or "gets from the environment" in ended.text
        assert lab.log[-1] == "used"
        lab.environment["OPENAI_API_KEY"] = KEY
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "resumes at script.py:" in ended.text
        assert lab.result[0][1] == ["http://bob.example/v1/", 7, True, "http://bob.example"]
        assert {*lab.did.values()} == {1}


OWN = {
    "an authentication": ", auth=('user', 'password')",
    "a hook": ", event_hooks={'request': [log]}",
    "a transport": ", transport=httpx.MockTransport(log)",
    "another check of certificates": ", verify=False",
    "a header": ", headers={'Authorization': 'secret'}",
    "a cookie": ", cookies={'session': 'secret'}",
}


@pytest.mark.parametrize("more", some(OWN, 3, "own"))
def test_a_client_with_something_of_its_own(more):
    """A client that is more than its options is named, and nothing of it is recorded."""
    with lab_of(agents(OWN[more])) as lab:
        lab.environment["OPENAI_API_KEY"] = KEY
        first = lab.run(die_at="work(3) before")
        assert first.died
        assert first.text.count("no checkpoint of run") == 1
        assert "is a httpx.Client, which cannot be recorded" in first.text
        assert "agents['ann'].http" in first.text or "first.http" in first.text
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "replays from the top" in ended.text
        assert {*lab.did.values()} == {1}
