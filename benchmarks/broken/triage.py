"""Wakes the engineer on duty for tickets that cannot wait."""

from outside import chat, get

from stepwise import step, tool, workflow

SCALE = "How bad is this, from 1 to 5? Answer with the number alone."


@step
def load(queue):
    return get(f"/queues/{queue}")


@step(retries=2)
def severity(text):
    reply = chat([{"role": "system", "content": SCALE}, {"role": "user", "content": text}])
    return int(reply)


@step
def on_duty(team):
    return get(f"/duty/{team}")


@tool(side_effect=True)
def wake(person, ticket):
    print(f"calling {person} for {ticket}")
    return ticket


def cannot_wait(ticket, level):
    return level >= 4 or ticket["customer"] == "hospital" and ticket["state"] == "open"


@workflow
def triage(queue):
    woken = []
    for ticket in load(queue):
        level = severity(ticket["text"])
        if cannot_wait(ticket, level):
            person = on_duty(ticket["team"])
            woken.append(wake(person, ticket["id"]))
    return woken


if __name__ == "__main__":
    print(triage("night"))
