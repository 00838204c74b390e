"""Release notes from a real git history, drafted commit by commit.

    python examples/release_notes.py [REPO] [--since REV] [--limit N] [--out FILE] [--outbox FILE]

Shows a workflow of many small steps with two side effects at its end: the notes go to a file, and
a line is appended to an outbox.  Rules stand where a model would be asked.

Every step prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``, or
``python -u examples/release_notes.py | head -n 4``) and run it again: classified commits stay
classified, and the line is appended once.  If it was killed while appending, it stops and asks.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from typing import TypedDict

from stepwise import step, tool, workflow

SECTIONS = {
    "breaking": "Breaking changes",
    "feature": "Features",
    "fix": "Fixes",
    "docs": "Documentation",
    "tests": "Tests",
    "upkeep": "Upkeep",
    "other": "Other changes",
}
FIRST_WORDS = {
    "feature": ("add", "adds", "added", "allow", "feat", "feature", "introduce", "support"),
    "fix": ("bugfix", "correct", "fix", "fixed", "fixes", "repair", "revert"),
    "docs": ("doc", "docs", "document", "readme"),
    "tests": ("test", "tests"),
    "upkeep": ("build", "bump", "chore", "ci", "perf", "refactor", "release", "rename", "style"),
}
PATHS = {
    "docs": r"docs?/|.*\.(md|rst)$",
    "tests": r"(.*/)?tests?/|(.*/)?test_[^/]*$",
    "upkeep": r"\.|.*\.(cfg|toml|lock)$|(.*/)?Makefile$",
}
CONVENTIONAL = re.compile(r"(?P<kind>\w+)(\((?P<scope>[^)]*)\))?(?P<breaking>!)?: *(?P<rest>.+)")


class Change(TypedDict):
    """A commit, understood."""

    commit: str
    kind: str
    text: str


def git(repo: str, *arguments: str) -> str:
    """What a git command prints."""
    command = ["git", "-C", repo, *arguments]
    done = subprocess.run(command, check=True, capture_output=True)
    return done.stdout.decode(errors="replace")


@step
def list_commits(repo: str, since: str, head: str, limit: int) -> list[str]:
    """The newest commits, newest first, merges left out."""
    print(f"[list_commits] up to {head[:9]}")
    revisions = [head, f"^{since}"] if since else [head]
    return git(repo, "rev-list", "--no-merges", f"--max-count={limit}", *revisions).split()


@step
def classify(repo: str, commit: str) -> Change:
    """Tell the kind of a change by its subject, else by the paths that it touches."""
    print(f"[classify] {commit[:9]}")
    # Plumbing commands, since a user's configuration changes what log and show print.
    arguments = ("--root", "--always", "-r", "-z", "--name-only", "--format=%s", commit)
    subject, *paths = git(repo, "diff-tree", *arguments).split("\0")
    kind, text = understand(subject, [path.lstrip("\n") for path in paths if path])
    return {"commit": commit, "kind": kind, "text": text}


def understand(subject: str, paths: list[str]) -> tuple[str, str]:
    """The kind of a change and the text for it."""
    found = CONVENTIONAL.fullmatch(subject)
    first = (found["kind"] if found else subject.partition(" ")[0]).lower()
    kind = next((kind for kind, words in FIRST_WORDS.items() if first in words), None)
    if kind is None:
        return kind_of_paths(paths), subject
    if found is None:
        return kind, subject
    scope = f"{found['scope']}: " if found["scope"] else ""
    return "breaking" if found["breaking"] else kind, scope + found["rest"]


def kind_of_paths(paths: list[str]) -> str:
    """The kind that all of the paths speak for."""
    for kind, pattern in PATHS.items():
        if paths and all(re.match(pattern, path) for path in paths):
            return kind
    return "other"


@step
def draft_section(kind: str, changes: list[Change]) -> str:
    """One section of the notes."""
    print(f"[draft_section] {kind}: {len(changes)}")
    lines = [f"- {change['text']} ({change['commit'][:9]})" for change in changes]
    return "\n".join([f"## {SECTIONS[kind]}", "", *lines, ""])


@tool(side_effect=True, in_doubt="retry")  # the same text once more does no harm
def write_notes(path: str, notes: str) -> None:
    """Write the file."""
    print(f"[write_notes] {path}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(notes)


@tool(side_effect=True)
def announce(outbox: str, line: str) -> None:
    """Append a line to the outbox."""
    print(f"[announce] {outbox}")
    with open(outbox, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@workflow
def release_notes(repo: str, since: str, head: str, limit: int, out: str, outbox: str) -> str:
    """Draft the notes of the commits between two revisions, write them and announce them."""
    changes = []
    for commit in list_commits(repo, since, head, limit):
        changes.append(classify(repo, commit))  # noqa: PERF401 - each turn is a place to resume
    sections = []
    for kind in SECTIONS:
        of_kind = [change for change in changes if change["kind"] == kind]
        if of_kind:
            sections.append(draft_section(kind, of_kind))
    name = os.path.basename(repo)
    notes = "\n".join([f"# {name} {head[:9]}", "", *sections])
    write_notes(out, notes)
    counts = Counter(change["kind"] for change in changes)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in SECTIONS if counts[kind])
    announce(outbox, f"{name} {head[:9]}: {told or 'nothing new'}")
    return notes


def commit_id(repo: str, revision: str) -> str:
    """The full id of a commit; leaves the program if there is none."""
    try:
        git(repo, "rev-parse", "--git-dir")
    except FileNotFoundError:
        sys.exit("release_notes: there is no git on this machine")
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        sys.exit(f"release_notes: {repo} is not a git repository: {reason}")
    try:
        return git(repo, "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    except subprocess.CalledProcessError:
        sys.exit(f"release_notes: {repo} has no commit {revision}")


def main() -> None:
    """Read the command line; the commits, not their names, tell one run from another."""
    parser = argparse.ArgumentParser(description="Draft release notes from a git history.")
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("repo", nargs="?", default=own, help="default: the one of this example")
    parser.add_argument("--since", help="leave out what this revision holds, e.g. the last tag")
    parser.add_argument("--limit", type=int, default=30, help="number of commits (%(default)s)")
    parser.add_argument("--out", default="release_notes.md", help="file for the notes")
    parser.add_argument("--outbox", default="outbox.txt", help="file that is appended to")
    given = parser.parse_args()
    repo = os.path.abspath(given.repo)
    since = commit_id(repo, given.since) if given.since else ""
    head = commit_id(repo, "HEAD")
    out, outbox = os.path.abspath(given.out), os.path.abspath(given.outbox)
    print(release_notes(repo, since, head, given.limit, out, outbox))


if __name__ == "__main__":
    main()
