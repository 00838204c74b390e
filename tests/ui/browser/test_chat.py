"""The chat of ``examples/streaming_chat.py`` in a browser: killed, reloaded, and it goes on."""

import contextlib
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys

import pytest

import stepwise

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "streaming_chat.py"
QUESTION = "What makes a tide?"


class Served:
    """The example, as a person starts it."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self.process = None

    def start(self):
        command = [sys.executable, str(EXAMPLE), str(self.port)]
        self.process = subprocess.Popen(command, env={**os.environ, "PAUSE": "0.02"})
        while True:  # until it listens
            assert self.process.poll() is None
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=60)


@pytest.fixture
def chat():
    """The running example."""
    served = Served()
    served.start()
    try:
        yield served
    finally:
        served.kill()


@pytest.fixture
def page(browser, chat):
    """A page of the chat."""
    context = browser.new_context()
    context.set_default_timeout(120_000)
    opened = context.new_page()
    opened.goto(chat.address)
    yield opened
    context.close()


def whole_answer():
    spec = importlib.util.spec_from_file_location("streaming_chat", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.ANSWER.format(question=QUESTION)


def ask(page):
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_role("button").click()


def until(page, condition):
    """Wait until a condition on the text and the status of the answer is true."""
    page.wait_for_function(
        f"(() => {{ const found = document.querySelector('.answer'); if (!found) return false;"
        f"const text = found.textContent, status = found.dataset.status; return {condition} }})()"
    )


@pytest.mark.parametrize("reloads", [False, True], ids=["the page stays", "the page is reloaded"])
def test_a_killed_chat_goes_on(chat, page, reloads):
    """The server is killed in the middle of a sentence, twice; the answer is whole in the end."""
    ask(page)
    for far in (120, 240):
        until(page, f"text.length > {far} && !status")
        chat.kill()
        seen = page.locator(".answer").text_content()
        assert far < len(seen) < len(whole_answer())
        chat.start()
        if reloads:
            page.reload()
    until(page, "status === 'completed'")
    assert page.locator(".answer").text_content().rstrip() == whole_answer()
    (run,) = stepwise.runs()
    assert len(run.steps) > 5
    assert run.resumed_from_step > 0  # in the middle
