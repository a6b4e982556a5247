"""A server that records what targets of notifications get, and answers as a test wants."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Answers 200, or the next of `answers`: a status, or a status and headers."""

    url: str = ""
    answers: deque[int | tuple[int, dict[str, str]]] = field(default_factory=deque)
    received: list[Received] = field(default_factory=list)
    silence: asyncio.Event | None = None  # set it to let a silent server answer

    async def take(self, request: web.Request) -> web.Response:
        self.received.append(Received(request.path_qs, dict(request.headers), await request.read()))
        if self.silence is not None:
            await self.silence.wait()
        answer = self.answers.popleft() if self.answers else 200
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        return web.Response(status=status, headers=headers, text="SECRET-OF-THE-ANSWER")

    @property
    def documents(self) -> list[Any]:
        return [r.document for r in self.received]


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        receiver.url = f"http://127.0.0.1:{port}"
        yield receiver
    finally:
        await runner.cleanup()
