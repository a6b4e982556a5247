"""Scores and events that `benchmarks.gateway` and `benchmarks.broadcast` share."""

SCORES = 100
FILL = f"""
INSERT INTO sessions (session_id, chain_id) SELECT 'session-' || n, 'kubernetes' FROM generate_series(1, {SCORES}) n;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, status)
SELECT md5('score-' || n)::uuid, 'session-' || n, md5('request-' || n)::uuid, 1, 'auto', 'c', 'pending'
FROM generate_series(1, {SCORES}) n;
"""
# Fields of `scoring.completed` besides those of every event, at their usual length.
COMPLETED = {
    "total_score": 67,
    "outcome": "pass",
    "criteria": "investigation-methodology",
    "criteria_hash": "0" * 64,
    "judge_fingerprint": "1" * 64,
    "failure_tags": ["premature_conclusion", "unverified_claim"],
    "flags": [],
    "usage": {"input_tokens": 24_000, "cached_input_tokens": 20_000, "output_tokens": 900, "cost_usd": 0.0123},
    "score_triggered_by": "auto",
    "alert_type": "PodCrashLoop",
    "labels": {"guidance": "v2"},
}
