"""Runs agent programs against the scripted server, kills them, and judges what came of it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import select
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from harness import Ended, Watched, python_path
from scripted_server import FAULTS, FINAL, MOMENTS, REQUESTS, SCRIPT, ScriptedServer
from sweeping import some

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
STARTS = 4  # of a program that is killed once: more would be a loop


class Program(NamedTuple):
    """An agent program, one of whose variants is run.

    Args:
        framework: as the table in the docs names it.
        modules: that it imports; the tests need them, and their host has them imported.
        variants: its first argument.
        loop: whether the framework's own loop calls the model, so that it begins again.
    """

    framework: str
    file: str
    modules: tuple[str, ...]
    variants: tuple[str, ...]
    loop: bool = True


def _sdk(framework: str, name: str, module: str, *forms: str) -> Program:
    """Return the programs of an SDK; most are seen by the shape of their requests alone."""
    variants = tuple(f"{name}/{form}" for form in forms)
    return Program(framework, "use_sdks.py", (module, "httpx"), variants, loop=False)


FOUR = ("call", "call_async", "stream", "stream_async")


def _crossed(forms: str, *others: str) -> tuple[str, ...]:
    """Return each form with each of the others, as an argument of a program."""
    return tuple(f"{form}/{other}" for form in forms.split() for other in others)


PROTOCOLS = ("openai", "responses", "anthropic")
ALL = (
    _sdk("openai", "openai", "openai", *FOUR, "raw", "responses", "responses_stream"),
    _sdk("anthropic", "anthropic", "anthropic", *FOUR),
    _sdk("litellm", "litellm", "litellm", *FOUR, *[f"{each}_anthropic" for each in FOUR]),
    Program(
        "pydantic-ai",
        "use_pydantic_ai.py",
        ("pydantic_ai", "openai", "anthropic"),
        _crossed("run run_sync stream durable durable_stream", *PROTOCOLS),
    ),
    Program(
        "LangChain",
        "use_langchain.py",
        ("langchain.agents", "langchain_openai", "langchain_anthropic"),
        _crossed("invoke ainvoke stream astream", *PROTOCOLS),
    ),
    Program(
        "LangGraph",
        "use_langgraph.py",
        ("langgraph.prebuilt", "langchain_openai"),
        ("invoke", "ainvoke"),
    ),
    Program(
        "OpenAI Agents SDK",
        "use_openai_agents.py",
        ("agents",),
        _crossed("run run_streamed run_in_session run_sync", "chat", "responses"),
    ),
    Program(
        "smolagents",
        "use_smolagents.py",
        ("smolagents", "openai", "litellm"),
        _crossed("run stream", "openai", "litellm", "litellm-anthropic"),
    ),
    _sdk("groq", "groq", "groq", *FOUR),
    _sdk("together", "together", "together", "call_async", "stream"),
    _sdk("mistralai", "mistral", "mistralai.client", "call", "stream_async"),
    _sdk("cohere", "cohere", "cohere", "call_async", "stream"),
    _sdk("ollama", "ollama", "ollama", "call", "stream_async"),
    _sdk("google-genai", "gemini", "google.genai", "call_async", "stream"),
    _sdk("huggingface_hub", "huggingface", "huggingface_hub", "call", "stream_async"),
)


@dataclass(frozen=True)
class Disturbance:
    """What happens to a program, once.

    Args:
        requests: what the plan of the server says, by number.
        tool: the beginning of the line of the ledger at which it dies.
    """

    requests: dict[int, str] = field(default_factory=dict)
    tool: str = ""

    def __str__(self) -> str:
        return ", ".join(
            [*(f"{how} {n}" for n, how in self.requests.items()), *filter(None, [self.tool])]
        )

    @property
    def faults(self) -> int:
        return sum(how in FAULTS for how in self.requests.values())


KILLS_AT_REQUESTS = [
    Disturbance({number: moment}) for number in range(1, REQUESTS + 1) for moment in MOMENTS
]
KILLS_IN_TOOLS = [
    Disturbance(tool=f"{when} {call.tool} {json.dumps(call.arguments)[:-2]}")
    for calls in SCRIPT
    for call in calls
    for when in ("began", "did")
]
FAULTS_AND_KILLS = [
    Disturbance({number: fault, number + 2: "before"})
    for number in range(1, REQUESTS)
    for fault in FAULTS
]
UNDISTURBED = Disturbance()


def disturbances(program: Program, label: str) -> list[Disturbance]:
    """Return a sample of what can happen to a program, or all of it."""
    # After a 429 that the client does not repeat, smolagents waits for minutes.
    faults = [
        each
        for each in FAULTS_AND_KILLS
        if program.framework != "smolagents" or "429" not in each.requests.values()
    ]
    kinds = (KILLS_AT_REQUESTS, KILLS_IN_TOOLS, faults)
    return [each for kind in kinds for each in some(kind, 1, f"{program.framework} {label}")]


class Trial:
    """A folder, a server and a program that is started in it until it ends.

    Args:
        numbered: the answers of the model differ.
        plain: without ``instrument()``, for control.
    """

    def __init__(self, program, variant, folder, *, numbered=False, plain=False):
        folder.mkdir(parents=True)
        self.program, self.variant, self.folder, self.numbered = program, variant, folder, numbered
        self.server = ScriptedServer(str(folder / "requests.jsonl"), numbered=numbered)
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.environment = {
            **os.environ,
            "PYTHONPATH": python_path(PROGRAMS),
            "STEPWISE_HOME": str(folder / "home"),
            "STEPWISE_QUIET": "1",
            "LEDGER": str(self.ledger),
            "OPENAI_API_KEY": "sk-test-0123456789abcdef",
            "OPENAI_BASE_URL": f"{self.server.url}/v1",
            "OPENAI_API_BASE": f"{self.server.url}/v1",
            "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef",
            "ANTHROPIC_BASE_URL": self.server.url,
            "ANTHROPIC_API_URL": self.server.url,
            "ANTHROPIC_API_BASE": self.server.url,
            **({"PLAIN": "1"} if plain else {}),
        }
        self.ended: list[Ended] = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.server.close()

    def start(self, die_in=""):
        """Start the program, and wait for its end."""
        errors = self.folder / f"errors{len(self.ended)}"
        started, watched = threading.Event(), []

        def kill():
            started.wait()
            gone = os.pidfd_open(watched[0]._pid)
            watched[0].kill()
            select.select([gone], [], [], 60)
            os.close(gone)

        self.server.kill = kill
        watched.append(
            Watched(
                PROGRAMS / self.program.file,
                self.variant,
                cwd=str(self.folder),
                env={**self.environment, "DIE_IN": die_in},
                err=errors,
                imports=self.program.modules,
            )
        )
        started.set()
        said = watched[0].stdout.read()
        self.ended.append(Ended(watched[0].wait(), said + errors.read_text(encoding="utf-8")))
        self.said = said.strip()
        return self.ended[-1]

    def run(self, disturbance=UNDISTURBED):
        """Start it until it ends well; return what is wrong with that, in words."""
        self.server.plan = dict(disturbance.requests)
        die_in = disturbance.tool
        for _ in range(STARTS):
            ended = self.start(die_in)
            if ended.code == 0:
                return self.judge(disturbance)
            failed = ended.code == 1 and disturbance.faults  # not every client tries again
            if ended.code != -signal.SIGKILL and not failed:
                return [f"it ended with {ended.code}: {ended.text[-1500:]}"]
            die_in = ""
        return [f"it did not end in {STARTS} starts"]

    # -- judging ---------------------------------------------------------------------------------

    def judge(self, disturbance):
        """Return what is wrong: repeated requests or tools, another text, another history."""
        planned = [how for how in disturbance.requests.values() if how in MOMENTS]
        kills = len(planned) + (disturbance.tool != "")
        wrong = []
        # Killed after the last answer, a program may be faster than the kill, and has ended.
        may_be_late = disturbance.requests == {REQUESTS: "after"}
        if kills and len(self.ended) < 2 and not may_be_late:
            wrong.append("it was not killed")
        most = REQUESTS + self.faults + kills
        if self.requests > most:
            turns = Counter(received.turn for received in self.server.received)
            wrong.append(f"{self.requests} requests, by turn: {dict(turns)}")
        wrong += self._tools_repeated(disturbance)
        last = self.server.received[-1]
        expected = FINAL + (f" ({last.number})" if self.numbered else "")
        if not self.said.endswith(expected):  # smolagents prints what it streams
            wrong.append(f"the text is {self.said!r}, not {expected!r}")
        wrong += self._other_history(last)
        return wrong

    @property
    def requests(self):
        return len(self.server.received)

    @property
    def faults(self):
        """How many requests were answered by a fault."""
        return sum(received.answer in FAULTS for received in self.server.received)

    @property
    def done(self):
        """What the tools did."""
        lines = self.ledger.read_text(encoding="utf-8").splitlines()
        return [line.removeprefix("did ") for line in lines if line.startswith("did ")]

    def _tools_repeated(self, disturbance):
        """A plain tool that was cut off may be repeated, and one in the same turn; no other."""
        cut_off = next(
            (
                {call.tool for call in calls}
                for calls in SCRIPT
                for call in calls
                if disturbance.tool.endswith(f"{call.tool} {json.dumps(call.arguments)[:-2]}")
            ),
            set(),
        )
        done = Counter(re.sub(r" \(\d+\)", "", line) for line in self.done)
        wrong = []
        for call in (call for calls in SCRIPT for call in calls):
            line = f"{call.tool} {json.dumps(call.arguments)}"
            # Killed after an answer: on a busy machine, the calls that it asks for have begun.
            may_have_begun = call.tool in cut_off or "after" in disturbance.requests.values()
            most = 2 if call.tool == "look_up" and may_have_begun else 1
            if not 1 <= done.pop(line, 0) <= most:
                wrong.append(f"{line}: not done once; all that was done: {self.done}")
        return wrong + [f"done, and nobody asked for it: {line}" for line in done]

    def _other_history(self, last):
        """What the tools did is what the model is told in its last request that they did."""
        said = json.dumps(json.loads(last.body)).replace('\\\\\\"', '"').replace('\\"', '"')
        return [
            f"the last request does not know of {value!r}"
            for line in self.done
            for value in json.loads(line.partition(" ")[2]).values()
            if value not in said
        ]
