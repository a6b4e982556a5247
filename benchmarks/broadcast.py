"""
A bare broadcast: a WebSocket server that sends made events to all its clients, and does nothing else.

`benchmarks.gateway` measures it with the same clients, as the best that Python's `websockets` library does here.
"""

import asyncio
import contextlib
import json
import sys
import time
from typing import Any

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosedError

# Fields of `scoring.completed` besides those of every event, at their usual length.
COMPLETED = {
    "total_score": 67,
    "outcome": "pass",
    "criteria": "investigation-methodology",
    "criteria_hash": "0" * 64,
    "judge_fingerprint": "1" * 64,
    "failure_tags": ["premature_conclusion", "unverified_claim"],
    "flags": [],
    "usage": {"input_tokens": 24_000, "cached_input_tokens": 20_000, "output_tokens": 900, "cost_usd": 0.0123},
    "score_triggered_by": "auto",
    "alert_type": "PodCrashLoop",
    "labels": {"guidance": "v2"},
}


async def send(clients: set[ServerConnection], rate: int, seconds: int) -> None:
    """Broadcast `rate` events a second; after a delay it catches up."""
    began = time.monotonic()
    for n in range(rate * seconds):
        event: dict[str, Any] = {"type": "scoring.completed", "position": n + 1, "timestamp_us": time.time_ns() // 1000}
        broadcast(clients, json.dumps(event | COMPLETED, separators=(",", ":")))
        await asyncio.sleep(max(0.0, began + (n + 1) / rate - time.monotonic()))


async def main(rate: int, seconds: int) -> None:
    """Serve on a free port, print it, and broadcast after a line on stdin; ends with another line."""
    clients: set[ServerConnection] = set()

    async def attend(client: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosedError):  # the clients end without a close frame
            async for _ in client:
                clients.add(client)
                await client.send('{"type":"subscription.confirmed"}')

    async with serve(attend, "127.0.0.1", 0, compression=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await send(clients, rate, seconds)
        print("sent", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
