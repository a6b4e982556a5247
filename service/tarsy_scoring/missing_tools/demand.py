"""
Which sessions asked for which tools: one look at the latest score of every session, in columns.

A session is a number, its place in the columns; so what many spellings, chains and a year of days say together is
counted without asking the database again for each of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from time import monotonic
from typing import Any

from tarsy_scoring.missing_tools.tool_year import Group, Year
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.latest import NEWEST_FIRST, is_completed
from tarsy_scoring.records.analytics import CALLED, LATEST_CALLERS, MOST_SPELLINGS, SELECTED, Selection, ToolSort
from tarsy_scoring.records.session_list import CUSTOM_PLAN

# What is sorted and hashed here is larger than the few MB that PostgreSQL gives a step; two of them are in use at once.
ROOM = "SET LOCAL work_mem = '32MB'"

MEASURED_DAYS = 365  # what judges asked before that, they asked about other agents
FRESH_S, OLDEST_S = 30.0, 600.0
KEPT_FROM = 10_000  # sessions: fewer are looked through in some 30 ms
MOST_KEPT = 4  # one of 100,000 sessions takes about 20 MB


def _look(latest: str) -> str:
    """
    Sessions by chain, judge and set of tools, and each name with the sessions that asked for it.

    $1 chain, $2 criteria, $3 none before, $4 none from; $5 and $6 since when and until when they count; $7 names that
    count most by points in place of sessions, at most $8 of them.
    """
    return f"""
WITH latest AS MATERIALIZED (
  SELECT (row_number() OVER ())::int - 1 AS n, s.score_id, s.chain_id, s.judge_fingerprint, s.tools_hash,
    100 - s.total_score AS lost, (s.completed_at AT TIME ZONE 'UTC')::date - '0001-01-01'::date + 1 AS day,
    ($5::timestamptz IS NULL OR s.completed_at >= $5) AND ($6::timestamptz IS NULL OR s.completed_at < $6) AS counts
  FROM {latest}),
wishes AS (
  SELECT t.tool_name, array_agg(l.n) AS sessions, sum(bool_or(l.counts)::int) OVER () AS names
  FROM latest l JOIN {{schema}}.score_missing_tools t USING (score_id) GROUP BY t.tool_name
  ORDER BY CASE WHEN $7 = 'points_lost' THEN coalesce(sum(l.lost) FILTER (WHERE l.counts), 0)
    ELSE count(*) FILTER (WHERE l.counts) END DESC, count(*) DESC, t.tool_name LIMIT $8)
SELECT NULL AS tool_name, NULL AS names, g.chain_id, g.judge_fingerprint, t.tools_hash, g.sessions, g.days, g.lost
FROM (SELECT chain_id, judge_fingerprint, tools_hash, array_agg(n) AS sessions, array_agg(day) AS days,
        array_agg(CASE WHEN counts THEN coalesce(lost, 0) END) AS lost
      FROM latest GROUP BY chain_id, judge_fingerprint, tools_hash) g
LEFT JOIN {{schema}}.tool_lists t USING (tools_hash)
UNION ALL SELECT tool_name, names, NULL, NULL, NULL, sessions, NULL, NULL FROM wishes
"""


LOOK_AT_CHAIN = _look(f"{{schema}}.session_scores s WHERE {SELECTED}")
# The same where most scores are looked at: they are read out of an index that holds all of it, in its order.
LOOK_AT_ALL = _look(
    f"""(SELECT DISTINCT ON (session_id) session_id, completed_at, score_id, chain_id, criteria, judge_fingerprint,
          tools_hash, total_score
        FROM {{schema}}.session_scores c WHERE {is_completed("c")}
        ORDER BY session_id, {NEWEST_FIRST}) s
  WHERE ($1::text IS NULL OR s.chain_id = $1) AND ($2::text IS NULL OR s.criteria = $2)
    AND ($3::timestamptz IS NULL OR s.completed_at >= $3) AND ($4::timestamptz IS NULL OR s.completed_at < $4)"""
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """
    Sessions, and who asked for what.

    Args:
        as_of: When it was looked.
        lost: 100 less the total, 0 without one, of each session of the selection; None: it is only measured.
        asked_in: Sessions by name, as judges wrote it.
        names_left_out: Names that sessions of the selection asked for, and that are not in `asked_in`.
        called: Tools that agents of the sessions judged last have called.
    """

    as_of: datetime
    year: Year
    lost: Sequence[int | None]
    asked_in: Mapping[str, frozenset[int]]
    names_left_out: int
    called: frozenset[str]

    def spellings(self) -> dict[str, int]:
        """How many sessions of the selection asked under each name; 0: only others did."""
        counted = {n for n, lost in enumerate(self.lost) if lost is not None}
        return {name: len(counted & sessions) for name, sessions in self.asked_in.items()}

    def sessions_of(self, names: Iterable[str]) -> frozenset[int]:
        """The sessions that asked under any of these names."""
        nobody = frozenset[int]()
        return nobody.union(*(self.asked_in.get(name, nobody) for name in names))

    def by_chain(self, sessions: Iterable[int]) -> list[dict[str, Any]]:
        """What those of the selection add up to: rows of `chain_id`, `sessions`, `points_lost`."""
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
    Which sessions to look at.

    Args:
        first_day: Of the time that is measured (UTC), whatever the selection.
        sort: Which names count most, where there are more than `MOST_SPELLINGS`.
    """

    selection: Selection
    first_day: date
    sort: ToolSort = "sessions"


