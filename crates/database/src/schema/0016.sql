-- The checkpoint that a trial works with, and the version of a model that it is, if it was found as one: what the trial
-- reports is shown with them too.
CREATE TABLE trial_sources (
    trial_id BIGINT NOT NULL REFERENCES trials (id) ON DELETE CASCADE,
    checkpoint_uuid TEXT NOT NULL REFERENCES checkpoints (uuid) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    model_id BIGINT REFERENCES models (id) ON DELETE SET NULL,
    model_version BIGINT,
    PRIMARY KEY (trial_id, checkpoint_uuid)
);
CREATE INDEX trial_sources_by_checkpoint ON trial_sources (checkpoint_uuid);
CREATE INDEX trial_sources_by_model ON trial_sources (model_id, model_version);

-- The folder of the storage that something given up lies in, for what is no checkpoint.
ALTER TABLE file_deletions ADD COLUMN folder TEXT;

-- JSON: where a workspace's experiments keep their checkpoints, and as whom its tasks run, unless they say otherwise.
ALTER TABLE workspaces ADD COLUMN checkpoint_storage TEXT;
ALTER TABLE workspaces ADD COLUMN agent_user_group TEXT;
