INSERT INTO alert_sessions (session_id, alert_data, agent_type, chain_id, status, created_at, review_status,
  quality_rating)
SELECT 'past-' || n, 'x', 'a', 'kubernetes', 'completed', now(), 'reviewed', 'inaccurate'
FROM generate_series(1, 10000) n;
INSERT INTO session_review_activities (activity_id, session_id, actor, action, to_status, quality_rating, created_at)
SELECT n, 'past-' || n, 'ada', 'complete', 'reviewed', 'inaccurate', now() - interval '100 days' + n * interval '1 second'
FROM generate_series(1, 10000) n;
