"""Workflows that call workflows: with steps before and after, in a loop, and themselves."""

import asyncio
import sys

import world

from stepwise import step, tool, workflow


@step
def fetch(n: int) -> int:
    return world.doing(f"fetch({n})", n * 10)


@tool(side_effect=True)
def post(n: int) -> str:
    return world.doing(f"post({n})", f"posted {n}")


@workflow
def child(n: int, seen: list) -> int:
    value = fetch(n)
    world.got(f"fetch({n})")
    seen.append(post(n))
    world.got(f"post({n})")
    value += fetch(n + 100)
    world.got(f"fetch({n + 100})")
    return value


@workflow
def descend(depth: int) -> list:
    found = [fetch(depth)]
    world.got(f"fetch({depth})")
    if depth:
        found.append(descend(depth - 1))
    found.append(post(depth))
    world.got(f"post({depth})")
    return found


@workflow
def parent(start: int) -> list:
    seen = []
    found = [fetch(start)]
    world.got(f"fetch({start})")
    for n in (11, 12):
        found.append(child(n, seen))
    found.append(descend(2))
    return [found, seen]


@workflow
async def achild(n: int) -> list:
    value = fetch(n)
    world.got(f"fetch({n})")
    await asyncio.sleep(0)
    text = post(n)
    world.got(f"post({n})")
    await asyncio.sleep(0)
    return [value, text, fetch(n + 100)]


@workflow
async def aparent(start: int) -> list:
    found = [fetch(start)]
    world.got(f"fetch({start})")
    found += await asyncio.gather(achild(1), achild(2))
    found.append(await achild(3))
    return found


if __name__ == "__main__":
    runs = {"parent": lambda: parent(50), "aparent": lambda: asyncio.run(aparent(50))}
    world.main(runs[sys.argv[1]])
