-- Work that the master runs itself: experiments on agents' slots, and the single tasks beside them.

ALTER TABLE experiments ADD COLUMN forked_from BIGINT;
ALTER TABLE experiments ADD COLUMN resource_pool TEXT NOT NULL DEFAULT '';
-- Whether its checkpoints have yet to be looked through, now that it is over.
ALTER TABLE experiments ADD COLUMN collecting BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE experiments ADD COLUMN model_definition_size BIGINT NOT NULL DEFAULT 0;

-- The searcher's name of a trial; null for those that run elsewhere.
ALTER TABLE trials ADD COLUMN request_id TEXT;
ALTER TABLE trials ADD COLUMN seed BIGINT NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN warm_start_checkpoint TEXT;
ALTER TABLE trials ADD COLUMN log_policy_matched TEXT;
CREATE UNIQUE INDEX trials_by_request ON trials (experiment_id, request_id);
CREATE INDEX trials_by_experiment ON trials (experiment_id);

-- Sessions of a task end with its allocation, and outlive a change of the password.
ALTER TABLE sessions ADD COLUMN allocation_id TEXT;
CREATE INDEX sessions_by_allocation ON sessions (allocation_id);

-- Where a managed experiment stands, as the state machine that decides about it writes it down. In a table of its own,
-- because lists of experiments read whole rows.
CREATE TABLE experiment_snapshots (
    experiment_id BIGINT PRIMARY KEY REFERENCES experiments (id),
    content TEXT NOT NULL
);

-- The code that came with an experiment or a task: a tar in gzip.
CREATE TABLE model_definitions (
    experiment_id BIGINT PRIMARY KEY REFERENCES experiments (id),
    content {bytes} NOT NULL
);

CREATE TABLE task_contexts (
    task_id TEXT PRIMARY KEY REFERENCES tasks (id),
    content {bytes} NOT NULL
);

-- One attempt to run a task on slots: from the moment it waits for them until nothing of it runs.
CREATE TABLE allocations (
    id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES tasks (id),
    trial_id BIGINT REFERENCES trials (id),
    experiment_id BIGINT REFERENCES experiments (id),
    -- Counts the attempts of the trial.
    run BIGINT NOT NULL,
    state TEXT NOT NULL,
    -- Whether all of it runs and has met.
    ready BOOLEAN NOT NULL,
    pool TEXT NOT NULL,
    slots BIGINT NOT NULL,
    -- JSON: what each agent runs of it, with which devices, and how that ended.
    shares TEXT NOT NULL,
    -- JSON: the ports that it has to itself, by name.
    ports TEXT NOT NULL,
    -- JSON: what it was told (to make room, to end), when and why.
    signals TEXT NOT NULL,
    -- JSON: how it ended; null while it has not.
    exit TEXT,
    -- Why it is in this state, for people.
    reason TEXT NOT NULL,
    queued_at BIGINT NOT NULL,
    started_at BIGINT,
    ended_at BIGINT
);
CREATE INDEX allocations_by_task ON allocations (task_id);
CREATE INDEX allocations_by_trial ON allocations (trial_id, ended_at);
CREATE INDEX allocations_by_experiment ON allocations (experiment_id, ended_at);
CREATE INDEX allocations_by_end ON allocations (ended_at);

-- Agents that were ever here, by the name they chose.
CREATE TABLE agents (
    name TEXT PRIMARY KEY,
    pool TEXT NOT NULL,
    version TEXT NOT NULL,
    -- JSON lists.
    addresses TEXT NOT NULL,
    devices TEXT NOT NULL,
    enabled BOOLEAN NOT NULL,
    draining BOOLEAN NOT NULL,
    -- A JSON list of the slots that were disabled one by one.
    disabled_slots TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL
);

-- What lets an agent in that is no administrator.
CREATE TABLE agent_tokens (
    token_hash TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL
);

CREATE TABLE templates (
    name TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    user_id BIGINT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL
);

-- Single tasks: commands, TensorBoards.
CREATE TABLE commands (
    task_id TEXT PRIMARY KEY REFERENCES tasks (id),
    kind TEXT NOT NULL,
    description TEXT NOT NULL,
    config TEXT NOT NULL,
    job_id TEXT NOT NULL,
    user_id BIGINT NOT NULL REFERENCES users (id),
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id),
    pool TEXT NOT NULL,
    priority BIGINT,
    slots BIGINT NOT NULL,
    -- JSON: what belongs to its kind, such as the experiments that a TensorBoard shows.
    details TEXT NOT NULL
);

-- Jobs in the order that people gave them; the others come by when they were submitted.
CREATE TABLE job_positions (
    job_id TEXT PRIMARY KEY,
    position DOUBLE PRECISION NOT NULL
);

-- Machines on which a task is not tried again.
CREATE TABLE excluded_agents (
    task_id TEXT NOT NULL REFERENCES tasks (id),
    agent TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (task_id, agent)
);
