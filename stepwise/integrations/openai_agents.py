"""``StepwiseSession``: the conversations of the OpenAI Agents SDK in a store of stepwise.

    from stepwise.integrations.openai_agents import StepwiseSession

    await Runner.run(agent, "hello", session=StepwiseSession("customer-7"))

Inside a ``@workflow`` each operation is a step: a resumed run sees the conversation as of its first
request, and adds nothing twice.  :func:`stepwise.instrument` records the model calls.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from stepwise._calls.steps import step
from stepwise._identity.clients import identity
from stepwise._runs.run import current_step
from stepwise._runtime import settings
from stepwise._runtime.settings import public_url
from stepwise._workflows.host import SESSIONS, HostStore, LogEnd, LogIndex, SealedLog
from stepwise.errors import ConfigurationError, CorruptStoreError
from stepwise.stores import Store, open_store

__all__ = ["StepwiseSession"]

T = TypeVar("T")
Item = dict[str, Any]


class StepwiseSession:
    """The history of one conversation, kept in a store.

    Several processes may use one conversation.  Everything that is loaded is verified first.

    Args:
        session_id: of the conversation.
        store: a URL, a path or a store; ``None`` for the configured store.

    Attributes:
        session_settings: of the SDK; its ``limit`` applies if ``get_items`` gets none.

    Raises:
        ConfigurationError: the id is not a text, or is empty.
    """

    def __init__(self, session_id: str, store: str | Store | None = None) -> None:
        if not isinstance(session_id, str) or not session_id:
            raise ConfigurationError(
                f"session_id= is the name of a conversation, a text; not {session_id!r}"
            )
        self.session_id = session_id
        self.session_settings: Any = None
        self._where = store
        self._conversation: _Conversation | None = None
        self._mutex = threading.Lock()

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the newest items, the oldest of them first.

        Args:
            limit: the maximum number of items; ``None`` for all, or for the ``limit`` of
                ``session_settings``.

        Raises:
            CorruptStoreError: the conversation is damaged, or its end is missing.
        """
        limit = limit if limit is not None else getattr(self.session_settings, "limit", None)
        return await _get_items(self.session_id, limit, self)

    async def add_items(self, items: list[Item]) -> None:
        """Append items.

        Raises:
            ConfigurationError: an item is not JSON data.
            CorruptStoreError: the conversation is damaged, or its end is missing.
        """
        if items:
            await _add_items(self.session_id, items, self)

    async def pop_item(self) -> Item | None:
        """Remove the newest item, and return it; ``None`` if there is none.

        Raises:
            CorruptStoreError: the conversation is damaged, or its end is missing.
        """
        return await _pop_item(self.session_id, self)

    async def clear_session(self) -> None:
        """Delete all items, also from the store, and even if the conversation is damaged."""
        await _clear(self.session_id, self)

    async def _do(self, act: Callable[[_Conversation], T]) -> T:
        """Act on the conversation in another thread, since a store waits for the disk."""
        return await asyncio.to_thread(self._locked, act)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a checkpoint of a workflow: the store's place, without the items."""
        where = public_url(self._where) if isinstance(self._where, str) else self._where
        return {**self.__dict__, "_where": where, "_conversation": None, "_mutex": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _mutex=threading.Lock())

    def _locked(self, act: Callable[[_Conversation], T]) -> T:
        with self._mutex:
            if self._conversation is None:
                where = self._where if self._where is not None else settings.store()
                host = HostStore(open_store(where))
                log = SealedLog(host.store, host.seal, f"{SESSIONS.prefix}{self.session_id}")
                index = LogIndex(host.store, host.seal, SESSIONS)
                self._conversation = _Conversation(log, index, self.session_id)
            return act(self._conversation)


identity(StepwiseSession, fields=("session_id",))

# The parameter `session` is no part of the identity, since a resumed program makes a new object.


@step(name="session.get_items", ignore=("session",))
async def _get_items(session_id: str, limit: int | None, session: StepwiseSession) -> list[Item]:  # noqa: ARG001
    items = await session._do(_Conversation.read)
    return items if limit is None else items[max(0, len(items) - limit) :]


