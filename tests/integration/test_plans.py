"""The statements of the busy loops use their indexes on tables large enough for that to matter."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from builders import connected
from full_database import filled_database, indexes, plan_of, scanned
from infrastructure import Postgres
from tarsy_scoring.limits import fleet
from tarsy_scoring.limits import ledger as tables
from tarsy_scoring.live import stored
from tarsy_scoring.outbox import outbox
from tarsy_scoring.queue import (
    backlog,
    claims,
    idempotency,
    inbox,
    known_names,
    leases,
    selection,
    session_states,
    store,
)
from tarsy_scoring.references import store as stored_references
from tarsy_scoring.scores import reader as scores
from tarsy_scoring.tarsy import write_back

BIG = {"sessions", "session_scores", "scoring_requests", "scoring_events", "judge_turns", "kept_answers"} | {
    "session_references",
    "provider_calls",
    "budget_charges",
    "budget_days",
    "provider_states",
}
SESSIONS = 24_000

# 24,000 scores, of which 600 are pending (a third of them not due) and 400 in progress; 72,000 events, of which
# 300 have no position and 500 more are not published.
FILL = f"""
INSERT INTO sessions (session_id, chain_id) SELECT 'session-' || n, 'kubernetes' FROM generate_series(1, {SESSIONS}) n;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, lease_token, lease_owner, lease_expires_at, next_attempt_at, created_at, completed_at, score_analysis, losses)
SELECT md5('score-' || n)::uuid, 'session-' || n, md5('request-' || n)::uuid, n % 3, 'auto', 'c', 'h', status,
  CASE status WHEN 'in_progress' THEN md5('token-' || n)::uuid END,
  CASE status WHEN 'in_progress' THEN md5('owner')::uuid END,
  CASE status WHEN 'in_progress' THEN now() + make_interval(secs => n % 60 - 20) END,
  now() + make_interval(mins => n % 90 - 60), now() - make_interval(mins => n),
  CASE WHEN status IN ('completed', 'failed') THEN now() - make_interval(mins => n) END, repeat('analysis ', 60),
  CASE WHEN n % 100 = 0 THEN 2 ELSE 0 END
FROM generate_series(1, {SESSIONS}) n, LATERAL (SELECT CASE
  WHEN n <= 600 THEN 'pending' WHEN n <= 1000 THEN 'in_progress' WHEN n % 20 = 0 THEN 'failed' ELSE 'completed'
END AS status) s;
INSERT INTO scoring_requests (request_id, event_id, session_id, source, disposition, score_id, requested_by, force,
  priority)
SELECT md5('request-' || n)::uuid, 'event-' || n, 'session-' || n, 'session-completed',
  CASE WHEN n % 2000 = 0 THEN 'deferred' ELSE 'accepted' END, md5('score-' || n)::uuid, 'auto', false, 1
FROM generate_series(1, {SESSIONS}) n;
INSERT INTO scoring_events (score_id, session_id, sequence, type, payload, position, published_at)
SELECT md5('score-' || n)::uuid, 'session-' || n, k, 'scoring.progress', '{{"phase": "queued"}}',
  CASE WHEN p <= {3 * SESSIONS - 300} THEN p END, CASE WHEN p <= {3 * SESSIONS - 800} THEN now() END
FROM generate_series(1, {SESSIONS}) n, generate_series(1, 3) k, LATERAL (SELECT 3 * (n - 1) + k AS p) q;
INSERT INTO judge_turns (score_id, ordinal, kind, reply, provider, model_requested, latency_ms, attempt,
  criteria_hash, context_hash, nonce)
SELECT md5('score-' || n)::uuid, k, 'analysis', repeat('reply ', 60), 'main', 'm', 1, 1, 'h', 'c', 'n'
FROM generate_series(1001, {SESSIONS}) n, generate_series(1, 2) k;
INSERT INTO kept_answers (caller, key, asked_hash, outcome, score_id, request_id, answer, answered_at)
SELECT 'caller-' || n % 100, 'key-' || n, 'h', 'new', md5('score-' || n)::uuid, md5('request-' || n)::uuid, '{{}}',
  now() - make_interval(mins => n / 10) FROM generate_series(1, {SESSIONS}) n;
