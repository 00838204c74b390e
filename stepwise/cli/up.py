"""``stepwise up``: the executor of the runs of some modules."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import IO, Any

import click

import stepwise
from stepwise import Run
from stepwise._display.terminal import Word
from stepwise._runs.maintenance import hand_down
from stepwise._runs.starting import start_command
from stepwise._workflows.engines import Engine, RunOutput
from stepwise._workflows.up import Happening, Supervisor, Terms, stores_for
from stepwise.cli import _command as cli
from stepwise.cli._modules import import_modules

_HERE, _ON_CLUSTER = 8, 1000  # runs that are executed at the same time


@cli.command(
    "Steer",
    "stepwise up jobs  # until it is stopped\n"
    "stepwise up --once jobs  # for cron\n"
    "stepwise up --max 2 --logs /var/log/agents jobs\n"
    "stepwise up --ray auto jobs  # a cluster executes them",
    short_help="Continue the runs of MODULES, as they can go on.",
)
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@click.option(
    "--max", "most", type=click.IntRange(1), metavar="N",
    help="Execute so many runs at the same time, at most; by default 8, with --ray 1000.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Do what is due now, and end.")
@click.option(
    "--exit-on-change",
    "until_edited",
    is_flag=True,
    help="End with exit code 75 once the file of a module has changed.",
)
@click.option(
    "--run",
    "only",
    multiple=True,
    metavar="RUN",
    help="Only this run, even if it died too often; repeat it.",
)
@click.option(
    "--logs", default="", metavar="FOLDER", help="Write what a run prints to FOLDER/RUN.log."
)
@click.option(
    "--ray",
    "cluster",
    metavar="ADDRESS",
    help="Let the Ray cluster there execute the runs: HOST:PORT, or auto for that of this machine.",
)
@click.option(
    "--metrics",
    "address",
    metavar="[HOST:]PORT",
    help="Serve /metrics for Prometheus, /healthz and /readyz; to this machine by default.",
)
def up(
    modules: tuple[str, ...],
    *,
    most: int | None,
    once: bool,
    until_edited: bool,
    only: tuple[str, ...],
    logs: str,
    cluster: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Import MODULES, and execute the runs of their workflows that must continue.

    These are runs whose process died, suspended runs whose time or message has come, and runs to be
    cancelled.  Each is executed once, however many such commands there are.  Ctrl-C and SIGTERM let
    the steps in progress end; a second one ends at once.

    With --ray, the runs are tasks of a cluster, whose workers import MODULES, too; they end with
    this command.  Then --logs is a folder of the machine that executes a run.

    A changed file is reported, but has no effect: the imported code stays in use.  With
    --exit-on-change, the command then ends like after SIGTERM, with exit code 75, so that a service
    manager starts it again.

    With --once, the exit code is 1 if a run failed or stopped.  With --json, each line is one
    event, and what runs print goes to stderr.  With both, the last line says what was continued,
    what was left, and when to start this command again.
    """
    with RunOutput(os.path.abspath(logs) if logs else "") as output:
        url = cli.chosen_store()
        import_modules(modules)
        if url is not None:
            stepwise.configure(store=url)  # the command line has precedence
        show = _Reporter(modules, url, as_json=as_json, logs=logs, out=cli.answer())
        stores = stores_for(modules)
        engine = _cluster(cluster, modules, logs, stores) if cluster is not None else None
        terms = Terms(
            most=most or (_ON_CLUSTER if engine else _HERE),
            once=once,
            only=frozenset(only),
            alone=show.alone,
            continuing=_continuing,
            engine=engine,
            until_edited=until_edited,
        )
        supervisor = Supervisor(stores, terms, show.report, output)
        if address is not None:
            _serve(address, stores, supervisor)
        _stopped_by_signals(supervisor)
        supervisor.run()
        if once and as_json:
            show.sum_up(supervisor)
    _exit(supervisor)


def _exit(supervisor: Supervisor) -> None:
    if supervisor.is_executing:  # threads of unfinished runs would keep the process alive
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(supervisor.exit_code)
    sys.exit(supervisor.exit_code)


def _serve(address: str, stores: Sequence[Any], supervisor: Supervisor) -> None:
    from stepwise.integrations.prometheus import serve  # on use: few ask for it

    at = serve(address, stores, supervisor)
    cli.note(f"up: metrics at {at}/metrics, health at /healthz and /readyz")


