"""A small client of the Debug Adapter Protocol, as an editor has one."""

import itertools
import json
import socket
from collections import deque


class Client:
    """A connection to a debug adapter."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events = deque()
        self._answers = {}

    def ask(self, command, **arguments):
        """Send a request, and return its number."""
        number = next(self._numbers)
        message = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return number

    def answer(self, number):
        """The body of the answer to a request."""
        while number not in self._answers:
            self._read()
        found = self._answers.pop(number)
        assert found["success"], found
        return found.get("body") or {}

    def call(self, command, **arguments):
        """The body of the answer to a request that is sent now."""
        return self.answer(self.ask(command, **arguments))

    def event(self, name):
        """The body of the next event of this name."""
        while True:
            for each in [*self._events]:
                self._events.remove(each)
                if each["event"] == name:
                    return each.get("body") or {}
            self._read()

    def _read(self):
        size = 0
        while line := self._file.readline().strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        if not size:
            raise EOFError("the adapter has closed the connection")
        message = json.loads(self._file.read(size))
        if message["type"] == "response":
            self._answers[message["request_seq"]] = message
        elif message["type"] == "event":
            self._events.append(message)

    def attach(self):
        """Do what an editor does until it may set breakpoints and look."""
        self.call("initialize", adapterID="debugpy", clientID="test", pathFormat="path")
        attached = self.ask("attach", justMyCode=False)
        self.event("initialized")
        self.call("configurationDone")
        self.answer(attached)

    def stopped(self):
        """The thread and the frames of the next stop."""
        thread = self.event("stopped")["threadId"]
        return thread, self.call("stackTrace", threadId=thread)["stackFrames"]

    def variables(self, frame):
        """The local variables of a frame, as they are shown."""
        scope = self.call("scopes", frameId=frame["id"])["scopes"][0]
        found = self.call("variables", variablesReference=scope["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in found}

    def close(self):
        self._file.close()
        self._socket.close()
