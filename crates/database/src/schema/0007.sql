-- Lists of experiments are filtered and sorted by these columns of all of them, and look at whole rows, with their
-- configurations, only of those that they show.
CREATE INDEX experiments_listed ON experiments (user_id, project_id, archived, state{, texts: name, labels}, progress, started_at, ended_at, smaller_is_better);
DROP INDEX experiments_by_user;
CREATE INDEX trials_by_best ON trials (experiment_id, best_validation_value);

-- Which chunks hold some steps is found without touching the chunks.
CREATE INDEX metric_chunks_by_steps ON metric_chunks (series_id, number, points, first_step, last_step);
