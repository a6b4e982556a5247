"""
All tables of 1.0.0, by subject. Each later change is a new revision.

Phase: pre (additive; run before the version that needs it).
"""

import re

from alembic import op

revision = "0001"
down_revision = None
phase = "pre"

SCORES = """
-- One row per session that a request has named. Accepting a request and ending a score lock the row.
CREATE TABLE sessions (
  session_id    text PRIMARY KEY,
  chain_id      text,
  alert_type    text,
  labels        jsonb NOT NULL DEFAULT '{}'  -- of all events and of the source, together
    CHECK (jsonb_array_length(jsonb_path_query_array(labels, '$.keyvalue()')) <= 50),
  status        text,
  completed_at  timestamptz CHECK (completed_at >= '1970-01-01Z' AND completed_at < '2200-01-01Z'),
  first_seen_at timestamptz NOT NULL DEFAULT now()
);
-- Lists sort a session by its end, but never later than it was first seen, so that a wrong end sinks.
CREATE INDEX sessions_recent ON sessions (least(completed_at, first_seen_at) DESC, session_id DESC);
CREATE INDEX sessions_of_chain
  ON sessions (chain_id, least(completed_at, first_seen_at) DESC, session_id DESC);
CREATE INDEX sessions_of_alert_type
  ON sessions (alert_type, least(completed_at, first_seen_at) DESC, session_id DESC);
CREATE INDEX sessions_by_prefix ON sessions (lower(session_id) text_pattern_ops);
CREATE INDEX sessions_by_alert_prefix ON sessions (lower(alert_type) text_pattern_ops);
CREATE INDEX sessions_first_seen ON sessions (first_seen_at);
CREATE INDEX sessions_labels ON sessions USING gin (labels jsonb_path_ops);

-- The full content of criteria that scores were judged under, by its hash.
CREATE TABLE scoring_criteria (
  criteria_hash text PRIMARY KEY,
  name          text NOT NULL,
  content       jsonb NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX scoring_criteria_name ON scoring_criteria (name, first_used_at);

-- One row per score, from its request to its end: the work queue, and the judgement.
CREATE TABLE session_scores (
  score_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  session_id text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  request_id uuid NOT NULL,
  chain_id text,
  chain_is_named boolean,
  purpose text NOT NULL DEFAULT 'production'
    CHECK (purpose IN ('production', 'consistency', 'anchor', 'shadow')),
  status text NOT NULL DEFAULT 'pending'
    CHECK (status IN (
      'pending', 'in_progress', 'completed', 'failed', 'timed_out', 'cancelled')),
  priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 2),  -- 0 people, 1 automatic, 2 bulk
  score_triggered_by text NOT NULL,
  stage_id text,
  created_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz,
  completed_at timestamptz,
  -- the work queue
  next_attempt_at timestamptz NOT NULL DEFAULT now(),
  waiting_reason text,
  waiting_for_text text,
  attempt int NOT NULL DEFAULT 0,
  attempts_burned int NOT NULL DEFAULT 0,
  losses int NOT NULL DEFAULT 0,
  spent_s double precision NOT NULL DEFAULT 0,
  lease_owner uuid,
  lease_token uuid,
  lease_expires_at timestamptz,
  nonce text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
  -- what was asked, who answered
  criteria text,
  criteria_hash text,
  judge_fingerprint text,
  reference_id uuid,  -- of the reference to judge against
  reference jsonb,  -- that the judge was given
  -- the judgement
  total_score int CHECK (total_score BETWEEN 0 AND 100),
  score_analysis text,
  score_breakdown jsonb,
  missing_tools_analysis text,
  rubric jsonb,
  samples jsonb NOT NULL DEFAULT '[]',
  second_opinion jsonb,
  pass_threshold double precision,
  judge_passed boolean,
  outcome text CHECK (outcome IN ('pass', 'fail')),
  outcome_reason text,
  judge_outcome text,
  composite_score double precision,
  failure_tags jsonb NOT NULL DEFAULT '[]',
  flags jsonb NOT NULL DEFAULT '[]',
  grounding jsonb,
  interaction jsonb,
  diagnosis jsonb NOT NULL DEFAULT '[]',
  gates jsonb NOT NULL DEFAULT '[]',
  coverage jsonb,
  evidence jsonb,
  usage jsonb,
  error_kind text,
  error_message text,
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
CREATE INDEX session_scores_lost ON session_scores (priority, next_attempt_at)
  WHERE status = 'pending' AND losses > 0;
CREATE INDEX session_scores_cancelled ON session_scores (session_id)
  WHERE status = 'cancelled' AND purpose = 'production';
-- Scores enter these only when they are completed: the queue does not pay for them.
CREATE INDEX session_scores_latest ON session_scores (session_id, completed_at DESC, score_id)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_by_total ON session_scores (total_score, session_id)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_by_time ON session_scores (completed_at)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_of_criteria ON session_scores (criteria, completed_at)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_flags ON session_scores USING gin (flags jsonb_path_ops)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_judged ON session_scores (chain_id, completed_at)
  INCLUDE (session_id, criteria, criteria_hash, judge_fingerprint, total_score, flags)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_referenced ON session_scores (session_id)
  WHERE reference IS NOT NULL AND status = 'completed' AND purpose = 'production';

-- Every answered call of the judge with its full reply, which later attempts use instead of another call.
CREATE TABLE judge_turns (
  score_id            uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  ordinal             int NOT NULL,
  kind                text NOT NULL,
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
  asked_hash          text,          -- of the messages that the turn answers
  nonce               text NOT NULL,
  created_at          timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (score_id, ordinal)
);
CREATE INDEX judge_turns_recent ON judge_turns (created_at);
CREATE INDEX judge_turns_replies ON judge_turns (created_at) WHERE reply <> '';

-- What the judge reported beside the total.
CREATE TABLE score_missing_tools (
  score_id  uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  ordinal   int NOT NULL,
  tool_name text NOT NULL,
  rationale text NOT NULL,
  PRIMARY KEY (score_id, ordinal)
);
CREATE INDEX score_missing_tools_name ON score_missing_tools (tool_name);
CREATE INDEX score_missing_tools_looked_at ON score_missing_tools (score_id) INCLUDE (tool_name);

CREATE TABLE score_alternative_approaches (
  score_id    uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  ordinal     int NOT NULL,
  name        text NOT NULL,
  description text NOT NULL,
  PRIMARY KEY (score_id, ordinal)
);

CREATE INDEX score_alternative_approaches_name ON score_alternative_approaches (name);

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

-- For queries of people: what trends count of each session, under each criteria, with column names of the first design.
CREATE VIEW score_history AS
SELECT DISTINCT ON (session_id, criteria_hash)
  score_id, session_id, chain_id, criteria, criteria_hash, judge_fingerprint, total_score, score_breakdown,
  score_analysis AS score_reasoning, score_analysis, missing_tools_analysis, failure_tags, flags, outcome,
  score_triggered_by, created_at, started_at, completed_at, completed_at AS scored_at
FROM session_scores
WHERE status = 'completed' AND purpose = 'production' AND total_score IS NOT NULL AND reference IS NULL
ORDER BY session_id, criteria_hash, completed_at DESC, score_id
"""

