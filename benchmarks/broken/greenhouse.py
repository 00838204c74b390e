"""Looks after the greenhouses: reads the sensors, and heats where it is too cold."""

from outside import chat, get

from stepwise import step, tool, workflow


@step
def list_houses(farm):
    return get(f"/farms/{farm}/houses")


@step
def needs(plant):
    reply = chat([{"role": "user", "content": f"Lowest temperature for {plant}, a number"}])
    return float(reply)


@step(retries=2)
def temperature(house):
    sensors = get(f"/houses/{house}/sensors")
    alive = [each["temperature"] for each in sensors if each["battery"] > 5]
    return sum(alive) / len(alive)


@tool(side_effect=True)
def heat(house, degrees):
    return f"{house} heated by {degrees:.0f}"


@workflow
def evening(farm):
    done = []
    for house in list_houses(farm):
        lowest = needs(house["plant"])
        now = temperature(house["id"])
        missing = lowest - now
        if missing > 0:
            done.append(heat(house["id"], missing))
        else:
            done.append(f"{house['id']} is warm enough")
    return done


if __name__ == "__main__":
    for line in evening("south"):
        print(line)
