-- Fills a database that has Determined's schema with invented work. Run by psql, with its numbers as variables: users,
-- workspaces, projects, experiments, trials (two of each experiment), steps (training reports of each trial), lines,
-- models; cluster (its id), password (what bcrypt is given). Every value follows from the numbers of its row.

CREATE EXTENSION IF NOT EXISTS pgcrypto;
INSERT INTO cluster_id (cluster_id) VALUES (:'cluster');
UPDATE users SET password_hash = crypt(:'password', gen_salt('bf', 4)) WHERE username = 'admin';
INSERT INTO users (id, username, password_hash, admin, active, display_name)
    SELECT i, 'user' || i, CASE WHEN i % 2 = 0 THEN crypt(:'password', gen_salt('bf', 4)) END, false, i % 7 <> 0,
    'User ' || i FROM generate_series(3, (:users + 2)) i;
INSERT INTO agent_user_groups (user_id, user_, uid, group_, gid) VALUES (3, 'three', 1003, 'users', 100);
INSERT INTO groups (id, group_name, user_id)
    SELECT i, i || 'DeterminedPersonalGroup', i FROM generate_series(3, (:users + 2)) i;
INSERT INTO user_group_membership (user_id, group_id) SELECT i, i FROM generate_series(3, (:users + 2)) i;
INSERT INTO groups (id, group_name) VALUES (1000, 'vision');
INSERT INTO user_group_membership (user_id, group_id) VALUES (3, 1000), (4, 1000);
INSERT INTO workspaces (id, name, user_id, archived, created_at)
    SELECT i, 'workspace' || i, 2 + i, i = 3, '2024-01-01T00:00:00Z'::timestamptz + i * interval '1 hour'
    FROM generate_series(2, (:workspaces + 1)) i;
UPDATE workspaces SET uid = 5, user_ = 'five', checkpoint_storage_config = '{"type": "shared_fs", "host_path": "/data"}'
    WHERE id = 2;
INSERT INTO projects (id, name, description, workspace_id, user_id, key, notes, created_at)
    SELECT i, 'project' || i, 'about ' || i, 2 + i % :workspaces, 3, 'K' || i,
    '[{"name": "note", "contents": "text"}]', '2024-01-02T00:00:00Z' FROM generate_series(2, (:projects + 1)) i;
INSERT INTO role_assignment_scopes (id, scope_workspace_id) VALUES (1001, 2);
INSERT INTO role_assignments (group_id, role_id, scope_id) VALUES (1000, 5, 1001), (3, 2, 1001);
INSERT INTO jobs (job_id, job_type, owner_id, q_position)
    SELECT 'job-' || i, 'EXPERIMENT', 3, 0 FROM generate_series(1, :experiments) i;
INSERT INTO experiments (id, state, config, model_definition, start_time, end_time, archived, parent_id, owner_id, progress,
    original_config, notes, job_id, project_id, unmanaged, external_experiment_id)
    SELECT i, (CASE WHEN i % 97 = 0 THEN 'PAUSED' ELSE (ARRAY['COMPLETED', 'ERROR', 'CANCELED'])[1 + i % 3] END)
    ::experiment_state, jsonb_build_object('name', 'experiment ' || i, 'description', 'tab' || E'\t' || 'line' || E'\n',
    'labels', jsonb_build_array('even-' || i % 2, 'x'), 'searcher', jsonb_build_object('name', 'random', 'metric', 'loss',
    'smaller_is_better', i % 2 = 0, 'max_trials', 2), 'resources', jsonb_build_object('resource_pool', 'default'),
    'hyperparameters', '{"lr": {"type": "const", "val": 0.1}}'::jsonb, 'checkpoint_storage',
    '{"type": "shared_fs", "host_path": "/data"}'::jsonb, 'entrypoint', 'python3 train.py'),
    decode(repeat(md5(i::text), 32), 'hex'), '2024-02-01T00:00:00Z'::timestamptz + i * interval '1 minute',
    CASE WHEN i % 97 <> 0 THEN '2024-02-01T01:00:00.123456Z'::timestamptz + i * interval '1 minute' END, i % 11 = 0,
    CASE WHEN i % 5 = 0 THEN i - 1 END, 3 + i % :users, 1, 'name: experiment ' || i || E'\nlabels: [x]\n',
    'notes of ' || i, 'job-' || i, 1 + i % :projects, i % 50 = 0, CASE WHEN i % 50 = 0 THEN 'outside-' || i END
    FROM generate_series(1, :experiments) i;