REQUESTS = """
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
  use_reference boolean NOT NULL DEFAULT true,
  is_reference_refused boolean NOT NULL DEFAULT false,  -- it gave one, which events may not
  criteria     text,
  reason       text,
  priority     smallint NOT NULL,
  traceparent  text
);
CREATE INDEX scoring_requests_event ON scoring_requests (event_id);
CREATE INDEX scoring_requests_session ON scoring_requests (session_id, received_at DESC);
CREATE INDEX scoring_requests_score ON scoring_requests (score_id);
CREATE UNIQUE INDEX scoring_requests_one_deferred ON scoring_requests (session_id)
  WHERE disposition = 'deferred';
CREATE INDEX scoring_requests_received ON scoring_requests (received_at);

-- The first answer under each `Idempotency-Key` of a caller, for a day.
CREATE TABLE kept_answers (
  caller      text NOT NULL,
  key         text NOT NULL,
  asked_hash  text NOT NULL,  -- of the whole request
  outcome     text NOT NULL,
  score_id    uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  request_id  uuid NOT NULL,
  answer      text,           -- null until the first answer is stored
  answered_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (caller, key)
);
CREATE INDEX kept_answers_age ON kept_answers (answered_at);
CREATE INDEX kept_answers_score ON kept_answers (score_id);

-- What turned out to be true after an incident; its session is judged against it.
CREATE TABLE session_references (
  reference_id uuid PRIMARY KEY,
  session_id   text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  text         text NOT NULL,                      -- masked
  source_url   text,
  provided_by  text NOT NULL,
  provided_at  timestamptz NOT NULL CHECK (provided_at >= '1970-01-01Z' AND provided_at < '2200-01-01Z'),
  request_id   uuid NOT NULL,                      -- of the first request that gave it
  given_at     timestamptz NOT NULL DEFAULT clock_timestamp(), -- by the last request that gave it
  sent_by      text                                -- who sent it, which `provided_by` need not name
);
CREATE INDEX session_references_of_session ON session_references (session_id, given_at);

-- Names that running workers know, so that a worker without one leaves its scores to them.
CREATE TABLE known_names (
  kind    text NOT NULL CHECK (kind IN ('criteria', 'chain')),
  name    text NOT NULL,
  seen_at timestamptz NOT NULL,  -- when a worker last announced that it knows the name
  PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);

-- Where claims begin to read: earlier index entries lead to rows that vacuum has yet to remove.
CREATE TABLE claim_floor (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  due        timestamptz NOT NULL DEFAULT '-infinity',  -- no pending score was due earlier at the last check
  checked_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO claim_floor DEFAULT VALUES
"""

