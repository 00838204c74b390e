"""Makes the invoice of a month and books it."""

from outside import chat, get

from stepwise import step, tool, workflow


@step
def worked(client, month):
    return get(f"/hours/{client}/{month}")


@step
def paid_in_advance(client):
    return get(f"/advances/{client}")


@step(retries=2)
def describe(task):
    return chat([{"role": "user", "content": f"Describe for an invoice: {task}"}])


@tool(side_effect=True)
def book(client, lines, due):
    return f"{client}: {len(lines)} lines, {due} due"


@tool(side_effect=True)
def close_account(client):
    return f"{client} closed"


@workflow
def invoice(client, month):
    lines = []
    due = 0.0
    for entry in worked(client, month):
        text = describe(entry["task"])
        price = entry["hours"] * entry["rate"]
        lines.append((text, price))
        due += price
    advance = paid_in_advance(client)
    due -= advance
    booked = book(client, lines, f"{due:.2f}")
    if due == 0:
        return [booked, close_account(client)]
    return [booked, f"{client} stays open"]


if __name__ == "__main__":
    print(invoice("Moritz", "2026-05"))
