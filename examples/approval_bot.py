"""A bot that pays the bills of a month, and asks a person before it pays a large one.

    python examples/approval_bot.py [MONTH] [--out FILE]

Shows a run that waits for people without a process: a start goes on as far as it may, says what it
waits for, and ends with exit code 75.  Answer, and start it again::

    stepwise show pay_bills            # the question, with all that a yes is bound to
    stepwise approve pay_bills 3       # or: stepwise deny pay_bills 3 --reason "too much"
    python examples/approval_bot.py

``stepwise up --once approval_bot`` in a crontab starts it by itself once there is an answer.

Every step prints a line when it really runs.  Kill it wherever you like: no bill is paid without
its yes, and none is paid twice.  If it was killed while it paid, it looks into the file.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TypedDict

import stepwise
from stepwise import (
    ApprovalDenied,
    DidNotHappen,
    InDoubtCall,
    Landed,
    approve,
    current_step,
    step,
    tool,
    workflow,
)

stepwise.configure(suspend_after=0)  # it gives up its process as soon as it has to wait

LARGE = 100  # euros, above which a person decides


class Bill(TypedDict):
    """What somebody wants to have."""

    number: str
    payee: str
    euros: int


@step
def read_bills(month: str) -> list[Bill]:
    """The bills of a month; rules stand where a model would read the letters."""
    print(f"[read_bills] {month}")
    payees = {"Water works": 42, "Printer & Sons": 780, "Post": 12, "Roofer": 2400}
    return [
        {"number": f"{month}/{n}", "payee": payee, "euros": euros}
        for n, (payee, euros) in enumerate(payees.items(), 1)
    ]


def is_large(bill: Bill, out: str) -> bool:
    """Whether a person decides about a payment."""
    return bill["euros"] > LARGE or not out.endswith(".txt")


def was_paid(call: InDoubtCall) -> Landed | type[DidNotHappen]:
    """Look into the file whether a bill was paid before the crash."""
    out = pathlib.Path(call.arguments["out"])
    paid = out.exists() and call.idempotency_key in out.read_text("utf-8")
    return Landed() if paid else DidNotHappen


@tool(side_effect=True, approve=is_large, in_doubt=was_paid)
def pay(bill: Bill, out: str) -> None:
    """Append a payment to a file, as one would order it at a bank."""
    print(f"[pay] {bill['payee']}")
    with open(out, "a", encoding="utf-8") as file:
        file.write(f"{bill['euros']} to {bill['payee']} ({current_step().idempotency_key})\n")


@step
def note_denial(bill: Bill, reason: str) -> str:
    """Write down why a bill was not paid."""
    print(f"[note_denial] {bill['payee']}")
    return f"{bill['payee']} gets nothing: {reason}"


@workflow
def pay_bills(month: str, out: str) -> str:
    """Pay the bills of a month, one by one, and have a person close the month."""
    report = []
    for bill in read_bills(month):
        try:
            pay(bill, out)
            report.append(f"{bill['payee']} got {bill['euros']} euros")
        except ApprovalDenied as denied:
            report.append(note_denial(bill, denied.note))
    said = approve(f"Close {month}?", details="\n".join(report))
    return "\n".join([*report, f"closed: {said or 'without a note'}"])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Pay the bills of a month.")
    parser.add_argument("month", nargs="?", default="2026-11")
    parser.add_argument("--out", default="payments.txt", help="file that is appended to")
    given = parser.parse_args()
    print(pay_bills(given.month, str(pathlib.Path(given.out).resolve())))


if __name__ == "__main__":
    main()
