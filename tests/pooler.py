"""A transaction pooler in front of PostgreSQL, as PgBouncer is: each transaction gets any server connection."""

import asyncio
import struct
from urllib.parse import urlsplit, urlunsplit

from listening import Listening, close

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
ASKS_NOTHING = (0, 12)  # AuthenticationOk, AuthenticationSASLFinal
END_OF_TRANSACTION = b"Z\x00\x00\x00\x05I"

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPooler(Listening):
    """
    Shares server connections between clients, one transaction at a time; the one used last is used next.

    Clients log in at the server, each with a connection of its own, which then belongs to all. Clients get made-up
    process ids. State of a session stays with its server connection.

    Args:
        servers: Server connections that are kept.
        keeps_sessions: Give each client its server connection until it leaves, as a session pooler does.
    """

    def __init__(self, url: str, servers: int, *, keeps_sessions: bool = False) -> None:
        super().__init__()
        self._keeps_sessions = keeps_sessions
        self._target = urlsplit(url)
        self._servers = servers
        self._idle: asyncio.LifoQueue[Peer] = asyncio.LifoQueue()
        self._kept = 0

    @property
    def url(self) -> str:
        """The database, by way of the pooler."""
        login = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await self._log_in(client, to_client)
        linked: Peer | None = None
        replying: asyncio.Task[None] | None = None

        async def reply(server: Peer) -> None:
            nonlocal linked
            while message := await _message(server[0]):
                if message == END_OF_TRANSACTION and not self._keeps_sessions:
                    linked = None
                    self._idle.put_nowait(server)
                to_client.write(message)
                if linked is None:
                    return

        try:
            while (message := await _message(client))[:1] != b"X":
                if linked is None:
                    linked = await self._idle.get()
                    replying = asyncio.create_task(reply(linked))
                linked[1].write(message)
        finally:
            if replying is not None:
                replying.cancel()
            if linked is not None:
                self._kept -= 1
                close(linked[1])

    async def _log_in(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._target.hostname, self._target.port)
        start = await _body(client, b"")
        if start == SSL_REQUEST:
            to_client.write(b"N")
            start = await _body(client, b"")
        to_server.write(start)
        while (message := await _message(server)) != END_OF_TRANSACTION:
            kind = message[:1]
            to_client.write(message[:5] + bytes(7) + b"\x01" if kind == b"K" else message)
            if kind == b"R" and struct.unpack("!i", message[5:9])[0] not in ASKS_NOTHING:
                to_server.write(await _message(client))
        if self._kept < self._servers:
            self._kept += 1
            self._idle.put_nowait((server, to_server))
        else:
            close(to_server)
        to_client.write(message)


async def _message(reader: asyncio.StreamReader) -> bytes:
    return await _body(reader, await reader.readexactly(1))


async def _body(reader: asyncio.StreamReader, kind: bytes) -> bytes:
    length = await reader.readexactly(4)
    return kind + length + await reader.readexactly(struct.unpack("!i", length)[0] - 4)
