"""How a process stops: at the first signal in order, at the second at once."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger()

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for unfinished in (task, stop):
            unfinished.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