INSERT INTO runs (id, experiment_id, state, start_time, end_time, hparams, runner_state, restart_id, restarts, total_batches,
    last_activity, project_id, summary_metrics)
    SELECT i, 1 + (i - 1) / 2, (CASE WHEN (1 + (i - 1) / 2) % 97 = 0 THEN 'PAUSED' ELSE 'COMPLETED' END)::trial_state,
    '2024-02-01T00:00:00Z', '2024-02-01T01:00:00Z', jsonb_build_object('lr', i / 1000.0), '', 1, i % 3, (:steps * 10),
    '2024-02-01T01:00:00Z', 1 + (1 + (i - 1) / 2) % :projects, '{}'
    FROM generate_series(1, :trials) i;
INSERT INTO runs_metadata (run_id, metadata) VALUES (1, '{"note": {"deep": 1}}');
INSERT INTO trials_v2 (run_id, request_id, seed)
    SELECT i, 'request-' || i, i FROM generate_series(1, :trials) i;
INSERT INTO tasks (task_id, task_type, start_time, end_time, job_id, log_version)
    SELECT 'trial.' || i, 'TRIAL', '2024-02-01', '2024-02-01 01:00:00', 'job-' || (1 + (i - 1) / 2), 1
    FROM generate_series(1, :trials) i;
INSERT INTO tasks (task_id, task_type, start_time, end_time) VALUES ('command.1', 'COMMAND', '2024-02-01', '2024-02-02');
INSERT INTO run_id_task_id (run_id, task_id) SELECT i, 'trial.' || i FROM generate_series(1, :trials) i;
INSERT INTO allocations (task_id, allocation_id, resource_pool, start_time, end_time, slots, state, is_ready, ports)
    SELECT 'trial.' || i, 'trial.' || i || '.1', 'default', '2024-02-01', '2024-02-01 00:30:00', 4, 'TERMINATED', true, '{}'
    FROM generate_series(1, :trials) i;
INSERT INTO metrics (trial_id, end_time, metrics, total_batches, trial_run_id, metric_group, partition_type)
    SELECT t, '2024-02-01T00:00:00Z'::timestamptz + s * interval '1 second', jsonb_build_object('avg_metrics',
    jsonb_build_object('loss', 1.0 / s + t, 'accuracy', s / 1e6, 'step', s, 'rate', CASE WHEN s % 100 = 0 THEN '"NaN"'::jsonb
    ELSE to_jsonb(0.5) END), 'batch_metrics', CASE WHEN s = 7 AND t % 10 = 0 THEN '[{"loss": 1}]'::jsonb END), s * 10, 1,
    'training', 'TRAINING' FROM generate_series(1, :steps) s, generate_series(1, :trials) t;
INSERT INTO metrics (trial_id, end_time, metrics, total_batches, trial_run_id, metric_group, partition_type)
    SELECT t, '2024-02-01T00:00:00Z'::timestamptz + s * interval '1 second', jsonb_build_object('validation_metrics',
    jsonb_build_object('loss', 2.0 / s + t % 5)), s * 10, 1, 'validation', 'VALIDATION'
    FROM generate_series(10, :steps, 10) s, generate_series(1, :trials) t;
INSERT INTO metrics (trial_id, end_time, metrics, total_batches, trial_run_id, metric_group, partition_type)
    SELECT t, '2024-02-01T00:00:00Z', jsonb_build_object('avg_metrics', jsonb_build_object('bleu', s)), s * 10, 1,
    'translation', 'GENERIC' FROM generate_series(20, :steps, 20) s, generate_series(1, :trials) t;
