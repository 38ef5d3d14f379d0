-- Who is told when something happens, and what is yet to be told.
CREATE TABLE webhooks (
    id {identity},
    name TEXT NOT NULL,
    -- Null: of all workspaces.
    workspace_id BIGINT REFERENCES workspaces (id) ON DELETE CASCADE,
    url TEXT NOT NULL,
    kind TEXT NOT NULL,
    mode TEXT NOT NULL,
    -- A JSON list of {"id", "triggerType", "condition"}.
    triggers TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX webhooks_by_workspace ON webhooks (workspace_id);

-- Written with what happened, deleted when it is told or given up.
CREATE TABLE webhook_events (
    id {identity},
    webhook_id BIGINT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    payload TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    next_attempt_at BIGINT NOT NULL
);
CREATE INDEX webhook_events_by_time ON webhook_events (next_attempt_at);

-- Of each task a pattern is told once.
CREATE TABLE webhook_log_matches (
    webhook_id BIGINT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    trigger_id BIGINT NOT NULL,
    task_id TEXT NOT NULL,
    PRIMARY KEY (webhook_id, trigger_id, task_id)
);
