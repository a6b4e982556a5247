WITH given AS (
  SELECT * FROM jsonb_populate_recordset(NULL::session_scores, $1::jsonb)
), known AS (
  INSERT INTO sessions (session_id, labels, status) SELECT DISTINCT session_id, '{}'::jsonb, 'completed' FROM given
  ON CONFLICT DO NOTHING
)
INSERT INTO session_scores (score_id, session_id, request_id, chain_id, purpose, status, priority, score_triggered_by,
  completed_at, total_score, failure_tags, usage, error_kind, criteria, flags, reference, attempt)
SELECT g.score_id, session_id, g.score_id, g.chain_id, g.purpose, g.status, 1, 'auto', g.completed_at, g.total_score,
  g.failure_tags, g.usage, g.error_kind, g.criteria, g.flags, g.reference, 1
FROM given g
