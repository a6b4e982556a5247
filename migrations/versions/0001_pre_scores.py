"""
Requests, scores, turns, reports and the event log.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0001"
down_revision = None
phase = "pre"

TABLES = """
-- One row per session that a request has named. Accepting a request and ending a score lock the row.
CREATE TABLE sessions (
  session_id    text PRIMARY KEY,
  chain_id      text,
  alert_type    text,
  labels        jsonb NOT NULL DEFAULT '{}',
  status        text,
  completed_at  timestamptz,
  first_seen_at timestamptz NOT NULL DEFAULT now()
);

-- The full content of criteria that scores were judged under, by its hash.
CREATE TABLE scoring_criteria (
  criteria_hash text PRIMARY KEY,
  name          text NOT NULL,
  content       jsonb NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX scoring_criteria_name ON scoring_criteria (name, first_used_at);

CREATE TABLE session_scores (
  score_id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  session_id        text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  request_id        uuid NOT NULL,
  chain_id          text,
  purpose           text NOT NULL DEFAULT 'production'
                    CHECK (purpose IN ('production', 'consistency', 'anchor', 'shadow')),
  status            text NOT NULL DEFAULT 'pending'
                    CHECK (status IN ('pending', 'in_progress', 'completed', 'failed', 'timed_out', 'cancelled')),
  priority          smallint NOT NULL CHECK (priority BETWEEN 0 AND 2),  -- 0 people, 1 automatic, 2 bulk
  score_triggered_by text NOT NULL,
  stage_id          text,
  created_at        timestamptz NOT NULL DEFAULT now(),
  started_at        timestamptz,
  completed_at      timestamptz,
  -- the work queue
  next_attempt_at   timestamptz NOT NULL DEFAULT now(),
  waiting_reason    text,
  attempt           int NOT NULL DEFAULT 0,
  attempts_burned   int NOT NULL DEFAULT 0,
  attempt_started_at timestamptz,
  spent_s           double precision NOT NULL DEFAULT 0,
  lease_owner       uuid,
  lease_token       uuid,
  lease_expires_at  timestamptz,
  current_stage     text,
  nonce             text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
  -- what was asked, who answered
  criteria          text,
  criteria_hash     text,
  judge_fingerprint text,
  -- the judgement
  total_score       int CHECK (total_score BETWEEN 0 AND 100),
  score_analysis    text,
  score_breakdown   jsonb,
  missing_tools_analysis text,
  rubric            jsonb,
  samples           jsonb NOT NULL DEFAULT '[]',
  spread            int,
  outcome           text CHECK (outcome IN ('pass', 'fail')),
  outcome_reason    text,
  judge_outcome     text,
  composite_score   double precision,
  failure_tags      jsonb NOT NULL DEFAULT '[]',
  flags             jsonb NOT NULL DEFAULT '[]',
  grounding         jsonb,
  interaction       jsonb,
  diagnosis         jsonb NOT NULL DEFAULT '[]',
  gates             jsonb NOT NULL DEFAULT '[]',
  gates_passed      int,
  gates_total       int,
  coverage          jsonb,
  evidence          jsonb,
  usage             jsonb,
  error_kind        text,
  error_message     text,
  CONSTRAINT a_failure_is_never_a_number
    CHECK (status = 'completed' OR total_score IS NULL),
  CONSTRAINT a_lease_belongs_to_an_attempt
    CHECK ((status = 'in_progress') = (lease_token IS NOT NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE UNIQUE INDEX session_scores_one_open ON session_scores (session_id)
  WHERE status IN ('pending', 'in_progress') AND purpose = 'production';
CREATE INDEX session_scores_due ON session_scores (priority, next_attempt_at) WHERE status = 'pending';
-- No index holds lease_expires_at, so that a heartbeat stays a heap-only update.
CREATE INDEX session_scores_running ON session_scores (score_id) WHERE status = 'in_progress';
CREATE INDEX session_scores_of_session ON session_scores (session_id, created_at DESC);
CREATE INDEX session_scores_scored ON session_scores (session_id, criteria_hash, completed_at DESC)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_recent ON session_scores (created_at DESC, score_id);
CREATE INDEX session_scores_failed ON session_scores (error_kind, completed_at)
  WHERE status IN ('failed', 'timed_out');

-- One row per identity of a request, of which `request_id` is a hash; a repeat only increments `arrivals`.
CREATE TABLE scoring_requests (
  request_id   uuid PRIMARY KEY,
  event_id     text,
  session_id   text REFERENCES sessions ON DELETE SET NULL,
  source       text NOT NULL,
  disposition  text NOT NULL CHECK (disposition IN
                 ('accepted', 'in_progress', 'deferred', 'superseded', 'already_scored',
                  'disabled', 'status_not_scored', 'sampled_out', 'stale')),
  score_id     uuid REFERENCES session_scores ON DELETE SET NULL,
  arrivals     int NOT NULL DEFAULT 1,
  received_at  timestamptz NOT NULL DEFAULT now(),
  chain_id     text,
  requested_by text NOT NULL,
  force        boolean NOT NULL,
  criteria     text,
  reason       text,
  priority     smallint NOT NULL
);
CREATE INDEX scoring_requests_event ON scoring_requests (event_id);
CREATE INDEX scoring_requests_session ON scoring_requests (session_id, received_at DESC);
CREATE INDEX scoring_requests_score ON scoring_requests (score_id);
CREATE UNIQUE INDEX scoring_requests_one_deferred ON scoring_requests (session_id) WHERE disposition = 'deferred';

-- Every answered call of the judge with its full reply, which later attempts use instead of another call.
CREATE TABLE judge_turns (
  score_id            uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  ordinal             int NOT NULL,
  kind                text NOT NULL CHECK (kind IN
                        ('analysis', 'reminder', 'repair', 'sample', 'masked', 'missing_tools')),
  reply               text NOT NULL,
  refusal             text,
  has_tool_calls      boolean NOT NULL DEFAULT false,
  provider            text NOT NULL,
  model_requested     text NOT NULL,
  model_served        text,
  input_tokens        int,
  cached_input_tokens int,
  output_tokens       int,
  cost_usd            double precision,
  latency_ms          int NOT NULL,
  finish_reason       text,
  attempt             int NOT NULL,
  criteria_hash       text NOT NULL,
  context_hash        text NOT NULL,
  nonce               text NOT NULL,
  created_at          timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (score_id, ordinal)
);
CREATE INDEX judge_turns_recent ON judge_turns (created_at);

CREATE TABLE score_missing_tools (
  score_id  uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  ordinal   int NOT NULL,
  tool_name text NOT NULL,
  rationale text NOT NULL,
  PRIMARY KEY (score_id, ordinal)
);
CREATE INDEX score_missing_tools_name ON score_missing_tools (tool_name);

CREATE TABLE score_alternative_approaches (
  score_id    uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  ordinal     int NOT NULL,
  name        text NOT NULL,
  description text NOT NULL,
  PRIMARY KEY (score_id, ordinal)
);

CREATE TABLE score_alternative_approach_steps (
  score_id         uuid NOT NULL,
  approach_ordinal int NOT NULL,
  ordinal          int NOT NULL,
  step             text NOT NULL,
  tool_name        text,
  PRIMARY KEY (score_id, approach_ordinal, ordinal),
  FOREIGN KEY (score_id, approach_ordinal)
    REFERENCES score_alternative_approaches (score_id, ordinal) ON DELETE CASCADE
);

-- Outbox and event log. `entry` orders the events of one score. It is assigned before the commit, so it does
-- not order events of different scores. The relay assigns `position`, without gaps.
CREATE TABLE scoring_events (
  event_id     uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  entry        bigint GENERATED ALWAYS AS IDENTITY,
  score_id     uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  session_id   text NOT NULL,
  sequence     int NOT NULL,
  position     bigint,
  type         text NOT NULL,
  payload      jsonb NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  published_at timestamptz,
  UNIQUE (score_id, sequence)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX scoring_events_position ON scoring_events (position);
CREATE INDEX scoring_events_unplaced ON scoring_events (entry) WHERE position IS NULL;
CREATE INDEX scoring_events_unpublished ON scoring_events (position) WHERE published_at IS NULL;
CREATE INDEX scoring_events_of_session ON scoring_events (session_id, position);

-- The last position that was assigned. A row and not max(position), which retention could lower.
CREATE TABLE relay_position (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  position  bigint NOT NULL
);
INSERT INTO relay_position (position) VALUES (0);

-- Messages that are too large for the dead-letter topic; their dead letter holds the id.
CREATE TABLE dead_letter_bodies (
  body_id    uuid PRIMARY KEY,
  key        bytea,
  value      bytea,
  headers    jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
"""

NAMES = (
    "dead_letter_bodies",
    "relay_position",
    "scoring_events",
    "score_alternative_approach_steps",
    "score_alternative_approaches",
    "score_missing_tools",
    "judge_turns",
    "scoring_requests",
    "session_scores",
    "scoring_criteria",
    "sessions",
)


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute(f"DROP TABLE {', '.join(NAMES)}")
