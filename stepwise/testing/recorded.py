"""A recorded run as a test: a file answers its model calls, without key and network."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stepwise._identity.clients import placeholder_keys
from stepwise.errors import ConfigurationError
from stepwise.integrations._model_calls import calls_in
from stepwise.integrations._model_protocols import ModelRequest, endpoint_of, read_request
from stepwise.integrations._recorded_responses import (
    canonical,
    library_of,
    pieces_of,
    response_from,
    stream_class,
)
from stepwise.integrations.instrument import answering


class RequestNotRecorded(BaseException):
    """A request was made that the recorded run has no answer for.

    This is not an ``Exception``: SDKs would repeat the request, and frameworks would show the error
    to the model.
    """


@dataclass
class _CallInFile:
    """A call in the file.

    Args:
        name: ``call 3``.
        request: identifies the call.
        form: the recorded answer.
        used: the call has answered a request.
    """

    name: str
    request: ModelRequest
    form: dict[str, Any]
    used: bool = False


class recorded:  # noqa: N801
    """Answer the model calls of a program from a recorded run, within the block.

    No request to a model that httpx would send leaves the process, whichever client or framework
    makes it, inside and outside of runs.  The same goes for other requests with the header
    ``x-stainless-lang``, which the SDKs of OpenAI, Anthropic and others send to upload a file or
    list models.

    The recorded request with the same identity answers a request (see ``stepwise.instrument``;
    another server counts as the same).  Each recorded call answers once; equal calls answer in
    their order.  No API key of OpenAI or Anthropic is needed: the block sets a placeholder if the
    environment has none.

    Example:
        >>> with recorded("run.json"):  # stepwise export RUN --format model-calls -o run.json
        ...     assert agent("invite the team") == "done"

    Args:
        path: the file that ``stepwise export`` wrote.
        strict: at the end of a block without errors, each recorded call must have been used.

    Raises:
        ConfigurationError: the file has no model calls.
        RequestNotRecorded: no recorded call answers a request; the message names the next
            one that is unused.
        AssertionError: strict, and some calls were not used.
    """

    def __init__(self, path: str | os.PathLike[str], *, strict: bool = False) -> None:
        self._path = os.fspath(path)
        self._strict = strict
        self._calls = _read(self._path)
        self._refused = False  # a refused request already explains the unused calls
        self._mutex = threading.Lock()
        self._block = contextlib.ExitStack()

    def __enter__(self) -> recorded:  # noqa: PYI034 -- it is no base class
        for call in self._calls:
            call.used = False
        self._refused = False
        with contextlib.ExitStack() as block:
            block.enter_context(placeholder_keys())
            block.enter_context(answering(self._answer))
            self._block = block.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._block.close()
        if kind is None and self._strict and self.unused and not self._refused:
            raise AssertionError(f"{self._path}: not used: {', '.join(self.unused)}")

    @property
    def unused(self) -> list[str]:
        """The recorded calls that have not been used yet, as ``call 3: chat.completions``."""
        return [
            f"{call.name}: {endpoint_of(call.request.method, urlsplit(call.request.url).path)}"
            for call in self._calls
            if not call.used
        ]

    def _answer(self, request: Any, *, streamed: bool, asynchronous: bool) -> Any:
        """Return the response to a request of httpx, whose body has been read."""
        asked = read_request(
            request.method,
            str(request.url),
            {name.lower(): value for name, value in request.headers.items()},
            request.content,
        )
        with self._mutex:
            call = self._find(asked)
            call.used = True
        if not streamed:
            return response_from(call.form, request)
        give = self._agive if asynchronous else self._give
        return response_from(
            call.form, request, stream_class(library_of(request))(lambda: give(call))
        )

    def _give(self, call: _CallInFile) -> Any:
        yield from pieces_of(call.form)
        self._ended(call)

    async def _agive(self, call: _CallInFile) -> Any:
        for piece in pieces_of(call.form):
            yield piece
        self._ended(call)

    def _ended(self, call: _CallInFile) -> None:
        if "left" in call.form:
            raise RequestNotRecorded(
                f"{self._path}: {call.name} is a stream that its reader left before the end when "
                f"it was recorded; the program now reads on. {_anew(self._path)}"
            )

    # -- matching --------------------------------------------------------------------------------

    def _find(self, asked: ModelRequest) -> _CallInFile:
        free = [call for call in self._calls if not call.used]
        for part in (_identity, _elsewhere):
            wanted = canonical(part(asked))
            for call in free:
                if canonical(part(call.request)) == wanted:
                    return call
        self._refused = True
        raise RequestNotRecorded(self._not_found(asked, free))

    def _not_found(self, asked: ModelRequest, free: list[_CallInFile]) -> str:
        what = f"{asked.method} {asked.url}"
        if endpoint_of(asked.method, urlsplit(asked.url).path) is None:
            return (
                f"{what} is no request to a model, so no recorded run answers it. In a test, "
                "replace the function that makes it, or make it a @step of its own and replace that"
            )
        if not free:
            return f"{what}: all recorded calls in {self._path} are used. {_anew(self._path)}"
        parts = zip(ModelRequest._fields, _elsewhere(free[0].request), _elsewhere(asked))  # noqa: B905
        differs = next(name for name, one, two in parts if canonical(one) != canonical(two))
        return (
            f"{what}: no unused call in {self._path} is this request. The next one is "
            f"{self.unused[0]}, with another {differs}. {_anew(self._path)}"
        )


def _anew(path: str) -> str:
    return (
        "If the program is meant to ask this, record it anew: run it outside of the test, and "
        f"`stepwise export RUN --format model-calls -o {path}`"
    )


def _identity(request: ModelRequest) -> ModelRequest:
    return request._replace(streamed=False, hidden="")


def _elsewhere(request: ModelRequest) -> ModelRequest:
    """Return the identity without the server: a proxy, a test server or another region is equal."""
    url = urlsplit(request.url)
    path = f"{url.path}?{url.query}" if url.query else url.path
    return _identity(request)._replace(url=path)


# -- the file ------------------------------------------------------------------------------------


def _read(path: str) -> list[_CallInFile]:
    try:
        with open(path, "rb") as file:
            calls = json.load(file)["model_calls"]
        read = [_CallInFile(*each) for each in calls_in(calls)]
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}. {_anew(path)}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} is no export of a run with model calls ({type(error).__name__}: {error}). "
            f"Make one: `stepwise export RUN --format model-calls -o {path}`"
        ) from error
    if not read:
        raise ConfigurationError(
            f"{path} has no model calls: was stepwise.instrument() called in the program that "
            "made the run?"
        )
    return read
