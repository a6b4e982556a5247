INSERT INTO sessions (session_id, chain_id) SELECT 'session-' || n, 'kubernetes' FROM generate_series(1, 24000) n;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, lease_token, lease_owner, lease_expires_at, next_attempt_at, created_at, completed_at, score_analysis, losses)
SELECT md5('score-' || n)::uuid, 'session-' || n, md5('request-' || n)::uuid, n % 3, 'auto', 'c', 'h', status,
  CASE status WHEN 'in_progress' THEN md5('token-' || n)::uuid END,
  CASE status WHEN 'in_progress' THEN md5('owner')::uuid END,
  CASE status WHEN 'in_progress' THEN now() + make_interval(secs => n % 60 - 20) END,
  now() + make_interval(mins => n % 90 - 60), now() - make_interval(mins => n),
  CASE WHEN status IN ('completed', 'failed') THEN now() - make_interval(mins => n) END, repeat('analysis ', 60),
  CASE WHEN n % 100 = 0 THEN 2 ELSE 0 END
FROM generate_series(1, 24000) n, LATERAL (SELECT CASE
  WHEN n <= 600 THEN 'pending' WHEN n <= 1000 THEN 'in_progress' WHEN n % 20 = 0 THEN 'failed' ELSE 'completed'
END AS status) s;
INSERT INTO scoring_requests (request_id, event_id, session_id, source, disposition, score_id, requested_by, force,
  priority)
SELECT md5('request-' || n)::uuid, 'event-' || n, 'session-' || n, 'session-completed',
  CASE WHEN n % 2000 = 0 THEN 'deferred' ELSE 'accepted' END, md5('score-' || n)::uuid, 'auto', false, 1
FROM generate_series(1, 24000) n;
INSERT INTO scoring_events (score_id, session_id, sequence, type, payload, position, published_at)
SELECT md5('score-' || n)::uuid, 'session-' || n, k, 'scoring.progress', '{"phase": "queued"}',
  CASE WHEN p <= 71700 THEN p END, CASE WHEN p <= 71200 THEN now() END
FROM generate_series(1, 24000) n, generate_series(1, 3) k, LATERAL (SELECT 3 * (n - 1) + k AS p) q;
INSERT INTO judge_turns (score_id, ordinal, kind, reply, provider, model_requested, latency_ms, attempt,
  criteria_hash, context_hash, nonce)
SELECT md5('score-' || n)::uuid, k, 'analysis', repeat('reply ', 60), 'main', 'm', 1, 1, 'h', 'c', 'n'
FROM generate_series(1001, 24000) n, generate_series(1, 2) k;
INSERT INTO kept_answers (caller, key, asked_hash, outcome, score_id, request_id, answer, answered_at)
SELECT 'caller-' || n % 100, 'key-' || n, 'h', 'new', md5('score-' || n)::uuid, md5('request-' || n)::uuid, '{}',
  now() - make_interval(mins => n / 10) FROM generate_series(1, 24000) n;
INSERT INTO session_references (reference_id, session_id, text, provided_by, provided_at, request_id)
SELECT md5('reference-' || n)::uuid, 'session-' || n, 'a bad image', 'ada', now(), md5('request-' || n)::uuid
FROM generate_series(1, 24000) n;
UPDATE session_scores SET reference = '{}', reference_id = md5('reference-1700')::uuid
WHERE session_id = 'session-1700';
UPDATE relay_position SET position = 71700;
INSERT INTO provider_states (provider) SELECT 'provider-' || n FROM generate_series(1, 30000) n;
INSERT INTO provider_calls
SELECT md5('call-' || n)::uuid, 'provider-' || n % 20, now() - make_interval(secs => n % 300), 9
FROM generate_series(1, 30000) n;
INSERT INTO budget_days (day, scope, chain_id)
SELECT (now() AT TIME ZONE 'UTC')::date - n % 300, 'chain', 'chain-' || n FROM generate_series(1, 30000) n;
INSERT INTO budget_charges (charge_id, day, chain_id, provider, score_id, reserved_usd)
SELECT md5('call-' || n)::uuid, now()::date - n % 300, 'chain-' || n, 'main', gen_random_uuid(), 1
FROM generate_series(1, 30000) n;
