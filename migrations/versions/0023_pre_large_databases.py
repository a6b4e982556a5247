"""
Reads and deletions that cost less among a million scores.

- A pick of the review queue says who judged the score and what, so that a trust card reads no scores.
- The index of a chain's scores has all that tells who judges the chain.
- Deleting a session counts its scores in one statement, and its scores then count nothing. Before, each score was
  passed to a function as a whole, with all of its texts, and then looked for the session that was deleted already.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0023"
down_revision = "0022"
phase = "pre"

# As in revision 0020.
_AS_OWNER = (
    'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off'
)

COUNT_DELETED_SESSION = f"""
CREATE OR REPLACE FUNCTION count_deleted_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT -1, s.latest, s.latest, s.latest, (s.completed_at AT TIME ZONE 'UTC')::date,
    (least(OLD.completed_at, OLD.first_seen_at) AT TIME ZONE 'UTC')::date, s.chain_id, s.criteria, s.judge_fingerprint,
    s.tools_hash, s.total_score, s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'], s.stated,
    s.failure_tags, CASE WHEN s.flags ? 'tampering_suspected' THEN '{{}}' ELSE ARRAY(
      SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id ORDER BY 1) END
  FROM (
    SELECT score_id, completed_at, chain_id, criteria, judge_fingerprint, tools_hash, total_score, flags, failure_tags,
      coalesce(score_breakdown, rubric -> 'scores') AS stated,
      -(row_number() OVER (ORDER BY completed_at DESC, score_id) = 1)::int AS latest
    FROM (SELECT * FROM session_scores WHERE session_id = OLD.session_id OFFSET 0) s
    WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL) s;
  RETURN OLD;
END $$
"""

COUNT_SCORE = f"""
CREATE OR REPLACE FUNCTION count_score() RETURNS trigger {_AS_OWNER} AS $$
DECLARE
  did_count boolean := TG_OP <> 'INSERT' AND OLD.status = 'completed' AND OLD.purpose = 'production'
    AND OLD.completed_at IS NOT NULL;
  counts boolean := TG_OP <> 'DELETE' AND NEW.status = 'completed' AND NEW.purpose = 'production'
    AND NEW.completed_at IS NOT NULL;
  was_latest boolean := false;
  is_latest boolean := false;
  of_session text := CASE TG_OP WHEN 'DELETE' THEN OLD.session_id ELSE NEW.session_id END;
  of_score uuid := CASE TG_OP WHEN 'DELETE' THEN OLD.score_id ELSE NEW.score_id END;
  other record;
BEGIN
  IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT FROM sessions WHERE session_id = OLD.session_id) THEN
    RETURN OLD;
  END IF;
  WITH mine AS MATERIALIZED (
    SELECT score_id, completed_at, status, purpose FROM session_scores WHERE session_id = of_session
  )
  SELECT score_id, completed_at INTO other FROM mine
  WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL AND score_id <> of_score
  ORDER BY completed_at DESC, score_id LIMIT 1;
  IF did_count THEN
    was_latest := other.score_id IS NULL OR OLD.completed_at > other.completed_at
      OR OLD.completed_at = other.completed_at AND OLD.score_id < other.score_id;
    PERFORM append_score_delta(OLD, -1, -was_latest::int);
  END IF;
  IF counts THEN
    is_latest := other.score_id IS NULL OR NEW.completed_at > other.completed_at
      OR NEW.completed_at = other.completed_at AND NEW.score_id < other.score_id;
    PERFORM append_score_delta(NEW, 1, is_latest::int);
  END IF;
  IF other.score_id IS NOT NULL AND was_latest <> is_latest THEN
    PERFORM append_score_delta(s, 0, was_latest::int - is_latest::int) FROM session_scores s
    WHERE s.score_id = other.score_id;
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  RETURN NEW;
END $$
"""

# Copies of columns of the score, which do not change once it is completed.
_JUDGEMENT = ("criteria", "criteria_hash", "judge_fingerprint", "total_score", "judge_outcome")

# The version before stores picks without these columns.
DESCRIBE_PICK = f"""
CREATE OR REPLACE FUNCTION describe_pick() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  SELECT {", ".join(f"s.{name}" for name in _JUDGEMENT)} INTO {", ".join(f"NEW.{name}" for name in _JUDGEMENT)}
  FROM session_scores s WHERE s.score_id = NEW.score_id;
  RETURN NEW;
END $$
"""

# A run that is interrupted while it builds the index has committed these.
TABLES = (
    """
ALTER TABLE review_picks
  ADD COLUMN IF NOT EXISTS criteria text, ADD COLUMN IF NOT EXISTS criteria_hash text,
  ADD COLUMN IF NOT EXISTS judge_fingerprint text, ADD COLUMN IF NOT EXISTS total_score int,
  ADD COLUMN IF NOT EXISTS judge_outcome text
""",
    f"""
UPDATE review_picks p SET {", ".join(f"{name} = s.{name}" for name in _JUDGEMENT)}
FROM session_scores s WHERE s.score_id = p.score_id
""",
    "CREATE OR REPLACE TRIGGER describe_pick BEFORE INSERT ON review_picks "
    "FOR EACH ROW EXECUTE FUNCTION describe_pick()",
)

# The index takes the place of `session_scores_of_chain`, which has no columns beside its key.
INDEX, FORMER = "session_scores_judged", "session_scores_of_chain"
KEY = "(chain_id, completed_at)"
ALSO = "INCLUDE (session_id, criteria, criteria_hash, judge_fingerprint, total_score, flags)"
WHERE = "WHERE status = 'completed' AND purpose = 'production'"
IS_IN_USE = "SELECT EXISTS (SELECT FROM sessions)"
# Null: the index does not exist. An index whose build was interrupted exists and is not valid.
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{schema}\".{name}')"


def upgrade() -> None:
    schema = str(op.get_context().version_table_schema)
    for function in (COUNT_DELETED_SESSION, COUNT_SCORE, DESCRIBE_PICK):
        op.execute(function.replace("{schema}", schema))
    for statement in TABLES:
        op.execute(statement)
    if op.get_bind().scalar(text(IS_IN_USE)):
        _build_beside_work(schema)
    else:
        op.execute(f"CREATE INDEX {INDEX} ON session_scores {KEY} {ALSO} {WHERE}")
        op.execute(f"DROP INDEX {FORMER}")


def _build_beside_work(schema: str) -> None:
    """Build the index while scores are being written; builds an invalid index again."""
    with op.get_context().autocommit_block():
        is_valid = op.get_bind().scalar(text(IS_VALID.format(schema=schema, name=INDEX)))
        if is_valid is False:
            op.execute(f'DROP INDEX CONCURRENTLY "{schema}".{INDEX}')
        if not is_valid:
            op.execute(f'CREATE INDEX CONCURRENTLY {INDEX} ON "{schema}".session_scores {KEY} {ALSO} {WHERE}')
        op.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{schema}".{FORMER}')


def downgrade() -> None:
    """The functions that count stay: they append what those of revision 0020 append."""
    op.execute("DROP TRIGGER describe_pick ON review_picks")
    op.execute("DROP FUNCTION describe_pick")
    for name in _JUDGEMENT:
        op.execute(f"ALTER TABLE review_picks DROP COLUMN {name}")
    op.execute(f"CREATE INDEX {FORMER} ON session_scores {KEY} {WHERE}")
    op.execute(f"DROP INDEX {INDEX}")
