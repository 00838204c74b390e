"""Reads the sales of the week, page by page, and reports them."""

import logging
import sys

from outside import chat, get

from stepwise import step, tool, workflow

log = logging.getLogger("sales")


@step
def fetch(week, page):
    return get(f"/sales/{week}/{page}")


@step(retries=2)
def comment(total, count):
    return chat([{"role": "user", "content": f"Comment on {total} EUR in {count} sales"}])


@tool(side_effect=True)
def report(text):
    return text


@workflow
def weekly(week, pages):
    rows = []
    for attempt in range(3):
        try:
            for page in range(1, pages + 1):
                rows.extend(fetch(week, page))
            break
        except ConnectionError as error:
            log.info("attempt %d: %s", attempt + 1, error)
    total = sum(row["amount"] for row in rows)
    count = len({row["id"] for row in rows})
    text = comment(total, count)
    return report(f"week {week}: {total} EUR in {count} sales. {text}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    print(weekly("2026-W21", 9))
