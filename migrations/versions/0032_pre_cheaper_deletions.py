"""
Deletions of sessions that count their scores in one statement, and statistics about references.

- A session that is deleted appends the deltas of its scores in one statement. The trigger on scores, which
  found the session gone and appended nothing, is no longer called for them.
- Revision 0024 added `session_scores.reference`. Without statistics, PostgreSQL expects that nearly each
  score has one, and reads all scores where it should look up the few; among a million scores it analyzes the
  table by itself only after 100,000 more.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import context, op

revision = "0032"
down_revision = "0030"
phase = "pre"

# As in revision 0020, which says why.
_AS_OWNER = 'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off'

COUNT_DELETED_SESSION = f"""
CREATE OR REPLACE FUNCTION count_deleted_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, has_reference, total_score, is_doubtful, stated, failure_tags, tools, <names>)
  SELECT -1, s.latest, s.latest, s.latest, (s.completed_at AT TIME ZONE 'UTC')::date,
    (least(OLD.completed_at, OLD.first_seen_at) AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.has_reference, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'], s.stated, s.failure_tags,
    CASE WHEN s.flags ? 'tampering_suspected' THEN '{{}}' ELSE ARRAY(
      SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id ORDER BY 1) END,
    <figures>
  FROM (
    SELECT score_id, completed_at, chain_id, criteria, judge_fingerprint, tools_hash, total_score, flags, failure_tags,
      outcome, usage, interaction,
      reference IS NOT NULL AS has_reference, coalesce(score_breakdown, rubric -> 'scores') AS stated,
      -(row_number() OVER (PARTITION BY reference IS NULL ORDER BY completed_at DESC, score_id) = 1)::int AS latest
    FROM (SELECT * FROM session_scores WHERE session_id = OLD.session_id OFFSET 0) o
    WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL) s;
  RETURN OLD;
END $$
"""

# Only the foreign key to the session deletes scores from within a trigger.
COUNT_DELETED = (
    "CREATE OR REPLACE TRIGGER count_deleted BEFORE DELETE ON session_scores FOR EACH ROW "
    "WHEN (OLD.status = 'completed' AND OLD.purpose = 'production'{more}) EXECUTE FUNCTION count_score()"
)


def upgrade() -> None:
    schema = str(op.get_context().version_table_schema)
    with op.get_context().autocommit_block():  # it takes seconds, and the trigger below waits for writers
        op.execute(f'ANALYZE "{schema}".session_scores (reference)')
    figures = context.script.get_revision("0027").module
    function = COUNT_DELETED_SESSION.replace("<names>", figures.NAMES).replace("<figures>", figures.FIGURES)
    op.execute(function.replace("{schema}", schema))
    op.execute(COUNT_DELETED.format(more=" AND pg_trigger_depth() = 0"))


def downgrade() -> None:
    op.execute(COUNT_DELETED.format(more=""))
    functions = context.script.get_revision("0024").module.FUNCTIONS
    [before] = [f for f in functions if "FUNCTION count_deleted_session" in f]
    op.execute(before.replace("{schema}", str(op.get_context().version_table_schema)))
