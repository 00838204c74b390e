"""A step loop that reads a folder of source files, one file a step, and recovers.

    python examples/recoverable_agent.py [FOLDER] [--outbox FILE] [--fail-at STEP]

Shows the classic objects: an agent function that is called once per step, a checkpoint every three
steps, and a tool with a side effect at the end.  ``--fail-at`` raises once in that step: the agent
resumes at its checkpoint by itself.

Every tool prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``, or
``python -u examples/recoverable_agent.py | head -n 4``) and run it again: files that were read are
not read again.  If it was killed while appending to the outbox, it stops and asks.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
from pathlib import Path
from typing import Any

from stepwise import CheckpointStore, RecoverableAgent
from stepwise.agent import StepContext

FAILURES = [0]  # the step that fails, once


def list_files(folder: str) -> list[str]:
    """The Python files of a folder, by name."""
    print(f"[list_files] {folder}")
    return sorted(str(path) for path in Path(folder).glob("*.py"))


def read_file(path: str) -> dict[str, Any]:
    """What is in a file: how many lines, and which of its functions have no docstring."""
    print(f"[read_file] {os.path.basename(path)}")
    text = Path(path).read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    bare = [each.name for each in functions if not ast.get_docstring(each)]
    return {"lines": len(text.splitlines()), "functions": len(functions), "bare": bare}


def append(path: str, line: str) -> None:
    """The side effect: a line in the outbox."""
    print(f"[append] {path}")
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


async def survey(ctx: StepContext) -> str | None:
    """One step: read the next file; after the last one, report."""
    folder, outbox = ctx.task.split("\n")
    if "files" not in ctx.state:
        ctx.state["files"] = await ctx.tool(list_files, folder, side_effect=False)
    if not ctx.state["files"]:
        lines = sum(each["lines"] for each in ctx.messages)
        bare = sum(len(each["bare"]) for each in ctx.messages)
        report = f"{len(ctx.messages)} files, {lines} lines, {bare} functions without docstring"
        await ctx.tool(append, outbox, report)
        return report
    path = ctx.state["files"].pop(0)
    ctx.messages.append({"file": path, **await ctx.tool(read_file, path, side_effect=False)})
    if ctx.step == FAILURES[0]:
        FAILURES[0] = 0
        raise ConnectionError("lost for a moment")
    return None


def main() -> None:
    """Survey the folder that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default=str(Path(__file__).resolve().parent))
    parser.add_argument("--outbox", default="outbox.txt")
    parser.add_argument("--fail-at", type=int, default=0)
    options = parser.parse_args()
    FAILURES[0] = options.fail_at
    home = os.environ.get("STEPWISE_HOME", os.path.expanduser("~/.stepwise"))
    agent = RecoverableAgent(survey, CheckpointStore(f"disk:{home}/store"), checkpoint_every_n=3)
    task = f"{options.folder}\n{os.path.abspath(options.outbox)}"
    done = asyncio.run(agent.run_with_recovery(task, run_id=f"survey of {options.folder}"))
    print(done["result"])
    if done["recovered_from_step"] is not None:
        print(f"(resumed after step {done['recovered_from_step']})")


if __name__ == "__main__":
    main()
