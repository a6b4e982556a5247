"""
What may be called: circuits, pauses, calls per minute and money; and what a turn was asked.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0002"
down_revision = "0001"
phase = "pre"

CHANGES = """
-- Hash of the messages that a turn answered; null for turns of the version before.
ALTER TABLE judge_turns ADD COLUMN asked_hash text;

-- One row per provider that was ever limited, in trouble or measured; locked by whoever decides about a call.
CREATE TABLE provider_states (
  provider      text PRIMARY KEY,
  token_factor  double precision NOT NULL DEFAULT 1 CHECK (token_factor >= 1),
  -- The circuit. Failures are kept as the ids of their calls, so that one told twice counts once.
  failed_calls  uuid[] NOT NULL DEFAULT '{}',
  kind          text CHECK (kind IN ('circuit', 'key', 'quota')),  -- what opened it; null: closed
  open_until    timestamptz,
  cool_down_s   double precision NOT NULL DEFAULT 0,
  reason        text NOT NULL DEFAULT '',
  probe_id      uuid,
  probe_until   timestamptz,
  -- A pause that the provider asked for.
  blocked_until timestamptz,
  -- The score whose large call the tokens per minute keep waiting.
  first_in_line uuid,
  in_line_since timestamptz,
  in_line_until timestamptz,
  CONSTRAINT an_open_circuit_has_an_end CHECK ((kind IS NULL) = (open_until IS NULL)),
  CONSTRAINT only_an_open_circuit_is_probed CHECK (probe_id IS NULL OR kind IS NOT NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- The calls of the last minutes, of providers with limits of ours.
CREATE TABLE provider_calls (
  call_id   uuid PRIMARY KEY,
  provider  text NOT NULL,
  called_at timestamptz NOT NULL,
  tokens    bigint NOT NULL  -- estimated, and then what was really used
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX provider_calls_window ON provider_calls (provider, called_at);

-- Of a chain, of a provider, of a provider for one chain; of everything where both are null.
CREATE TABLE pauses (
  pause_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  chain_id  text CHECK (chain_id <> ''),
  provider  text CHECK (provider <> ''),
  since     timestamptz NOT NULL DEFAULT now(),
  paused_by text NOT NULL,
  reason    text,
  UNIQUE NULLS NOT DISTINCT (chain_id, provider)
);

-- Money of one UTC day: of all chains, and of each; scores without a chain have '' for one.
CREATE TABLE budget_days (
  day          date NOT NULL,
  scope        text NOT NULL CHECK (scope IN ('all', 'chain')),
  chain_id     text NOT NULL,
  charged_usd  numeric NOT NULL DEFAULT 0,  -- what was settled, and the maxima of what was not
  reserved_usd numeric NOT NULL DEFAULT 0,  -- these maxima alone
  reserved_at  timestamptz,                 -- the newest of them
  PRIMARY KEY (day, scope, chain_id)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Every reservation, and what it came to.
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
