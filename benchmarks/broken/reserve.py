"""Reserves articles of the stock for orders that arrive together."""

import asyncio

from outside import get, get_slowly, put

from stepwise import step, tool, workflow


@step
async def read_order(number):
    return get(f"/orders/{number}")


@step
async def read_stock(article):
    return await get_slowly(f"/stock/{article}")


@tool(side_effect=True)
async def write_stock(article, count):
    return put(f"/stock/{article}", count)


@workflow
async def reserve(number):
    order = await read_order(number)
    article, wanted = order["article"], order["count"]
    stock = await read_stock(article)
    if stock < wanted:
        return {"order": number, "reserved": 0, "stock": stock}
    rest = stock - wanted
    await write_stock(article, rest)
    return {"order": number, "reserved": wanted, "stock": rest}


@step
async def count_stock(article):
    return get(f"/stock/{article}")


@workflow
async def morning(numbers, article):
    done = await asyncio.gather(*(reserve(number) for number in numbers))
    reserved = sum(each["reserved"] for each in done)
    remaining = await count_stock(article)
    print(f"{reserved} reserved, {remaining} remain")
    return {"reserved": reserved, "remaining": remaining}


if __name__ == "__main__":
    asyncio.run(morning(["O-1", "O-2"], "lamp"))
