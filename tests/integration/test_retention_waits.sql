WITH asked AS (
  INSERT INTO {schema}.scoring_requests
    (request_id, session_id, source, disposition, requested_by, force, priority)
  SELECT gen_random_uuid(), session_id, 'api', 'already_scored', 'ada', false, 0
  FROM unnest($2::text[]) s(session_id) WHERE session_id LIKE 'asked-%' AND $1::int > 0
  RETURNING session_id
)
SELECT session_id FROM unnest($2::text[]) s(session_id) WHERE session_id NOT IN (SELECT session_id FROM asked)
