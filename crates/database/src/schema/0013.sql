-- Runs can be archived one by one; an archived experiment archives all of its runs.
ALTER TABLE trials ADD COLUMN archived BOOLEAN NOT NULL DEFAULT FALSE;
-- For how many days after its end a trial's logs are kept, -1 for ever; null for what the experiment or master says.
ALTER TABLE trials ADD COLUMN log_retention_days BIGINT;

-- A JSON list of {"name", "contents"}.
ALTER TABLE projects ADD COLUMN notes TEXT NOT NULL DEFAULT '[]';

-- What users arrange for themselves: settings of the pages, pinned workspaces, and when they last looked at a project.
CREATE TABLE user_settings (
    user_id BIGINT NOT NULL REFERENCES users (id),
    storage_path TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (user_id, storage_path, key)
);

CREATE TABLE workspace_pins (
    user_id BIGINT NOT NULL REFERENCES users (id),
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    pinned_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, workspace_id)
);
CREATE INDEX workspace_pins_by_workspace ON workspace_pins (workspace_id);

CREATE TABLE project_visits (
    user_id BIGINT NOT NULL REFERENCES users (id),
    project_id BIGINT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    visited_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, project_id)
);
CREATE INDEX project_visits_by_project ON project_visits (project_id);

-- Tokens that users make for programs. One that is good has a session, which ends when it is revoked.
CREATE TABLE access_tokens (
    id {identity},
    user_id BIGINT NOT NULL REFERENCES users (id),
    description TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- Null: never.
    expires_at BIGINT,
    revoked BOOLEAN NOT NULL
);
CREATE INDEX access_tokens_by_user ON access_tokens (user_id);
ALTER TABLE sessions ADD COLUMN access_token_id BIGINT REFERENCES access_tokens (id);
CREATE INDEX sessions_by_access_token ON sessions (access_token_id);
