"""The server of the tests: workflows that talk, served on a socket that outlives the process."""

import asyncio
import socket
import sys
import time
from typing import Any

import uvicorn

import stepwise.http
from stepwise import current_step, emit, step, wait_for, workflow

PACE = 0.002  # seconds; it decides nothing, and only makes room for kills


@step
async def say(part: int, words: int) -> int:
    for word in range(words):
        emit(f"{part}.{word}")
        await asyncio.sleep(PACE)
    return part


@workflow
async def talk(parts: int, words: int) -> int:
    for part in range(parts):
        emit(f"part {part}")
        await say(part, words)
    return parts


@step
def recite(part: int, words: int) -> int:
    for word in range(words):
        emit(f"{part}.{word}")
        time.sleep(PACE)
    return part


@workflow
def read_out(parts: int, words: int) -> int:
    for part in range(parts):
        emit(f"part {part}")
        recite(part, words)
    return parts


@workflow
def pause(topic: str = "") -> str:
    emit("before")
    answer = wait_for("go")
    emit("after")
    return answer


@workflow
def shout(times: int, size: int) -> int:
    for number in range(times):
        emit(f"{number} " + "x" * size)
    return times


@workflow
async def reply(messages: list[dict[str, Any]]) -> str:
    text = "".join(part["text"] for part in messages[-1]["parts"])
    for each in ("You said ", text, ".", {"type": "data-weather", "data": {"wind": 3}}, 42):
        emit(each)
    emit("Goodbye.")
    return text


@step(retries=1)
def think() -> None:
    if current_step().attempt == 1:
        emit("half a sent")
        while not stepwise.current_run().inbox:  # until the test has seen that
            time.sleep(PACE)
        raise RuntimeError("the model is away")
    emit("the whole sentence.")


@workflow
def stumble() -> None:
    emit("I think: ")
    think()


@workflow
def fail() -> None:
    raise RuntimeError("a secret")


def authorize(request, run_id, action):
    return request.headers.get("who") or True


def serve(descriptor, **options):
    app = stepwise.http.app(workflows=[sys.modules[__name__]], authorize=authorize, **options)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    left = sys.argv[2]
    serve(int(sys.argv[1]), cancel_when_left=float(left) if left else None)
