"""A TCP proxy in front of PostgreSQL that loses replies, goes silent or hangs up, as networks do."""

import asyncio
from urllib.parse import urlsplit, urlunsplit

from listening import Listening, close
from tarsy_scoring_lab.process import free_port

LISTEN = b'LISTEN "'  # with the quote: a pool says UNLISTEN whenever a connection comes back
COMMIT = b"COMMIT;"


class DatabaseProxy(Listening):
    """
    Forwards to a server until a test makes it misbehave.

    `lose_commit_reply(text)`: the next transaction with `text` in one of its statements commits, but its
    client is cut off before the reply arrives. `silence_listeners()`: connections that LISTEN stay open and
    receive nothing more. `fall_silent()`: connections still open and stay open but carry nothing, as with a
    server that hangs, at once or from a statement on; `speak_again()` ends it. The port refuses connections
    until the proxy is entered.
    """

    def __init__(self, url: str) -> None:
        super().__init__(free_port())
        self._target = urlsplit(url)
        self._statement: bytes | None = None
        self._silent = False
        self.stands_still = False
        self._silencing_statement: bytes | None = None
        self.replies_lost = 0
        self.bytes_silenced = 0

    @property
    def url(self) -> str:
        """The database, by way of the proxy."""
        login = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    def lose_commit_reply(self, statement: str) -> None:
        self._statement = statement.encode()

    def silence_listeners(self) -> None:
        self._silent = True

    def fall_silent(self, at: str | None = None) -> None:
        self.stands_still = at is None
        self._silencing_statement = at.encode() if at else None

    def speak_again(self) -> None:
        self.stands_still = False

    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            connection = _Connection(self, client, to_client, server, to_server)
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.carry_requests())
                group.create_task(connection.carry_replies())
        finally:
            close(to_server)

    def swallows(self, sent: bytes) -> bool:
        """Whether the proxy drops this request; after the silencing statement it drops every request."""
        if self._silencing_statement is not None and self._silencing_statement in sent:
            self.fall_silent()
        return self.stands_still

    def loses_next_commit(self, sent: bytes, was_armed: bool) -> bool:
        """Whether the reply to this connection's next COMMIT is to be lost, now that it has sent this."""
        return was_armed or (self._statement is not None and self._statement in sent)

    def count_lost_reply(self) -> None:
        self._statement = None
        self.replies_lost += 1

    def silences(self, data: bytes, listens: bool) -> bool:
        if self.stands_still or (self._silent and listens):
            self.bytes_silenced += len(data)
            return True
        return False


class _Connection:
    """One client connection and its connection to the server."""

    def __init__(
        self,
        proxy: DatabaseProxy,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client, self._to_client = client, to_client
        self._server, self._to_server = server, to_server
        self._is_armed = False
        self._loses_next_reply = False
        self._listens = False

    async def carry_requests(self) -> None:
        while data := await self._client.read(65536):
            if self._proxy.swallows(data):
                continue
            self._listens |= LISTEN in data
            self._is_armed = self._proxy.loses_next_commit(data, self._is_armed)
            if self._is_armed and COMMIT in data:
                self._loses_next_reply = True
            self._to_server.write(data)
            await self._to_server.drain()
        raise ConnectionResetError

    async def carry_replies(self) -> None:
        while data := await self._server.read(65536):
            if self._loses_next_reply:  # the server has answered, so it has committed
                self._proxy.count_lost_reply()
                raise ConnectionResetError
            if not self._proxy.silences(data, self._listens):
                self._to_client.write(data)
                await self._to_client.drain()
        raise ConnectionResetError
