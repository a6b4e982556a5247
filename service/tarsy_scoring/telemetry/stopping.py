"""How a process stops: at the first signal in order, at the second at once; and how parts of it end."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import structlog

log = structlog.get_logger()

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Closable(Protocol):
    async def close(self) -> None: ...


async def run_until_signalled(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """
    Run `main` with an event that the first SIGTERM or SIGINT sets; the second signal cancels `main`.

    Returns when `main` returns, and raises what it raises.
    """
    stopping = asyncio.Event()
    task = asyncio.ensure_future(main(stopping))
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("service.stopping_now", signal=number.name)
            task.cancel()
        else:
            log.info("service.stopping", signal=number.name)
            stopping.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def unless_stopped(work: Coroutine[Any, Any, None], stopping: asyncio.Event) -> bool:
    """
    Run `work` until it is done or `stopping` is set, which cancels it. Raises what `work` raises.

    Returns:
        Whether the work was done.
    """
    task = asyncio.create_task(work)
    stop = asyncio.create_task(stopping.wait())
    async with cancelling(task, stop):
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True


@asynccontextmanager
async def closing(*things: _Closable) -> AsyncIterator[None]:
    """Close `things` one after the other when the block ends."""
    try:
        yield
    finally:
        for thing in things:
            await thing.close()


@asynccontextmanager
async def cancelling(*tasks: asyncio.Future[Any]) -> AsyncIterator[None]:
    """Cancel `tasks` when the block ends, and wait until they have ended; ignores their errors."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
