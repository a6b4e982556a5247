"""
The timeline source `tarsy-api`: reads sessions over TARSy's REST API, where the database is not reachable.

One session takes one call each for detail, timeline and trace, and one for each tool list. The answers
are turned into the rows that the database would give. The calls are no snapshot; a terminal session is not
expected to change between them.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import structlog

from tarsy_scoring import errors
from tarsy_scoring.config.secrets import secret_source
from tarsy_scoring.config.settings import DEFAULT_MAX_SESSION_BYTES, Settings
from tarsy_scoring.postgres.moments import moment
from tarsy_scoring.tarsy.rows import assemble
from tarsy_scoring.timeline import model
from tarsy_scoring.timeline.computing import compute
from tarsy_scoring.timeline.parsing import found_session, model_names
from tarsy_scoring.timeline.text import storable_json

log = structlog.get_logger()

_BASE = "/api/v1"
_PAGE = 100  # TARSy's largest page
_RECENT_SESSIONS = 10
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_CALLS_AT_ONCE = 16  # TARSy itself has 25 connections to the database
# TARSy filters by creation time and not by end time. Sessions that ran for longer than this are not listed.
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Row(dict[str, Any]):
    """A JSON object that is read like a database row: an absent key is null."""

    def __missing__(self, key: str) -> None:
        return None


class TarsyApi:
    """
    Reads sessions with a separate connection pool, opened at the first use.

    Sends GET requests only. Redirects are not followed: the login page of a proxy must not look like an
    answer.

    Args:
        url: TARSy's address, with or without `/api/v1` at the end.
        token: Returns the bearer token for a call, or "". Asked for every call: projected tokens rotate. A
            ConfigurationError from it makes the source unavailable.
        ca_file: CA of TARSy's API; None: the system's CAs.
        timeout_s: For one session, connecting included.
        max_session_bytes: Bound of all answers about one session together.

    Raises:
        OSError, ssl.SSLError: `ca_file` cannot be read.
    """

    may_change = True
    reads_at_once = _CALLS_AT_ONCE // 2  # a session takes two calls at once, and more for tool lists

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str] = str,
        ca_file: Path | None = None,
        timeout_s: float = 60.0,
        max_session_bytes: int = DEFAULT_MAX_SESSION_BYTES,
    ) -> None:
        self._base = url.rstrip("/").removesuffix(_BASE) + _BASE
        self._where = urlsplit(url).netloc
        self._token = token
        self._timeout_s = timeout_s
        self._max_session_bytes = max_session_bytes
        # Connects at the first use.
        limits = httpx2.Limits(max_connections=_CALLS_AT_ONCE)
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file), limits=limits, timeout=None, trust_env=False
        )

    async def fetch_timeline(self, session_id: str) -> model.Timeline:
        """See `TimelineSource`."""
        async with self._within_deadline(f"session {session_id}"):
            budget = _Budget(self._max_session_bytes, session_id)
            session = await self._ended_session(session_id, budget)
            events, trace = await _together(
                self._get(_path(session_id, "timeline"), budget),
                self._get(_path(session_id, "trace"), budget),
            )
            if "stages" not in trace:
                raise KeyError("stages")
            interactions = _calls(trace, "mcp_interactions")
            await _together(
                *(
                    self._add_tools(session_id, i, budget)
                    for i in interactions
                    if i["interaction_type"] == "tool_list"
                )
            )
            return await compute(budget.spent_bytes, partial(_timeline, session, events, trace, interactions))

    async def find_session(self, session_id: str) -> model.FoundSession:
        """See `TimelineSource`."""
        async with self._within_deadline(f"session {session_id}"):
            budget = _Budget(self._max_session_bytes, session_id)
            return found_session(await self._ended_session(session_id, budget), session_id)

    async def finished_sessions(self, since: datetime) -> AsyncIterator[model.FoundSession]:
        """
        See `TimelineSource`.

        A session that ran for longer than `LONGEST_SESSION` is not listed. If sessions are deleted meanwhile,
        others may be left out.
        """
        begins = since - model.LONGEST_SESSION if since > _LONG_AGO + model.LONGEST_SESSION else _LONG_AGO
        for page in count(1):
            listed = await self._listed(sort_order="asc", start_date=begins.isoformat(), page=page)
            for session in listed:
                ended = moment(session["completed_at"]) or moment(session["created_at"])
                if ended is not None and ended >= since:
                    yield found_session(session, session["id"])
            if len(listed) < _PAGE:
                return

    async def check(self) -> None:
        """See `TimelineSource`."""
        await self._listed(sort_order="desc", page=1, page_size=1)

    async def recent_agent_models(self) -> frozenset[str]:
        """See `TimelineSource`."""
        newest = await self._listed(sort_order="desc", page=1, page_size=_RECENT_SESSIONS)
        async with self._within_deadline("the models of recent sessions"):
            budgets = [(_path(s["id"]), _Budget(self._max_session_bytes, s["id"])) for s in newest]
            sessions = await asyncio.gather(*(self._get(*b) for b in budgets), return_exceptions=True)
        found = [s for s in sessions if isinstance(s, dict)]
        stages = [stage for s in found for stage in s.get("stages") or ()]
        judged = {"stages": [s for s in stages if s.get("stage_type") in model.SHOWN_STAGE_TYPES]}
        return frozenset(name.lower() for e in _executions(judged) for name in model_names(e))

    async def close(self) -> None:
        """See `TimelineSource`."""
        await self._http.aclose()

    async def _ended_session(self, session_id: str, budget: "_Budget") -> Row:
        session = _row(await self._get(_path(session_id), budget, session_id), "id", "status")
        model.require_terminal(session_id, session["status"])
        return session

    async def _add_tools(self, session_id: str, interaction: Row, budget: "_Budget") -> None:
        """Fetch the content of a tool list, which the trace only names."""
        detail = _row(await self._get(_path(session_id, "trace", "mcp", str(interaction["id"])), budget))
        if not detail:
            raise TypeError("it is empty")
        interaction["available_tools"] = detail["available_tools"]

    async def _listed(self, **query: str | int) -> list[Row]:
        every: dict[str, str | int] = {
            "sort_by": "created_at",
            "page_size": _PAGE,
            "status": ",".join(sorted(model.TERMINAL_STATUSES)),
        }
        async with self._within_deadline("a page of sessions"):
            answer = await self._get("/sessions", _Budget(_MAX_ANSWER_BYTES), query=every | query)
            return [_row(session, "id", "status") for session in answer["sessions"]]

    @asynccontextmanager
    async def _within_deadline(self, what: str) -> AsyncIterator[None]:
        """Bound the calls inside; every failure of theirs becomes `TimelineUnavailable`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except errors.ConfigurationError as error:  # the token's file cannot be read
            raise errors.CallerRefused(str(error)) from None
        except TimeoutError:
            raise errors.TimelineUnavailable(
                f"reading {what} from TARSy's API at {self._where} took longer than {self._timeout_s:g} s"
            ) from None
        except (httpx2.HTTPError, OSError) as error:
            # The library's message may quote headers, so only the type is shown.
            raise errors.TimelineUnavailable(
                f"cannot reach TARSy's API at {self._where} to read {what} ({type(error).__name__}): check "
                "SCORING_TIMELINE_API_URL and SCORING_TIMELINE_API_CA_FILE"
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise errors.TimelineUnavailable(
                f"the answer of TARSy's API at {self._where} for {what} does not match its contract"
            ) from error

    async def _get(
        self,
        path: str,
        budget: "_Budget",
        session_id: str | None = None,
        query: dict[str, str | int] | None = None,
    ) -> Any:
        """
        Call the API once and decode the JSON answer.

        Raises:
            SessionNotFound: TARSy's own 404 for `session_id`.
            CallerRefused: 401, 403, 429, or a login page.
            TimelineUnavailable: Any other status.
            SessionTooLarge, TimelineUnavailable: See `_Budget.read`.
            httpx2.HTTPError, ValueError: See `_within_deadline`.
        """
        token = self._token()
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        async with self._http.stream("GET", self._base + path, params=query, headers=headers) as response:
            if response.status_code == 200:
                content = await budget.read(response)
                return await compute(len(content), lambda: storable_json(json.loads(content)))
            status = response.status_code
            if status == 404 and session_id is not None and _is_tarsys(await budget.read(response)):
                raise errors.SessionNotFound(f"TARSy has no session {session_id}")
            if status in (401, 403, 429) or 300 <= status < 400:
                raise errors.CallerRefused(
                    f"TARSy's API at {self._where} refuses the caller (HTTP {status}): check "
                    "SCORING_TIMELINE_API_TOKEN, the limit for this caller, and that the URL is the one for "
                    "programs, not the one behind a login page"
                )
            raise errors.TimelineUnavailable(
                f"TARSy's API at {self._where} answered HTTP {status}: check SCORING_TIMELINE_API_URL"
            )


def open_tarsy_api(settings: Settings) -> model.TimelineSource:
    """
    Build the source that the settings describe; connects to nothing yet.

    Raises:
        ConfigurationError: The token or the CA cannot be read.
    """
    url, token = settings.timeline_api_url, secret_source(settings, "timeline_api_token")
    assert url is not None
    if token() and url.startswith("http:"):
        log.warning("settings.token_in_clear", variable="SCORING_TIMELINE_API_URL", advice="use https")
    try:
        return TarsyApi(
            url,
            token=token,
            ca_file=settings.timeline_api_ca_file,
            max_session_bytes=settings.max_session_bytes,
        )
    except OSError as error:
        raise errors.ConfigurationError(
            f"SCORING_TIMELINE_API_CA_FILE: no certificates in {settings.timeline_api_ca_file}: "
            f"{error.strerror}"
        ) from None


async def _together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all calls; after a failure the others are cancelled, so that none keeps a connection."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the first failure caused the cancellation of the others
    return [task.result() for task in tasks]


class _Budget:
    """
    Bounds the bytes of all answers of one kind together.

    Args:
        session_id: The session that the answers are about; None: no single one.
    """

    def __init__(self, limit_bytes: int, session_id: str | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._session_id = session_id
        self.spent_bytes = 0

    async def read(self, response: httpx2.Response) -> bytearray:
        """
        Read an answer.

        Raises:
            SessionTooLarge: The answers about the session exceed the limit.
            TimelineUnavailable: An answer about no single session exceeds it.
        """
        found = bytearray()
        async for chunk in response.aiter_bytes(_CHUNK_BYTES):
            found += chunk
            self.spent_bytes += len(chunk)
            if self.spent_bytes > self._limit_bytes:
                if self._session_id is not None:
                    raise errors.SessionTooLarge(self._session_id, self.spent_bytes, self._limit_bytes)
                raise errors.TimelineUnavailable(
                    f"an answer of TARSy's API is larger than {self._limit_bytes >> 20} MiB"
                )
        return found


def _is_tarsys(body: bytearray) -> bool:
    """Whether a 404 is TARSy's answer about the session, not that of a proxy, router or other service."""
    # Any router answers `Not Found` alone for an unknown path.
    return re.search(rb'"message": *"[a-z ]+ not found', body) is not None


# --- JSON -> rows ---------------------------------------------------------------------------------------


def _path(session_id: str, *rest: str) -> str:
    return "/".join(("/sessions", *(quote(part, safe="") for part in (session_id, *rest))))


def _row(source: dict[str, Any], *texts: str, **more: Any) -> Row:
    """
    Turn a JSON object into a row with the values of `more` added.

    Raises:
        TypeError: The source is no object, or a key of `texts` holds no text.
    """
    row = Row({**source, **more})
    for name in texts:
        if not isinstance(row[name], str):
            raise TypeError(f"{name} is {type(row[name]).__name__}")
    return row


def _executions(detail: dict[str, Any]) -> list[Row]:
    """Every execution with the stage's id; the API nests sub-agents in their parent."""
    found: list[Row] = []

    def add(stage_id: str, executions: Iterable[dict[str, Any]]) -> None:
        for execution in executions:
            found.append(_row(execution, stage_id=stage_id))
            add(stage_id, execution.get("sub_agents") or ())

    for stage in detail.get("stages") or ():
        # The trace uses the other name.
        add(stage.get("id") or stage["stage_id"], stage.get("executions") or ())
    return found


def _calls(trace: dict[str, Any], kind: str) -> list[Row]:
    """The interactions of one kind, each with the execution's id."""
    return [_row(i, execution_id=e["execution_id"]) for e in _executions(trace) for i in e[kind] or ()]


def _timeline(
    session: Row, events: list[dict[str, Any]], trace: dict[str, Any], interactions: list[Row]
) -> model.Timeline:
    if not isinstance(events, list):
        raise TypeError("the timeline is no list")
    alert_data = "" if session["alert_data"] is None else session["alert_data"]
    named = ("stage_name", "stage_type", "status")
    stages = [_row(stage, *named, stage_id=stage["id"]) for stage in session["stages"] or ()]
    executions = [_row(e, "agent_name", "status") for e in _executions(session)]
    texts = ("event_type", "status", "content")
    timeline_events = [_row(e, *texts, event_id=e["id"], created_at=moment(e["created_at"])) for e in events]
    return assemble(
        _row(session, "alert_data", session_id=session["id"], alert_data=alert_data),
        stages=sorted(stages, key=lambda s: (s["stage_index"], s["stage_id"])),
        agent_executions=sorted(executions, key=lambda e: (e["agent_index"], e["execution_id"])),
        timeline_events=sorted(
            timeline_events, key=lambda e: (e["sequence_number"], e["created_at"] or _LONG_AGO, e["event_id"])
        ),
        mcp_interactions=sorted(
            interactions, key=lambda i: (i["server_name"], moment(i["created_at"]) or _LONG_AGO, i["id"])
        ),
        llm_interactions=_calls(trace, "llm_interactions"),
    )
