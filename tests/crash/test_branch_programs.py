"""Branches of random programs, and branches that are killed: nothing is lost, nothing gets out."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal

import pytest
from harness import python
from sweeping import WHOLE, size

HEAD = """
import stepwise
from stepwise import step, tool, workflow

SENT = []

@step
def mix(*given):
    return sum((n + 1) * value for n, value in enumerate(given)) % 97

@step(retries=2)
def shaky(value):
    return (value * 7 + 3) % 89

def after(value):
    return (value * 5 + 1) % 83

@tool(side_effect=True)
def send(value):
    SENT.append(value)
    return after(value)

@workflow
def below(value):
    return mix(value, send(shaky(value)))

"""


class Writer:
    """A writer of random workflows, with loops, branches, helpers and child runs."""

    def __init__(self, seed):
        self.random, self.lines, self.loops = random.Random(seed), [], 0

    def name(self):
        return self.random.choice("abc")

    def block(self, indent, depth, least=1):
        for _ in range(self.random.randint(least, 3)):
            self.statement(indent, depth)

    def statement(self, indent, depth):
        pad, name = "    " * indent, self.name()
        kinds = ["mix", "shaky", "send", "plain", "list", "below"] + ["for", "if", "try"] * (
            depth < 2
        )
        kind = self.random.choice(kinds)
        if kind == "for":
            self.loops += 1
            self.lines.append(f"{pad}for i{self.loops} in range({self.random.randint(1, 3)}):")
            self.block(indent + 1, depth + 1)
        elif kind == "if":
            self.lines.append(f"{pad}if {name} % 2:")
            self.block(indent + 1, depth + 1)
            self.lines.append(f"{pad}else:")
            self.block(indent + 1, depth + 1)
        elif kind == "try":
            self.lines.append(f"{pad}try:")
            self.block(indent + 1, depth + 1)
            self.lines.append(f"{pad}finally:\n{pad}    kept.append({name})")
        else:
            text = {
                "mix": f"{name} = mix({self.name()}, {self.name()}, len(kept))",
                "shaky": f"{name} = shaky({self.name()})",
                "send": f"{name} = send({self.name()})",
                "plain": f"{name} = ({self.name()} * 3 + {self.name()}) % 71",
                "list": f"kept.append({self.name()})",
                "below": f"{name} = below({self.name()})",
            }[kind]
            self.lines.append(pad + text)

    def source(self):
        self.lines = ["@workflow(retention='all')", "def agent(a, b):", "    c, kept = 5, []"]
        self.lines.append("    a = mix(a, b)")
        for _ in range(3):
            self.block(1, 0, least=2)
        self.lines.append("    return a, b, c, kept")
        return HEAD + "\n".join(self.lines) + "\n"


def loaded(folder, seed):
    """Return the module of a random program."""
    path = folder / f"program_{seed}.py"
    path.write_text(Writer(seed).source(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("block", range(size(4, 200)))
def test_a_branch_ends_as_its_base_or_as_a_plain_run_from_there(block, tmp_path):
    """Without variation a branch ends as its base did; with one, as a fork that makes all calls."""
    for seed in range(block * 5, block * 5 + 5):
        program, chosen = loaded(tmp_path, seed), random.Random(seed)
        run = program.agent.options(run_id=f"base-{seed}").execute(3, 4)
        steps = [each.step for each in run.checkpoints if each.step]
        at = chosen.choice(steps)
        variation = {chosen.choice("abc"): chosen.randint(0, 50)}
        program.SENT.clear()
        branches = run.branch(
            at=at,
            variations=[{}, variation],
            effects=lambda call, program=program: program.after(call.arguments["value"]),
        )
        assert program.SENT == [], seed
        fork = run.fork(at=at, locals=variation)
        program.agent.options(run_id=fork.id)(3, 4)
        assert branches[0].result == run.result, (seed, at, branches[0].error)
        assert branches[1].result == fork.result, (seed, at, variation, branches[1].error)
        assert all(each.run.verify().ok for each in branches), seed


# -- killed ----------------------------------------------------------------------------------------


PROGRAM = """
import asyncio, json, os, random, signal, sys, threading
import stepwise
from stepwise import step, tool, workflow

made = 0

def note(text):
    with open(os.environ["LOG"], "a") as file:
        print(text, file=file, flush=True)

def die_perhaps():
    global made
    made += 1
    if made == int(os.environ.get("KILL", 0)):
        os.kill(os.getpid(), signal.SIGKILL)

@step
async def think(text):
    die_perhaps()
    await asyncio.sleep(0)
    die_perhaps()
    return f"about {text}"

failed = set()

@step(retries=2)
def shaky(text):
    if text not in failed:
        failed.add(text)
        die_perhaps()
        raise ValueError(text)
    return text

@tool(side_effect=True)
async def post(text):
    note(f"SENT {text}")
    return text

@tool(side_effect=True)
def send(text):
    note(f"SENT {text}")
    die_perhaps()
    return text

@workflow
def below(text):
    return send(shaky(f"below {text}"))

def in_thread(text):
    found = []
    thread = threading.Thread(target=lambda: found.append(send(text)))
    thread.start()
    thread.join()
    return found

@workflow(retention="all")
async def agent(topic, model="a"):
    first = await think(f"{topic} {model}")
    second = shaky(f"{first} {model}")
    await asyncio.gather(*[think(f"{second} {n}") for n in range(3)])
    way = len(model) % 4
    if way == 0:
        found = await asyncio.gather(*[post(f"{model} {n}") for n in range(2)])
    elif way == 1:
        found = below(model)
    elif way == 2:
        found = await asyncio.to_thread(in_thread, model)
    else:
        found = send(model)
    last = await think(f"{found}")
    return [last, model]

def answer(call):
    die_perhaps()
    return f"said {call.name}"

def main():
    if "base" not in [each.id for each in stepwise.runs()]:
        asyncio.run(agent.options(run_id="base")("tides"))
        return
    note("---")
    many, kind = int(os.environ["MANY"]), os.environ["EFFECTS"]
    variations = [{"model": "m" * (n % 8) + str(n)} for n in range(many)]
    effects = answer if kind == "answer" else kind
    branches = stepwise.get_run("base").branch(
        at=1, variations=variations, effects=effects, max_workers=4)
    print(json.dumps([[each.run.status, each.run.verify().ok] for each in branches]))

if __name__ == "__main__":
    main()
"""
ENDS = {"answer": "completed", "refuse": "interrupted", "collect": "suspended"}


@pytest.mark.parametrize("effects", [*ENDS])
def test_no_side_effect_gets_out_of_killed_branches(effects, tmp_path):
    """However often their process is killed, branches end, and make no side effect."""
    many, chosen = 334 if WHOLE else 12, random.Random(effects)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    log = tmp_path / "log"
    env = {**os.environ, "LOG": str(log), "MANY": str(many), "EFFECTS": effects, "KILL": "0"}
    python("program.py", cwd=tmp_path, env=env, code=0)
    assert log.read_text().count("SENT") == 1
    log.write_text("")
    kills, done = 0, None
    for _ in range(40 if WHOLE else 6):
        env["KILL"] = str(chosen.randint(3, 4 * many // 3))
        done = python("program.py", cwd=tmp_path, env=env)
        kills += done.returncode == -signal.SIGKILL
    done = python("program.py", cwd=tmp_path, env={**env, "KILL": "0"}, code=0)
    assert kills >= 3
    assert json.loads(done.stdout) == [[ENDS[effects], True]] * many
    assert "SENT" not in log.read_text()
