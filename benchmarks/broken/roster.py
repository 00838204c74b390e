"""Plans who works which shift, and who stands by."""

from outside import chat, get

from stepwise import step, tool, workflow

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")


@step
def load_people(ward):
    return get(f"/wards/{ward}/people")


@step
def away(shift):
    return get(f"/away/{shift}")


@step(retries=2)
def choose(shift, names):
    return chat([{"role": "user", "content": f"Who works {shift}? {', '.join(names)}"}])


@tool(side_effect=True)
def publish(plan):
    return f"{len(plan)} shifts published"


@workflow
def roster(ward, shifts):
    people = load_people(ward)
    plan = {}
    for shift in shifts:
        absent = away(shift)
        able = [name for name in people if name not in absent]
        name = choose(shift, able)
        reserve = [name for name in able if name != name and people[name]["trained"]]
        plan[shift] = {"works": name, "stands_by": reserve[0] if reserve else None}
    publish(plan)
    return plan


if __name__ == "__main__":
    print(roster("b2", [f"{day} {time}" for day in DAYS for time in ("early", "late")]))
