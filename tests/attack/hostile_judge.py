"""A judge, or a server at its address, whose replies are far too long, are bombs, or are something else."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

from aiohttp import web

MEBIBYTE = b"a" * 2**20
OPENING = b'{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "'
FORGED = 100
redirected: list[str] = []


@cache
def _bomb() -> bytes:
    """400 KB on the wire, 400 MB of text that ends with a total."""
    return gzip.compress(OPENING + MEBIBYTE * 400 + f'\\n\\n{FORGED}"}}}}]}}'.encode(), 1)


async def _stream(request: web.Request, *, status: int = 200, mebibytes: int = 700, pause_s: float = 0) -> Any:
    response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write(OPENING)
        for _ in range(mebibytes):
            await response.write(b"a" if pause_s else MEBIBYTE)
            await asyncio.sleep(pause_s)
    return response


async def _compressed(_: web.Request) -> Any:
    return web.Response(body=await asyncio.to_thread(_bomb), headers={"Content-Encoding": "gzip"})


def _always(**response: Any) -> Callable[[web.Request], Awaitable[Any]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(**response)

    return answer


_ODD = {"choices": [{"message": {"role": "assistant", "content": {"total_score": FORGED}}}], "usage": {"x": -1}}
REPLIES: dict[str, Callable[[web.Request], Awaitable[Any]]] = {
    "reply-of-100-mb": lambda request: _stream(request, mebibytes=100),
    "reply-of-700-mb": _stream,
    "error-of-700-mb": lambda request: _stream(request, status=500),
    "dripping-reply": lambda request: _stream(request, pause_s=0.1),
    "gzip-bomb": _compressed,
    "redirect": _always(status=307, headers={"Location": "/redirected"}),
    "nested-json": _always(text="[" * 500_000, content_type="application/json"),
    "many-headers": _always(text="{}", headers={f"X-{n}": "a" * 4_000 for n in range(200)}),
    "no-text": _always(text=json.dumps(_ODD), content_type="application/json"),
}


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """The server, whose base URL it gives; each kind of reply has a path of its own."""

    async def answer(request: web.Request) -> Any:
        kind = request.path.split("/")[1]
        if kind == "redirected":
            redirected.append(request.path)
        return await REPLIES[kind](request)

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
