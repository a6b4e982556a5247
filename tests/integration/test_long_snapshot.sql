WITH new AS (
  INSERT INTO sessions (session_id) SELECT 'many-' || n FROM generate_series(1, $1::int) n RETURNING session_id
)
INSERT INTO session_scores (score_id, session_id, request_id, priority, score_triggered_by, status, next_attempt_at)
SELECT gen_random_uuid(), session_id, gen_random_uuid(), 1, 'auto', 'pending',
       now() - interval '2 h' + make_interval(secs => row_number() OVER ()) FROM new
