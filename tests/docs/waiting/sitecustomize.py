"""Replaces ``time.sleep`` and ``asyncio.sleep`` in programs of the pages: they do not wait.

Under ``PAGES_SLEEP``, the path of a socket, they wait until the other end closes the connection.
"""

import asyncio
import os
import socket
import time

_sleep = asyncio.sleep


def sleep(seconds):
    """Wait until the engine lets the program continue, if it wants to know."""
    if path := os.environ.get("PAGES_SLEEP"):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(path)
            asking.recv(1)


async def sleep_in_a_task(delay, result=None):
    """The same in a task."""
    path = os.environ.get("PAGES_SLEEP")
    if path and delay:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            await reader.read(1)
        finally:
            writer.close()
    await _sleep(0)
    return result


time.sleep = sleep
asyncio.sleep = asyncio.tasks.sleep = sleep_in_a_task
