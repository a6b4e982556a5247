"""Recognizes a transaction pooler, which lets clients share the sessions of the server."""

import asyncpg

SESSION = "SELECT pg_backend_pid()"
TRIES = 3  # other clients may use the sessions meanwhile


async def shares_sessions(one: asyncpg.Connection, other: asyncpg.Connection) -> bool:
    """Whether a pooler gives the session of one open connection to another. Both must be idle."""
    session = await one.fetchval(SESSION)
    for _ in range(TRIES):
        async with other.transaction():  # a pooler takes the session that was used last
            if await other.fetchval(SESSION) == session or await one.fetchval(SESSION) != session:
                return True
    return False
