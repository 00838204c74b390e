"""A chat whose answers survive: kill the server, reload the page, and the sentence goes on.

    pip install 'stepwise-agents[http]' fastapi uvicorn
    python examples/streaming_chat.py [PORT]

Open the page, ask something, and kill the server with Ctrl-C or kill -9 while it answers.  Start it
again: the page goes on in the middle of the sentence, by itself and after a reload.

The model is a local fake that speaks slowly, so the chat needs neither key nor network.  A real one
is asked the same way: continue this text, and stream the words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import secrets
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response

import stepwise
import stepwise.http
from stepwise import emit, step, workflow

PAGE = pathlib.Path(__file__).with_suffix(".html")
PAUSE = float(os.environ.get("PAUSE", "0.1"))  # seconds between two words
ANSWER = (
    "You asked: {question} I thought about that for a while, and this is what I found. Every "
    "tide has two causes, one that is far away and one that is near; the far one pulls, and the "
    "near one decides how high the water comes. A harbour that is long and narrow rings like a "
    "glass when the period fits, and then a small pull moves a great deal of water. That is all."
)


async def model(question: str, said: str) -> AsyncIterator[str]:
    """Continue an answer, word by word."""
    for word in ANSWER.format(question=question)[len(said) :].split(" "):
        await asyncio.sleep(PAUSE)
        yield f"{word} "


@step(retries=3)
async def some_words(question: str, said: str) -> str:
    """Say the next words of an answer; return them, or nothing at its end."""
    words = ""
    async for word in model(question, said):
        emit(word)
        words += word
        if len(words) > 40:
            break
    return words


@workflow
async def chat(question: str) -> str:
    """Answer a question; each piece of the answer is a step, so a kill costs at most one."""
    said = ""
    while len(said) < len(ANSWER.format(question=question)):
        said += await some_words(question, said)
    return said


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Continue the answers that the last server was giving."""
    stepwise.recover()
    yield


app = FastAPI(lifespan=lifespan)
app.mount(
    "/agents",
    # The cookie is the user's name, so nobody reads the answers of somebody else.
    stepwise.http.app(workflows=[chat], authorize=lambda request, *_: request.cookies.get("who")),
)


@app.get("/")
def page(request: Request) -> Response:
    """Return the page; its first visit gives the user a name."""
    answer = FileResponse(PAGE, headers={"Cache-Control": "no-store"})
    if "who" not in request.cookies:
        answer.set_cookie("who", secrets.token_hex(16), httponly=True, samesite="strict")
    return answer


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, log_level="warning")
