-- The part of TARSy's database that this service reads, and writes back to: for demos and tests, never for production.

CREATE TABLE IF NOT EXISTS alert_sessions (
    session_id              varchar PRIMARY KEY,
    alert_data              text NOT NULL,
    agent_type              varchar NOT NULL,
    alert_type              varchar,
    status                  varchar NOT NULL DEFAULT 'pending',
    created_at              timestamptz NOT NULL,
    started_at              timestamptz,
    completed_at            timestamptz,
    error_message           varchar,
    final_analysis          text,
    executive_summary       text,
    executive_summary_error varchar,
    session_metadata        jsonb,
    author                  varchar,
    runbook_url             varchar,
    chain_id                varchar NOT NULL,
    labels                  jsonb,
    deleted_at              timestamptz,
    review_status           varchar,
    quality_rating          varchar,
    investigation_feedback  text
);

CREATE INDEX IF NOT EXISTS alert_sessions_status_created_at ON alert_sessions (status, created_at);

CREATE TABLE IF NOT EXISTS session_review_activities (
    activity_id            varchar PRIMARY KEY,
    session_id             varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    actor                  varchar NOT NULL,
    action                 varchar NOT NULL,
    from_status            varchar,
    to_status              varchar NOT NULL,
    quality_rating         varchar,
    note                   text,
    investigation_feedback text,
    created_at             timestamptz NOT NULL
);

CREATE INDEX IF NOT EXISTS sessionreviewactivity_session_id_created_at ON session_review_activities (session_id, created_at);

CREATE TABLE IF NOT EXISTS stages (
    stage_id             varchar PRIMARY KEY,
    stage_name           varchar NOT NULL,
    stage_index          bigint NOT NULL,
    expected_agent_count bigint NOT NULL,
    parallel_type        varchar,
    success_policy       varchar,
    status               varchar NOT NULL DEFAULT 'pending',
    started_at           timestamptz,
    completed_at         timestamptz,
    error_message        varchar,
    session_id           varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    stage_type           varchar NOT NULL DEFAULT 'investigation',
    referenced_stage_id  varchar REFERENCES stages ON DELETE SET NULL,
    actions_executed     boolean,
    UNIQUE (session_id, stage_index)
);

CREATE TABLE IF NOT EXISTS agent_executions (
    execution_id         varchar PRIMARY KEY,
    agent_name           varchar NOT NULL,
    agent_index          bigint NOT NULL,
    status               varchar NOT NULL DEFAULT 'pending',
    started_at           timestamptz,
    completed_at         timestamptz,
    duration_ms          bigint,
    error_message        varchar,
    llm_backend          varchar NOT NULL,
    session_id           varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    stage_id             varchar NOT NULL REFERENCES stages ON DELETE CASCADE,
    llm_provider         varchar,
    task                 text,
    parent_execution_id  varchar REFERENCES agent_executions ON DELETE CASCADE,
    original_llm_provider varchar,
    original_llm_backend varchar,
    model_name           varchar,
    original_model_name  varchar
);

CREATE INDEX IF NOT EXISTS agent_executions_session_id ON agent_executions (session_id);
CREATE UNIQUE INDEX IF NOT EXISTS agent_executions_agent ON agent_executions (stage_id, agent_index)
    WHERE parent_execution_id IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS agent_executions_sub_agent ON agent_executions (parent_execution_id, agent_index)
    WHERE parent_execution_id IS NOT NULL;

CREATE TABLE IF NOT EXISTS timeline_events (
    event_id            varchar PRIMARY KEY,
    sequence_number     bigint NOT NULL,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    event_type          varchar NOT NULL,
    status              varchar NOT NULL DEFAULT 'streaming',
    content             text NOT NULL,
    metadata            jsonb,
    execution_id        varchar REFERENCES agent_executions ON DELETE CASCADE,
    session_id          varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    stage_id            varchar REFERENCES stages ON DELETE CASCADE,
    parent_execution_id varchar REFERENCES agent_executions ON DELETE SET NULL
);

CREATE INDEX IF NOT EXISTS timeline_events_session ON timeline_events (session_id, sequence_number);
CREATE INDEX IF NOT EXISTS timeline_events_execution ON timeline_events (execution_id, sequence_number);

CREATE TABLE IF NOT EXISTS mcp_interactions (
    interaction_id   varchar PRIMARY KEY,
    created_at       timestamptz NOT NULL,
    interaction_type varchar NOT NULL,
    server_name      varchar NOT NULL,
    tool_name        varchar,
    tool_arguments   jsonb,
    tool_result      jsonb,
    available_tools  jsonb,
    duration_ms      bigint,
    error_message    varchar,
    execution_id     varchar NOT NULL REFERENCES agent_executions ON DELETE CASCADE,
    session_id       varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    stage_id         varchar NOT NULL REFERENCES stages ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS mcp_interactions_session ON mcp_interactions (session_id, created_at);

CREATE TABLE IF NOT EXISTS llm_interactions (
    interaction_id   varchar PRIMARY KEY,
    created_at       timestamptz NOT NULL,
    interaction_type varchar NOT NULL,
    model_name       varchar NOT NULL,
    llm_request      jsonb NOT NULL,
    llm_response     jsonb NOT NULL,
    input_tokens     bigint,
    output_tokens    bigint,
    execution_id     varchar REFERENCES agent_executions ON DELETE CASCADE,
    session_id       varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    stage_id         varchar REFERENCES stages ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS llm_interactions_session ON llm_interactions (session_id, created_at);

CREATE TABLE IF NOT EXISTS session_scores (
    score_id                varchar PRIMARY KEY,
    prompt_hash             varchar,
    total_score             bigint,
    score_analysis          text,
    tool_improvement_report text,
    score_triggered_by      varchar NOT NULL,
    status                  varchar NOT NULL DEFAULT 'pending',
    started_at              timestamptz NOT NULL,
    completed_at            timestamptz,
    error_message           text,
    session_id              varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE,
    stage_id                varchar REFERENCES stages ON DELETE SET NULL,
    failure_tags            jsonb
);

CREATE UNIQUE INDEX IF NOT EXISTS sessionscore_session_id ON session_scores (session_id)
    WHERE status IN ('pending', 'in_progress');
CREATE INDEX IF NOT EXISTS session_scores_session_id ON session_scores (session_id, started_at);

CREATE TABLE IF NOT EXISTS events (
    id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    channel    varchar NOT NULL,
    payload    jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    session_id varchar NOT NULL REFERENCES alert_sessions ON DELETE CASCADE
);

CREATE INDEX IF NOT EXISTS events_channel ON events (channel, id);
