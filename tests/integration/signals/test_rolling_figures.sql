INSERT INTO sessions (session_id, chain_id) SELECT 'session-' || n, 'chain-' || n % 20 FROM generate_series(1, 40000) n;
INSERT INTO session_scores (session_id, request_id, chain_id, priority, score_triggered_by, criteria, criteria_hash,
  status, completed_at, total_score, error_kind, usage, score_analysis)
SELECT 'session-' || n, md5('request-' || n)::uuid, CASE WHEN n % 20 > 0 THEN 'chain-' || n % 20 END, 1, 'auto', 'c',
  'h', status, timestamptz '2026-03-10T12:00Z' - make_interval(mins => n),
  CASE WHEN status = 'completed' THEN n % 101 END,
  CASE WHEN status <> 'completed' THEN 'kind-' || n % 3 END, '{"cost_usd": 0.1}', repeat('analysis ', 60)
FROM generate_series(1, 40000) n, LATERAL (SELECT CASE WHEN n % 19 = 0 THEN 'failed' WHEN n % 997 = 0 THEN 'cancelled'
  ELSE 'completed' END AS status) s;
