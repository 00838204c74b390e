"""Answers the guests of a hotel, turn by turn, with a context of limited size."""

from outside import chat, get

from stepwise import step, tool, workflow

HOUSE = "You are the concierge of Hotel Alpenblick. Always answer in German, and say Sie."
MOST = 6


@step
def next_message(room, number):
    return get(f"/rooms/{room}/{number}")


@step(retries=2)
def complete(messages):
    return chat(messages)


@tool(side_effect=True)
def show(room, text):
    return f"room {room}: {text}"


def fitting(messages):
    if len(messages) <= MOST:
        return messages
    return messages[-MOST:]


@workflow
def concierge(room, turns):
    messages = [{"role": "system", "content": HOUSE}]
    shown = []
    for number in range(turns):
        text = next_message(room, number)
        messages.append({"role": "user", "content": text})
        messages = fitting(messages)
        reply = complete(messages)
        messages.append({"role": "assistant", "content": reply})
        shown.append(show(room, reply))
    return shown


if __name__ == "__main__":
    for line in concierge(12, 12):
        print(line)
