-- Groups of users, and roles: what users and groups may do in a workspace, or in all. They count only while the master
-- is started with roles; who makes a workspace administrates it either way.

CREATE TABLE user_groups (
    id {identity},
    name TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

CREATE TABLE group_members (
    group_id BIGINT NOT NULL REFERENCES user_groups (id),
    user_id BIGINT NOT NULL REFERENCES users (id),
    PRIMARY KEY (group_id, user_id)
);
CREATE INDEX group_members_by_user ON group_members (user_id);

CREATE TABLE role_assignments (
    id {identity},
    -- Determined's number of the role.
    role BIGINT NOT NULL,
    -- Whose it is: a user's or a group's.
    user_id BIGINT REFERENCES users (id),
    group_id BIGINT REFERENCES user_groups (id),
    -- Where; null for everywhere.
    workspace_id BIGINT REFERENCES workspaces (id),
    CHECK ((user_id IS NULL) <> (group_id IS NULL))
);
CREATE UNIQUE INDEX role_assignments_once ON role_assignments
    (role, COALESCE(user_id, 0), COALESCE(group_id, 0), COALESCE(workspace_id, 0));
CREATE INDEX role_assignments_by_user ON role_assignments (user_id);
CREATE INDEX role_assignments_by_group ON role_assignments (group_id);

-- WorkspaceAdmin for whoever made a workspace.
INSERT INTO role_assignments (role, user_id, workspace_id) SELECT 2, user_id, id FROM workspaces WHERE NOT immutable;
