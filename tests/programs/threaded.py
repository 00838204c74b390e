"""Steps in threads: of ``stepwise.map``, and of the workflow's own."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import world

import stepwise
from stepwise import step, tool, workflow


@step
def fetch(n: int) -> int:
    return world.doing(f"fetch({n})", n * 10)


@tool(side_effect=True)
def post(n: int) -> str:
    return world.doing(f"post({n})", f"posted {n}")


@step
async def afetch(n: int) -> int:
    await asyncio.sleep(0)
    return world.doing(f"afetch({n})", n * 10)


@tool(side_effect=True)
async def apost(n: int) -> str:
    await asyncio.sleep(0)
    return world.doing(f"apost({n})", f"posted {n}")


@workflow
def mapped(start: int) -> list:
    values = stepwise.map(fetch, range(start, start + 3), max_workers=2)
    world.got(f"fetch({start})")
    texts = stepwise.map(post, values, max_workers=2)
    world.got(f"post({start * 10})")
    return [values, texts, fetch(0)]


@workflow
async def amapped(start: int) -> list:
    values = await stepwise.map(afetch, range(start, start + 3), max_workers=2)
    world.got(f"afetch({start})")
    texts = await stepwise.map(apost, values, max_workers=2)
    world.got(f"apost({start * 10})")
    return [values, texts, await afetch(0)]


def work(n, found):
    value = fetch(n)
    world.got(f"fetch({n})")
    found[n] = [value, post(n)]
    world.got(f"post({n})")


@workflow
def threads(start: int) -> list:
    found = {}
    workers = [threading.Thread(target=work, args=(n, found)) for n in range(start, start + 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    del workers, worker
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, n, found) for n in (50, 51)]
    del pool, futures
    return [sorted(found.items()), fetch(0)]


if __name__ == "__main__":
    runs = {
        "mapped": lambda: mapped(1),
        "amapped": lambda: asyncio.run(amapped(1)),
        "threads": lambda: threads(1),
    }
    world.main(runs[sys.argv[1]])
