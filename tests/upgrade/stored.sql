-- Ended scores of `:sessions` sessions over a year, every fourth session with two: copies of the only score, which the
-- first version has stored, with its request, its turns, the first and the last of its events, and with labels and
-- failures.
CREATE TEMP TABLE first_score AS SELECT * FROM session_scores;

INSERT INTO sessions (session_id, chain_id, alert_type, labels, status, completed_at, first_seen_at)
SELECT 'stored-' || n, 'chain-' || n % 20, 'Alert-' || n % 40, '{"guidance": "v1"}', 'completed', at, at
FROM generate_series(1, :sessions) n,
  LATERAL (SELECT now() - (:sessions + 1 - n) * interval '1 year' / :sessions AS at) t;

INSERT INTO session_scores (score_id, session_id, request_id, chain_id, status, priority, score_triggered_by,
  created_at, started_at, completed_at, attempt, attempts_burned, criteria, criteria_hash, judge_fingerprint,
  total_score, score_analysis, score_breakdown, missing_tools_analysis, outcome, outcome_reason, failure_tags, flags,
  grounding, interaction, diagnosis, coverage, evidence, usage, error_kind, error_message)
SELECT md5('score-' || n)::uuid, s.session_id, md5('request-' || n)::uuid, s.chain_id, e.status, 1, 'auto',
  at, at, at + interval '20 s', 1, CASE WHEN is_completed THEN 0 ELSE 1 END, criteria, criteria_hash,
  CASE WHEN n % 3 = 0 THEN 'former-judge' ELSE judge_fingerprint END,
  CASE WHEN is_completed THEN n * 37 % 101 END, CASE WHEN is_completed THEN score_analysis END,
  CASE WHEN is_completed THEN score_breakdown END, CASE WHEN is_completed THEN missing_tools_analysis END,
  f.outcome, f.outcome_reason, CASE WHEN n % 9 = 0 THEN '["incomplete_evidence"]'::jsonb ELSE f.failure_tags END,
  CASE WHEN n % 17 = 0 THEN '["breakdown_mismatch"]'::jsonb ELSE f.flags END,
  grounding, interaction, diagnosis, coverage, evidence, usage,
  CASE WHEN NOT is_completed THEN 'judge_unavailable' END,
  CASE WHEN NOT is_completed THEN 'the judge did not answer' END
FROM generate_series(1, :sessions * 5 / 4 - 1) n
JOIN sessions s ON s.session_id = 'stored-' || 1 + n % :sessions
CROSS JOIN first_score f,
  LATERAL (SELECT CASE WHEN n % 50 = 0 THEN 'timed_out' WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END AS status,
             s.first_seen_at + CASE WHEN n > :sessions THEN interval '1 min' ELSE interval '1 s' END AS at) e,
  LATERAL (SELECT e.status = 'completed' AS is_completed) c;

INSERT INTO scoring_requests (request_id, event_id, session_id, source, disposition, score_id, received_at, chain_id,
  requested_by, force, priority)
SELECT s.request_id, 'stored-event-' || s.score_id, s.session_id, r.source, r.disposition, s.score_id, s.created_at,
  s.chain_id, r.requested_by, r.force, r.priority
FROM session_scores s CROSS JOIN first_score f JOIN scoring_requests r ON r.request_id = f.request_id
WHERE s.score_id <> f.score_id;

INSERT INTO judge_turns (score_id, ordinal, kind, reply, provider, model_requested, model_served, input_tokens,
  output_tokens, cost_usd, latency_ms, finish_reason, attempt, criteria_hash, context_hash, nonce, asked_hash, created_at)
SELECT s.score_id, t.ordinal, t.kind, t.reply, t.provider, t.model_requested, t.model_served, t.input_tokens,
  t.output_tokens, t.cost_usd, t.latency_ms, t.finish_reason, 1, t.criteria_hash, t.context_hash, s.nonce,
  t.asked_hash, s.completed_at
FROM session_scores s CROSS JOIN first_score f JOIN judge_turns t ON t.score_id = f.score_id
WHERE s.status = 'completed' AND s.score_id <> f.score_id;

INSERT INTO score_missing_tools (score_id, ordinal, tool_name, rationale)
SELECT score_id, 1, 'get_thing_' || total_score % 20, 'It would have shown the cause.'
FROM session_scores WHERE total_score % 4 = 0 AND session_id <> (SELECT session_id FROM first_score);

INSERT INTO scoring_events (score_id, session_id, sequence, type, payload, position, created_at, published_at)
SELECT s.score_id, s.session_id, CASE e.type WHEN 'scoring.started' THEN 1 ELSE 2 END, e.type,
  e.payload || jsonb_build_object('score_id', s.score_id, 'session_id', s.session_id, 'chain_id', s.chain_id),
  r.position + row_number() OVER (ORDER BY s.created_at, s.score_id, e.sequence), s.completed_at, s.completed_at
FROM session_scores s CROSS JOIN first_score f CROSS JOIN relay_position r
JOIN scoring_events e ON e.score_id = f.score_id AND e.type IN ('scoring.started', 'scoring.completed')
WHERE s.score_id <> f.score_id;
UPDATE relay_position SET position = (SELECT max(position) FROM scoring_events);

INSERT INTO score_labels (score_id, session_id, labelled_by, labelled_at, number, reason)
SELECT score_id, session_id, 'ada', completed_at, total_score, 'The totals agree.'
FROM session_scores WHERE total_score = 50;
