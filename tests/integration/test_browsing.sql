-- 90,000 sessions of 1,000 chains, a minute apart, of which 80,000 have a score and 20,000 of these two. A few are
-- pending, in progress, failed, cancelled; a few have a rare flag, total, label or criteria.
INSERT INTO sessions (session_id, chain_id, alert_type, labels, status, completed_at, first_seen_at)
SELECT 'session-' || n, CASE WHEN n % 3 = 0 THEN 'kubernetes' WHEN n % 500 <> 1 THEN 'chain-' || n % 1000 END,
  CASE WHEN n % 8000 = 11 THEN 'AlertRare' ELSE 'Alert' || n % 400 END,
  jsonb_build_object('guidance', 'v' || n % 3, 'build', (n / 20)::text),
  'completed', t, t + interval '3 s'
FROM generate_series(1, 90000) n, LATERAL (SELECT now() - make_interval(mins => n) AS t) q;
INSERT INTO session_scores (score_id, session_id, request_id, chain_id, priority, score_triggered_by, status,
  lease_token, created_at, completed_at, criteria, judge_fingerprint, total_score, score_analysis, score_breakdown,
  failure_tags, flags, outcome, interaction)
SELECT md5('score-' || n)::uuid, m.session_id, md5('request-' || n)::uuid, m.chain_id, 1, 'auto', s.status,
  CASE s.status WHEN 'in_progress' THEN md5('token-' || n)::uuid END, m.first_seen_at + later,
  CASE WHEN s.status NOT IN ('pending', 'in_progress') THEN m.first_seen_at + later + interval '40 s' END,
  CASE WHEN n % 1000 = 5 THEN 'cli-tool-use' ELSE 'investigation-methodology' END, 'judge-' || n % 4,
  CASE WHEN s.status = 'completed' AND n % 200 > 0 THEN CASE n % 1000 WHEN 3 THEN 99 ELSE n % 96 END END,
  repeat('analysis of what was done well and badly ', 30),
  CASE WHEN n % 5 > 0 THEN jsonb_build_object('logical_flow', n % 25, 'tool_relevance', n % 20) END,
  CASE n % 7 WHEN 0 THEN '["late", "wrong_conclusion"]' WHEN 1 THEN '["wrong_conclusion"]' ELSE '[]' END::jsonb,
  CASE WHEN n % 1000 = 9 THEN '["tampering_suspected"]' WHEN n % 25 = 0 THEN '["ungrounded"]' ELSE '[]' END::jsonb,
  CASE WHEN n % 10 = 0 THEN 'fail' ELSE 'pass' END,
  jsonb_build_object('by_tool',
    jsonb_build_object('kubernetes.get_pods', '{}'::jsonb, 'x.tool-' || n % 50, '{}'::jsonb))
FROM generate_series(1, 100000) n
JOIN sessions m ON m.session_id = 'session-' || CASE WHEN n <= 80000 THEN n ELSE n - 80000 END,
LATERAL (SELECT CASE WHEN n > 80000 THEN interval '1 hour' ELSE interval '0' END AS later) q,
LATERAL (SELECT CASE WHEN n < 80000 THEN 'completed' WHEN n % 500 = 7 THEN 'pending' WHEN n % 500 = 8 THEN 'in_progress'
  WHEN n % 500 = 9 THEN 'failed' WHEN n % 500 = 11 THEN 'timed_out' WHEN n % 500 = 12 THEN 'cancelled'
  ELSE 'completed' END AS status) s;
INSERT INTO score_missing_tools (score_id, ordinal, tool_name, rationale)
SELECT s.score_id, k, (ARRAY['get_pod_logs', 'Get Pod Logs', 'prometheus_query', 'promethues_query', 'node_cpu_usage',
  'node_gpu_usage', 'get_pods', 'tool_' || h % 3000])[1 + (h / 7 + k) % 8], 'because'
FROM session_scores s, LATERAL (SELECT abs(hashtext(s.score_id::text)::bigint) AS h) q, generate_series(1, 2) k
WHERE s.status = 'completed';
INSERT INTO scoring_requests (request_id, session_id, source, disposition, score_id, received_at, requested_by, force, priority)
SELECT request_id, session_id, 'session-completed', 'accepted', score_id, created_at, 'event: tarsy', false, 1
FROM session_scores;
