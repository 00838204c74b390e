"""Writes the weekly letter: a section for each topic, from what was published."""

from outside import chat, get

from stepwise import step, tool, workflow

TOPICS = ["winds", "harbours", "knots", "races", "tides", "sails", "charts", "engines", "lights"]
STYLE = "You write one sentence for a newsletter of a sailing club."


@step
def search(topic):
    return get(f"/articles?topic={topic}")


@step(retries=2)
def summarize(topic, articles):
    titles = "; ".join(article["title"] for article in articles)
    return chat(
        [
            {"role": "system", "content": STYLE},
            {"role": "user", "content": f"Topic {topic}. Articles: {titles}"},
        ]
    )


@tool(side_effect=True)
def send(address, letter):
    print(f"sent {len(letter)} characters to {address}")
    return "sent"


@workflow
def newsletter(topics, address):
    sections = []
    for topic in topics:
        articles = search(topic)
        fresh = [article for article in articles if article["age_days"] <= 7]
        if len(fresh) >= 2:
            summary = summarize(topic, fresh)
        heading = topic.title()
        sections.append(f"## {heading}\n{summary}")
    letter = "\n\n".join(sections)
    send(address, letter)
    return letter


if __name__ == "__main__":
    print(newsletter(TOPICS, "members@example.org"))