INSERT INTO session_references (reference_id, session_id, text, provided_by, provided_at, request_id)
SELECT md5('reference-' || n)::uuid, 'session-' || n, 'a bad image', 'ada', now(), md5('request-' || n)::uuid
FROM generate_series(1, {SESSIONS}) n;
UPDATE session_scores SET reference = '{{}}', reference_id = md5('reference-1700')::uuid
WHERE session_id = 'session-1700';
UPDATE relay_position SET position = {3 * SESSIONS - 300};
INSERT INTO provider_states (provider) SELECT 'provider-' || n FROM generate_series(1, 30000) n;
INSERT INTO provider_calls
SELECT md5('call-' || n)::uuid, 'provider-' || n % 20, now() - make_interval(secs => n % 300), 9
FROM generate_series(1, 30000) n;
INSERT INTO budget_days (day, scope, chain_id)
SELECT (now() AT TIME ZONE 'UTC')::date - n % 300, 'chain', 'chain-' || n FROM generate_series(1, 30000) n;
INSERT INTO budget_charges (charge_id, day, chain_id, provider, score_id, reserved_usd)
SELECT md5('call-' || n)::uuid, now()::date - n % 300, 'chain-' || n, 'main', gen_random_uuid(), 1
FROM generate_series(1, 30000) n;
"""


@pytest.fixture(scope="module")
def full_database_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A migrated database with many rows and fresh statistics; tests only read it."""
    with filled_database(postgres, _migrated_template, FILL) as url:
        yield url


