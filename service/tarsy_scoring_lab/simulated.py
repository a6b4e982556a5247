"""
A small model of agents and judges, and the rows of its scores.

Agents have a quality per alert type, which changes on a known day, for better or worse; judges rate it with
an error,
and one of them is replaced by a milder one. The demo and `benchmarks.quarter` fill databases from it, so
every effect
that a page shows has a known size. Equal seeds give equal rows.
"""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from tarsy_scoring.evaluation.tool_names import normalise
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.postgres.database import Connection, Database, insert_of
from tarsy_scoring.queue.store import ADD_APPROACHES, ADD_MISSING_TOOLS, ADD_TURNS, KEEP_CRITERIA, KEEP_TOOLS
from tarsy_scoring.scores.fields import no_results
from tarsy_scoring.scoring.score_columns import tools_hash_of

SPREAD, JUDGE_ERROR, PEOPLE_ERROR = 15.0, 6.0, 6.0  # standard deviations in points
# Parameters of the beta distribution of error rates, and of those after a change for the better.
ERROR_RATES = (2, 10), (2, 14)

ADD_SESSIONS = insert_of(
    "sessions", ("session_id", "chain_id", "alert_type", "labels", "status", "completed_at", "first_seen_at")
)
ADD_ANCHORS = insert_of("anchor_sessions", ("session_id", "added_by", "added_at"))
ADD_REVIEW_DAYS = insert_of("review_days", ("day",)) + " ON CONFLICT DO NOTHING"
ADD_PICKS = insert_of(
    "review_picks", ("score_id", "day", "place", "is_random", "inclusion_probability", "reasons")
)
ADD_LABELS = insert_of(
    "score_labels",
    (
        "score_id",
        "session_id",
        "scored_under",
        "scored_total",
        "labelled_by",
        "labelled_at",
        "number",
        "reason",
    ),
)


def draws(seed: int, *what: object) -> random.Random:
    """A generator seeded for one run, so that a short simulation repeats the first runs of a long one."""
    return random.Random(f"{seed}/{'/'.join(map(str, what))}")  # noqa: S311 - simulation, not security


@dataclass(frozen=True, slots=True)
class Missed:
    """
    A tool that judges miss.

    Args:
        before: Share of the scores that name it before the change.
        after: The same afterwards.
        names: Spellings, drawn alike.
        points: Points that a session loses without the tool after the change.
    """

    before: float
    after: float
    names: Sequence[str]
    rationales: Sequence[str]
    points: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A chain and what changes in it. Days count from the first one, 0.

    Args:
        kinds: Mean quality of the sessions of an alert type in points, and their frequency out of ten.
        judges: Fingerprints of the former and of the new judge, which takes over on `judge_day`.
        judge_points: Points by which the new judge is milder.
        changed_day: From this day on agents have `changed_labels` and `changed_tools`.
        changed_points: Points by which they do better then; negative: worse.
        anchors: Number of sessions that both judges judge as anchors.
        labelled_share: Share of the new judge's scores that people label.
        labelled_until: First day whose scores have no label.
    """

    chain: str
    prefix: str
    days: int
    sessions: int
    kinds: Mapping[str, tuple[float, int]]
    judges: tuple[str, str]
    judge_day: int
    judge_points: float
    changed_day: int
    changed_points: float
    labels: Mapping[str, str]
    changed_labels: Mapping[str, str]
    tools: Sequence[str]
    changed_tools: Sequence[str]
    missed: Sequence[Missed] = ()
    anchors: int = 0
    labelled_share: float = 0.0
    labelled_until: int = 1_000_000
    person: str = "ada"


@dataclass(frozen=True, slots=True)
class Session:
    """A simulated session; each judge rates its quality with an error."""

    session_id: str
    number: int
    day: int
    kind: str
    quality: float
    is_changed: bool


def make_sessions(seed: int, plan: Plan) -> list[Session]:
    """The sessions of a chain, the earliest first."""
    draw = draws(seed, "sessions")
    kinds = draw.choices(list(plan.kinds), [often for _, often in plan.kinds.values()], k=plan.sessions)
    made = []
    for number, kind in enumerate(kinds):
        day = number * plan.days // plan.sessions
        is_changed = day >= plan.changed_day
        quality = draw.gauss(plan.kinds[kind][0], SPREAD) + (plan.changed_points if is_changed else 0.0)
        made.append(Session(f"{plan.prefix}{number:04}", number, day, kind, quality, is_changed))
    return made


@dataclass(slots=True)
class Rows:
    """Rows by column name, per table."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    missed: list[dict[str, Any]] = field(default_factory=list)
    approaches: list[dict[str, Any]] = field(default_factory=list)
    anchors: list[dict[str, Any]] = field(default_factory=list)
    picks: list[dict[str, Any]] = field(default_factory=list)
    labels: list[dict[str, Any]] = field(default_factory=list)
    tools: dict[str, Sequence[str]] = field(default_factory=dict)


