"""
Reads and deletions that cost less among a million scores.

- A pick of the review queue says who judged the score and what, so that a trust card reads no scores.
- The index of a chain's scores has all that tells who judges the chain.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0023"
down_revision = "0022"
phase = "pre"

# As in revision 0020.
_AS_OWNER = 'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off'

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
    op.execute(DESCRIBE_PICK.replace("{schema}", schema))
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
    op.execute("DROP TRIGGER describe_pick ON review_picks")
    op.execute("DROP FUNCTION describe_pick")
    for name in _JUDGEMENT:
        op.execute(f"ALTER TABLE review_picks DROP COLUMN {name}")
    op.execute(f"CREATE INDEX {FORMER} ON session_scores {KEY} {WHERE}")
    op.execute(f"DROP INDEX {INDEX}")