@step(name="session.add_items", ignore=("session",))
async def _add_items(session_id: str, items: list[Item], session: StepwiseSession) -> None:  # noqa: ARG001
    key = current_step().idempotency_key
    await session._do(lambda conversation: conversation.add(key, items))


@step(name="session.pop_item", ignore=("session",))
async def _pop_item(session_id: str, session: StepwiseSession) -> Item | None:  # noqa: ARG001
    key = current_step().idempotency_key
    return await session._do(lambda conversation: conversation.pop(key))


@step(name="session.clear_session", ignore=("session",))
async def _clear(session_id: str, session: StepwiseSession) -> None:  # noqa: ARG001
    key = current_step().idempotency_key
    await session._do(lambda conversation: conversation.clear(key))


class _Conversation:
    """The items of a conversation, according to the records of its log.

    A record is ``add`` with items, ``pop`` with the removed item, or ``clear``, which replaces all
    earlier records.  Each record has the key of its operation.  An operation that a kill cut off
    after its record was written is thus not repeated.
    """

    def __init__(self, log: SealedLog, index: LogIndex, name: str) -> None:
        self._log = log
        self._index = index
        self._is_listed = False
        self._name = name
        self._forget()

    def _forget(self) -> None:
        self._end = LogEnd()
        self._items: list[Item] = []
        self._done: dict[str, Item | None] = {}  # the results of operations, by key

    def read(self) -> list[Item]:
        self._refresh()
        return json.loads(json.dumps(self._items))  # type: ignore[no-any-return]  # the SDK changes its own

    def add(self, key: str, items: list[Item]) -> None:
        try:
            data = json.dumps(items, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"an item for session {self._name!r} is no JSON data ({error}): the Agents SDK "
                "gives dicts of texts, numbers, lists and dicts"
            ) from error
        self._write(lambda: (["add", key], data), key)

    def pop(self, key: str) -> Item | None:
        self._write(
            lambda: (["pop", key], json.dumps(self._items[-1]).encode()) if self._items else None,
            key,
        )
        return self._done.get(key)

    def clear(self, key: str) -> None:
        """Delete all items, even if the log is damaged."""
        with self._log.owned() as epoch:
            try:
                self._refresh()
            except CorruptStoreError:
                self._log.delete(epoch)
            if key not in self._done:
                self._list()
                end = self._log.append(epoch, self._end, [(["clear", key], b"")], instead=True)
                self._end = end
                self._items, self._done = [], {key: None}

    def _write(self, record: Callable[[], tuple[list[Any], bytes] | None], key: str) -> None:
        with self._log.owned() as epoch:
            self._refresh()
            made = record() if key not in self._done else None
            if made is None:
                return
            self._list()
            try:
                self._end = self._log.append(epoch, self._end, [made])
            except BaseException:
                self._forget()  # the record may or may not have been written
                raise
            self._apply(*made)

    def _list(self) -> None:
        """Add the conversation to the store's list of conversations."""
        if not self._is_listed and not self._index.has(self._name):
            self._index.add(self._name)
        self._is_listed = True

    def _refresh(self) -> None:
        """Read the records that this or another process has written since.

        Raises:
            CorruptStoreError: a record is damaged, or the last records are missing.
        """
        marked = self._log.newest_mark()  # first, since another process may write in between
        found = self._log.read(self._end)
        if found is None:
            self._forget()
            found = self._log.read(self._end)
        entries, end = found if found is not None else ([], LogEnd())
        lost = [each.number for each in entries if each.header is None]
        if lost or self._log.missing(end, marked):
            self._forget()
            where = f"record {lost[0]} is damaged" if lost else "its last records are missing"
            raise CorruptStoreError(
                f"the conversation {self._name!r} in {self._log.store.url} cannot be read: "
                f"{where}. Put the store back from a backup, or delete the conversation with "
                f"StepwiseSession({self._name!r}).clear_session()",
                path=self._log.store.url,
            )
        self._end = end
        for each in entries:
            self._apply(each.header, each.payload)

    def _apply(self, header: list[Any], payload: bytes) -> None:
        kind, key = header
        self._done[key] = None
        if kind == "add":
            self._items += json.loads(payload)
        elif kind == "pop":
            self._done[key] = json.loads(payload)
            self._items = self._items[:-1]
        else:
            self._items = []
