"""
Requests for missing tools by month, the sums of the daily rollups, so that pages about long times read few
rows.

Phase: pre (additive; run before the version that needs it).

Triggers on `missed_rollups` keep the sums, so that they are exact also while the version before, which knows
only
days, folds deltas. One process at a time writes rollups, so no row is contended.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
phase = "pre"

TABLES = (
    # The process that writes rollups waits for this revision. Readers do not.
    "LOCK TABLE rollups_filled IN SHARE ROW EXCLUSIVE MODE",
    # Sums of `missed_rollups` over a month, which is named by its first day.
    """
CREATE TABLE missed_months (
  group_id    uuid NOT NULL,
  set_id      uuid NOT NULL,
  month       date NOT NULL,
  scores      int NOT NULL,
  points_lost bigint NOT NULL,
  PRIMARY KEY (group_id, set_id, month)
)
""",
    """
INSERT INTO missed_months (group_id, set_id, month, scores, points_lost)
SELECT group_id, set_id, date_trunc('month', day::timestamp)::date, sum(scores), sum(points_lost)
FROM missed_rollups GROUP BY 1, 2, 3
""",
    "CREATE INDEX missed_months_of_month ON missed_months (month)",
    "CREATE INDEX missed_months_empty ON missed_months (month) WHERE scores = 0 AND points_lost = 0",
    # The days of one set within a month.
    "CREATE INDEX missed_rollups_of_set ON missed_rollups (set_id, day)",
)

# It runs with the rights of its owner, and reads no table whole, as the functions of revision 0020 do.
FUNCTION = """
CREATE FUNCTION add_up_missed_months() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off AS $$
BEGIN
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO missed_months AS m (group_id, set_id, month, scores, points_lost)
    SELECT group_id, set_id, date_trunc('month', day::timestamp)::date, sum(scores), sum(points_lost)
    FROM added GROUP BY 1, 2, 3
    ON CONFLICT (group_id, set_id, month) DO UPDATE SET
      scores = m.scores + excluded.scores, points_lost = m.points_lost + excluded.points_lost;
  END IF;
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO missed_months AS m (group_id, set_id, month, scores, points_lost)
    SELECT group_id, set_id, date_trunc('month', day::timestamp)::date, -sum(scores), -sum(points_lost)
    FROM removed GROUP BY 1, 2, 3
    ON CONFLICT (group_id, set_id, month) DO UPDATE SET
      scores = m.scores + excluded.scores, points_lost = m.points_lost + excluded.points_lost;
  END IF;
  DELETE FROM missed_months WHERE scores = 0 AND points_lost = 0;
  RETURN NULL;
END $$
"""

TRIGGERS = {
    "INSERT": "NEW TABLE AS added",
    "UPDATE": "OLD TABLE AS removed NEW TABLE AS added",
    "DELETE": "OLD TABLE AS removed",
}


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)
    op.execute(FUNCTION.replace("{schema}", str(op.get_context().version_table_schema)))
    for change, tables in TRIGGERS.items():
        op.execute(
            f"CREATE TRIGGER add_up_months_{change.lower()} AFTER {change} ON missed_rollups REFERENCING {tables} "
            "FOR EACH STATEMENT EXECUTE FUNCTION add_up_missed_months()"
        )


def downgrade() -> None:
    for change in TRIGGERS:
        op.execute(f"DROP TRIGGER add_up_months_{change.lower()} ON missed_rollups")
    op.execute("DROP FUNCTION add_up_missed_months")
    op.execute("DROP INDEX missed_rollups_of_set")
    op.execute("DROP TABLE missed_months")