Look = Callable[[Database, Question], Awaitable[Wishes]]


def first_measured_day() -> date:
    """The first day (UTC) of the time that is measured, as of today."""
    return datetime.now(UTC).date() - timedelta(days=MEASURED_DAYS)


async def look(database: Database, question: Question) -> Wishes:
    """
    The latest scores of the selection and of the time that is measured, as they are now.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    of = question.selection
    measured_since = datetime.combine(question.first_day, time(), UTC)
    since = None if of.since is None else min(of.since, measured_since)
    arguments = (of.chain, of.criteria, since, None, of.since, of.until, question.sort, MOST_SPELLINGS)
    statement = LOOK_AT_ALL if of.chain is None else LOOK_AT_CHAIN

    async def find_all(connection: Connection) -> list[Any]:
        await connection.execute(CUSTOM_PLAN)
        await connection.execute(ROOM)
        return await connection.fetch(database.sql(statement), *arguments)

    async def find_called(connection: Connection) -> list[Any]:
        await connection.execute(CUSTOM_PLAN)
        return await connection.fetch(database.sql(CALLED), *of.arguments, LATEST_CALLERS)

    as_of = datetime.now(UTC)
    rows, called = await asyncio.gather(database.once(find_all), database.once(find_called))
    # In a thread: many rows take a while.
    return await asyncio.to_thread(_wishes, as_of, rows, frozenset(r["tool"] for r in called), question.first_day)


def _wishes(as_of: datetime, rows: Iterable[Mapping[str, Any]], called: frozenset[str], first_day: date) -> Wishes:
    """Rows of a look as they are counted."""
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
    return Wishes(as_of, year, lost, asked_in, named[0]["names"] - known if named else 0, called)


class Looks:
    """
    Looks at many sessions, kept for a while: who asks again is answered at once, with when it was looked.

    A look that is older than `FRESH_S` is repeated beside the answer, one older than `OLDEST_S` before it. A look at
    few sessions is never kept, as it comes quickly. What people decide is in none of them.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._kept: dict[Question, tuple[float, Wishes]] = {}  # the least recently asked for first
        self._under_way: dict[Question, asyncio.Task[Wishes]] = {}

    async def look(self, database: Database, question: Question) -> Wishes:
        """
        See `look`; at most `OLDEST_S` old.

        Raises:
            DatabaseAway: See `Database.once`.
        """
        if (kept := self._kept.pop(question, None)) is not None:
            self._kept[question] = kept
            age_s = self._clock() - kept[0]
            if age_s > FRESH_S:
                repeated = self._repeat(database, question)
                if age_s > OLDEST_S:
                    return await asyncio.shield(repeated)
            return kept[1]
        return await asyncio.shield(self._repeat(database, question))

    def _repeat(self, database: Database, question: Question) -> asyncio.Task[Wishes]:
        """The look that is under way, or a new one; whoever waits for it may leave."""
        if question not in self._under_way:
            task = asyncio.create_task(self._look(database, question))
            self._under_way[question] = task
            task.add_done_callback(lambda done: self._end(question, done))
        return self._under_way[question]

    async def _look(self, database: Database, question: Question) -> Wishes:
        began = self._clock()
        wishes = await look(database, question)
        if len(wishes.year) >= KEPT_FROM:
            self._kept.pop(question, None)
            self._kept[question] = began, wishes
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return wishes

    def _end(self, question: Question, done: asyncio.Task[Wishes]) -> None:
        del self._under_way[question]
        if not done.cancelled():
            done.exception()  # told to who waits; where nobody does, the next one who asks looks again