def _cluster(address: str, modules: Sequence[str], logs: str, stores: Sequence[Any]) -> Engine:
    from stepwise.integrations.ray import RayEngine  # on use: few have Ray

    engine = RayEngine(address, modules, os.path.abspath(logs) if logs else "")
    engine.check(stores)
    return engine


# -- signals ---------------------------------------------------------------------------------------


def _stopped_by_signals(supervisor: Supervisor) -> None:
    def stop(number: int, _: Any) -> None:
        if supervisor.is_stopped_twice:
            os._exit(128 + number)
        supervisor.stop(number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)


# -- what is shown ---------------------------------------------------------------------------------


def _continuing(run: Run) -> Sequence[str]:
    """Return the command that continues a run of another program."""
    start_command(run)  # raises if nothing can start it
    return ("stepwise", "resume", run.id)


class _Reporter:
    """A reporter of events: as lines on stderr, or as lines of JSON on stdout."""

    def __init__(
        self,
        modules: Sequence[str],
        url: str | None,
        *,
        as_json: bool,
        logs: str,
        out: IO[str],
    ) -> None:
        self._as_json, self._out, self._quiet = as_json, out, not logs
        self._modules = ", ".join(modules)
        self._left: dict[str, dict[str, Any]] = {}
        self._words = [
            *(("--json",) if as_json else ()),
            *(("--logs", logs) if logs else ()),
            *(("--store", hand_down(url)) if url is not None else ()),
            *modules,
        ]

    def sum_up(self, supervisor: Supervisor) -> None:
        """Print what was done, what was left and why, and when to start again, as the last line."""
        at, wake = supervisor.wake, None
        if at is not None:
            moment = dt.datetime.fromtimestamp(math.ceil(at)).astimezone()
            wake = {"at": moment.isoformat(), "seconds": max(0, math.ceil(at - time.time()))}
        line = {
            "event": "done",
            "continued": [{"id": each, "status": end} for each, end in supervisor.ends.items()],
            "left": list(self._left.values()),
            "wake": wake,
            "exit_code": supervisor.exit_code,
        }
        click.echo(json.dumps(line), file=self._out)

    def alone(self, run: Run) -> tuple[str, ...]:
        """Return the command that executes one run in a separate process."""
        return (sys.executable, "-m", "stepwise", "up", "--once", "--run", run.id, *self._words)

    def report(self, what: Happening) -> None:
        """Show an event."""
        if self._as_json:
            self._put_json(what)
        elif what.kind == "ready":
            cli.note(f"up: {self._modules}: {what.detail}")
        elif what.facts is None:
            cli.note(f"up: {what.detail}")
        elif not self._is_told_by_the_run(what):
            self._put_run(what, what.facts.run_id)

    def _is_told_by_the_run(self, what: Happening) -> bool:
        """Return whether the run's own notice on this terminal, or another process, reports it."""
        busy = what.kind == "ended" and what.status == "running"
        return busy or (what.kind == "begun" and not what.detail and self._quiet)

    def _put_run(self, what: Happening, run_id: str) -> None:
        verb = {"begun": "goes on", "left": "left alone"}.get(what.kind, "")
        told = ": ".join(filter(None, (verb, what.detail)))
        status = Word(what.status)
        cli.note(
            f"up: {run_id} {cli.call_text(what.facts)} ", status, f"{' ' if told else ''}{told}"
        )
        if what.command:
            cli.note(f"  to continue it: {shlex.join(_short(what.command))}")

    def _put_json(self, what: Happening) -> None:
        run = what.facts
        facts = {} if run is None else {"id": run.run_id, "workflow": run.workflow}
        said = {
            "status": what.status or None,
            "detail": what.detail or None,
            "command": list(what.command) or None,
        }
        if run is not None and what.kind in ("left", "problem"):
            self._left[run.run_id] = {**facts, **said}
        line = {"event": what.kind, **facts, **said, "at": time.time()}
        click.echo(json.dumps(line), file=self._out)


def _short(words: Sequence[str]) -> Sequence[str]:
    """Return a command as a person types it."""
    return ("stepwise", *words[3:]) if words[1:3] == ("-m", "stepwise") else words
