"""An asynchronous workflow: branches side by side, each with a step, a side effect and a step."""

import asyncio
import sys

import world

from stepwise import step, tool, workflow


@step
async def fetch(n: int) -> int:
    await asyncio.sleep(0)
    value = world.doing(f"fetch({n})", n * 10)
    await asyncio.sleep(0)
    return value


@tool(side_effect=True)
async def post(n: int) -> str:
    await asyncio.sleep(0)
    value = world.doing(f"post({n})", f"posted {n}")
    await asyncio.sleep(0)
    return value


@step
def check(text: str) -> int:
    return world.doing(f"check({text})", len(text))


async def branch(n: int) -> list:
    value = await fetch(n)
    world.got(f"fetch({n})")
    await asyncio.sleep(0)
    text = await post(value)
    world.got(f"post({value})")
    size = check(text)
    world.got(f"check({text})")
    return [value, text, size]


@workflow
async def gathered(first: int) -> list:
    found = [await fetch(first)]
    world.got(f"fetch({first})")
    found += await asyncio.gather(*[branch(n) for n in range(1, 4)])
    found.append(await post(first))
    world.got(f"post({first})")
    return found


@workflow
async def grouped(first: int) -> list:
    found = [await fetch(first)]
    world.got(f"fetch({first})")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(n)) for n in range(1, 4)]
    found += [task.result() for task in tasks]
    found.append(await post(first))
    world.got(f"post({first})")
    return found


if __name__ == "__main__":
    main = {"gathered": gathered, "grouped": grouped}[sys.argv[1]]
    world.main(lambda: asyncio.run(main(7)))
