"""Sums up a chat of the support desk for the person who takes it over."""

from outside import chat, get

from stepwise import step, tool, workflow

ORDER = "Sum up this chat in one sentence. Say what the customer wants now."


@step
def load_chat(number):
    return get(f"/chats/{number}")


@step(retries=2)
def sum_up(turns):
    text = "\n".join(turns)
    return chat([{"role": "system", "content": ORDER}, {"role": "user", "content": text}])


@step
def find_agent(team):
    return get(f"/teams/{team}/on-duty")


@tool(side_effect=True)
def hand_over(agent, summary):
    return f"for {agent}: {summary}"


def short(text, most=60):
    return text if len(text) <= most else text[: most - 3] + "..."


@workflow
def recap(number, team):
    messages = load_chat(number)
    agent = find_agent(team)
    turns = []
    position = 0
    while position < len(messages) - 1:
        message = messages[position]
        if message["kind"] == "text":
            turns.append(f"{message['from']}: {short(message['text'])}")
        position += 1
    summary = sum_up(turns)
    return hand_over(agent, summary)


if __name__ == "__main__":
    print(recap(881, "billing"))
