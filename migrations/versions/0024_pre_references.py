"""
References of sessions, and analytics that keep scores with a reference apart.

Phase: pre (additive; run before the version that needs it).

`session_scores.reference_id` is the reference that a score is to be judged against, `reference` the one that
it was
judged against. A worker of the version before judges without a reference and leaves `reference` empty.
Triggers and
rollups treat the scores with and without a reference as two kinds, each with its own latest score of a
session.
"""

from alembic import context, op
from sqlalchemy import text

revision = "0024"
down_revision = "0023"
phase = "pre"

# Repeatable: they are committed before the index is built.
TABLES = """
CREATE TABLE IF NOT EXISTS session_references (
  reference_id uuid PRIMARY KEY,
  session_id   text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  text         text NOT NULL,                      -- masked
  source_url   text,
  provided_by  text NOT NULL,
  provided_at  timestamptz NOT NULL,
  request_id   uuid NOT NULL,                      -- of the first request that gave it
  given_at     timestamptz NOT NULL DEFAULT clock_timestamp()  -- by the last request that gave it
);
CREATE INDEX IF NOT EXISTS session_references_of_session ON session_references (session_id, given_at);
ALTER TABLE session_scores ADD COLUMN IF NOT EXISTS reference_id uuid,
  ADD COLUMN IF NOT EXISTS reference jsonb;
ALTER TABLE scoring_requests ADD COLUMN IF NOT EXISTS use_reference boolean NOT NULL DEFAULT true;
ALTER TABLE score_groups ADD COLUMN IF NOT EXISTS has_reference boolean NOT NULL DEFAULT false;
ALTER TABLE score_deltas ADD COLUMN IF NOT EXISTS has_reference boolean NOT NULL DEFAULT false
"""

# The few scores with a reference, built beside work as in revision 0012.
INDEX = "session_scores_referenced"
DEFINITION = "session_scores (session_id) WHERE reference IS NOT NULL AND status = 'completed' AND purpose = 'production'"
IS_VALID = f"SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{{schema}}\".{INDEX}')"

# As in revision 0020, which says why.
_AS_OWNER = 'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off'

FUNCTIONS = (
    """
CREATE OR REPLACE FUNCTION append_score_delta(s session_scores, made int, latest int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, has_reference, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT append_score_delta.made, append_score_delta.latest, append_score_delta.latest, append_score_delta.latest,
    (s.completed_at AT TIME ZONE 'UTC')::date, (least(m.completed_at, m.first_seen_at) AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.reference IS NOT NULL, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), s.failure_tags,
    CASE WHEN s.flags ? 'tampering_suspected' THEN '{}' ELSE ARRAY(
      SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id ORDER BY 1) END
  FROM sessions m WHERE m.session_id = s.session_id;
END $$
""",
    # A change concerns one kind of scores, or two if it gives a score a reference or takes it away.
    f"""
CREATE OR REPLACE FUNCTION count_score() RETURNS trigger {_AS_OWNER} AS $$
DECLARE
  did_count boolean := TG_OP <> 'INSERT' AND OLD.status = 'completed' AND OLD.purpose = 'production'
    AND OLD.completed_at IS NOT NULL;
  counts boolean := TG_OP <> 'DELETE' AND NEW.status = 'completed' AND NEW.purpose = 'production'
    AND NEW.completed_at IS NOT NULL;
  had_reference boolean := did_count AND OLD.reference IS NOT NULL;
  has_reference boolean := counts AND NEW.reference IS NOT NULL;
  was_latest boolean;
  is_latest boolean;
  of_session text := CASE TG_OP WHEN 'DELETE' THEN OLD.session_id ELSE NEW.session_id END;
  of_score uuid := CASE TG_OP WHEN 'DELETE' THEN OLD.score_id ELSE NEW.score_id END;
  kind boolean;
  other record;
BEGIN
  FOREACH kind IN ARRAY ARRAY[false, true] LOOP
    CONTINUE WHEN NOT (did_count AND had_reference = kind OR counts AND has_reference = kind);
    was_latest := false;
    is_latest := false;
    WITH mine AS MATERIALIZED (
      SELECT score_id, completed_at, status, purpose, reference IS NOT NULL AS has_one FROM session_scores
      WHERE session_id = of_session
    )
    SELECT score_id, completed_at INTO other FROM mine
    WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL AND score_id <> of_score
      AND has_one = kind
    ORDER BY completed_at DESC, score_id LIMIT 1;
    IF did_count AND had_reference = kind THEN
      was_latest := other.score_id IS NULL OR OLD.completed_at > other.completed_at
        OR OLD.completed_at = other.completed_at AND OLD.score_id < other.score_id;
      PERFORM append_score_delta(OLD, -1, -was_latest::int);
    END IF;
    IF counts AND has_reference = kind THEN
      is_latest := other.score_id IS NULL OR NEW.completed_at > other.completed_at
        OR NEW.completed_at = other.completed_at AND NEW.score_id < other.score_id;
      PERFORM append_score_delta(NEW, 1, is_latest::int);
    END IF;
    IF other.score_id IS NOT NULL AND was_latest <> is_latest THEN
      PERFORM append_score_delta(s, 0, was_latest::int - is_latest::int) FROM session_scores s
      WHERE s.score_id = other.score_id;
    END IF;
  END LOOP;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  RETURN NEW;
END $$
""",
    f"""
CREATE OR REPLACE FUNCTION count_missing_tools() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, has_reference, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT 0, 0, 0, w.missed, (s.completed_at AT TIME ZONE 'UTC')::date, (s.completed_at AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.reference IS NOT NULL, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), '[]', w.tools
  FROM (SELECT DISTINCT score_id FROM added) a
  CROSS JOIN LATERAL (SELECT * FROM session_scores WHERE score_id = a.score_id OFFSET 0) s, LATERAL (VALUES
    (-1, ARRAY(SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id
               AND t.ordinal NOT IN (SELECT n.ordinal FROM added n WHERE n.score_id = s.score_id) ORDER BY 1)),
    (1, ARRAY(SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id
              ORDER BY 1))) w(missed, tools)
  WHERE s.status = 'completed' AND s.purpose = 'production' AND s.completed_at IS NOT NULL
    AND NOT s.flags ? 'tampering_suspected' AND w.tools <> '{{}}'
    AND NOT EXISTS (SELECT FROM (SELECT * FROM session_scores WHERE session_id = s.session_id OFFSET 0) later
      WHERE later.status = 'completed' AND later.purpose = 'production' AND later.completed_at >= s.completed_at
      AND (later.completed_at > s.completed_at OR later.score_id < s.score_id)
      AND (later.reference IS NULL) = (s.reference IS NULL));
  RETURN NULL;
END $$
""",
    f"""
CREATE OR REPLACE FUNCTION count_deleted_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  PERFORM append_score_delta(s, -1, -(c.place = 1)::int)
  FROM (SELECT score_id,
          row_number() OVER (PARTITION BY reference IS NULL ORDER BY completed_at DESC, score_id) AS place
        FROM (SELECT * FROM session_scores WHERE session_id = OLD.session_id OFFSET 0) s
        WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL) c
  JOIN session_scores s USING (score_id);
  RETURN OLD;
END $$
""",
    f"""
CREATE OR REPLACE FUNCTION count_moved_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, has_reference, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT 0, 0, w.ended, 0, (s.completed_at AT TIME ZONE 'UTC')::date, (w.at AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.reference IS NOT NULL, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), '[]', '{{}}'
  FROM (SELECT DISTINCT ON (reference IS NULL) *
        FROM (SELECT * FROM session_scores WHERE session_id = NEW.session_id OFFSET 0) s
        WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL
        ORDER BY reference IS NULL, completed_at DESC, score_id) s,
    (VALUES (-1, least(OLD.completed_at, OLD.first_seen_at)), (1, least(NEW.completed_at, NEW.first_seen_at)))
      w(ended, at);
  RETURN NULL;
END $$
""",
)