class Simulation:
    """A chain over its days, as `rows`."""

    def __init__(self, seed: int, plan: Plan, criteria: Criteria, beginning: datetime) -> None:
        self.rows = Rows()
        self._seed, self._plan, self._criteria, self._beginning = seed, plan, criteria, beginning
        self._draw = draws(seed, "rows")

    def run(self) -> Rows:
        """
        Draw all sessions, then the judgements of the anchors: a random draw of sessions before the new judge.
        """
        plan = self._plan
        sessions = make_sessions(self._seed, plan)
        for session in sessions:
            self._add_session(session)
        draw = draws(self._seed, "anchors")
        for anchor in draw.sample([s for s in sessions if s.day < plan.judge_day], plan.anchors):
            ended = self._end_of(anchor)
            added = {"session_id": anchor.session_id, "added_by": plan.person, "added_at": ended}
            self.rows.anchors.append(added)
            for is_new, day in ((False, anchor.day), (True, plan.judge_day)):
                at = ended + timedelta(days=day - anchor.day, hours=1)
                self._add_score(
                    anchor, self._judged(draw, anchor, is_new=is_new), at, "anchor", is_new=is_new
                )
        return self.rows

    def _end_of(self, session: Session) -> datetime:
        """Sessions end at equal intervals."""
        return self._beginning + timedelta(days=session.number * self._plan.days / self._plan.sessions)

    def _judged(self, draw: random.Random, session: Session, *, is_new: bool) -> int:
        """Draw the total that the former or the new judge gives."""
        points = session.quality + (self._plan.judge_points if is_new else 0.0) + draw.gauss(0, JUDGE_ERROR)
        return min(100, max(0, round(points)))

    def _add_session(self, session: Session) -> None:
        """Add a session with its score, the tools that its judge missed, and for some a label."""
        plan, draw, ended = self._plan, self._draw, self._end_of(session)
        self.rows.sessions.append(
            {
                "session_id": session.session_id,
                "chain_id": plan.chain,
                "alert_type": session.kind,
                "labels": dict(plan.changed_labels if session.is_changed else plan.labels),
                "status": "completed",
                "completed_at": ended,
                "first_seen_at": ended,
            }
        )
        is_new = session.day >= plan.judge_day
        total = self._judged(draw, session, is_new=is_new)
        score_id = self._add_score(session, total, ended, "production", is_new=is_new)
        wishes = [m for m in plan.missed if draw.random() < (m.after if session.is_changed else m.before)]
        if session.is_changed:
            score = self.rows.scores[-1]
            score["total_score"] = max(0, total - round(sum(wish.points for wish in wishes)))
        turn = len(self.rows.missed)
        self.rows.missed += [
            {
                "score_id": score_id,
                "ordinal": n,
                "tool_name": draw.choice(wish.names),
                "rationale": wish.rationales[turn % len(wish.rationales)],
            }
            for n, wish in enumerate(wishes)
        ]
        if is_new and draw.random() < plan.labelled_share and session.day < plan.labelled_until:
            self._add_label(session, self.rows.scores[-1], ended)

    def _add_score(self, session: Session, total: int, at: datetime, purpose: str, *, is_new: bool) -> UUID:
        """Add a completed score; returns its id."""
        draw, plan = self._draw, self._plan
        commands = draw.randrange(6, 24)
        unique = sum(draw.random() < 0.85 for _ in range(commands))
        interaction = {
            "total_commands": commands,
            "help_invocations": int(draw.random() < 0.1),
            "error_rate": draw.betavariate(*ERROR_RATES[session.is_changed and plan.changed_points > 0]),
            "retry_rate": (commands - unique) / commands,
            "first_try_success_rate": draw.betavariate(6, 2),
            "iteration_ratio": unique / commands,
        }
        names = sorted(map(normalise, plan.changed_tools if session.is_changed else plan.tools))
        tools_hash = tools_hash_of(names)
        assert tools_hash is not None, "agents have tools"
        self.rows.tools[tools_hash] = names
        score_id = UUID(int=draw.getrandbits(128), version=4)
        score = no_results() | {
            "score_id": score_id,
            "session_id": session.session_id,
            "request_id": UUID(int=draw.getrandbits(128), version=4),
            "chain_id": plan.chain,
            "purpose": purpose,
            "status": "completed",
            "priority": 1,
            "score_triggered_by": "auto",
            "attempt": 1,
            "created_at": at,
            "started_at": at,
            "completed_at": at,
            "total_score": total,
            "criteria": self._criteria.name,
            "criteria_hash": self._criteria.criteria_hash,
            "judge_fingerprint": plan.judges[is_new],
            "interaction": interaction,
            "tools_hash": tools_hash,
        }
        self.rows.scores.append(score)
        return score_id

    def _add_label(self, session: Session, score: Mapping[str, Any], ended: datetime) -> None:
        """Add a pick of the review queue with the label of a person, who rates the quality with an error."""
        plan = self._plan
        number = min(100.0, max(0.0, session.quality + self._draw.gauss(0, PEOPLE_ERROR)))
        score_id = score["score_id"]
        pick = {"score_id": score_id, "day": ended.date(), "place": len(self.rows.picks), "is_random": True}
        self.rows.picks.append(pick | {"inclusion_probability": plan.labelled_share, "reasons": []})
        label = {"score_id": score_id, "session_id": session.session_id, "labelled_by": plan.person}
        label |= {"scored_under": score["criteria_hash"], "scored_total": score["total_score"]}
        self.rows.labels.append(label | {"labelled_at": ended + timedelta(days=1), "number": round(number)})