EVENTS = """
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
  traceparent  text,
  UNIQUE (score_id, sequence)
) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX scoring_events_position ON scoring_events (position);
CREATE INDEX scoring_events_unplaced ON scoring_events (entry) WHERE position IS NULL;
CREATE INDEX scoring_events_of_session ON scoring_events (session_id, position);

-- The last position that was assigned. A row and not max(position), which retention could lower.
CREATE TABLE relay_position (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  position  bigint NOT NULL,
  forgotten bigint NOT NULL DEFAULT 0  -- events up to here may be gone: earlier cursors miss some
);
INSERT INTO relay_position (position) VALUES (0);

-- A table of its own and not columns of `relay_position`: each change of a row leaves a version, and as long
-- as a snapshot is open all of them are read. `relay_position` changes with each pass, this row once per
-- 1,000 events.
CREATE TABLE relay_floor (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  published  bigint NOT NULL DEFAULT 0,  -- every event with a position up to this one is published
  entry      bigint NOT NULL DEFAULT 0,  -- every event with an entry up to this one has a position
  -- The next value of `entry`, valid once every transaction with an id below `next_xid` has ended.
  next_entry bigint NOT NULL DEFAULT 0,
  next_xid   xid8 NOT NULL DEFAULT '0'
);
INSERT INTO relay_floor DEFAULT VALUES
"""

DEAD_LETTERS = """
-- Messages that are too large for the dead-letter topic; their dead letter holds the id.
CREATE TABLE dead_letter_bodies (
  body_id    uuid PRIMARY KEY,
  key        bytea,
  value      bytea,
  headers    jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- Dead letters by their original position, with their last replay and what came of it.
CREATE TABLE dead_letters (
  original_topic     text NOT NULL,
  original_partition bigint NOT NULL,
  original_offset    bigint NOT NULL,
  failed_at          timestamptz NOT NULL DEFAULT now(),  -- last
  replayed_at        timestamptz,                         -- last
  replay_hash        bytea,                               -- SHA-256 of position and content that may be replayed
  PRIMARY KEY (original_topic, original_partition, original_offset)
);
CREATE INDEX dead_letters_recent ON dead_letters (failed_at);
"""

