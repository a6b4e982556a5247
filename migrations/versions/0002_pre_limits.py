"""
Limits of calls: circuits, pauses, calls per minute and budgets; and the hash of the messages of each turn.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0002"
down_revision = "0001"
phase = "pre"

CHANGES = """
-- Hash of the messages that a turn answered; null for turns that an earlier version wrote.
ALTER TABLE judge_turns ADD COLUMN asked_hash text;

-- One row per provider that was limited, has failed or was measured. Deciding about a call locks the row.
CREATE TABLE provider_states (
  provider      text PRIMARY KEY,
  token_factor  double precision NOT NULL DEFAULT 1 CHECK (token_factor >= 1),
  -- The circuit. Failures are stored as the ids of their calls, so that a failure reported twice counts once.
  failed_calls  uuid[] NOT NULL DEFAULT '{}',
  kind          text CHECK (kind IN ('circuit', 'key', 'quota')),  -- what opened it; null: closed
  open_until    timestamptz,
  cool_down_s   double precision NOT NULL DEFAULT 0,
  reason        text NOT NULL DEFAULT '',
  probe_id      uuid,
  probe_until   timestamptz,
  -- End of a pause that the provider requested.
  blocked_until timestamptz,
  -- The score whose large call the tokens per minute keep waiting.
  first_in_line uuid,
  in_line_since timestamptz,
  in_line_until timestamptz,
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


def upgrade() -> None:
    for statement in CHANGES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE budget_charges, budget_days, pauses, provider_calls, provider_states")
    op.execute("ALTER TABLE judge_turns DROP COLUMN asked_hash")