def by_time(rows: Rows, ends: Sequence[datetime]) -> list[Rows]:
    """
    Divide the rows of a chain by time: each part has those before its end and not before the end of the part
    before.

    A score goes by the time of its own end, with all that belongs to it. The last part has later rows as
    well.

    Args:
        ends: In order.
    """
    parts = [Rows(tools=rows.tools) for _ in ends]

    def part_at(moment: datetime) -> Rows:
        return parts[min(bisect_right(ends, moment), len(ends) - 1)]

    for session in rows.sessions:
        part_at(session["completed_at"]).sessions.append(session)
    for anchor in rows.anchors:
        part_at(anchor["added_at"]).anchors.append(anchor)
    of_score = {score["score_id"]: part_at(score["completed_at"]) for score in rows.scores}
    for table in ("scores", "turns", "missed", "approaches", "picks", "labels"):
        for row in getattr(rows, table):
            getattr(of_score[row["score_id"]], table).append(row)
    return parts


async def store(database: Database, criteria: Criteria, chains: Sequence[Rows]) -> None:
    """
    Insert the rows of chains with their criteria in one transaction, one statement per table.

    Raises:
        DatabaseAway: Nothing was stored.
    """
    tools = {tools_hash: names for rows in chains for tools_hash, names in rows.tools.items()}
    days: set[date] = {pick["day"] for rows in chains for pick in rows.picks}
    tables = (
        (ADD_SESSIONS, [row for rows in chains for row in rows.sessions]),
        (_ADD_SCORES, [row for rows in chains for row in rows.scores]),
        (ADD_TURNS, [row for rows in chains for row in rows.turns]),
        (ADD_MISSING_TOOLS, [row for rows in chains for row in rows.missed]),
        (ADD_APPROACHES, [row for rows in chains for row in rows.approaches]),
        (ADD_ANCHORS, [row for rows in chains for row in rows.anchors]),
        (ADD_REVIEW_DAYS, [{"day": day} for day in sorted(days)]),
        (ADD_PICKS, [row for rows in chains for row in rows.picks]),
        (ADD_LABELS, [row for rows in chains for row in rows.labels]),
    )

    async def work(connection: Connection) -> None:
        sql = database.sql
        await connection.execute(
            sql(KEEP_CRITERIA), criteria.criteria_hash, criteria.name, dict(criteria.content)
        )
        for tools_hash, names in tools.items():
            await connection.execute(sql(KEEP_TOOLS), tools_hash, list(names))
        for statement, rows in tables:
            if rows:
                await connection.execute(sql(statement), rows)

    await database.once(work)


_ADD_SCORES = insert_of(
    "session_scores",
    (
        *(
            "score_id",
            "session_id",
            "request_id",
            "chain_id",
            "purpose",
            "status",
            "priority",
            "score_triggered_by",
        ),
        *("attempt", "created_at", "started_at", "completed_at", "criteria", "criteria_hash"),
        *no_results(),
    ),
)
