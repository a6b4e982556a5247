"""
Better ways to investigate that judges named, grouped over many sessions where name and steps are similar.

A session counts once, by the latest completed score. A model that read hostile sessions wrote the texts:
they are bounded here, and whatever shows them must escape them.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any
from uuid import UUID

from rapidfuzz import process
from rapidfuzz.distance import Indel

from tarsy_scoring.analytics.analytics import SELECTED
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.evaluation.tool_names import bare, normalise
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.session_list import fetch_planned

MOST_READ = 2000
"""Approaches that are compared, the newest ones; the time of a comparison grows with the square of their number."""
LONGEST_NAME, LONGEST_TEXT, MOST_STEPS = 200, 2000, 20
MOST_SESSIONS = 20  # shown per group

# Two approaches are one if their names are alike by half, and names and steps together by 0.7: the same steps
# under a name in other words, or the same name with a step more or less. A wrong group hides an approach,
# while a missed one only lists it twice.
NAMES_ALIKE, ALIKE = 0.5, 0.7

_WORDS = re.compile(r"\w+")

# The newest approaches, at most $5. Steps are compared by tool, and by words where they name none.
APPROACHES = f"""
SELECT s.score_id, s.session_id, s.chain_id, s.total_score, s.completed_at,
       left(a.name, {LONGEST_NAME}) AS name, left(a.description, {LONGEST_TEXT}) AS description, p.steps, p.tools
FROM {{schema}}.session_scores s JOIN {{schema}}.score_alternative_approaches a USING (score_id)
CROSS JOIN LATERAL (
  SELECT array_agg(left(p.step, {LONGEST_TEXT}) ORDER BY p.ordinal) AS steps,
         array_agg(left(coalesce(p.tool_name, p.step), {LONGEST_NAME}) ORDER BY p.ordinal) AS tools
  FROM {{schema}}.score_alternative_approach_steps p
  WHERE p.score_id = a.score_id AND p.approach_ordinal = a.ordinal AND p.ordinal <= {MOST_STEPS}) p
WHERE {SELECTED}
ORDER BY s.completed_at DESC, s.score_id, a.ordinal LIMIT $5
"""


@dataclass(frozen=True, slots=True)
class PoorerSession:
    """A session for which a judge named the better approach, with the score."""

    session_id: str
    score_id: UUID
    total_score: int | None
    scored_at: datetime


@dataclass(frozen=True, slots=True)
class Approach:
    """
    A better way to investigate: the words of the newest judge that named it, and the sessions.

    Args:
        name: Its most used name.
        sessions: Number of sessions that went another way.
        mean_total: Over the totals of these sessions.
        took_poorer_path: At most `MOST_SESSIONS` of these sessions, the lowest total first.
    """

    name: str
    description: str
    steps: list[str]
    sessions: int
    chains: int
    mean_total: float | None
    took_poorer_path: list[PoorerSession]


async def read_approaches(database: Database, selection: Selection, limit: int) -> list[Approach]:
    """
    Group the selection's newest approaches; at most `limit` groups, those with most sessions first.

    The same scores give the same groups.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    rows = await fetch_planned(database, APPROACHES, *selection.arguments, MOST_READ)
    # In a thread: comparing 2,000 different approaches takes long enough to block the event loop.
    return (await asyncio.to_thread(group, rows))[:limit]


def group(rows: Sequence[Mapping[str, Any]]) -> list[Approach]:
    """
    Group approaches that are alike (see `ALIKE`), those with most sessions first.

    The most frequent ones lead the groups. Another one joins the leader that it resembles most; joining is
    not transitive, so that a chain of small differences merges nothing.

    Args:
        rows: Rows of `APPROACHES`, the newest first.
    """
    same = defaultdict[tuple[str, tuple[str, ...]], list[Mapping[str, Any]]](list)
    for row in rows:
        words = " ".join(sorted(_WORDS.findall(row["name"].casefold())))
        same[words, tuple(normalise(bare(tool)) for tool in row["tools"] or ())].append(row)
    different = sorted(same, key=lambda key: (-len(same[key]), key))
    leaders = dict[int, str]()  # names by place
    groups = dict[int, list[Mapping[str, Any]]]()  # by the place of the leader
    for place, (name, tools) in enumerate(different):
        near = process.extract(
            name, leaders, scorer=Indel.normalized_similarity, score_cutoff=NAMES_ALIKE, limit=None
        )
        alike = [
            ((of_names + Indel.normalized_similarity(tools, different[leader][1])) / 2, -leader)
            for _, of_names, leader in near
        ]
        similarity, nearest = max(alike, default=(0.0, 0))
        if similarity < ALIKE:
            nearest, leaders[place] = -place, name
        groups.setdefault(-nearest, []).extend(same[name, tools])
    found = [_approach(members) for members in groups.values()]
    return sorted(found, key=lambda one: (-one.sessions, one.name, one.steps))


def _approach(members: Sequence[Mapping[str, Any]]) -> Approach:
    newest = max(members, key=lambda row: (row["completed_at"], row["score_id"]))
    names = Counter(row["name"] for row in members)
    sessions = {row["session_id"]: row for row in members}
    totals = [row["total_score"] for row in sessions.values() if row["total_score"] is not None]
    lowest_first = sorted(sessions.values(), key=_lowest_first)
    return Approach(
        name=min(names, key=lambda name: (-names[name], name)),
        description=newest["description"],
        steps=newest["steps"] or [],
        sessions=len(sessions),
        chains=len({row["chain_id"] for row in sessions.values()}),
        mean_total=fmean(totals) if totals else None,
        took_poorer_path=[
            PoorerSession(row["session_id"], row["score_id"], row["total_score"], row["completed_at"])
            for row in lowest_first[:MOST_SESSIONS]
        ],
    )


def _lowest_first(row: Mapping[str, Any]) -> tuple[bool, int, str]:
    return row["total_score"] is None, row["total_score"] or 0, row["session_id"]
