INSERT INTO sessions (session_id) SELECT 'session-' || n FROM generate_series(1, 6000) n;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, lease_token, lease_owner, lease_expires_at, next_attempt_at, completed_at)
SELECT md5('score-' || n)::uuid, 'session-' || n, md5('request-' || n)::uuid, n % 3, 'auto', 'c', 'h', status,
  CASE status WHEN 'in_progress' THEN md5('token-' || n)::uuid END,
  CASE status WHEN 'in_progress' THEN md5('owner')::uuid END,
  CASE status WHEN 'in_progress' THEN now() END,
  CASE WHEN n = 5 THEN now() - interval '1 hour' WHEN n <= 7 THEN now() - make_interval(secs => 113 + n)
    ELSE now() + interval '1 hour' END,
  CASE status WHEN 'completed' THEN now() END
FROM generate_series(1, 6000) n, LATERAL (SELECT CASE
  WHEN n <= 11 THEN 'pending' WHEN n <= 14 THEN 'in_progress' ELSE 'completed' END AS status) s;