INSERT INTO metrics (trial_id, end_time, metrics, total_batches, trial_run_id, metric_group, partition_type, archived)
    SELECT 1, '2024-01-31', '{"avg_metrics": {"loss": -1}}', s * 10, 0, 'training', 'TRAINING', true
    FROM generate_series(1, 10) s;
INSERT INTO metrics (trial_id, end_time, metrics, total_batches, trial_run_id, metric_group, partition_type)
    SELECT 1, '2024-02-01T00:00:00Z'::timestamptz + s * interval '10 seconds', jsonb_build_object('avg_metrics',
    jsonb_build_object('agent', jsonb_build_object('gpu0', jsonb_build_object('gpu_util', s)))), NULL, 1, 'gpu', 'PROFILING'
    FROM generate_series(1, 20) s;
INSERT INTO storage_backend_shared_fs (id, host_path, storage_path, propagation) VALUES (1, '/data', 'checkpoints', 'rprivate');
INSERT INTO storage_backend (id, shared_fs_id) OVERRIDING SYSTEM VALUE VALUES (1, 1);
INSERT INTO checkpoints_v2 (id, uuid, task_id, allocation_id, report_time, state, resources, metadata, size, storage_id)
    SELECT i, ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid, 'trial.' || (1 + (i - 1) / 2),
    'trial.' || (1 + (i - 1) / 2) || '.1', '2024-02-01T00:50:00Z',
    (CASE WHEN i % 4 = 0 THEN 'DELETED' ELSE 'COMPLETED' END)::checkpoint_state, '{"model.pt": 1000, "dir/": 0}',
    jsonb_build_object('steps_completed', CASE WHEN i % 2 = 1 THEN 100 ELSE (:steps * 10) END, 'framework', 'torch'), 1000,
    CASE WHEN i % 2 = 1 THEN 1 END FROM generate_series(1, (:trials * 2)) i;
INSERT INTO run_checkpoints (run_id, checkpoint_id)
    SELECT 1 + (i - 1) / 2, ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid
    FROM generate_series(1, (:trials * 2)) i;
UPDATE runs SET warm_start_checkpoint_id = 1 WHERE id = 3;
INSERT INTO models (id, name, description, creation_time, last_updated_time, metadata, labels, user_id, notes, workspace_id)
    SELECT i, 'model' || i, 'about ' || i, '2024-03-01', '2024-03-02', '{"k": "v"}', ARRAY['a b', 'c"d'], 3, 'notes', 2
    FROM generate_series(1, :models) i;
INSERT INTO model_versions (id, version, checkpoint_uuid, creation_time, last_updated_time, metadata, model_id, name, comment,
    user_id, labels, notes) SELECT (m - 1) * 3 + v, v, ('00000000-0000-4000-8000-' || lpad((m * 4 + v)::text, 12, '0'))::uuid,
    '2024-03-01', '2024-03-02', '{}', m, 'v' || v, 'comment', 4, ARRAY['x'], 'notes'
    FROM generate_series(1, :models) m, generate_series(1, 3) v;
INSERT INTO templates (name, config, workspace_id) VALUES ('small', '{"resources": {"slots": 1}}', 2);
INSERT INTO task_logs (task_id, allocation_id, agent_id, container_id, rank_id, source, stdtype, level, timestamp, log)
    SELECT 'trial.' || (1 + i % :trials), 'trial.' || (1 + i % :trials) || '.1', 'agent', 'c', i % 4, 'task',
    'stdout', 'INFO', '2024-02-01'::timestamp + i * interval '1 millisecond', convert_to('line ' || i || E' \t\\\n', 'UTF8')
    FROM generate_series(1, :lines) i;
INSERT INTO task_logs (task_id, timestamp, log) VALUES ('command.1', '2024-02-01', 'hello');
INSERT INTO webhooks (url, webhook_type, name, mode) VALUES ('https://example.org', 'DEFAULT', 'w', 'WORKSPACE');
ANALYZE;
