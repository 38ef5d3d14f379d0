-- The first schema: users, workspaces, projects, experiments, trials, metrics, logs, checkpoints.
-- {identity} is a number that counts from 1 and is never used twice, {bytes} a string of bytes: engines spell them
-- differently. Times are microseconds of UTC since 1970; columns named after JSON hold its text.

-- Who may decide. Every deciding transaction checks that the epoch is still its own.
CREATE TABLE lease (
    name TEXT PRIMARY KEY,
    epoch BIGINT NOT NULL,
    holder TEXT NOT NULL,
    taken_at BIGINT NOT NULL
);

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE users (
    id {identity},
    username TEXT NOT NULL UNIQUE,
    display_name TEXT NOT NULL,
    admin BOOLEAN NOT NULL,
    active BOOLEAN NOT NULL,
    remote BOOLEAN NOT NULL,
    password_hash TEXT,
    agent_user_group TEXT,
    modified_at BIGINT NOT NULL,
    last_auth_at BIGINT
);

CREATE TABLE sessions (
    token_hash TEXT PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id);

CREATE TABLE workspaces (
    id {identity},
    name TEXT NOT NULL UNIQUE,
    archived BOOLEAN NOT NULL,
    immutable BOOLEAN NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL
);

CREATE TABLE projects (
    id {identity},
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE,
    archived BOOLEAN NOT NULL,
    immutable BOOLEAN NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    UNIQUE (workspace_id, name)
);

CREATE TABLE experiments (
    id {identity},
    external_id TEXT UNIQUE,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    labels TEXT NOT NULL,
    notes TEXT NOT NULL,
    config TEXT NOT NULL,
    original_config TEXT NOT NULL,
    archived BOOLEAN NOT NULL,
    job_id TEXT NOT NULL,
    project_id BIGINT NOT NULL REFERENCES projects (id),
    user_id BIGINT NOT NULL REFERENCES users (id),
    searcher_name TEXT NOT NULL,
    searcher_metric TEXT NOT NULL,
    smaller_is_better BOOLEAN NOT NULL,
    state TEXT NOT NULL,
    progress DOUBLE PRECISION,
    unmanaged BOOLEAN NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX experiments_by_project ON experiments (project_id);
CREATE INDEX experiments_by_user ON experiments (user_id);

CREATE TABLE trials (
    id {identity},
    experiment_id BIGINT NOT NULL REFERENCES experiments (id),
    external_id TEXT,
    task_id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    hparams TEXT NOT NULL,
    -- How often it was started; reports of an earlier start are refused.
    run_id BIGINT NOT NULL,
    restarts BIGINT NOT NULL,
    runner_state TEXT NOT NULL,
    total_batches BIGINT NOT NULL,
    metadata TEXT,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    last_activity_at BIGINT NOT NULL,
    -- The highest step with metrics of an earlier run, which this run's reports roll back; null when there is none.
    earlier_run_step BIGINT,
    -- Of validations with the searcher's metric: {"step", "time", "values"}.
    best_validation TEXT,
    best_validation_value DOUBLE PRECISION,
    latest_validation TEXT,
    latest_validation_step BIGINT,
    UNIQUE (experiment_id, external_id)
);
CREATE INDEX trials_by_state ON trials (state, last_activity_at);

CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    trial_id BIGINT REFERENCES trials (id),
    started_at BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX tasks_by_trial ON tasks (trial_id);

CREATE TABLE storages (
    id {identity},
    config TEXT NOT NULL UNIQUE
);

CREATE TABLE checkpoints (
    uuid TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES tasks (id),
    trial_id BIGINT REFERENCES trials (id),
    allocation_id TEXT,
    storage_id BIGINT REFERENCES storages (id),
    state TEXT NOT NULL,
    steps_completed BIGINT NOT NULL,
    reported_at BIGINT NOT NULL,
    metadata TEXT NOT NULL,
    resources TEXT NOT NULL,
    size BIGINT NOT NULL
);
CREATE INDEX checkpoints_by_trial ON checkpoints (trial_id, steps_completed);

CREATE TABLE task_logs (
    id {identity},
    task_id TEXT NOT NULL,
    allocation_id TEXT,
    agent_id TEXT,
    container_id TEXT,
    rank_id BIGINT,
    logged_at BIGINT NOT NULL,
    level TEXT NOT NULL,
    source TEXT,
    stdtype TEXT,
    -- Bytes and not text: output may hold NUL, which text may not.
    line {bytes} NOT NULL
);
CREATE INDEX task_logs_by_task ON task_logs (task_id, id);

-- The unmerged tail of metrics: whole reports as they came. A changed row gets a new id, so an id names its content.
CREATE TABLE metric_tail (
    id {identity},
    trial_id BIGINT NOT NULL REFERENCES trials (id),
    group_name TEXT NOT NULL,
    step BIGINT NOT NULL,
    run_id BIGINT NOT NULL,
    reported_at BIGINT NOT NULL,
    metric_values TEXT NOT NULL
);
CREATE INDEX metric_tail_by_step ON metric_tail (trial_id, group_name, step);

-- Metrics of single batches are kept as they came.
CREATE TABLE metric_batches (
    trial_id BIGINT NOT NULL REFERENCES trials (id),
    group_name TEXT NOT NULL,
    step BIGINT NOT NULL,
    run_id BIGINT NOT NULL,
    reported_at BIGINT NOT NULL,
    batches TEXT NOT NULL,
    PRIMARY KEY (trial_id, group_name, step)
);

-- A series is one metric of one group of one trial. Its roll-up is over its chunks, without the tail.
CREATE TABLE metric_series (
    id {identity},
    trial_id BIGINT NOT NULL REFERENCES trials (id),
    group_name TEXT NOT NULL,
    name TEXT NOT NULL,
    roll_up TEXT NOT NULL,
    UNIQUE (trial_id, group_name, name)
);

CREATE TABLE metric_chunks (
    series_id BIGINT NOT NULL REFERENCES metric_series (id),
    number BIGINT NOT NULL,
    points BIGINT NOT NULL,
    first_step BIGINT NOT NULL,
    last_step BIGINT NOT NULL,
    content {bytes} NOT NULL,
    PRIMARY KEY (series_id, number)
);

-- The highest step of a group that is in chunks: reports beyond it need not look there.
CREATE TABLE metric_groups (
    trial_id BIGINT NOT NULL REFERENCES trials (id),
    group_name TEXT NOT NULL,
    last_chunked_step BIGINT NOT NULL,
    PRIMARY KEY (trial_id, group_name)
);