LIMITS = """
-- One row per provider that was limited, has failed or was measured. Deciding about a call locks the row.
CREATE TABLE provider_states (
  provider      text PRIMARY KEY,
  token_factor  double precision NOT NULL DEFAULT 1 CHECK (token_factor >= 1),
  token_model   text,                              -- whose replies the factor was learned from
  -- The circuit. Failures are stored as the ids of their calls, so that a failure reported twice counts once.
  failed_calls  uuid[] NOT NULL DEFAULT '{}',
  rejected_scores uuid[] NOT NULL DEFAULT '{}',  -- rejected for `reason` since a score was answered
  kind          text CHECK (kind IN ('circuit', 'key', 'quota', 'rejected')),  -- what opened it; null: closed
  open_until    timestamptz,
  cool_down_s   double precision NOT NULL DEFAULT 0,
  reason        text NOT NULL DEFAULT '',
  probe_id      uuid,
  probe_until   timestamptz,
  -- End of a pause that the provider requested.
  blocked_until timestamptz,
  CONSTRAINT an_open_circuit_has_an_end CHECK ((kind IS NULL) = (open_until IS NULL)),
  CONSTRAINT only_an_open_circuit_is_probed CHECK (probe_id IS NULL OR kind IS NOT NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Calls of the last minutes to providers that the operator limits.
CREATE TABLE provider_calls (
  call_id   uuid PRIMARY KEY,
  provider  text NOT NULL,
  called_at timestamptz NOT NULL,
  tokens    bigint NOT NULL  -- estimated, later those really used
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX provider_calls_window ON provider_calls (provider, called_at);

-- Pauses of a chain, of a provider, or of a provider for one chain; of everything if both are null.
CREATE TABLE pauses (
  pause_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  chain_id  text CHECK (chain_id <> ''),
  provider  text CHECK (provider <> ''),
  since     timestamptz NOT NULL DEFAULT now(),
  paused_by text NOT NULL,
  reason    text,
  UNIQUE NULLS NOT DISTINCT (chain_id, provider)
);

-- Money of one UTC day, for all chains together and for each. The chain of scores without one is ''.
CREATE TABLE budget_days (
  day          date NOT NULL,
  scope        text NOT NULL CHECK (scope IN ('all', 'chain')),
  chain_id     text NOT NULL,
  charged_usd  numeric NOT NULL DEFAULT 0,  -- settled cost, and the maxima of reservations not settled yet
  reserved_usd numeric NOT NULL DEFAULT 0,  -- those maxima alone
  reserved_at  timestamptz,                 -- time of the newest reservation not settled yet
  PRIMARY KEY (day, scope, chain_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Every reservation with its settled cost.
CREATE TABLE budget_charges (
  charge_id    uuid PRIMARY KEY,
  day          date NOT NULL,
  chain_id     text NOT NULL,
  provider     text NOT NULL,
  score_id     uuid NOT NULL,
  reserved_usd numeric NOT NULL,
  settled_usd  numeric,  -- null: charged at its maximum
  reserved_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
CREATE INDEX budget_charges_of_day ON budget_charges (day, chain_id);
CREATE INDEX budget_charges_of_score ON budget_charges (score_id);
"""

PEOPLE = """
-- Changes that callers made through the API. No reference to scores, which retention may delete earlier.
CREATE TABLE changes (
  change_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  changed_at timestamptz NOT NULL DEFAULT now(),
  changed_by text NOT NULL,
  change     text NOT NULL,
  session_id text REFERENCES sessions ON DELETE CASCADE,
  score_id   uuid,
  request_id uuid,
  through    text,
  address    text,
  details    jsonb
);
CREATE INDEX changes_of_session ON changes (session_id, changed_at DESC);
CREATE INDEX changes_recent ON changes (changed_at DESC);

-- Erasures of sessions: time, user and reason. Of the session only the SHA-256 of its id is kept.
CREATE TABLE erasures (
  erasure_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  erased_at    timestamptz NOT NULL DEFAULT now(),
  erased_by    text NOT NULL,
  why          text NOT NULL CHECK (why IN ('asked', 'deleted_upstream')),
  session_hash text NOT NULL,
  scores       int NOT NULL            -- number of its scores
);
CREATE INDEX erasures_of_session ON erasures (session_hash);

-- Every label of a session, including those that the same person replaced later; of each session the last one of
-- each person counts. A review in TARSy is one label, which a changed review replaces.
CREATE TABLE score_labels (
  label_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  score_id    uuid REFERENCES session_scores ON DELETE CASCADE,  -- on whose page it was given
  session_id  text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  source      text NOT NULL DEFAULT 'api' CHECK (source IN ('tarsy', 'page', 'api')),
  labelled_by text NOT NULL,
  labelled_at timestamptz NOT NULL DEFAULT now(),
  agrees      boolean,
  outcome     text,
  number      double precision CHECK (number BETWEEN 0 AND 100),
  reason      text,
  is_random   boolean NOT NULL DEFAULT false,  -- of a score in the random part of the review list
  CONSTRAINT a_label_says_something CHECK (agrees IS TRUE OR outcome IS NOT NULL OR number IS NOT NULL),
  CONSTRAINT a_review_is_of_no_score CHECK ((source = 'tarsy') = (score_id IS NULL))
);
CREATE INDEX score_labels_of_score ON score_labels (score_id, label_id);
CREATE INDEX score_labels_of_session ON score_labels (session_id);
CREATE UNIQUE INDEX score_labels_of_tarsy ON score_labels (session_id) WHERE source = 'tarsy'
"""