# Scores with a reference would count as scores without one. They and what was added up from them are deleted.
DOWN = """
DELETE FROM session_scores WHERE reference IS NOT NULL;
DELETE FROM score_deltas WHERE has_reference;
DELETE FROM score_rollups WHERE group_id IN (SELECT group_id FROM score_groups WHERE has_reference);
DELETE FROM chain_rollups WHERE group_id IN (SELECT group_id FROM score_groups WHERE has_reference);
DELETE FROM tag_rollups WHERE group_id IN (SELECT group_id FROM score_groups WHERE has_reference);
DELETE FROM missed_rollups WHERE group_id IN (SELECT group_id FROM score_groups WHERE has_reference);
DELETE FROM score_groups WHERE has_reference;
ALTER TABLE score_deltas DROP COLUMN has_reference;
ALTER TABLE score_groups DROP COLUMN has_reference;
ALTER TABLE scoring_requests DROP COLUMN use_reference;
ALTER TABLE session_scores DROP COLUMN reference, DROP COLUMN reference_id;
DROP TABLE session_references
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        op.execute(statement)
    _replace(FUNCTIONS)
    if not op.get_bind().scalar(text("SELECT EXISTS (SELECT FROM sessions)")):
        op.execute(f"CREATE INDEX {INDEX} ON {DEFINITION}")
        return
    schema = op.get_context().version_table_schema
    with op.get_context().autocommit_block():
        is_valid = op.get_bind().scalar(text(IS_VALID.format(schema=schema)))
        if is_valid is False:
            op.execute(f'DROP INDEX CONCURRENTLY "{schema}".{INDEX}')
        if not is_valid:
            op.execute(f'CREATE INDEX CONCURRENTLY {INDEX} ON "{schema}".{DEFINITION}')


def downgrade() -> None:
    for statement in DOWN.split(";\n"):
        op.execute(statement)
    before = context.script.get_revision("0020").module.FUNCTIONS
    _replace(tuple(f.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION") for f in before))


def _replace(functions: tuple[str, ...]) -> None:
    for function in functions:
        op.execute(function.replace("{schema}", str(op.get_context().version_table_schema)))
