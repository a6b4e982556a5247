"""
Daily rollups of completed scores, and triggers that append what each change of a score adds or takes away.

Phase: pre (additive; run before the version that needs it).

Triggers, and no statements of the service, append the changes: the version before, which works beside the new
one during a rollout, appends them as well, and so do erasure, retention and statements by hand. The rollups
of
stored scores are filled by a worker afterwards; until then pages read the days that are missing from the
scores.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
phase = "pre"

TABLES = """
-- What rollups count by. The id is a hash of the other columns. `is_all`: all chains and sets of tools together.
CREATE TABLE score_groups (
  group_id          uuid PRIMARY KEY,
  is_all            boolean NOT NULL,
  chain_id          text,
  criteria          text,
  judge_fingerprint text,
  tools_hash        text,
  is_doubtful       boolean NOT NULL,
  categories        text[] NOT NULL           -- names of the elements of `category_sums`
);

-- Production scores of a UTC day with a total; -1: without one. The rows over all chains are few and read most, so
-- they have pages of their own.
CREATE TABLE score_rollups (
  is_all        boolean NOT NULL,
  group_id      uuid NOT NULL,
  day           date NOT NULL,
  total         smallint NOT NULL,
  made          int NOT NULL,                 -- completed on this day
  latest        int NOT NULL,                 -- of them, the latest of their sessions
  ended         int NOT NULL,                 -- the latest of the sessions that ended on this day
  category_sums numeric[],                    -- over `latest`
  PRIMARY KEY (is_all, group_id, day, total)
) PARTITION BY LIST (is_all);
CREATE TABLE score_rollups_of_all PARTITION OF score_rollups FOR VALUES IN (true);
CREATE TABLE score_rollups_of_chains PARTITION OF score_rollups FOR VALUES IN (false);
CREATE INDEX score_rollups_of_day ON score_rollups (day);
CREATE INDEX score_rollups_empty ON score_rollups (day) WHERE made = 0 AND latest = 0 AND ended = 0;

-- The latest scores of a day: the sum over `score_rollups`, which have many rows for few scores of many chains.
CREATE TABLE chain_rollups (
  group_id uuid NOT NULL,
  day      date NOT NULL,
  scores   int NOT NULL,
  PRIMARY KEY (group_id, day)
);
CREATE INDEX chain_rollups_of_day ON chain_rollups (day);
CREATE INDEX chain_rollups_empty ON chain_rollups (day) WHERE scores = 0;

-- The latest scores of a day with a failure tag.
CREATE TABLE tag_rollups (
  group_id uuid NOT NULL,
  day      date NOT NULL,
  tag      text NOT NULL,
  scores   int NOT NULL,
  PRIMARY KEY (group_id, day, tag)
);
CREATE INDEX tag_rollups_of_day ON tag_rollups (day);
CREATE INDEX tag_rollups_empty ON tag_rollups (day) WHERE scores = 0;

-- Sets of tools that scores miss. The id is a hash of the names.
CREATE TABLE missed_sets (
  set_id uuid PRIMARY KEY,
  names  text[] NOT NULL
);

-- The latest scores of a day that miss this set of tools, and the sum of 100 - total over them.
CREATE TABLE missed_rollups (
  group_id    uuid NOT NULL,
  day         date NOT NULL,
  set_id      uuid NOT NULL,
  scores      int NOT NULL,
  points_lost bigint NOT NULL,
  PRIMARY KEY (group_id, day, set_id)
);
CREATE INDEX missed_rollups_of_day ON missed_rollups (day);
CREATE INDEX missed_rollups_empty ON missed_rollups (day) WHERE scores = 0;

