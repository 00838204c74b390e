"""A plain workflow: steps and side effects in loops, branches, and a failure that is handled."""

import sys

import world

from stepwise import step, tool, workflow


@step
def fetch(n: int) -> int:
    return world.doing(f"fetch({n})", n * 10)


@tool(side_effect=True)
def post(text: str) -> str:
    return world.doing(f"post({text})", f"posted {text}")


@tool(side_effect=True, fails_cleanly=ValueError)
def refuse(n: int) -> None:
    world.here(f"refuse({n}) before")
    raise ValueError(n)


@workflow
def main(task: str) -> list:
    seen = []
    for n in range(2):
        value = fetch(n)
        world.got(f"fetch({n})")
        if value:
            seen.append(post(f"{task} {value}"))
            world.got(f"post({task} {value})")
        try:
            refuse(n)
        except ValueError:
            seen.append("refused")
        else:
            seen.append("not refused")
        world.got(f"refuse({n})")
    count = 0
    while count < 2:
        count += 1
        seen.append(post("same"[:count]))
        world.got(f"post({'same'[:count]})")
    seen += [fetch(n) for n in (7, 8)]
    world.got("fetch(8)")
    return seen


if __name__ == "__main__":
    world.main(lambda: main(sys.argv[1] if len(sys.argv) > 1 else "task"))
