"""
What else differs from the week before in chains whose totals fell, and their worst scores of the week.

Shares of scores are compared under the judge whose totals are compared. A difference is a count and no cause.
What
judges name and which tools agents had is read from the rollups; labels, alert types and flags from the newest
scores.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

from tarsy_scoring.analytics.analytics import Selection, count
from tarsy_scoring.analytics.differences import Counted, Difference, Kind, compare, tally
from tarsy_scoring.analytics.rollups import count_by_chain, count_tags, missed_in, not_rolled_up
from tarsy_scoring.analytics.week import DAYS, NAME_SHOWN, ChainWeek, Week, short_name
from tarsy_scoring.evaluation.tool_names import Tool, bare, normalise
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.scores.latest import has_no_later, is_completed, is_of_kind
from tarsy_scoring.scores.session_list import CUSTOM_PLAN
from tarsy_scoring.timeline.text import cut

MOST_EXPLAINED = 5  # chains
MOST_READ = 200  # newest scores of a chain and week whose sessions are read
MOST_SETS = 100  # sets of tools of the agents, of all chains; each has up to 4,000 names
MOST_MISSED = 20_000  # sets of missing tools, of all chains; the rarest beyond them do not count
MOST_SAID, MOST_UNCLEAR = 2, 3  # differences of a chain
WORST = 2  # scores of a chain
_CANDIDATES = 50  # lowest totals of a week of which a later score of the session may have replaced some

_GROUPED = "chain_id, judge_fingerprint, day >= $10::date AS is_later"
_OF_CHAINS = "coalesce(chain_id, '') = ANY($11::text[])"

# By chain, judge and week ($10 the first day of the later week, $11 chains): scores with a tag, with a set of
# missing tools ($12 sets), and of agents that had a set of tools ($12 sets).
TAGS = f"""
SELECT {_GROUPED}, ARRAY[tag] AS names, sum(number)::bigint AS scores FROM ({count_tags("without")}) c
WHERE {_OF_CHAINS} GROUP BY 1, 2, 3, 4 HAVING sum(number) > 0
"""
_SETS = "g.chain_id, g.judge_fingerprint, r.day, t.names, r.scores AS number"
MISSED = f"""
SELECT {_GROUPED}, names, sum(number)::bigint AS scores FROM (
  {missed_in("missed_rollups", "$5::date", "$6::date", _SETS, " JOIN {schema}.missed_sets t USING (set_id)")}
  UNION ALL
  SELECT d.chain_id, d.judge_fingerprint, d.day, d.tools, d.number
  FROM ({not_rolled_up("missed", "tools")}) d WHERE d.tools <> '{{}}') c
WHERE {_OF_CHAINS} GROUP BY 1, 2, 3, 4 HAVING sum(number) > 0 ORDER BY scores DESC LIMIT $12
"""
AGENT_TOOLS = f"""
SELECT c.*, t.names FROM (
  SELECT {_GROUPED}, tools_hash, sum(number)::bigint AS scores FROM ({count_by_chain()}) c
  WHERE {_OF_CHAINS} AND tools_hash IS NOT NULL GROUP BY 1, 2, 3, 4 HAVING sum(number) > 0
  ORDER BY scores DESC LIMIT $12) c JOIN {{schema}}.tool_lists t USING (tools_hash)
"""

# Chains and their judges ($1, $2); the weeks begin at $3 and $4.
_JUDGED = "unnest($1::text[], $2::text[]) AS c(chain_id, judge)"
_IN_CHAIN = f"s.chain_id = c.chain_id AND s.judge_fingerprint = c.judge AND {is_completed('s')}"
_NOT_REPLACED = f"{is_of_kind('s', 'without')} AND {has_no_later('s', of_its_kind=True)}"

# Alert types, labels and flags of the newest $5 scores of each week. The row without a name counts these
# scores.
SESSIONS = f"""
WITH newest AS MATERIALIZED (
  SELECT c.chain_id, w.is_later, s.flags, m.alert_type, m.labels
  FROM {_JUDGED}
  CROSS JOIN (VALUES (false, $3::timestamptz, $4::timestamptz), (true, $4, 'infinity')) w(is_later, since, until)
  CROSS JOIN LATERAL (
    SELECT s.session_id, s.flags FROM {{schema}}.session_scores s
    WHERE {_IN_CHAIN} AND s.completed_at >= w.since AND s.completed_at < w.until AND {_NOT_REPLACED}
    ORDER BY s.completed_at DESC LIMIT $5) s
  JOIN {{schema}}.sessions m USING (session_id))
