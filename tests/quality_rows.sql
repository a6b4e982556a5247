INSERT INTO sessions (session_id, chain_id, alert_type, status, completed_at)
SELECT 'session-' || n, 'chain-' || n % {chains}, 'Alert-' || n % 40, 'completed',
  now() - make_interval(secs => ({sessions} - n) * 31536000.0 / {sessions})
FROM generate_series(1, {sessions}) n;
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, criteria, criteria_hash,
  status, created_at, started_at, completed_at, total_score, score_analysis, missing_tools_analysis, score_breakdown,
  interaction, usage, judge_fingerprint, samples, flags, chain_id)
SELECT md5('score-' || n)::uuid, 'session-' || 1 + n % {sessions}, md5('request-' || n)::uuid, 1, 'auto',
  CASE n % 2 WHEN 0 THEN 'investigation-methodology' ELSE 'criteria-1' END, 'hash-' || n % 2, s.status, at, at, at,
  CASE s.status WHEN 'completed' THEN (n * 37) % 101 END, repeat('The agent looked at ' || n || ' logs. ', 150),
  repeat('It lacked a tool. ', 60), '{{"logical_flow": 18, "consistency": 17, "tool_relevance": 16}}',
  (SELECT jsonb_build_object('total_commands', 40, 'by_tool', jsonb_object_agg('kubectl.tool-' || k,
     jsonb_build_object('total_commands', 4, 'error_rate', 0.25))) FROM generate_series(1, 10) k),
  '{{"input_tokens": 14200, "output_tokens": 1450, "cost_usd": 0.031}}', 'judge-' || n * 3 / ({scores} + 1), '[]',
  CASE WHEN n % 17 = 0 THEN '["breakdown_mismatch"]'::jsonb ELSE '[]' END,
  'chain-' || (1 + n % {sessions}) % {chains}
FROM generate_series(1, {scores}) n,
  LATERAL (SELECT CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'completed' END AS status,
                  now() - make_interval(secs => ({scores} - n) * 31536000.0 / {scores}) AS at) s;
INSERT INTO score_missing_tools
SELECT md5('score-' || n)::uuid, k,
  (ARRAY['get', 'Get', 'fetch'])[1 + n % 3] || (ARRAY['_', ' ', '-'])[1 + n % 3] || 'thing_' || w.tool,
  repeat('because ', 60)
FROM generate_series(1, {scores}) n, generate_series(1, 3) k,
  LATERAL (SELECT ((n * 7919::bigint + k * 104729) % 20) * ((n * 31 + k * 17) % 20) AS tool) w
WHERE n % 10 <> 0 AND n % 4 >= k;