TOOLS = """
-- Names of one tool, and names kept apart. Rows are never changed or removed; the last row of a name counts.
CREATE TABLE tool_merges (
  merge_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text NOT NULL,                    -- as it was written
  name_key     text NOT NULL,                    -- the normalised name, equal for all its spellings
  tool         text NOT NULL,                    -- tool of the name; the name itself: it is kept apart
  decided_by   text NOT NULL,
  decided_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tool_merges_of_name ON tool_merges (name_key, merge_id DESC);

-- States that people set for a tool; the last row counts. Whether it is still missed is measured.
CREATE TABLE tool_states (
  state_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tool     text NOT NULL,
  tool_key text NOT NULL,
  state    text NOT NULL CHECK (state IN ('open', 'planned', 'built')),
  since    timestamptz NOT NULL  -- start of the state, which may be earlier than the decision
    CHECK (since >= '1970-01-01Z' AND since < '2200-01-01Z'),
  said_by  text NOT NULL,
  said_at  timestamptz NOT NULL DEFAULT now(),
  note     text
);
CREATE INDEX tool_states_of_tool ON tool_states (tool_key, state_id DESC)
"""

STUDIES = """
-- Anchors: every judge judges them, to separate changes of judges and agents. A removed one keeps its row.
CREATE TABLE anchor_sessions (
  session_id text PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
  added_by   text NOT NULL,
  added_at   timestamptz NOT NULL DEFAULT now(),
  note       text,
  removed_by text,
  removed_at timestamptz
);

-- Findings of checks of a chain's scores. Estimates are stored with their intervals.
CREATE TABLE drift_findings (
  event_id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  look            text NOT NULL CHECK (look IN ('sessions', 'watch')),
  chain_id        text NOT NULL,
  criteria        text NOT NULL,
  criteria_hash   text NOT NULL,
  old_fingerprint text,                 -- null: found under one judge
  new_fingerprint text NOT NULL,
  cause           text CHECK (cause IN ('judge', 'agents', 'both', 'none')),  -- null: it cannot be determined
  is_clear        boolean NOT NULL,
  judge           jsonb NOT NULL,
  whole           jsonb NOT NULL,
  agents          jsonb NOT NULL,
  began_at        timestamptz,
  anchors         int NOT NULL,
  anchors_missing int NOT NULL,
  compared_before int NOT NULL,
  compared_after  int NOT NULL,
  meaning         jsonb NOT NULL,
  found_at        timestamptz NOT NULL DEFAULT now(),
  is_event        boolean NOT NULL,     -- whether to publish it: a change that was not published before
  published_at    timestamptz,
  confirmed_by    text,                 -- who has seen it; null: it stands on the page of the week
  confirmed_at    timestamptz
);
CREATE INDEX drift_findings_of_chain ON drift_findings (chain_id, criteria, found_at DESC);
CREATE INDEX drift_findings_recent ON drift_findings (found_at DESC);
CREATE INDEX drift_findings_unpublished ON drift_findings (found_at) WHERE is_event AND published_at IS NULL;
CREATE INDEX drift_findings_unconfirmed ON drift_findings (found_at) WHERE is_event AND confirmed_at IS NULL
"""

