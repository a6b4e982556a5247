"""
Which sessions requested which tools: the latest score of every session, read once into columns.

A session is a number, its index in the columns, so counts over many spellings, chains and days need no
further query.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from time import monotonic
from typing import Any

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.missing_tools.tool_year import Group, Year
from tarsy_scoring.postgres.analytic_reads import READ_S, ReadTooSlow
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.latest import NEWEST_FIRST, is_completed
from tarsy_scoring.records.analytics import CALLED, LATEST_CALLERS, MOST_SPELLINGS, SELECTED, Selection, ToolSort
from tarsy_scoring.records.session_list import CUSTOM_PLAN

# Sorts and hashes here exceed PostgreSQL's default of a few MB per step; two of them run at once.
ROOM = "SET LOCAL work_mem = '32MB'"

MEASURED_DAYS = 365  # older requests are about other agents than today's
FRESH_S, OLDEST_S = 30.0, 600.0  # see `ToolRequestsCache`
KEPT_FROM = 10_000  # sessions: fewer are read in some 30 ms and are not cached
# Sessions of one read, and of all cached results together; 500,000 take about 110 MB. The API's default memory
# limit of 512 MiB has room for the cache, one read, and everything else.
MOST_SESSIONS = 500_000


def _statement(latest: str) -> str:
    """
    SQL of the sessions by chain, judge and set of tools, and of each name with the sessions that requested it.

    $1 chain, $2 criteria, $3 and $4 the time that is read; $5 and $6 the time that counts for the selection;
    $7 `points_lost` to rank names by points instead of sessions; $8 the maximum number of names; $9 the maximum
    number of sessions. What scores flagged `tampering_suspected` request does not count: text of the session may
    have asked for it.
    """
    return f"""
WITH latest AS MATERIALIZED (
  SELECT (row_number() OVER ())::int - 1 AS n, s.score_id, s.chain_id, s.judge_fingerprint, s.tools_hash,
    100 - s.total_score AS lost, (s.completed_at AT TIME ZONE 'UTC')::date - '0001-01-01'::date + 1 AS day,
    ($5::timestamptz IS NULL OR s.completed_at >= $5) AND ($6::timestamptz IS NULL OR s.completed_at < $6) AS counts
  FROM {latest} LIMIT $9),
requests AS (
  SELECT t.tool_name, array_agg(l.n) AS sessions, sum(bool_or(l.counts)::int) OVER () AS names
  FROM latest l JOIN {{schema}}.score_missing_tools t USING (score_id)
  WHERE l.score_id NOT IN (SELECT f.score_id FROM {{schema}}.session_scores f
    WHERE f.flags @> '["tampering_suspected"]' AND {is_completed("f")})
  GROUP BY t.tool_name
  ORDER BY CASE WHEN $7 = 'points_lost' THEN coalesce(sum(l.lost) FILTER (WHERE l.counts), 0)
    ELSE count(*) FILTER (WHERE l.counts) END DESC, count(*) DESC, t.tool_name LIMIT $8)
SELECT NULL AS tool_name, NULL AS names, g.chain_id, g.judge_fingerprint, t.tools_hash, g.sessions, g.days, g.lost
FROM (SELECT chain_id, judge_fingerprint, tools_hash, array_agg(n) AS sessions, array_agg(day) AS days,
        array_agg(CASE WHEN counts THEN coalesce(lost, 0) END) AS lost
      FROM latest GROUP BY chain_id, judge_fingerprint, tools_hash) g
