"""Orders what the teams ask for, within what is left of their budgets."""

import asyncio

from outside import chat, get

from stepwise import step, tool, workflow


@step
async def open_requests():
    return get("/requests?state=open")


@step
async def budget_left(team):
    return get(f"/budgets/{team}")


@step(retries=2)
async def pick_offer(article):
    offers = get(f"/offers/{article}")
    question = "\n".join(f"{each['shop']} {each['price']} EUR" for each in offers)
    shop = chat([{"role": "user", "content": f"Which shop for {article}?\n{question}"}])
    return next(each for each in offers if each["shop"] == shop)


@tool(side_effect=True)
async def place_order(team, shop, article, price):
    print(f"ordered {article} from {shop} for {team}")
    return {"team": team, "article": article, "price": price}


async def affordable(offer, left):
    shipping = get(f"/shipping/{offer['shop']}")
    return offer["price"] + shipping <= left


@workflow
async def purchasing():
    orders, refused = [], []
    for request in await open_requests():
        team, article = request["team"], request["article"]
        left = await budget_left(team)
        offer = await pick_offer(article)
        if affordable(offer, left):
            order = await place_order(team, offer["shop"], article, offer["price"])
            orders.append(order)
        else:
            refused.append(article)
    return {"orders": orders, "refused": refused}


if __name__ == "__main__":
    print(asyncio.run(purchasing()))