TARSY = """
-- One row once a bridge has run. Sessions that TARSy created before `settled_before` are settled: each was
-- announced, need not be announced, or is in `bridge_announced` as open.
CREATE TABLE bridge_bookmark (
  singleton      boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  since          timestamptz NOT NULL,  -- sessions that ended earlier are not announced
  settled_before timestamptz NOT NULL,
  reviews_until  timestamptz            -- reviews that TARSy committed earlier are labels; null: none were read
);

-- Sessions that were announced and are not settled, so that the next sweep does not announce them again; and
-- sessions that were seen open, so that their end is announced whatever their times are.
CREATE TABLE bridge_announced (
  session_id text PRIMARY KEY,
  event_id   uuid,                      -- null: the session was open
  created_at timestamptz NOT NULL       -- of the session, in TARSy
);
CREATE INDEX bridge_announced_created ON bridge_announced (created_at) WHERE event_id IS NOT NULL;
CREATE INDEX bridge_announced_open ON bridge_announced (session_id) WHERE event_id IS NULL;

-- Scoring events up to this position were handled: their scores are in TARSy's tables, or will never be.
CREATE TABLE write_back_bookmark (
  follower text PRIMARY KEY,  -- write_back, memory
  position bigint NOT NULL
)
"""

ANALYTICS = """
-- Completed production scores of a day (UTC) that are the latest of their sessions, by total; null: without one.
CREATE TABLE daily_counts (
  day           date NOT NULL,                -- of the score
  is_all        boolean NOT NULL,             -- all chains together
  chain_id      text,
  criteria      text,
  has_reference boolean NOT NULL,
  is_doubtful   boolean NOT NULL,
  total         smallint,
  scores        int NOT NULL,
  categories    text[],                       -- that these scores state
  stated        int[],                        -- number of scores, for each category
  points        numeric[]                     -- sum of points, for each category
);
CREATE INDEX daily_counts_of_day ON daily_counts (is_all, day);
CREATE INDEX daily_counts_of_chain ON daily_counts (chain_id, day) WHERE NOT is_all;

-- The same scores by chain and judge, and what they add up to.
CREATE TABLE daily_sums (
  by_end            boolean NOT NULL,         -- day on which the session ended; false: on which it was scored
  day               date NOT NULL,
  chain_id          text,
  criteria          text,
  judge_fingerprint text,
  has_reference     boolean NOT NULL,
  is_doubtful       boolean NOT NULL,
  scores            int NOT NULL,
  totals            int NOT NULL,             -- scores with a total, and so for each sum below
  points            int NOT NULL,
  squares           bigint NOT NULL,
  minimum           smallint,
  maximum           smallint,
  outcomes          int NOT NULL,
  passed            int NOT NULL,
  judging_costs     int NOT NULL,
  judging_usd       numeric NOT NULL,
  token_counts      int NOT NULL,
  input_tokens      numeric NOT NULL,
  output_tokens     numeric NOT NULL,
  agent_costs       int NOT NULL,
  agent_usd         numeric NOT NULL,
  durations         int NOT NULL,
  duration_s        numeric NOT NULL
);
CREATE INDEX daily_sums_of_day ON daily_sums (day);

-- The same scores by what their judges named: a failure tag, or all tools that the score misses.
CREATE TABLE daily_names (
  day           date NOT NULL,
  chain_id      text,
  criteria      text,
  has_reference boolean NOT NULL,
  kind          text NOT NULL CHECK (kind IN ('failure_tag', 'missing_tools')),
  names         text[] NOT NULL,
  scores        int NOT NULL
);
CREATE INDEX daily_names_of_day ON daily_names (kind, day);

-- Days that these three tables may show as they were. A mark is a row of its own, so that no writer waits.
CREATE TABLE dirty_days (
  day date NOT NULL
)
"""

TABLES = (SCORES, REQUESTS, EVENTS, DEAD_LETTERS, LIMITS, PEOPLE, TOOLS, STUDIES, TARSY, ANALYTICS)


def upgrade() -> None:
    for tables in TABLES:
        for statement in tables.split(";\n"):
            op.execute(statement)


def downgrade() -> None:
    names = re.findall(r"CREATE (?:UNLOGGED )?TABLE (\w+)", "".join(TABLES))
    op.execute(f"DROP TABLE {', '.join(names)} CASCADE")
