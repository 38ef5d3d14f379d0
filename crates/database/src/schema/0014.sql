-- The workspaces that a resource pool is for. One that has none is for all.
CREATE TABLE pool_workspaces (
    pool TEXT NOT NULL,
    workspace_id BIGINT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    PRIMARY KEY (pool, workspace_id)
);
CREATE INDEX pool_workspaces_by_workspace ON pool_workspaces (workspace_id);

-- What configurations must be: of experiments, or of the tasks beside them; in a workspace, or (0) in all of them.
CREATE TABLE config_policies (
    workspace_id BIGINT NOT NULL,
    workload TEXT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (workspace_id, workload)
);
