"""The client that blocks."""

import time
from collections.abc import Callable, Iterator, Mapping
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


class Client:
    """
    Requests and reads scores over HTTP, and blocks meanwhile. Safe in several threads; close it, or use
    `with`.

    Methods raise the errors of `tarsy_scoring.client`. They repeat a request up to twice where that may help:
    after a 429 or 503, when the `Retry-After` is at most 30 s, and after a broken connection. `export`
    repeats nothing.

    Args:
        base_url: Address of the API without a path, such as `https://scoring.example`.
        token: Bearer token of the API; None: none is sent.
        timeout_s: Longest wait for a connection and for each part of an answer, in seconds.
        transport: Replaces the connection; for tests.
        sleep: Waits between requests; for tests.

    Raises:
        ValueError: `base_url` is no HTTP address.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = httpx2.Client(**options(base_url, token, timeout_s), transport=transport)
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._http.close()

    def request_score(
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
        """
        Request a score of a session that has ended.

        Without `force` this is the open score if there is one, else the latest completed one, else a new one.
        With `criteria` only scores under these criteria count.

        Args:
            force: Make a new score, even if there is a completed one.
            criteria: Name of criteria; default: those of the session's chain.
            reason: Stored with the request; at most 4,000 characters.
            reference: Text of the cause as it is known now, or an object with `text`, `source_url`,
                `provided_by` and `provided_at`. The judge judges against it; implies `force`.
            use_reference: False: judge without the stored reference of the session; implies `force`.
            idempotency_key: A repeat with the same key within 24 hours gets the first answer again. Default:
                a new one.

        Raises:
            Conflict: A score is open, and `force`, `criteria` or a reference requires another one.
            RequestRefused: The session has not ended (`status` 400), or an argument is wrong (422).
            NotFound: The session is unknown.
        """
        return self._run(
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

    def score(self, session_id: str) -> Score:
        """The latest completed score of a session, else its newest one. Raises: NotFound: it has none."""
        return self._run(exchange.once(parameters.score_of_session(session_id), Score))

    def get_score(self, score_id: UUID | str) -> Score:
        """One score by its id, whatever its status and purpose. Raises: NotFound: there is none."""
        return self._run(exchange.once(parameters.score_by_id(score_id), Score))

    def wait_for_score(self, of: str | Score, timeout_s: float = 600.0) -> Score:
        """
        Wait until a score, or the newest one of a session, has ended; it may have failed.

        Reads it after 1, 2 and 5 s, then every 10 s.

        Args:
            of: Id of a session, or a score.

        Raises:
            TimeoutError: It is still open after `timeout_s`. It continues without the caller.
            NotFound: The session has no score, or the score is gone.
        """
        return self._run(exchange.wait_for_score(of, timeout_s))

    def cancel(self, score_id: UUID | str) -> Score:
        """End a pending or running score without a total. Raises: Conflict: it has ended already."""
        return self._run(exchange.once(parameters.cancel(score_id), Score))

    def history(self, session_id: str) -> Iterator[Score]:
        """
        All scores of a session, newest first, read page by page. Raises: NotFound: the session is unknown.
        """
        cursor = None
        while True:
            page = self._run(exchange.once(parameters.history(session_id, cursor), HistoryPage))
            yield from page.scores
            if (cursor := page.next_cursor) is None:
                return

    def sessions(self, **filters: Unpack[SessionFilters]) -> Iterator[ListedSession]:
        """
        Known sessions that match all filters, newest first unless `sort` says otherwise, read page by page.
        """
        cursor = None
        while True:
            page = self._run(exchange.once(parameters.sessions(filters, cursor), SessionPage))
            yield from page.sessions
            if (cursor := page.next_cursor) is None:
                return

    def export(self, **filters: Unpack[ExportFilters]) -> Iterator[ExportedScore]:
        """
        Stream scores that match all filters, newest first; by default completed production scores.

        Holds a connection until the last score is read. Leaving the loop early closes it when the iterator is
        collected or closed.

        Raises:
            Unavailable: Too many exports are under way, or the stream broke off: what was read before is
                valid.
        """
        call = parameters.export(filters)
        lines = Lines()
        try:
            with self._http.stream(call.method, call.path, params=call.query) as response:
                if response.status_code != httpx2.codes.OK:
                    response.read()
                    if error := exchange.error_of(reply_of(response)):
                        raise error
                for chunk in response.iter_bytes():
                    for line in lines.feed(chunk):
                        yield exchange.read(line, ExportedScore)
        except httpx2.TransportError as error:
            raise unreachable(error, self._http.base_url) from error

    def _run(self, steps: Exchange[T]) -> T:
        got: Got = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            got = None
            if isinstance(step, Pause):
                self._sleep(step.seconds)
            else:
                got = self._send(step)

    def _send(self, call: Call) -> Got:
        try:
            response = self._http.request(
                call.method, call.path, params=call.query, json=call.body, headers=call.headers
            )
        except httpx2.TransportError as error:
            return unreachable(error, self._http.base_url)
        return reply_of(response)