@pytest.fixture
async def connection(full_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(full_database_url) as opened:
        yield opened


def _ids(what: str, *numbers: int) -> str:
    return "ARRAY[" + ", ".join(f"md5('{what}-{n}')::uuid" for n in numbers) + "]"


def _document(**columns: Any) -> str:
    rows = [{**columns, "score_id": str(uuid.uuid4()), "lease_token": str(uuid.uuid4())} for _ in range(100)]
    return f"'{json.dumps(rows)}'"


HUNDRED = range(601, 701)
SCORES, TOKENS = _ids("score", *HUNDRED), _ids("token", *HUNDRED)
SOME_SESSIONS = "ARRAY[" + ", ".join(f"'session-{n}'" for n in range(500, 600)) + "]"
SCORE, TOKEN = "md5('score-700')::uuid", "md5('token-700')::uuid"
CALLS, NUMBERS = _ids("call", *range(100)), "ARRAY[" + ", ".join(["1"] * 100) + "]"
DAYS = "ARRAY[now()::date, now()::date], ARRAY['all', 'chain'], ARRAY['', 'chain-300']"
PROVIDER = f"'{json.dumps([{'provider': 'provider-7', 'failed_calls': [], 'cool_down_s': 0, 'reason': ''}])}'"
PHASES = "ARRAY[" + ", ".join(["'storing'"] * 100) + "]"

NONE = "'{}'::text[]"
CLAIMING = f"md5('owner')::uuid, 16, 60, {NONE}, {NONE}, false, 1, 2, ARRAY['c'], {NONE}, 180"

# Name: statement, its arguments as SQL, the index that must carry it.
STATEMENTS = {
    "claim": (claims.CLAIM, CLAIMING, "session_scores_due"),
    "claim-suspect": (claims.CLAIM, CLAIMING, "session_scores_lost"),
    "move-claim-floor": (claims.MOVE_CLAIM_FLOOR, "", "session_scores_due"),
    "keep-leases": (leases.RENEW, f"{SCORES}, {TOKENS}, 60", "session_scores_pkey"),
    "keep-locked-leases": (leases.RENEW_LOCKED, f"{SCORES}, {TOKENS}, 60", "session_scores_pkey"),
    "expired": (leases.EXPIRED, TOKENS, "session_scores_running"),
    "take-back": (leases.TAKE_BACK, f"{SCORES}, 5, 3600", "session_scores_pkey"),
    "record-phases": (store.RECORD_PHASES, f"{SCORES}, {TOKENS}, {PHASES}", "session_scores_pkey"),
    "still-held": (store.STILL_HELD, f"{SCORES}, {TOKENS}", "session_scores_pkey"),
    "turns": (store.TURNS, SCORE, "judge_turns_pkey"),
    "bind": (store.BIND, f"{SCORE}, {TOKEN}, 'c', 'c', 'h', 'auto', 1, false", "session_scores_pkey"),
    "leave-to-others": (known_names.LEAVE, f"{SCORE}, {TOKEN}, 'k', 1, 180, 'c'", "session_scores_pkey"),
    "unknown": (known_names.UNKNOWN, f"ARRAY['c'], {NONE}, 900", "session_scores_due"),
    "fail-unknown": (known_names.FAIL_UNKNOWN, f"ARRAY['other'], {NONE}, {SCORES}", "session_scores_pkey"),
    "put-back": (leases.PUT_BACK, f"{SCORE}, {TOKEN}, 1, 'retry', 1, 1, 'x'", "session_scores_pkey"),
    "release-untracked": (leases.RELEASE_UNTRACKED, f"md5('owner')::uuid, {TOKENS}", "session_scores_running"),
    "learn-sessions": (store.LEARN_SESSIONS, _document(alert_type="disk-full"), "sessions_pkey"),
    "end": (store.END, _document(status="completed"), "session_scores_pkey"),
    "cancel": (leases.CANCEL, f"{SCORE}, 'bob'", "session_scores_pkey"),
    "defer-joined": (inbox.DEFER_JOINED, f"{SCORES}, 'session-completed'", "scoring_requests_score"),
    "known-requests": (inbox.KNOWN_REQUESTS, _ids("request", *HUNDRED), "scoring_requests_pkey"),
    "count-arrivals": (inbox.COUNT_ARRIVALS, f"{_ids('request', 1, 2, 3)}, ARRAY[1, 1, 1]", "scoring_requests_pkey"),
    "lock-sessions": (inbox.LOCK_SESSIONS, SOME_SESSIONS, "sessions_pkey"),
    "lock-free-sessions": (inbox.LOCK_FREE_SESSIONS, SOME_SESSIONS, "sessions_pkey"),
    "open-scores": (session_states.STATES, SOME_SESSIONS, "session_scores_one_open"),
    "completed-scores": (session_states.STATES, SOME_SESSIONS, "session_scores_scored"),
    "deferred-requests": (inbox.DEFERRED_REQUESTS, SOME_SESSIONS, "scoring_requests_one_deferred"),
    "answer-request": (inbox.SET_DISPOSITION, f"{SCORE}, 'accepted', {SCORE}", "scoring_requests_pkey"),
    "count-open": (backlog.OPEN_SCORES, "'{}'::text[], '{}'::text[], 'nothing'", "session_scores_due"),
    "due-scores": (backlog.DUE_SCORES, "1100002, '{}'::text[], '{}'::text[], false", "session_scores_due"),
    "newest-reference": (session_states.STATES, SOME_SESSIONS, "session_references_of_session"),
    "references-of-sessions": (scores.REFERENCES_OF_SESSIONS, SOME_SESSIONS, "session_references_of_session"),
    "reference-of-score": (stored_references.OF_SCORE, SCORE, "session_references_pkey"),
    "scores-of-requests": (inbox.SCORES_OF_REQUESTS, _ids("request", *HUNDRED), "scoring_requests_pkey"),
    "requests-of-score": (inbox.SURVIVING_REQUEST, f"{SCORE}, 'session-completed'", "scoring_requests_score"),
    "requests-by-event": (inbox.REQUESTS_BY_EVENT, "'event-77', 1000", "scoring_requests_event"),
    "emit": (
        outbox.EMIT,
        f"{SCORES}, {PHASES}, ARRAY[{', '.join(['jsonb_build_object()'] * 100)}], {PHASES}",
        "scoring_events_score_id_sequence_key",
    ),
    "place": (outbox.ASSIGN_POSITIONS, "1000, false, 'relay', 'public'", "scoring_events_unplaced"),
    "look": (outbox.LOOK, "", "scoring_events_position"),
    "unpublished": (outbox.UNPUBLISHED, "1000", "scoring_events_position"),
    "raise-entry": (outbox.RAISE_ENTRY, "71700", "scoring_events_unplaced"),
    "name-stages": (write_back.NAME_STAGES, f"{SCORES}, {PHASES}", "session_scores_pkey"),
    "mark-published": (outbox.MARK_PUBLISHED, "ARRAY[71300, 71301, 71302]", "scoring_events_position"),
    "backlog": (backlog.UNPUBLISHED_EVENTS, "", "scoring_events_position"),
    "gateway-newer": (stored.NEWER, "71000, 71700, 1000", "scoring_events_position"),
    "catch-up-of-session": (stored.NEWER_OF_SESSION, "0, 71700, 201, 'session-77'", "scoring_events_of_session"),
    "catch-up-of-all": (
        stored.NEWER_OF_ALL,
        "71000, 71700, 201, ARRAY['queued', 'waiting_retry']",
        "scoring_events_position",
    ),
    "score": (scores.SCORE, SCORE, "session_scores_pkey"),
    "score-of-session": (scores.SCORE_OF_SESSION, "'session-7700'", "session_scores_latest"),
    "newest-score": (scores.NEWEST_SCORE, "'session-77', NULL", "session_scores_of_session"),
    "history": (scores.HISTORY, f"'session-77', now(), {SCORE}, 'production', 51", "session_scores_of_session"),
    "history-from-the-start": (scores.HISTORY, "'session-77', NULL, NULL, NULL, 51", "session_scores_of_session"),
    "replies": (scores.REPLIES, SCORE, "judge_turns_pkey"),
    "recall": (idempotency.ANSWER, "'caller-7', 'key-7000'", "kept_answers_pkey"),
    "keep": (idempotency.KEEP_ANSWER, f"'caller-7', 'new', 'h', 'new', {SCORE}, {SCORE}", "kept_answers_pkey"),
    "complete": (idempotency.COMPLETE_ANSWER, f"'caller-7', 'key-7000', {SCORE}, 'text'", "kept_answers_pkey"),
    "never-scored": (selection.NEVER_SCORED, SOME_SESSIONS, "session_scores_of_session"),
    "lock-providers": (tables.LOCK_PROVIDERS, "ARRAY['provider-7', 'provider-8']", "provider_states_pkey"),
    "save-providers": (tables.SAVE_PROVIDERS, PROVIDER, "provider_states_pkey"),
    "count-window": (tables.COUNT_WINDOW, "'provider-7', now() - interval '1 min'", "provider_calls_window"),
    "read-window": (tables.READ_WINDOW, "'provider-7', now() - interval '1 min'", "provider_calls_window"),
    "correct-calls": (tables.CORRECT_CALLS, f"{CALLS}, {NUMBERS}", "provider_calls_pkey"),
    "lock-today": (tables.LOCK_TODAY, "ARRAY['all', 'chain'], ARRAY['', 'chain-300']", "budget_days_pkey"),
    "lock-days": (tables.LOCK_DAYS, DAYS, "budget_days_pkey"),
    "change-days": (tables.CHANGE_DAYS, f"{DAYS}, ARRAY[1, 1], ARRAY[1, 1]", "budget_days_pkey"),
    "settle-charges": (tables.SETTLE_CHARGES, f"{CALLS}, {NUMBERS}", "budget_charges_pkey"),
    "today": (fleet.TODAY, "", "budget_days_pkey"),
    "learn-factor": (fleet.LEARN_FACTOR, "'provider-7', 'm', 1.5, 1.0", "provider_states_pkey"),
}


@pytest.mark.parametrize("generic", [False, True], ids=["first-runs", "prepared"])
async def test_every_statement_uses_its_index(connection: asyncpg.Connection, generic: bool) -> None:
    """No statement reads a large table from end to end."""
    for name, (statement, arguments, index) in STATEMENTS.items():
        nodes = await plan_of(connection, statement, arguments, generic=generic)

        assert (name, scanned(nodes) & BIG, index in indexes(nodes)) == (name, set(), True), nodes


async def test_a_heartbeat_changes_no_indexed_column(connection: asyncpg.Connection) -> None:
    """A heartbeat changes no indexed column, so renewing leases stays a heap-only update."""
    indexed = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'session_scores'")

    assert len(indexed) > 3
    assert not [r for r in indexed if "lease_expires_at" in r["indexdef"]]