SELECT chain_id, kind, name, count(*) FILTER (WHERE NOT is_later) AS before, count(*) FILTER (WHERE is_later) AS now
FROM newest n, LATERAL (
  SELECT NULL, NULL
  UNION ALL SELECT 'alert_type', n.alert_type WHERE n.alert_type IS NOT NULL
  UNION ALL SELECT 'label', l.key || '=' || l.value FROM jsonb_each_text(n.labels) l
  UNION ALL SELECT 'flag', f.flag FROM jsonb_array_elements_text(n.flags) f(flag)) k(kind, name)
GROUP BY 1, 2, 3 HAVING count(*) > 1 OR name IS NULL
"""

# The lowest $4 of the totals since $3, each the latest score of its session; totals with one of the flags $5
# do not count.
LOWEST = f"""
SELECT c.chain_id, l.score_id, l.session_id, l.total_score, m.alert_type
FROM {_JUDGED} CROSS JOIN LATERAL (
  SELECT s.score_id, s.session_id, s.total_score, s.completed_at FROM (
    SELECT s.session_id, s.completed_at FROM {{schema}}.session_scores s
    WHERE {_IN_CHAIN} AND s.completed_at >= $3 AND s.total_score IS NOT NULL AND NOT s.flags ?| $5
    ORDER BY s.total_score, s.completed_at DESC LIMIT {_CANDIDATES}) f
  JOIN {{schema}}.session_scores s USING (session_id, completed_at)
  WHERE {is_completed("s")} AND {_NOT_REPLACED}
  ORDER BY s.total_score, s.completed_at DESC, s.score_id LIMIT $4) l
JOIN {{schema}}.sessions m USING (session_id)
ORDER BY l.total_score, l.completed_at DESC, l.score_id
"""

Merge = Callable[[Mapping[str, int]], list[Tool]]
"""Merges names of missing tools, given the number of scores with each; called in a thread."""


@dataclass(frozen=True, slots=True)
class WorstScore:
    """One of the lowest totals of a week."""

    score_id: UUID
    session_id: str
    total_score: int
    alert_type: str | None


@dataclass(frozen=True, slots=True)
class ChainChanges:
    """
    What differs in a chain whose mean total fell.

    Args:
        differences: The least likely by chance first.
        worst: At most `WORST`, the lowest total first.
    """

    chain: ChainWeek
    differences: Sequence[Difference]
    worst: Sequence[WorstScore]

    @property
    def clear(self) -> list[Difference]:
        """Differences that are more than chance gives."""
        return [one for one in self.differences if one.is_clear]

    @property
    def unclear(self) -> list[Difference]:
        """The largest rises of failure tags and missing tools that may be chance."""
        named = [
            one
            for one in self.differences
            if not one.is_clear and one.kind in ("failure_tag", "missing_tool")
        ]
        return sorted(named, key=lambda one: (-one.rise, one.names))[:MOST_UNCLEAR]

    @property
    def in_words(self) -> str:
        """The clearest differences in a sentence."""
        name = short_name(self.chain)
        if not self.clear:
            return f"In {name}, nothing else that is stored differs by more than chance gives."
        said = [
            f"{one.said} {cut(one.names[0], NAME_SHOWN)} {one.direction} ({one.counts_in_words})"
            for one in self.clear[:MOST_SAID]
        ]
        return f"In {name}, {', and '.join(said)}."


async def read_changes(database: Database, week: Week, merge: Merge) -> list[ChainChanges]:
    """
    Read what differs in the chains whose totals fell most, at most `MOST_EXPLAINED`.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    chains = week.fallen[:MOST_EXPLAINED]
    if not chains:
        return []
    later = datetime.combine(week.since, time(), UTC)
    earlier = later - timedelta(days=DAYS)
    of_chains = (week.since, [chain.chain_id or "" for chain in chains])
    judged = [chain.chain_id for chain in chains], [chain.judge for chain in chains]
    statements = (
        (TAGS, of_chains),
        (MISSED, (*of_chains, MOST_MISSED)),
        (AGENT_TOOLS, (*of_chains, MOST_SETS)),
    )
    by_judge = await count(database, Selection(since=earlier), *statements)

    async def look_up(connection: Connection) -> tuple[list[Any], list[Any]]:
        await connection.execute(CUSTOM_PLAN)
        sessions = await connection.fetch(database.sql(SESSIONS), *judged, earlier, later, MOST_READ)
        return sessions, await connection.fetch(
            database.sql(LOWEST), *judged, later, WORST, sorted(DOUBTFUL_FLAGS)
        )

    # In a thread: many names, or adversarial ones, take long enough to block the event loop.
    return await asyncio.to_thread(_combine, chains, by_judge, *await database.once(look_up), merge)


