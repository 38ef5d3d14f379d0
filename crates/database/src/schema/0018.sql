-- Files of checkpoints are deleted for an experiment, as one of its tasks. The experiment may be gone by then.
ALTER TABLE file_deletions ADD COLUMN experiment_id BIGINT;
ALTER TABLE tasks ADD COLUMN experiment_id BIGINT REFERENCES experiments (id);
CREATE INDEX tasks_by_experiment ON tasks (experiment_id);
CREATE INDEX tasks_by_kind ON tasks (kind, ended_at);
