"""The client for asyncio. `synchronous.py` describes each method."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from uuid import UUID

import httpx2

from tarsy_scoring.client import exchange, parameters
from tarsy_scoring.client.exchange import Exchange, Got, Lines, Pause
from tarsy_scoring.client.models import ExportedScore, HistoryPage, ListedSession, Score, SessionPage
from tarsy_scoring.client.parameters import Call, ExportFilters, SessionFilters
from tarsy_scoring.client.transport import options, reply_of, unreachable

T = TypeVar("T")


class AsyncClient:
    """
    As `Client`, for asyncio; the methods that read many scores are asynchronous iterators.

    Safe for concurrent use in one event loop; close it, or use `async with`. The API may have done what a
    cancelled method asked for: repeat `request_score` under the same `idempotency_key` to get its answer.

    Raises:
        ValueError: `base_url` is no HTTP address.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._http = httpx2.AsyncClient(**options(base_url, token, timeout_s), transport=transport)
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        await self._http.aclose()

    async def request_score(
        self,
        session_id: str,
        *,
        force: bool = False,
        criteria: str | None = None,
        reason: str | None = None,
        reference: str | Mapping[str, Any] | None = None,
        use_reference: bool = True,
        idempotency_key: str | None = None,
    ) -> Score:
        """As `Client.request_score`."""
        return await self._run(
            exchange.once(
                parameters.request_score(
                    session_id,
                    force=force,
                    criteria=criteria,
                    reason=reason,
                    reference=reference,
                    use_reference=use_reference,
                    idempotency_key=idempotency_key,
                ),
                Score,
            )
        )

    async def score(self, session_id: str) -> Score:
        """As `Client.score`."""
        return await self._run(exchange.once(parameters.score_of_session(session_id), Score))

    async def get_score(self, score_id: UUID | str) -> Score:
        """As `Client.get_score`."""
        return await self._run(exchange.once(parameters.score_by_id(score_id), Score))

    async def wait_for_score(self, of: str | Score, timeout_s: float = 600.0) -> Score:
        """As `Client.wait_for_score`."""
        return await self._run(exchange.wait_for_score(of, timeout_s))

    async def cancel(self, score_id: UUID | str) -> Score:
        """As `Client.cancel`."""
        return await self._run(exchange.once(parameters.cancel(score_id), Score))

    async def history(self, session_id: str) -> AsyncIterator[Score]:
        """As `Client.history`."""
        cursor = None
        while True:
            page = await self._run(exchange.once(parameters.history(session_id, cursor), HistoryPage))
            for score in page.scores:
                yield score
            if (cursor := page.next_cursor) is None:
                return

    async def sessions(self, **filters: Unpack[SessionFilters]) -> AsyncIterator[ListedSession]:
        """As `Client.sessions`."""
        cursor = None
        while True:
            page = await self._run(exchange.once(parameters.sessions(filters, cursor), SessionPage))
            for session in page.sessions:
                yield session
            if (cursor := page.next_cursor) is None:
                return

    async def export(self, **filters: Unpack[ExportFilters]) -> AsyncIterator[ExportedScore]:
        """As `Client.export`; close the iterator (`aclose`) to leave it early."""
        call = parameters.export(filters)
        lines = Lines()
        try:
            async with self._http.stream(call.method, call.path, params=call.query) as response:
                if response.status_code != httpx2.codes.OK:
                    await response.aread()
                    if error := exchange.error_of(reply_of(response)):
                        raise error
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        yield exchange.read(line, ExportedScore)
        except httpx2.TransportError as error:
            raise unreachable(error, self._http.base_url) from error

    async def _run(self, steps: Exchange[T]) -> T:
        got: Got = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            got = None
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
            else:
                got = await self._send(step)

    async def _send(self, call: Call) -> Got:
        try:
            response = await self._http.request(
                call.method, call.path, params=call.query, json=call.body, headers=call.headers
            )
        except httpx2.TransportError as error:
            return unreachable(error, self._http.base_url)
        return reply_of(response)