-- Changes that the rollups do not contain yet: the columns of a score, and how often each measure counts it.
CREATE TABLE score_deltas (
  delta_id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  made              smallint NOT NULL,
  latest            smallint NOT NULL,
  ended             smallint NOT NULL,
  missed            smallint NOT NULL,
  day               date NOT NULL,
  ended_day         date NOT NULL,
  chain_id          text,
  criteria          text,
  judge_fingerprint text,
  tools_hash        text,
  total_score       smallint,
  is_doubtful       boolean NOT NULL,
  stated            jsonb,
  failure_tags      jsonb NOT NULL,
  tools             text[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);

-- The rollups contain all changes of these days and of later ones, except those in `score_deltas`.
CREATE TABLE rollups_filled (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  since     date NOT NULL
);
INSERT INTO rollups_filled (since)
SELECT CASE WHEN EXISTS (SELECT FROM sessions) THEN 'infinity' ELSE '-infinity' END::date
"""

# They run with the rights of their owner, so that a program that may change scores needs no right on deltas.
# Connections keep the plans of functions, and one that was made while a table was small would read it whole
# until the next ANALYZE. So no plan may read a table whole, and scores are looked up by their session alone
# (MATERIALIZED, OFFSET 0): beside a status, the planner would take a partial index that holds the scores of
# all sessions.
_AS_OWNER = 'LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, "{schema}", pg_temp SET enable_seqscan = off'

FUNCTIONS = (
    # Appends how often a score counts from now on. A session that is being deleted is gone already when its
    # scores
    # are: the deletion of the session has appended them.
    """
CREATE FUNCTION append_score_delta(s session_scores, made int, latest int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT append_score_delta.made, append_score_delta.latest, append_score_delta.latest, append_score_delta.latest,
    (s.completed_at AT TIME ZONE 'UTC')::date, (least(m.completed_at, m.first_seen_at) AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), s.failure_tags,
    CASE WHEN s.flags ? 'tampering_suspected' THEN '{}' ELSE ARRAY(
      SELECT DISTINCT t.tool_name COLLATE "C" FROM score_missing_tools t WHERE t.score_id = s.score_id ORDER BY 1) END
  FROM sessions m WHERE m.session_id = s.session_id;
END $$
""",
    # Before the change of each row: each call then sees the rows that the same statement has changed before,
    # so that the changes of several scores of a session add up.
    f"""
CREATE FUNCTION count_score() RETURNS trigger {_AS_OWNER} AS $$
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
""",
    # Tools follow their score in its transaction: the set of the score grows.
    f"""
CREATE FUNCTION count_missing_tools() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT 0, 0, 0, w.missed, (s.completed_at AT TIME ZONE 'UTC')::date, (s.completed_at AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.total_score,
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
      AND (later.completed_at > s.completed_at OR later.score_id < s.score_id));
  RETURN NULL;
END $$
""",
    f"""
CREATE FUNCTION count_deleted_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  PERFORM append_score_delta(s, -1, -(c.place = 1)::int)
  FROM (SELECT score_id, row_number() OVER (ORDER BY completed_at DESC, score_id) AS place
        FROM (SELECT * FROM session_scores WHERE session_id = OLD.session_id OFFSET 0) s
        WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL) c
  JOIN session_scores s USING (score_id);
  RETURN OLD;
END $$
""",
    f"""
CREATE FUNCTION count_moved_session() RETURNS trigger {_AS_OWNER} AS $$
BEGIN
  INSERT INTO score_deltas (made, latest, ended, missed, day, ended_day, chain_id, criteria, judge_fingerprint,
    tools_hash, total_score, is_doubtful, stated, failure_tags, tools)
  SELECT 0, 0, w.ended, 0, (s.completed_at AT TIME ZONE 'UTC')::date, (w.at AT TIME ZONE 'UTC')::date,
    s.chain_id, s.criteria, s.judge_fingerprint, s.tools_hash, s.total_score,
    s.flags ?| ARRAY['outcome_score_mismatch', 'tampering_suspected'],
    coalesce(s.score_breakdown, s.rubric -> 'scores'), '[]', '{{}}'
  FROM (SELECT * FROM (SELECT * FROM session_scores WHERE session_id = NEW.session_id OFFSET 0) s
        WHERE status = 'completed' AND purpose = 'production' AND completed_at IS NOT NULL
        ORDER BY completed_at DESC, score_id LIMIT 1) s,
    (VALUES (-1, least(OLD.completed_at, OLD.first_seen_at)), (1, least(NEW.completed_at, NEW.first_seen_at)))
      w(ended, at);
  RETURN NULL;
END $$
""",
)

# Conditions keep claims, renewals and other changes of open scores from calling the functions.
TRIGGERS = (
    "CREATE TRIGGER count_inserted BEFORE INSERT ON session_scores FOR EACH ROW "
    "WHEN (NEW.status = 'completed' AND NEW.purpose = 'production') EXECUTE FUNCTION count_score()",
    "CREATE TRIGGER count_updated BEFORE UPDATE ON session_scores FOR EACH ROW "
    "WHEN (OLD.status = 'completed' AND OLD.purpose = 'production' "
    "OR NEW.status = 'completed' AND NEW.purpose = 'production') EXECUTE FUNCTION count_score()",
    "CREATE TRIGGER count_deleted BEFORE DELETE ON session_scores FOR EACH ROW "
    "WHEN (OLD.status = 'completed' AND OLD.purpose = 'production') EXECUTE FUNCTION count_score()",
    "CREATE TRIGGER count_missing_tools AFTER INSERT ON score_missing_tools REFERENCING NEW TABLE AS added "
    "FOR EACH STATEMENT EXECUTE FUNCTION count_missing_tools()",
    "CREATE TRIGGER count_deleted_session BEFORE DELETE ON sessions FOR EACH ROW "
    "EXECUTE FUNCTION count_deleted_session()",
    "CREATE TRIGGER count_moved_session AFTER UPDATE ON sessions FOR EACH ROW "
    "WHEN (least(OLD.completed_at, OLD.first_seen_at) IS DISTINCT FROM least(NEW.completed_at, NEW.first_seen_at)) "
    "EXECUTE FUNCTION count_moved_session()",
)


def upgrade() -> None:
    schema = str(op.get_context().version_table_schema)
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    for function in FUNCTIONS:
        op.execute(function.replace("{schema}", schema))
    for trigger in TRIGGERS:
        op.execute(trigger)


def downgrade() -> None:
    op.execute("DROP TRIGGER count_moved_session ON sessions")
    op.execute("DROP TRIGGER count_deleted_session ON sessions")
    op.execute("DROP TRIGGER count_missing_tools ON score_missing_tools")
    for trigger in ("count_deleted", "count_updated", "count_inserted"):
        op.execute(f"DROP TRIGGER {trigger} ON session_scores")
    op.execute("DROP FUNCTION count_moved_session, count_deleted_session, count_missing_tools, count_score")
    op.execute("DROP FUNCTION append_score_delta")
    op.execute(
        "DROP TABLE rollups_filled, score_deltas, missed_rollups, missed_sets, tag_rollups, chain_rollups, "
        "score_rollups, score_groups"
    )
