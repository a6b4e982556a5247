"""
Labels of scores, and the review queue.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0009"
down_revision = "0008"
phase = "pre"

TABLES = """
-- Every label, including those that the same person replaced later; the last one of each person counts.
CREATE TABLE score_labels (
  label_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  score_id    uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  session_id  text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  labelled_by text NOT NULL,
  labelled_at timestamptz NOT NULL DEFAULT now(),
  agrees      boolean,
  outcome     text,
  number      double precision CHECK (number BETWEEN 0 AND 100),
  reason      text,
  CONSTRAINT a_label_says_something CHECK (agrees IS TRUE OR outcome IS NOT NULL OR number IS NOT NULL)
);
CREATE INDEX score_labels_of_score ON score_labels (score_id, label_id);
CREATE INDEX score_labels_of_session ON score_labels (session_id);

-- Days for which the review queue was drawn, so that no process draws them again.
CREATE TABLE review_days (
  day      date PRIMARY KEY,
  drawn_at timestamptz NOT NULL DEFAULT now()
);

-- Scores in the review queue. Each score is a candidate once, so its probability never changes.
CREATE TABLE review_picks (
  score_id              uuid PRIMARY KEY REFERENCES session_scores ON DELETE CASCADE,
  day                   date NOT NULL REFERENCES review_days ON DELETE CASCADE,
  place                 int NOT NULL,
  is_random             boolean NOT NULL,
  inclusion_probability double precision NOT NULL
                        CHECK (inclusion_probability > 0 AND inclusion_probability <= 1),
  reasons               jsonb NOT NULL DEFAULT '[]'
);
CREATE INDEX review_picks_of_day ON review_picks (day, place);
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE review_picks, review_days, score_labels")