def _combine(
    chains: Iterable[ChainWeek],
    by_judge: Sequence[Sequence[Any]],
    sessions: Sequence[Any],
    lowest: Sequence[Any],
    merge: Merge,
) -> list[ChainChanges]:
    found = []
    for chain in chains:
        tags, missed, tools = ([r for r in rows if _is_of(r, chain)] for rows in by_judge)
        missing_tools = _missing_tools(missed, merge)
        counted = [
            Counted("failure_tag", chain.judged, tally(_rows(tags))),
            Counted("missing_tool", chain.judged, missing_tools),
            _agent_tools(tools, {normalise(name): name for name in missing_tools}),
            *_of_sessions([r for r in sessions if r["chain_id"] == chain.chain_id]),
        ]
        columns = WorstScore.__slots__
        worst = [WorstScore(**{c: r[c] for c in columns}) for r in lowest if r["chain_id"] == chain.chain_id]
        found.append(ChainChanges(chain, compare(counted), worst))
    return found


def _is_of(row: Mapping[str, Any], chain: ChainWeek) -> bool:
    return (row["chain_id"], row["judge_fingerprint"]) == (chain.chain_id, chain.judge)


def _rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[bool, Sequence[str], int]]:
    return ((row["is_later"], row["names"], row["scores"]) for row in rows)


def _missing_tools(rows: Sequence[Mapping[str, Any]], merge: Merge) -> dict[str, tuple[int, int]]:
    """Numbers of scores by tool; a score that names a tool in two spellings counts once."""
    used = Counter[str]()
    for _, names, scores in _rows(rows):
        used.update(dict.fromkeys(names, scores))
    tools = merge(dict(used.most_common(2000)))
    tool_of = {spelling: tool.name for tool in tools for spelling, _ in tool.spellings}
    return tally(
        (later, {tool_of[n] for n in names if n in tool_of}, scores) for later, names, scores in _rows(rows)
    )


def _agent_tools(rows: Sequence[Mapping[str, Any]], spellings: Mapping[str, str]) -> Counted:
    """
    Numbers of scores by tool of the agents, without its server, of the scores whose agents' tools are stored.

    Args:
        spellings: Names as people write them; stored ones have no separators.
    """
    before, now = (
        sum(row["scores"] for row in rows if row["is_later"] is is_later) for is_later in (False, True)
    )
    having = tally((is_later, set(map(bare, names)), scores) for is_later, names, scores in _rows(rows))
    return Counted("agent_tool", (before, now), {spellings.get(name, name): n for name, n in having.items()})


def _of_sessions(rows: Sequence[Mapping[str, Any]]) -> list[Counted]:
    """Numbers of scores by alert type, label and flag."""
    numbers = {(row["kind"], row["name"]): (row["before"], row["now"]) for row in rows}
    whole = numbers.pop((None, None), (0, 0))
    kinds: Sequence[Kind] = ("alert_type", "label", "flag")
    return [Counted(k, whole, {name: n for (kind, name), n in numbers.items() if kind == k}) for k in kinds]
