"""Base of the TCP proxies of tests: a server on loopback whose connections end with it."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Self


class Listening(ABC):
    """
    Server that listens inside its `async with` block, on the same port each time it is entered.

    Args:
        port: 0 takes a port that is free when the block is first entered.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.carry(client, to_client)
        except (OSError, EOFError, ExceptionGroup, asyncio.CancelledError):
            pass  # one side hung up, and with it the other; or the test is over
        finally:
            close(to_client)
            self._tasks.discard(task)

    @abstractmethod
    async def carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Carry one connection until either side closes it."""


async def join(
    client: asyncio.StreamReader, to_client: asyncio.StreamWriter, host: str | None, port: int | None
) -> None:
    """Carry bytes between a client and a server until either closes the connection."""
    server, to_server = await asyncio.open_connection(host, port)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(client, to_server))
            group.create_task(_pump(server, to_client))
    finally:
        close(to_server)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    raise EOFError


def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection that may be broken."""
    with suppress(OSError):
        writer.close()
