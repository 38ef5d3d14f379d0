-- The model registry: names for checkpoints, as numbered versions of a model; and files that are to be deleted.

CREATE TABLE models (
    id {identity},
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels TEXT NOT NULL,
    notes TEXT NOT NULL,
    archived BOOLEAN NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    -- Versions ever made: a number is not given again after its version was deleted.
    versions_made BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX models_by_workspace ON models (workspace_id);

CREATE TABLE model_versions (
    id {identity},
    model_id BIGINT NOT NULL REFERENCES models (id),
    version BIGINT NOT NULL,
    checkpoint_uuid TEXT NOT NULL REFERENCES checkpoints (uuid),
    name TEXT NOT NULL,
    comment TEXT NOT NULL,
    notes TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels TEXT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (model_id, version)
);
CREATE INDEX model_versions_by_checkpoint ON model_versions (checkpoint_uuid);

-- Files that were given up: written with the change that gives them up, removed when they are gone.
CREATE TABLE file_deletions (
    id {identity},
    checkpoint_uuid TEXT NOT NULL,
    -- The configuration of where it is, as JSON.
    storage TEXT NOT NULL,
    -- A JSON list of paths below the checkpoint's folder; null for all of it.
    paths TEXT
);
