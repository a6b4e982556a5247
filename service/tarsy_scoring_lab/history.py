"""
Three months of example scores for the demo: six chains of a small model of agents, with known changes.

All chains begin with `example-` and all sessions have the label `data: example`. No session was run and no
model
judged: every number comes from `simulated` and a fixed seed. Only sessions with suspicious text can be read.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tarsy_scoring.config.settings import ChainSettings, Config, ProviderSettings, Settings
from tarsy_scoring.evaluation.diagnosis import diagnose
from tarsy_scoring.evaluation.interaction import Counts, Interaction, Tokens
from tarsy_scoring.evaluation.outcome import Threshold, decide_outcome
from tarsy_scoring.evaluation.tool_names import normalise
from tarsy_scoring.judge.criteria import Criteria, CriteriaRegistry, load_criteria
from tarsy_scoring.missing_tools.decisions import set_state
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.scores.fields import no_results
from tarsy_scoring.scoring.score_columns import tools_hash_of
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring_lab.injected import judge_with_injection, session_with_injection
from tarsy_scoring_lab.simulated import Missed, Plan, Rows, Simulation, by_time, draws, store

SEED = 7
CRITERIA = "investigation"
DAYS = 90
LABEL = {"data": "example"}
PERSON = "example-ana"
JUDGE_DAY = 40  # all chains get a judge that is milder by `JUDGE_POINTS`
JUDGE_POINTS = 7.0
PROMPT_DAY, PROMPT_POINTS = 55, 8.0  # a better prompt of the agents in `PAYMENTS`
TOOL_DAY = 62  # `BUILT_TOOL` is there, in `KUBERNETES`
# Agents in `DATABASES` lose `LOST_TOOL` when the last week of `/week` begins; so much do sessions lose that
# need it.
LOST_DAY, LOST_SHARE, LOST_POINTS = DAYS - 6, 0.6, 45.0
OUTAGE_DAY, OUTAGE_H = 70, 8  # the judge does not answer, and its circuit opens
REVIEWED_UNTIL = DAYS - 8  # the days after it are left for the review page to draw
PAYMENTS, KUBERNETES, NETWORK = "example-payments", "example-kubernetes", "example-network"
DATABASES = "example-databases"
# The configuration of the chains; those of the demo's own sessions have the gates of its `defaults`.
CHAINS: Mapping[str, Mapping[str, Any]] = {
    PAYMENTS: {"pass_threshold": 70, "gates": []},
    KUBERNETES: {"pass_threshold": 60, "gates": []},
    **{name: {"gates": []} for name in (DATABASES, NETWORK, "example-batch-jobs", "example-certificates")},
}
PROVIDER = "example"
BUILT_TOOL, WANTED_TOOL, LOST_TOOL = "get_previous_logs", "search_traces", "sql_query"
JUDGES = "example-judge-spring", "example-judge-summer"

_TOOLS = "kubectl_get", "kubectl_logs", "prometheus_query"
_TRACES_SPELT = WANTED_TOOL, WANTED_TOOL, "search-traces"
_PREVIOUS_LOGS = (
    "The logs of the container that died were gone, so the cause was guessed.",
    "Only the restarted container could be read; the reason stood in its last lines before the restart.",
)
_TRACES = (
    "Which call was slow could not be seen, because no traces were at hand.",
    "The agent timed services one after the other, where one trace would have shown the slow one.",
)
_QUERIES = (
    "Which statement held the lock could not be seen, because the agent could not ask the database.",
    "Replication was judged by the metrics of the host alone; the cause stood in the database itself.",
)
_NEVER = DAYS  # no change within the history


def _plan(name: str, sessions: int, kinds: Mapping[str, tuple[float, int]], **more: Any) -> Plan:
    """A chain without a change of its agents; `more` replaces fields."""
    plan = Plan(
        chain=f"example-{name}",
        prefix=f"example-{name}-",
        days=DAYS,
        sessions=sessions,
        kinds=kinds,
        judges=(_fingerprint(JUDGES[0]), _fingerprint(JUDGES[1])),
        judge_day=JUDGE_DAY,
        judge_points=JUDGE_POINTS,
        changed_day=_NEVER,
        changed_points=0.0,
        labels=LABEL,
        changed_labels=LABEL,
        tools=_TOOLS,
        changed_tools=_TOOLS,
        missed=(Missed(0.06, 0.06, _TRACES_SPELT, _TRACES),),
        labelled_share=0.12,
        labelled_until=REVIEWED_UNTIL,
        person=PERSON,
    )
    return replace(plan, **more)


def _fingerprint(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()


PLANS = (
    _plan(
        "payments",
        900,
        {"HighLatency": (52.0, 5), "ErrorRateHigh": (58.0, 3), "QueueBacklog": (48.0, 2)},
        changed_day=PROMPT_DAY,
        changed_points=PROMPT_POINTS,
        labels=LABEL | {"prompt_version": "v1"},
        changed_labels=LABEL | {"prompt_version": "v2"},
        missed=(Missed(0.16, 0.15, _TRACES_SPELT, _TRACES),),
        anchors=40,
    ),
    _plan(
        "kubernetes",
        700,
        {"PodOOMKilled": (56.0, 5), "CrashLoopBackOff": (50.0, 3), "NodeNotReady": (62.0, 2)},
        changed_day=TOOL_DAY,
        changed_points=3.0,
        changed_tools=(*_TOOLS, BUILT_TOOL),
        missed=(
            Missed(0.24, 0.01, (BUILT_TOOL, "Get Previous Logs"), _PREVIOUS_LOGS),
            Missed(0.05, 0.05, ("node_pressure",), ("Whether the node was short of memory stayed open.",)),
        ),
    ),
    _plan(
        "databases",
        400,
        {"ReplicationLag": (60.0, 6), "DiskFull": (66.0, 4)},
        changed_day=LOST_DAY,
        tools=(*_TOOLS, LOST_TOOL),
        missed=(
            Missed(0.06, 0.06, _TRACES_SPELT, _TRACES),
            Missed(0.02, LOST_SHARE, (LOST_TOOL,), _QUERIES, LOST_POINTS),
        ),
    ),
    _plan("network", 250, {"DnsErrors": (55.0, 5), "PacketLoss": (46.0, 5)}),
    _plan("batch-jobs", 150, {"JobFailed": (63.0, 10)}),
    _plan("certificates", 100, {"CertificateExpiry": (72.0, 10)}),
)

# Failure tags of scores outside of the band `correct`, and how often out of ten.
_TAGS = {
    "missed_evidence": 4,
    "unsupported_confidence": 3,
    "wrong_conclusion": 2,
    "hallucinated_evidence": 1,
}
_ANALYSES = {
    "correct": "Example data. The finding follows from the results, and the change that it suggests would work.",
    "partial": "Example data. The finding names the right place but a symptom; a result in reach tells the cause.",
    "wrong": "Example data. A result contradicts the finding, and the deciding evidence was never read.",
}
_ONLY_CHATS = "the session has only chats."
_NO_ANSWER = (
    "the judge's provider returned 503 three times; then its circuit opened, and later scores waited for it."
)
_APPROACHES = (
    (
        ("Compare with the last deployment", "Compare with the latest deployment"),
        "List what changed before the alert, then test whether the change explains the signal.",
        (
            ("List the deployments of the last day", "kubectl_get"),
            ("Compare the error rates", "prometheus_query"),
        ),
    ),
    (
        ("Read the logs of the failing pod first",),
        "The first error line names the dependency that fails; the metrics come after it.",
        (
            ("Read the last lines before the restart", "kubectl_logs"),
            ("Check that dependency", "prometheus_query"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Filled:
    """
    What a history holds, for the tour.

    Args:
        beginning: Midnight (UTC) of its first day.
        sessions: Its sessions with suspicious text, as session files have them; they are to be loaded into
            the timeline source.
    """

    scores: int
    beginning: datetime
    sessions: Sequence[dict[str, Any]]

    def day(self, number: int) -> str:
        """The date of a day of the history."""
        return f"{self.beginning + timedelta(days=number):%Y-%m-%d}"


async def fill(database: Database, now: datetime) -> Filled:
    """
    Store the history that ends at the midnight before `now`, and what a person said about a tool of it.

    After each week of the history, the chains are searched for drift, as a worker of that time would have
    done. Rollups and the review queue are left to the workers and pages, as for any other score.

    Raises:
        DatabaseAway: The history may be stored without the state of the tool.
    """
    settings, registry = _settings(), load_criteria()
    criteria = registry.get(CRITERIA)
    policy = Policy(settings, {c.name: c.criteria_hash for c in registry})
    beginning = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    chains = [example_rows(SEED + n, plan, criteria, beginning) for n, plan in enumerate(PLANS)]
    sessions = [
        session
        for plan, rows in zip(PLANS, chains, strict=True)
        if plan.chain == NETWORK
        for session in await _inject(settings, registry, plan, rows)
    ]
    ends = [beginning + timedelta(days=day) for day in (*range(7, DAYS, 7), DAYS)]
    for end, week in zip(ends, zip(*(by_time(rows, ends) for rows in chains), strict=True), strict=True):
        await store(database, criteria, week)
        if end in (ends[0], ends[-1]):
            # Without statistics, PostgreSQL plans for empty tables and takes seconds.
            await database.once(lambda connection: connection.execute("ANALYZE"))
        await _look_for_drift(database, policy, end)
    await set_state(
        database,
        BUILT_TOOL,
        "built",
        by=PERSON,
        since=beginning + timedelta(days=TOOL_DAY),
        note="Example data: reads the logs of a container before its last restart.",
    )
    return Filled(sum(len(rows.scores) for rows in chains), beginning, sessions)


def _settings() -> Settings:
    """Settings under which workers would have made the history."""
    defaults: dict[str, Any] = {"criteria": CRITERIA, "providers": [PROVIDER]}
    return Settings(
        config=Config(
            providers={PROVIDER: ProviderSettings()},
            defaults=ChainSettings(**defaults),
            chains={name: ChainSettings(**{**defaults, **chain}) for name, chain in CHAINS.items()},
        )
    )


async def _look_for_drift(database: Database, policy: Policy, now: datetime) -> None:
    """Make the looks at the example chains that are due, over the scores that are stored so far."""
    standing, judgements = await anchors.standing(database, policy), await anchors.judgements(database)
    for plan in PLANS:
        found = await findings.situation(database, plan.chain, CRITERIA, standing, judgements)
        if found is not None:
            await findings.look_at(database, found, now)


def example_rows(seed: int, plan: Plan, criteria: Criteria, beginning: datetime) -> Rows:
    """The rows of a chain, with everything that a page of a score or of a chain shows."""
    rows = Simulation(seed, plan, criteria, beginning).run()
    draw = draws(seed, "details")
    outage = beginning + timedelta(days=OUTAGE_DAY, hours=9)
    for score in rows.scores:
        _describe(draw, plan, criteria, score)
        if score["purpose"] == "production":
            _add_approach(draw, rows, score)
            _delay_by_outage(draw, score, outage)
        rows.turns.append(_turn(plan, score))
    for n in range(plan.sessions // 80):
        ended = beginning + timedelta(days=DAYS * draw.random())
        _add_unjudged(
            rows, plan, f"{plan.prefix}chat-{n}", ended, "cancelled", "nothing_to_judge", _ONLY_CHATS
        )
    _add_unjudged(rows, plan, f"{plan.prefix}outage", outage, "failed", "judge_unavailable", _NO_ANSWER)
    return rows


# --- scores --------------------------------------------------------------------------------------------


def _describe(draw: random.Random, plan: Plan, criteria: Criteria, score: dict[str, Any]) -> None:
    """Fill what a judge and the measurement say beside the total."""
    total = score["total_score"]
    outcome = next(name for name, (low, high) in criteria.bands.items() if low <= total <= high)
    has_changed_tools = score["tools_hash"] == tools_hash_of(sorted(map(normalise, plan.changed_tools)))
    interaction = _interaction(
        draw, plan.changed_tools if has_changed_tools else plan.tools, score["interaction"]
    )
    is_correct = outcome == "correct"
    threshold = Threshold(CHAINS[plan.chain].get("pass_threshold"))
    passed = decide_outcome((), total, threshold)
    score |= {
        "judge_outcome": outcome,
        "pass_threshold": threshold.value,
        "judge_passed": passed.judge_passed,
        "outcome": passed.value,
        "outcome_reason": passed.reason,
        "score_analysis": _ANALYSES[outcome],
        "missing_tools_analysis": "Example data.",
        "failure_tags": [] if is_correct else draw.choices(list(_TAGS), list(_TAGS.values())),
        "interaction": interaction.document(),
        "diagnosis": [asdict(finding) for finding in diagnose(interaction)],
        "usage": _usage(draw),
        "coverage": {"shown_share": 1.0, "cut_entries": []},
    }


def _interaction(draw: random.Random, tools: Sequence[str], drawn: Mapping[str, Any]) -> Interaction:
    """The measured metrics of a session, with whole counts in place of the drawn rates."""
    commands: int = drawn["total_commands"]
    used = draw.choices(tools, k=commands)
    failed = [draw.random() < drawn["error_rate"] for _ in used]
    by_tool = {
        name: _counts([f for tool, f in zip(used, failed, strict=True) if tool == name], retries=0, helps=0)
        for name in sorted(set(used))
    }
    retries = round(drawn["retry_rate"] * commands)
    total = _counts(failed, retries=retries, helps=drawn["help_invocations"])
    return Interaction(
        **{name: getattr(total, name) for name in Counts.__slots__},
        completed=True,
        error_basis={"is_error": commands},
        longest_identical_run=None,
        cycles=(),
        duration_s=round(draw.uniform(8, 25) * commands, 1),
        tool_duration_ms=draw.randrange(300, 1500) * commands,
        agent_tokens=Tokens(draw.randrange(2500, 5000) * commands, draw.randrange(150, 400) * commands),
        by_tool=by_tool,
        by_subcommand={},
    )


def _counts(failed: Sequence[bool], *, retries: int, helps: int) -> Counts:
    """Counts of commands, of which `retries` repeat an earlier one."""
    total, errors = len(failed), sum(failed)
    return Counts(
        total_commands=total,
        unique_commands=total - retries,
        error_count=errors,
        retry_count=retries,
        help_invocations=helps,
        repeated_after_failure=0,
        error_rate=errors / total,
        retry_rate=retries / total,
        first_try_success_rate=max(0, total - retries - errors) / total,
        iteration_ratio=(total - retries) / total,
    )


def _usage(draw: random.Random) -> dict[str, Any]:
    """Tokens and cost of the judge, at 2 USD per million tokens read and 8 per million written."""
    read, written = draw.randrange(9_000, 24_000), draw.randrange(500, 1_200)
    cost_usd = round((2 * read + 8 * written) / 1e6, 6)
    return {"input_tokens": read, "cached_input_tokens": 0, "output_tokens": written, "cost_usd": cost_usd}


def _turn(plan: Plan, score: Mapping[str, Any]) -> dict[str, Any]:
    """The one turn of a score; its reply is not kept, as after its retention."""
    model = _judge_of(plan, score)
    return {
        "score_id": score["score_id"],
        "ordinal": 0,
        "kind": "analysis",
        "reply": "",
        "provider": PROVIDER,
        "model_requested": model,
        "model_served": model,
        "latency_ms": 9000,
        "finish_reason": "stop",
        "has_tool_calls": False,
        "attempt": score["attempt"],
        "criteria_hash": score["criteria_hash"],
        "context_hash": "example",
        "nonce": "example",
        "created_at": score["completed_at"],
        **score["usage"],
    }


def _judge_of(plan: Plan, score: Mapping[str, Any]) -> str:
    """The model that judged."""
    return JUDGES[plan.judges.index(score["judge_fingerprint"])]


def _add_approach(draw: random.Random, rows: Rows, score: Mapping[str, Any]) -> None:
    """Name a better approach for some of the scores under 60."""
    if score["total_score"] < 60 and draw.random() < 0.25:
        names, description, steps = draw.choice(_APPROACHES)
        approach = {
            "score_id": score["score_id"],
            "ordinal": 0,
            "name": draw.choice(names),
            "description": description,
        }
        rows.approaches.append(
            approach | {"steps": [{"step": step, "tool_name": tool} for step, tool in steps]}
        )


# --- events --------------------------------------------------------------------------------------------


def _delay_by_outage(draw: random.Random, score: dict[str, Any], began: datetime) -> None:
    """Scores of the outage wait for the circuit to close, and are judged after its end."""
    ended = began + timedelta(hours=OUTAGE_H)
    if began <= score["created_at"] < ended:
        score |= {"completed_at": ended + timedelta(minutes=draw.uniform(1, 20)), "attempt": 2}


async def _inject(
    settings: Settings, registry: CriteriaRegistry, plan: Plan, rows: Rows
) -> list[dict[str, Any]]:
    """Let text in every twentieth session address the judge, who obeys some of it; returns these sessions."""
    rows_of = {row["session_id"]: row for row in rows.sessions}
    chosen = {score["score_id"]: score for score in rows.scores[: plan.sessions : 20]}
    for table in ("turns", "missed"):
        setattr(rows, table, [row for row in getattr(rows, table) if row["score_id"] not in chosen])
    sessions = []
    for n, score in enumerate(chosen.values()):
        session = session_with_injection(n, rows_of[score["session_id"]], plan.tools)
        model = _judge_of(plan, score)
        rows.turns += await judge_with_injection(settings, registry, session, score, model, obeys=n % 6 == 3)
        sessions.append(session)
    return sessions


def _add_unjudged(
    rows: Rows, plan: Plan, session_id: str, ended: datetime, status: str, error_kind: str, message: str
) -> None:
    """Add a session whose score ended without a judgement."""
    like = rows.scores[0]
    session = {"session_id": session_id, "chain_id": plan.chain, "alert_type": next(iter(plan.kinds))}
    times = {"completed_at": ended, "first_seen_at": ended}
    rows.sessions.append(session | times | {"labels": dict(plan.labels), "status": "completed"})
    same = {
        name: like[name] for name in ("chain_id", "purpose", "priority", "score_triggered_by", "criteria")
    }
    at = {"created_at": ended, "started_at": ended, "completed_at": ended + timedelta(minutes=4)}
    failure = {"status": status, "error_kind": error_kind, "error_message": f"Example data: {message}"}
    ids = {name: uuid5(NAMESPACE_URL, f"{session_id}/{name}") for name in ("score_id", "request_id")}
    own = {"session_id": session_id, "criteria_hash": like["criteria_hash"], "attempt": 1}
    rows.scores.append(no_results() | same | at | failure | ids | own)
