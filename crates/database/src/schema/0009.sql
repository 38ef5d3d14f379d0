-- Who did what, when, from where, and how it ended; never what was sent. Rows are added and, when they are old, deleted.
-- The user's name is kept as it was.
CREATE TABLE audit (
    id {identity},
    time BIGINT NOT NULL,
    user_id BIGINT,
    username TEXT,
    token TEXT NOT NULL,
    task_id TEXT,
    address TEXT NOT NULL,
    request_id TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    status BIGINT NOT NULL,
    count BIGINT NOT NULL
);
CREATE INDEX audit_by_time ON audit (time);
CREATE INDEX audit_of_strangers ON audit (id) WHERE user_id IS NULL;

-- Secrets that tasks are given: a user's, or a workspace's (`scope` says which `owner_id` is). The content is encrypted by
-- the master, with a key that is not in this database.
CREATE TABLE secrets (
    scope TEXT NOT NULL,
    owner_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    content {bytes} NOT NULL,
    changed_at BIGINT NOT NULL,
    changed_by BIGINT NOT NULL REFERENCES users (id),
    PRIMARY KEY (scope, owner_id, name)
);
