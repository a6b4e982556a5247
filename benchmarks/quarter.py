"""
Fill a migrated database with a quarter of simulated scores: `python -m benchmarks.quarter`.

SCORING_DATABASE_URL names the database. The scores are of 600 sessions of one chain. On day 35 a judge takes
over that is 8 points milder. On day 42 the guidance v2 and a tool arrive, with which the agents do better by
6 points. Both judges judged 40 anchors, and people labelled a quarter of the new judge's scores. The pages in
`docs/questions/` use these scores.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.labelling import draws
from tarsy_scoring.evaluation.tool_names import normalise
from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.scoring.score_columns import tools_hash_of

CHAIN, CRITERIA = "kubernetes", "investigation"
DAYS, SESSIONS, ANCHORS = 84, 600, 40
JUDGE_DAY, GUIDANCE_DAY = 35, 42
JUDGE_POINTS, AGENTS_POINTS = 8.0, 6.0
LABELLED_SHARE = 0.25
SPREAD, JUDGE_ERROR, PEOPLE_ERROR = 15.0, 6.0, 6.0
# Mean quality of the sessions of an alert type, in points, and their frequency out of ten.
KINDS = {"PodOOMKilled": (58.0, 5), "HighLatency": (48.0, 3), "NodeNotReady": (64.0, 2)}
NEW_TOOL = "get_previous_logs"
TOOLS = {
    "v1": sorted(map(normalise, ("kubectl_get", "prometheus_query"))),
    "v2": sorted(map(normalise, ("kubectl_get", "prometheus_query", NEW_TOOL))),
}
# Missing tools: shares of scores that name the tool before and after day 42, spellings, and rationales.
MISSED: Sequence[tuple[float, float, Sequence[str], Sequence[str]]] = (
    (
        *(0.22, 0.01, (NEW_TOOL, "Get Previous Logs")),
        (
            "The logs of the container that died were gone, and it guessed (E9).",
            "Only the restarted container could be read (E4).",
            "Why the process ended was never seen; its last lines would have said it.",
        ),
    ),
    (
        *(0.11, 0.12, ("search_traces", "search-traces")),
        (
            "Which call was slow could not be seen; no traces were at hand.",
            "It timed services by hand, one after the other (E6, E8, E11).",
            "The latency was blamed on the database without a single trace.",
        ),
    ),
    (
        *(0.05, 0.04, ("node_pressure",)),
        ("Whether the node was short of memory stayed open.", "The node's pressure was inferred from evictions (E7)."),
    ),
)


@dataclass(frozen=True, slots=True)
class Session:
    """A simulated session; each judge rates its quality with an error."""

    session_id: str
    day: int
    kind: str
    quality: float

    @property
    def guidance(self) -> str:
        """Version of the guidance that the session ran under."""
        return "v2" if self.day >= GUIDANCE_DAY else "v1"


def judged(draw: random.Random, session: Session, *, is_new: bool) -> int:
    """Draw the total that the former or the new judge gives."""
    points = session.quality + (JUDGE_POINTS if is_new else 0.0) + draw.gauss(0, JUDGE_ERROR)
    return min(100, max(0, round(points)))


def fingerprint(*, is_new: bool) -> str:
    """Fingerprint of the former or the new judge."""
    return hashlib.sha256(b"judge of summer" if is_new else b"judge of spring").hexdigest()


def make_sessions(seed: int) -> list[Session]:
    """The sessions of the quarter, the earliest first."""
    draw = draws(seed, "sessions")
    kinds = draw.choices(list(KINDS), [often for _, often in KINDS.values()], k=SESSIONS)
    made = []
    for number, kind in enumerate(kinds):
        day = number * DAYS // SESSIONS
        quality = draw.gauss(KINDS[kind][0], SPREAD) + (AGENTS_POINTS if day >= GUIDANCE_DAY else 0.0)
        made.append(Session(f"session-{number:04}", day, kind, quality))
    return made


class Rows:
    """Rows of the tables, from seeded draws."""

    def __init__(self, seed: int, criteria: Criteria, beginning: datetime) -> None:
        self._draw = draws(seed, "rows")
        self._criteria = criteria
        self._beginning = beginning
        self.sessions: list[tuple[Any, ...]] = []
        self.scores: list[tuple[Any, ...]] = []
        self.missed: list[tuple[Any, ...]] = []
        self.picks: list[tuple[Any, ...]] = []
        self.labels: list[tuple[Any, ...]] = []
        self.days: set[date] = set()

    def add_session(self, session: Session) -> datetime:
        """Add a session with its score, and for some a label; returns the end of the session."""
        draw, minute = self._draw, len(self.sessions) % 1400
        ended = self._beginning + timedelta(days=session.day, minutes=minute)
        labels = json.dumps({"guidance": session.guidance})
        self.sessions.append((session.session_id, CHAIN, session.kind, labels, "completed", ended))
        total = judged(draw, session, is_new=session.day >= JUDGE_DAY)
        score_id = self.add_score(session, total, ended, "production", is_new=session.day >= JUDGE_DAY)
        wishes = [m for m in MISSED if draw.random() < m[1 if session.day >= GUIDANCE_DAY else 0]]
        turn = len(self.missed)
        self.missed += [
            (score_id, n, draw.choice(names), why[turn % len(why)]) for n, (_, _, names, why) in enumerate(wishes)
        ]
        if session.day >= JUDGE_DAY and draw.random() < LABELLED_SHARE:
            number = min(100.0, max(0.0, session.quality + draw.gauss(0, PEOPLE_ERROR)))
            self.days.add(ended.date())
            self.picks.append((score_id, ended.date(), len(self.picks), True, LABELLED_SHARE))
            self.labels.append((score_id, session.session_id, "ada", round(number)))
        return ended

    def add_score(self, session: Session, total: int, at: datetime, purpose: str, *, is_new: bool) -> UUID:
        """Add a completed score; returns its id."""
        draw, is_second = self._draw, session.guidance == "v2"
        commands = draw.randrange(6, 24)
        unique = sum(draw.random() < 0.85 for _ in range(commands))
        interaction = {
            "total_commands": commands,
            "help_invocations": int(draw.random() < 0.1),
            "error_rate": draw.betavariate(2, 14 if is_second else 10),
            "retry_rate": (commands - unique) / commands,
            "first_try_success_rate": draw.betavariate(6, 2),
            "iteration_ratio": unique / commands,
        }
        score_id = UUID(int=draw.getrandbits(128), version=4)
        self.scores.append(
            (
                *(score_id, session.session_id, UUID(int=draw.getrandbits(128), version=4), CHAIN, at, purpose, total),
                *(fingerprint(is_new=is_new), self._criteria.name, self._criteria.criteria_hash),
                *(json.dumps(interaction), tools_hash_of(TOOLS[session.guidance])),
            )
        )
        return score_id


def make_rows(seed: int, criteria: Criteria, now: datetime) -> tuple[Rows, list[str]]:
    """All rows, and the ids of the anchors: a random draw of the sessions before the new judge."""
    rows = Rows(seed, criteria, now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS))
    sessions = make_sessions(seed)
    ended = {s.session_id: rows.add_session(s) for s in sessions}
    draw = draws(seed, "anchors")
    anchors = draw.sample([s for s in sessions if s.day < JUDGE_DAY], ANCHORS)
    for anchor in anchors:
        for is_new, day in ((False, anchor.day), (True, JUDGE_DAY)):
            at = ended[anchor.session_id] + timedelta(days=day - anchor.day, hours=1)
            rows.add_score(anchor, judged(draw, anchor, is_new=is_new), at, "anchor", is_new=is_new)
    return rows, [a.session_id for a in anchors]


async def fill(url: str, seed: int = 1) -> None:
    """
    Store the quarter that ends today in a database.

    Args:
        url: URL of a migrated database without sessions of these names.
    """
    [criteria] = [c for c in load_criteria() if c.name == CRITERIA]
    rows, anchors = make_rows(seed, criteria, datetime.now(UTC))
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(
                "INSERT INTO scoring_criteria VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                *(criteria.criteria_hash, CRITERIA, json.dumps({"name": CRITERIA})),
            )
            for tools in TOOLS.values():
                await connection.execute(
                    "INSERT INTO tool_lists (tools_hash, names) VALUES ($1, $2)", tools_hash_of(tools), tools
                )
            for statement, values in statements(rows, anchors):
                await connection.executemany(statement, values)
    finally:
        await connection.close()


def statements(rows: Rows, anchors: Sequence[str]) -> list[tuple[str, Sequence[tuple[Any, ...]]]]:
    """The INSERT statements with their rows, in order."""
    return [
        (
            "INSERT INTO sessions (session_id, chain_id, alert_type, labels, status, completed_at, first_seen_at) "
            "VALUES ($1, $2, $3, $4, $5, $6, $6)",
            rows.sessions,
        ),
        (
            "INSERT INTO session_scores (score_id, session_id, request_id, chain_id, created_at, started_at, "
            "completed_at, purpose, total_score, judge_fingerprint, criteria, criteria_hash, interaction, tools_hash, "
            "status, priority, score_triggered_by) "
            "VALUES ($1, $2, $3, $4, $5, $5, $5, $6, $7, $8, $9, $10, $11, $12, 'completed', 1, 'auto')",
            rows.scores,
        ),
        ("INSERT INTO score_missing_tools VALUES ($1, $2, $3, $4)", rows.missed),
        ("INSERT INTO anchor_sessions (session_id, added_by) VALUES ($1, 'ada')", [(a,) for a in anchors]),
        ("INSERT INTO review_days (day) VALUES ($1)", [(day,) for day in sorted(rows.days)]),
        (
            "INSERT INTO review_picks (score_id, day, place, is_random, inclusion_probability) "
            "VALUES ($1, $2, $3, $4, $5)",
            rows.picks,
        ),
        ("INSERT INTO score_labels (score_id, session_id, labelled_by, number) VALUES ($1, $2, $3, $4)", rows.labels),
    ]


def main() -> None:
    """Fill the database of SCORING_DATABASE_URL."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    url = os.environ.get("SCORING_DATABASE_URL")
    if not url:
        parser.error("set SCORING_DATABASE_URL to a migrated database (`tarsy-scoring stack` prints one)")
    asyncio.run(fill(url, given.seed))


if __name__ == "__main__":
    main()
