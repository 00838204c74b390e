"""What a run says, on PostgreSQL: ``stepwise.emit`` beside ``DBOS.write_stream``, on one server.

The same program says 2,000 tokens of five characters in one run, in a step or in the workflow's own
code, as fast as it can or 2,000 a second, and reads the whole stream back when the run has ended.
The time of the run is from its call to its result, when all tokens of both are on the server's
disk.  DBOS commits each token before the next one; stepwise writes together what was said in 50 ms.
Each measurement is a fresh process on a fresh database, in turn.  Rows and bytes include the run's
own records; flushes, which the server counts, some of a first run of 20 tokens, too.
``BENCH_DBOS`` names a Python that has DBOS, else ``peers/environments.py`` has made one.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import common
import postgres_throughput as throughput

sys.path.insert(0, str(common.HERE / "peers"))

import postgres

RATE = 2000  # tokens a second
CASES = (  # place, tokens a second (0: as fast as possible), what it is called
    ("step", 0, "in a step, as fast as it can"),
    ("workflow", 0, "in the workflow, as fast as it can"),
    ("step", RATE, f"in a step, {RATE:,} a second"),
)
FIGURES = (  # key, what it is called, unit
    ("said", "said", "tokens a second"),
    ("read", "the whole stream is read", "tokens a second"),
    ("cpu_ms", "processor time of the process, for a token", "ms"),
    ("flushes", "flushes of the server's log, for a token", ""),
    ("rows", "rows in the database, for a token", ""),
    ("bytes", "bytes of these rows, for a token", "bytes"),
)


def _measured(
    python: pathlib.Path, who: str, place: str, rate: int, tokens: int
) -> throughput.Figures:
    """One run of a library on a database of its own."""
    with postgres.database() as name:
        job = {"url": postgres.url(name), "place": place, "rate": rate, "tokens": tokens}
        with throughput.process_of(python, who, kind="stream", **job) as process:
            throughput.answer_of(process)  # it is warm
            before = postgres.flushes(), *_kept(name)
            throughput.say(process, "go")
            found = throughput.answer_of(process)
        # A server process reports what it did, at the latest, when it ends.
        took = zip(before, (postgres.flushes(), *_kept(name)), strict=True)
    return {
        **{key: tokens / found[key] for key in ("said", "read")},
        "cpu_ms": found["cpu_ms"],
        **dict(zip(("flushes", "rows", "bytes"), ((b - a) / tokens for a, b in took), strict=True)),
    }


def _kept(name: str) -> tuple[int, int]:
    """Return how many rows a database has, and their bytes: not compressed, without indexes."""
    tables = postgres.query(
        "SELECT array_agg(format('%I.%I', schemaname, tablename)) FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
        name,
    )
    sizes = "SELECT ARRAY[count(*), coalesce(sum(pg_column_size(t.*)), 0)] FROM {} t"
    found = [postgres.query(sizes.format(table), name) for table in tables]
    return sum(rows for rows, _ in found), sum(size for _, size in found)


def _rows(
    called: str, ours: list[throughput.Figures], theirs: list[throughput.Figures]
) -> list[common.Row]:
    rows = []
    for key, name, unit in FIGURES:
        mine, ratio, other = [each[key] for each in ours], None, ""
        if theirs:
            pairs = zip(mine, [each[key] for each in theirs], strict=True)
            ratio = common.Spread.of([a / b for a, b in pairs])
            other = f"DBOS: {common.Spread.of([each[key] for each in theirs])}"
        rows.append(common.Row(f"{called}: {name}", common.Spread.of(mine), unit, ratio, other))
    return rows


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    """All cases, round after round, the libraries each in the other order than before."""
    contenders = {"stepwise": pathlib.Path(sys.executable), "dbos": throughput.dbos()}
    found: dict[tuple[str, str], list[throughput.Figures]] = {}
    postgres.start()
    try:
        assert postgres.query("SHOW synchronous_commit") == "on"
        assert postgres.query("SHOW fsync") == "on"
        for turn in range(arguments.rounds):
            for place, rate, called in CASES:
                for who, python in list(contenders.items())[:: 1 if turn % 2 else -1]:
                    if python is not None:
                        tokens = 100 if arguments.quick else 2000
                        figures = _measured(python, who, place, rate, tokens)
                        found.setdefault((called, who), []).append(figures)
                        print(
                            f"turn {turn + 1}: {who} {called}: {figures['said']:.0f}/s",
                            file=sys.stderr,
                            flush=True,
                        )
    finally:
        postgres.stop()
    return [
        row
        for *_, called in CASES
        for row in _rows(called, found[called, "stepwise"], found.get((called, "dbos"), []))
    ]


if __name__ == "__main__":
    common.main(measure, "Streams of stepwise and DBOS on PostgreSQL")