LEFT JOIN {{schema}}.tool_lists t USING (tools_hash)
UNION ALL SELECT tool_name, names, NULL, NULL, NULL, sessions, NULL, NULL FROM requests
"""


REQUESTS_OF_CHAIN = _statement(f"{{schema}}.session_scores s WHERE {SELECTED}")
# The same for all chains: reads most scores, in the order of an index that contains all of these columns.
REQUESTS_OF_ALL = _statement(
    f"""(SELECT DISTINCT ON (session_id) session_id, completed_at, score_id, chain_id, criteria, judge_fingerprint,
          tools_hash, total_score
        FROM {{schema}}.session_scores c WHERE {is_completed("c")}
        ORDER BY session_id, {NEWEST_FIRST}) s
  WHERE ($1::text IS NULL OR s.chain_id = $1) AND ($2::text IS NULL OR s.criteria = $2)
    AND ($3::timestamptz IS NULL OR s.completed_at >= $3) AND ($4::timestamptz IS NULL OR s.completed_at < $4)"""
)


@dataclass(frozen=True, slots=True)
class ToolRequests:
    """
    Sessions, and the tools they requested.

    Args:
        as_of: When the scores were read.
        lost: 100 minus the total (0 without a total) of each session of the selection; None: outside the
            selection, read only to measure demand.
        asked_in: Sessions by name, in the judges' spelling.
        names_left_out: Number of names that sessions of the selection requested and that are not in
            `asked_in`.
        called: Tools called by the agents of the sessions judged last.
    """

    as_of: datetime
    year: Year
    lost: Sequence[int | None]
    asked_in: Mapping[str, frozenset[int]]
    names_left_out: int
    called: frozenset[str]

    def spellings(self) -> dict[str, int]:
        """Number of sessions of the selection that requested each name; 0: only sessions outside it did."""
        counted = {n for n, lost in enumerate(self.lost) if lost is not None}
        return {name: len(counted & sessions) for name, sessions in self.asked_in.items()}

    def sessions_of(self, names: Iterable[str]) -> frozenset[int]:
        """The sessions that requested any of these names."""
        none = frozenset[int]()
        return none.union(*(self.asked_in.get(name, none) for name in names))

    def by_chain(self, sessions: Iterable[int]) -> list[dict[str, Any]]:
        """Sums over those in the selection: rows of `chain_id`, `sessions`, `points_lost`."""
        sums: dict[str | None, list[int]] = {}
        for n in sessions:
            if (lost := self.lost[n]) is not None:
                found = sums.setdefault(self.year.group_of(n).chain, [0, 0])
                found[0] += 1
                found[1] += lost
        return [{"chain_id": c, "sessions": count, "points_lost": points} for c, (count, points) in sums.items()]


@dataclass(frozen=True, slots=True)
class Question:
    """
    Which sessions to read.

    Args:
        first_day: First day (UTC) of the time in which demand is measured, independent of the selection.
        sort: Which names to keep when there are more than `MOST_SPELLINGS`.
    """

    selection: Selection
    first_day: date
    sort: ToolSort = "sessions"


ReadToolRequests = Callable[[Database, Question], Awaitable[ToolRequests]]


def first_measured_day() -> date:
    """The first of the last `MEASURED_DAYS` days (UTC), in which demand is measured."""
    return datetime.now(UTC).date() - timedelta(days=MEASURED_DAYS)


class TooManySessions(ScoringError):
    """The sessions of a selection do not fit into memory."""


async def read_tool_requests(database: Database, question: Question) -> ToolRequests:
    """
    Read the latest scores of the selection and of the time in which demand is measured.

    Raises:
        TooManySessions: There are more than `MOST_SESSIONS`.
        DatabaseAway: See `Database.once`.
    """
    of = question.selection
    measured_since = datetime.combine(question.first_day, time(), UTC)
    since = None if of.since is None else min(of.since, measured_since)
    most = MOST_SPELLINGS, MOST_SESSIONS + 1
    arguments = (of.chain, of.criteria, since, None, of.since, of.until, question.sort, *most)
    statement = REQUESTS_OF_ALL if of.chain is None else REQUESTS_OF_CHAIN

    async def find_all(connection: Connection) -> list[Any]:
        await connection.execute(CUSTOM_PLAN)
        await connection.execute(ROOM)
        return await connection.fetch(database.sql(statement), *arguments)

    async def find_called(connection: Connection) -> list[Any]:
        await connection.execute(CUSTOM_PLAN)
        return await connection.fetch(database.sql(CALLED), *of.arguments, LATEST_CALLERS)

    as_of = datetime.now(UTC)
    rows, called = await asyncio.gather(database.once(find_all), database.once(find_called))
    if sum(len(row["sessions"]) for row in rows if row["tool_name"] is None) > MOST_SESSIONS:
        raise TooManySessions(
            f"missing tools are counted over at most {MOST_SESSIONS:,} sessions, and the last {MEASURED_DAYS} days (or "
            "the chosen period, if it is longer) have more: choose one chain, or criteria"
        )
    # In a thread: converting many rows would block the event loop.
    return await asyncio.to_thread(_to_columns, as_of, rows, frozenset(r["tool"] for r in called), question.first_day)


def _to_columns(
    as_of: datetime, rows: Iterable[Mapping[str, Any]], called: frozenset[str], first_day: date
) -> ToolRequests:
    """Build the columns from rows of `_statement`: session n is the n-th element of each column."""
    named = [row for row in rows if row["tool_name"] is not None]
    sessions = [row for row in rows if row["tool_name"] is None]
    groups = [Group(row["chain_id"], row["judge_fingerprint"], row["tools_hash"]) for row in sessions]
    year = Year(zip(groups, (r["sessions"] for r in sessions), (r["days"] for r in sessions), strict=True), first_day)
    lost: list[int | None] = [None] * len(year)
    for row in sessions:
        for n, points in zip(row["sessions"], row["lost"], strict=True):
            lost[n] = points
    asked_in = {row["tool_name"]: frozenset(row["sessions"]) for row in named}
    known = sum(any(lost[n] is not None for n in found) for found in asked_in.values())
    return ToolRequests(as_of, year, lost, asked_in, named[0]["names"] - known if named else 0, called)


class ToolRequestsCache:
    """
    Cache of `read_tool_requests` for large selections, stale-while-revalidate.

    An entry older than `FRESH_S` is refreshed in the background, one older than `OLDEST_S` before answering.
    Small selections are not cached. Decisions of people are not part of the entries, so they are always
    current.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._kept: dict[Question, tuple[float, ToolRequests]] = {}  # the least recently asked for first
        self._one_at_once = asyncio.Semaphore(1)  # a read of many sessions takes as much memory as the whole cache
        self._under_way: dict[Question, asyncio.Task[ToolRequests]] = {}

    async def read(self, database: Database, question: Question) -> ToolRequests:
        """
        Return the cached result of `read_tool_requests`, or read it; it is at most `OLDEST_S` old.

        Raises:
            TooManySessions: See `read_tool_requests`.
            ReadTooSlow: Other reads did not end in time, or see `AnalyticReads.once`.
            DatabaseAway: See `Database.once`.
        """
        if (kept := self._kept.pop(question, None)) is not None:
            self._kept[question] = kept
            age_s = self._clock() - kept[0]
            if age_s > FRESH_S:
                refresh = self._refresh(database, question)
                if age_s > OLDEST_S:
                    return await asyncio.shield(refresh)
            return kept[1]
        return await asyncio.shield(self._refresh(database, question))

    def _refresh(self, database: Database, question: Question) -> asyncio.Task[ToolRequests]:
        """The read in progress, or a new one. Cancelling a caller does not cancel it."""
        if question not in self._under_way:
            task = asyncio.create_task(self._read(database, question))
            self._under_way[question] = task
            task.add_done_callback(lambda done: self._end(question, done))
        return self._under_way[question]

    async def _read(self, database: Database, question: Question) -> ToolRequests:
        try:
            await asyncio.wait_for(self._one_at_once.acquire(), READ_S)
        except TimeoutError:
            raise ReadTooSlow("other reads of missing tools were under way for all of the time") from None
        try:
            began = self._clock()
            found = await read_tool_requests(database, question)
        finally:
            self._one_at_once.release()
        if len(found.year) >= KEPT_FROM:
            self._kept.pop(question, None)
            self._kept[question] = began, found
            while sum(len(kept.year) for _, kept in self._kept.values()) > MOST_SESSIONS:
                del self._kept[next(iter(self._kept))]
        return found

    def _end(self, question: Question, done: asyncio.Task[ToolRequests]) -> None:
        del self._under_way[question]
        if not done.cancelled():
            done.exception()  # retrieved, since a background refresh has no waiting caller; the next call reads again
