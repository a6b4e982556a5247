"""
A bare API: one statement and its JSON as the answer, with uvicorn and asyncpg and nothing else.

`benchmarks.api` and `benchmarks.requests` send it the same load as the service, in turns: it needs the least that
HTTP and PostgreSQL can take on this machine at that time.
"""

import socket
import sys

import asyncpg
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

READ = "SELECT to_jsonb(s)::text FROM session_scores s WHERE session_id = $1 ORDER BY created_at DESC LIMIT 1"
CREATE = "CREATE TABLE bare_requests (session_id text, at timestamptz DEFAULT now())"
WRITE = "INSERT INTO bare_requests (session_id) VALUES ($1) RETURNING to_jsonb(bare_requests)::text"
CONNECTIONS = 16  # as the service has by default


async def main(url: str) -> None:
    """Serve on a free port, and print its address. A POST needs the table of `CREATE`."""
    async with asyncpg.create_pool(url, min_size=0, max_size=CONNECTIONS) as pool:

        async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
            session_id = scope["path"].split("/")[-2]
            body = (await pool.fetchval(WRITE if scope["method"] == "POST" else READ, session_id)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
            print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
            config = uvicorn.Config(answer, http="h11", lifespan="off", log_config=None, access_log=False)
            await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
