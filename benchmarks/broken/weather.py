"""Lets a model call tools until it can answer."""

from outside import chat, get

from stepwise import step, tool, workflow

RULES = "You plan outings. Use the tools forecast and tides."


@step(retries=2)
def ask(messages):
    return chat(messages)


@tool
def forecast(place):
    return get(f"/forecast/{place}")


@tool
def tides(place):
    return get(f"/tides/{place}")


TOOLS = {"forecast": forecast, "tides": tides}


def by_tool(calls):
    return sorted(calls, key=lambda call: call["name"])


@workflow
def outing(task):
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": task}]
    while True:
        reply = ask(messages)
        messages.append({"role": "assistant", "content": reply["text"], "calls": reply["calls"]})
        if not reply["calls"]:
            return reply["text"]
        results = []
        for call in by_tool(reply["calls"]):
            run = TOOLS[call["name"]]
            results.append(run(call["place"]))
        for call, result in zip(reply["calls"], results, strict=True):
            content = f"[{call['id']}] {result}"
            messages.append({"role": "tool", "content": content, "call": call["id"]})


if __name__ == "__main__":
    print(outing("Can we walk to the island of Neuwerk on Sunday?"))
