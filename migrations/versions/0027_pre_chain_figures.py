"""
Daily figures of each chain: totals, outcomes, cost of judging, and tokens, cost and duration of the
investigations.

Phase: pre (additive; run before the version that needs it).

The triggers of revision 0024 append the new columns to `score_deltas`. A trigger adds deltas to
`chain_figures` when
they are folded, so that the figures are exact also while the version before, which does not know them, folds.
A
worker counts the days before this revision; `rollups_filled.figures_since` is the first day that is counted.
"""

from alembic import context, op

revision = "0027"
down_revision = "0026"
phase = "pre"

# What a figure adds up -> its type in `chain_figures`.
SUMS = {
    "scores": "int",  # the latest of their sessions
    "totals": "int",  # of them, those with a total
    "points": "int",  # sum of the totals
    "outcomes": "int",
    "passed": "int",
    "judging_costs": "int",  # scores whose cost is known; like this for the others
    "judging_usd": "numeric",
    "token_counts": "int",
    "input_tokens": "numeric",
    "output_tokens": "numeric",
    "agent_costs": "int",
    "agent_usd": "numeric",
    "durations": "int",
    "duration_s": "numeric",
}
KEY = "by_end, day, chain_id, criteria, judge_fingerprint, has_reference, is_doubtful"

TABLES = (
    # The process that writes rollups waits for this revision. Readers do not.
    "LOCK TABLE rollups_filled IN SHARE ROW EXCLUSIVE MODE",
    "ALTER TABLE score_deltas ADD COLUMN outcome text, ADD COLUMN judging_usd numeric, "
    "ADD COLUMN input_tokens numeric, ADD COLUMN output_tokens numeric, ADD COLUMN agent_usd numeric, "
    "ADD COLUMN duration_s numeric",
    """
CREATE TABLE chain_figures (
  by_end            boolean NOT NULL,         -- day on which the session ended; false: on which it was scored
  day               date NOT NULL,
  chain_id          text,
  criteria          text,
  judge_fingerprint text,
  has_reference     boolean NOT NULL,
  is_doubtful       boolean NOT NULL,
  <sums>,
  UNIQUE NULLS NOT DISTINCT (<key>)
)
""".replace("<key>", KEY).replace(
        "<sums>", ", ".join(f"{name} {kind} NOT NULL" for name, kind in SUMS.items())
    ),
    "CREATE INDEX chain_figures_empty ON chain_figures (day) WHERE scores = 0",
    "ALTER TABLE rollups_filled ADD COLUMN figures_since date NOT NULL DEFAULT '-infinity'",
    "UPDATE rollups_filled SET figures_since = 'infinity' WHERE EXISTS (SELECT FROM sessions)",
)

_AS_OWNER = 'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off'


def _number(document: str, path: str) -> str:
    """A number of a JSON document; null where it is something else, so that no score is refused for it."""
    return (
        f"CASE jsonb_typeof({document} #> '{path}') WHEN 'number' THEN ({document} #>> '{path}')::numeric END"
    )


FIGURES = ", ".join(
    (
        "s.outcome",
        _number("s.usage", "{cost_usd}"),
        _number("s.interaction", "{agent_tokens,input}"),
        _number("s.interaction", "{agent_tokens,output}"),
        _number("s.interaction", "{agent_cost_usd}"),
        _number("s.interaction", "{duration_s}"),
    )
)
NAMES = "outcome, judging_usd, input_tokens, output_tokens, agent_usd, duration_s"

_APPEND = f"""
CREATE OR REPLACE FUNCTION append_score_delta(s session_scores, made int, latest int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, has_reference, total_score, is_doubtful, stated, failure_tags, tools, {NAMES})
  SELECT append_score_delta.made, append_score_delta.latest, append_score_delta.latest, append_score_delta.latest,
    (s.completed_at AT TIME ZONE 'UTC')::date, (least(m.completed_at, m.first_seen_at) AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.reference IS NOT NULL, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), s.failure_tags,
    CASE WHEN s.flags ? 'tampering_suspected' THEN '{{}}' ELSE ARRAY(
      SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id ORDER BY 1) END,
    {FIGURES}
  FROM sessions m WHERE m.session_id = s.session_id;
END $$
"""

