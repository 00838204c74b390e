"""Reminds a team of its meetings, each morning, in the team's own time."""

from datetime import datetime, timedelta, timezone

from outside import chat, get

from stepwise import step, tool, workflow


@step
def load_team(name):
    return get(f"/teams/{name}")


@step
def load_events(calendar):
    return get(f"/calendars/{calendar}/events")


@step(retries=2)
def phrase(title, when):
    return chat([{"role": "user", "content": f"One line: {title} at {when}"}])


@tool(side_effect=True)
def post(channel, text):
    return f"#{channel}: {text}"


@workflow
def remind(name, day):
    team = load_team(name)
    zone = timezone(timedelta(hours=team["hours_from_utc"]))
    posted = []
    for event in load_events(team["calendar"]):
        start = datetime.fromisoformat(event["start"].rstrip("Z"))
        local = start.replace(tzinfo=zone)
        if local.date().isoformat() != day:
            continue
        when = f"{local:%H:%M}"
        line = phrase(event["title"], when)
        posted.append(post(team["channel"], line))
    return posted


if __name__ == "__main__":
    for text in remind("core", "2026-06-03"):
        print(text)
