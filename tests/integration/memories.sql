-- TARSy's table of memories, as far as this service sees it.
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE investigation_memories (
  memory_id varchar PRIMARY KEY, project varchar NOT NULL DEFAULT 'default', content text NOT NULL,
  category varchar NOT NULL, valence varchar NOT NULL, confidence double precision NOT NULL DEFAULT 0.5,
  seen_count bigint NOT NULL DEFAULT 1, alert_type varchar, chain_id varchar, created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL, last_seen_at timestamptz NOT NULL, deprecated boolean NOT NULL DEFAULT false,
  source_session_id varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE, embedding vector(64)
);
CREATE INDEX ON investigation_memories USING hnsw (embedding vector_cosine_ops);