_MOVED = f"""
CREATE OR REPLACE FUNCTION count_moved_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, has_reference, total_score, is_doubtful, stated, failure_tags, tools, {NAMES})
  SELECT 0, 0, w.ended, 0, (s.completed_at AT TIME ZONE 'UTC')::date, (w.at AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.reference IS NOT NULL, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), '[]', '{{}}', {FIGURES}
  FROM (SELECT DISTINCT ON (reference IS NULL) *
        FROM (SELECT * FROM session_scores WHERE session_id = NEW.session_id OFFSET 0) s
        WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL
        ORDER BY reference IS NULL, completed_at DESC, score_id) s,
    (VALUES (-1, least(OLD.completed_at, OLD.first_seen_at)), (1, least(NEW.completed_at, NEW.first_seen_at)))
      w(ended, at);
  RETURN NULL;
END $$
"""

_FOLD = f"""
CREATE FUNCTION fold_chain_figures() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO chain_figures AS f ({KEY}, {", ".join(SUMS)})
  SELECT k.by_end, k.day, d.chain_id, d.criteria, d.judge_fingerprint, d.has_reference, d.is_doubtful,
    sum(k.n), sum(k.n * (d.total_score IS NOT NULL)::int), sum(k.n * coalesce(d.total_score, 0)),
    sum(k.n * (d.outcome IS NOT NULL)::int), sum(k.n * coalesce(d.outcome = 'pass', false)::int),
    sum(k.n * (d.judging_usd IS NOT NULL)::int), sum(k.n * coalesce(d.judging_usd, 0)),
    sum(k.n * (d.input_tokens IS NOT NULL AND d.output_tokens IS NOT NULL)::int),
    sum(k.n * coalesce(d.input_tokens, 0)), sum(k.n * coalesce(d.output_tokens, 0)),
    sum(k.n * (d.agent_usd IS NOT NULL)::int), sum(k.n * coalesce(d.agent_usd, 0)),
    sum(k.n * (d.duration_s IS NOT NULL)::int), sum(k.n * coalesce(d.duration_s, 0))
  FROM folded d, LATERAL (VALUES (false, d.day, d.latest), (true, d.ended_day, d.ended)) k(by_end, day, n)
  WHERE k.n <> 0 GROUP BY 1, 2, 3, 4, 5, 6, 7
  ON CONFLICT ({KEY}) DO UPDATE SET {", ".join(f"{name} = f.{name} + excluded.{name}" for name in SUMS)};
  DELETE FROM chain_figures WHERE scores = 0;
  RETURN NULL;
END $$
"""


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)
    _replace(_APPEND, _MOVED, _FOLD)
    op.execute(
        "CREATE TRIGGER fold_chain_figures AFTER DELETE ON score_deltas REFERENCING OLD TABLE AS folded "
        "FOR EACH STATEMENT EXECUTE FUNCTION fold_chain_figures()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER fold_chain_figures ON score_deltas")
    op.execute("DROP FUNCTION fold_chain_figures")
    before = context.script.get_revision("0024").module.FUNCTIONS
    _replace(*(f for f in before if "append_score_delta(s " in f or "count_moved_session" in f))
    op.execute("DROP TABLE chain_figures")
    op.execute("ALTER TABLE rollups_filled DROP COLUMN figures_since")
    op.execute(
        "ALTER TABLE score_deltas DROP COLUMN outcome, DROP COLUMN judging_usd, DROP COLUMN input_tokens, "
        "DROP COLUMN output_tokens, DROP COLUMN agent_usd, DROP COLUMN duration_s"
    )


def _replace(*functions: str) -> None:
    for function in functions:
        op.execute(function.replace("{schema}", str(op.get_context().version_table_schema)))
