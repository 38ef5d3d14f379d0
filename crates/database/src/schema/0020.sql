-- Who had which slots, and where: reports say it as it was, also when the task, its project or its workspace has been moved
-- or deleted.
CREATE TABLE usages (
    allocation_id TEXT PRIMARY KEY,
    task_kind TEXT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    workspace_id BIGINT NOT NULL,
    workspace_name TEXT NOT NULL,
    experiment_id BIGINT,
    slots BIGINT NOT NULL,
    pool TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX usages_by_end ON usages (ended_at);
INSERT INTO usages SELECT allocations.id, tasks.kind, COALESCE(experiments.user_id, commands.user_id), workspaces.id,
    workspaces.name, allocations.experiment_id, allocations.slots, allocations.pool, allocations.started_at,
    allocations.ended_at
    FROM allocations JOIN tasks ON tasks.id = allocations.task_id
    LEFT JOIN experiments ON experiments.id = allocations.experiment_id
    LEFT JOIN projects ON projects.id = experiments.project_id
    LEFT JOIN commands ON commands.task_id = allocations.task_id
    JOIN workspaces ON workspaces.id = COALESCE(projects.workspace_id, commands.workspace_id)
    WHERE allocations.started_at IS NOT NULL;

-- A command outlives its workspace: how it ended can be asked for.
ALTER TABLE commands RENAME TO commands_until_19;
CREATE TABLE commands (
    task_id TEXT PRIMARY KEY REFERENCES tasks (id),
    kind TEXT NOT NULL,
    description TEXT NOT NULL,
    config TEXT NOT NULL,
    job_id TEXT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    workspace_id BIGINT NOT NULL,
    pool TEXT NOT NULL,
    priority BIGINT,
    slots BIGINT NOT NULL,
    details TEXT NOT NULL,
    after_run TEXT NOT NULL DEFAULT 'end'
);
INSERT INTO commands SELECT task_id, kind, description, config, job_id, user_id, workspace_id, pool, priority, slots,
    details, after_run FROM commands_until_19;
DROP TABLE commands_until_19;
