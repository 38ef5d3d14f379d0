//! What the master decides about the work that it runs: everything that follows from one step is one transaction.

use std::collections::BTreeSet;

use instep_api::experiments::Experiment;
use instep_api::identifiers::{ExperimentId, TrialId, UserId};
use instep_api::logs::LogLine;
use instep_api::states::State;
use instep_api::wire::Timestamp;
use serde_json::Value;

use crate::Database;
use crate::agents::{self, AgentRow};
use crate::allocations::{self, AllocationRow};
use crate::checkpoints::newest_checkpoint;
use crate::error::{Error, Result};
use crate::experiments::{NewExperiment, experiment_by_id, insert};
use crate::metrics::read;
use crate::rows::{json, optional_json, text_of, word};
use crate::snapshots::{self, Snapshot, StoredState};
use crate::sql::{self, Connection, OptionalExtension, params};
use crate::workspaces::unix_user_of;

/// What one step decides. An empty part changes nothing.
#[derive(Debug, Clone, Default)]
pub struct Decision {
    /// Where experiments stand now.
    pub experiments: Vec<ExperimentDecision>,
    /// Trials to be made; one that is there already stays as it is.
    pub new_trials: Vec<NewManagedTrial>,
    /// Trials that go on under another task.
    pub revised: Vec<RevisedTrial>,
    /// Where trials stand now.
    pub trials: Vec<TrialDecision>,
    /// Allocations as they are now, new ones among them.
    pub allocations: Vec<AllocationRow>,
    /// Tokens of tasks. They end with their allocations.
    pub sessions: Vec<TaskSession>,
    /// Agents as they are now.
    pub agents: Vec<AgentRow>,
    /// Task, agent and why the one is not tried on the other again.
    pub excluded: Vec<(String, String, String)>,
    /// Experiments whose checkpoints are to be looked through.
    pub collect: Vec<ExperimentId>,
    /// Tasks that are over.
    pub ended_tasks: Vec<String>,
    /// Commands, and what each does when its run has ended.
    pub after_runs: Vec<(String, String)>,
    /// What the tasks' logs say of it.
    pub lines: Vec<LogLine>,
}

impl Decision {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        let Decision { experiments, new_trials, revised, trials, allocations, sessions, .. } = self;
        let Decision { agents, excluded, collect, ended_tasks, after_runs, lines, .. } = self;
        let decided = experiments.len() + new_trials.len() + revised.len() + trials.len() + allocations.len();
        let tasks = ended_tasks.len() + after_runs.len();
        decided + sessions.len() + agents.len() + excluded.len() + collect.len() + tasks + lines.len() == 0
    }
}

/// Where an experiment stands.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ExperimentDecision {
    pub id: ExperimentId,
    pub state: State,
    /// How far it is, 0 to 1; none where it stays as it was.
    pub progress: Option<f64>,
    /// What its state machine needs to go on.
    pub snapshot: Snapshot,
}

/// A trial that a searcher wants.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Trial")]
pub struct NewManagedTrial {
    pub experiment: ExperimentId,
    /// The searcher's name of it.
    pub request: String,
    pub state: State,
    pub hparams: Value,
    pub seed: u32,
    pub warm_start_checkpoint: Option<String>,
}

/// A trial that goes on in another life of its experiment.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Trial")]
pub struct RevisedTrial {
    pub experiment: ExperimentId,
    pub request: String,
    pub task: String,
    pub hparams: Value,
    pub seed: u32,
}

/// Where a trial stands.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Trial")]
pub struct TrialDecision {
    pub id: TrialId,
    pub state: State,
    pub restarts: i64,
    /// The run that is or was the last one; 0 leaves it.
    pub run: i64,
    pub log_policy_matched: Option<String>,
}

/// A token of a task.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub struct TaskSession {
    pub token_hash: String,
    pub user: UserId,
    pub allocation: String,
}

/// What a managed experiment has besides what all have.
#[derive(Debug, Clone)]
pub struct NewManagedExperiment {
    /// What all have.
    pub experiment: NewExperiment,
    /// [`State::Active`] or [`State::Paused`].
    pub state: State,
    /// The pool whose slots it takes.
    pub pool: String,
    /// Whose code it took over.
    pub forked_from: Option<ExperimentId>,
    /// Its code, a tar in gzip; empty for none.
    pub model_definition: Vec<u8>,
}

/// A managed experiment that is not over.
#[derive(Debug, Clone)]
pub struct LiveExperiment {
    /// Everything about it.
    pub experiment: Experiment,
    /// As it is stored: not as it is shown.
    pub state: State,
    /// Its state machine.
    pub stored: StoredState,
    /// The checkpoint that its trials begin with: the one its configuration names, or the newest of the trial it names.
    pub warm_start: Option<String>,
    /// As whom its tasks run, as the owner's account and the workspace say.
    pub agent_user_group: Option<Value>,
    /// Its trials, by the searcher's names.
    pub trials: Vec<LiveTrial>,
}

/// A trial of a managed experiment.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Trial")]
pub struct LiveTrial {
    pub id: TrialId,
    pub request: String,
    pub task_id: String,
    pub state: State,
    pub hparams: Value,
    pub seed: u32,
    pub run: i64,
    pub warm_start_checkpoint: Option<String>,
}

impl Database {
    /// Stores what one step decides; gives the ids of the new trials, in their order.
    pub async fn decide(&self, decision: Decision, now: Timestamp) -> Result<Vec<TrialId>> {
        let over: Vec<TrialId> =
            decision.trials.iter().filter(|trial| trial.state.is_terminal()).map(|trial| trial.id).collect();
        let made = self.executor.write(move |connection| decide(connection, decision, now)).await?;
        for trial in over {
            self.merger.finish(trial);
        }
        Ok(made)
    }

    /// Makes a managed experiment. Its trials come with the first decision about it.
    pub async fn create_managed_experiment(&self, new: NewManagedExperiment, now: Timestamp) -> Result<Experiment> {
        self.executor
            .write(move |connection| {
                let id = insert(connection, &new.experiment, new.state, false, now)?;
                connection.execute(
                    "UPDATE experiments SET forked_from = ?, resource_pool = ?, model_definition_size = ?, progress = 0 \
                     WHERE id = ?",
                    params![
                        new.forked_from.map(|id| id.0),
                        new.pool,
                        i64::try_from(new.model_definition.len()).unwrap_or(i64::MAX),
                        id.0
                    ],
                )?;
                connection.execute(
                    "INSERT INTO model_definitions (experiment_id, content) VALUES (?, ?)",
                    params![id.0, new.model_definition],
                )?;
                experiment_by_id(connection, id, now)
            })
            .await
    }

    /// All managed experiments that are not over, by id.
    pub async fn live_experiments(&self, now: Timestamp) -> Result<Vec<LiveExperiment>> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT id FROM experiments WHERE NOT unmanaged AND ended_at IS NULL ORDER BY id";
                let mut statement = connection.prepare(sql)?;
                let ids: Vec<i64> = statement.query_map([], |row| row.get(0))?.collect::<sql::Result<_>>()?;
                ids.into_iter().map(|id| live_experiment(connection, ExperimentId(id), now)).collect()
            })
            .await
    }

    /// A managed experiment as the master goes on with it.
    pub async fn live_experiment(&self, id: ExperimentId, now: Timestamp) -> Result<LiveExperiment> {
        self.executor.read(move |connection| live_experiment(connection, id, now)).await
    }

    /// The code of an experiment, a tar in gzip; empty for none.
    pub async fn model_definition(&self, id: ExperimentId, now: Timestamp) -> Result<Vec<u8>> {
        self.executor
            .read(move |connection| {
                experiment_by_id(connection, id, now)?;
                let mut statement =
                    connection.prepare_cached("SELECT content FROM model_definitions WHERE experiment_id = ?")?;
                Ok(statement.query_row([id.0], |row| row.get(0)).optional()?.unwrap_or_default())
            })
            .await
    }

    /// The files of a task: its own, or those of its experiment; a tar in gzip, empty for none.
    pub async fn task_context(&self, task: String) -> Result<Vec<u8>> {
        self.executor
            .read(move |connection| {
                let there: bool =
                    connection
                        .query_row("SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ?)", [&task], |row| row.get(0))?;
                if !there {
                    return Err(Error::not_found("task", task));
                }
                let sql = "SELECT content FROM task_contexts WHERE task_id = ?1 UNION ALL \
                           SELECT content FROM model_definitions \
                           JOIN trials ON trials.experiment_id = model_definitions.experiment_id \
                           JOIN tasks ON tasks.trial_id = trials.id WHERE tasks.id = ?1 LIMIT 1";
                Ok(connection.query_row(sql, [&task], |row| row.get(0)).optional()?.unwrap_or_default())
            })
            .await
    }

    /// Bytes of all the code that the master keeps for a user: of experiments, and of commands that are not over.
    pub async fn context_bytes(&self, user: UserId) -> Result<u64> {
        self.executor
            .read(move |connection| {
                let sql = "SELECT (SELECT COALESCE(SUM(LENGTH(content)), 0) FROM model_definitions \
                           JOIN experiments ON experiments.id = experiment_id WHERE user_id = ?1) + \
                           (SELECT COALESCE(SUM(LENGTH(content)), 0) FROM task_contexts \
                           JOIN commands ON commands.task_id = task_contexts.task_id WHERE user_id = ?1)";
                let bytes: i64 = connection.prepare_cached(sql)?.query_row([user.0], |row| row.get(0))?;
                Ok(bytes.unsigned_abs())
            })
            .await
    }

    /// Checkpoints that others depend on: versions of models, and what trials begin with.
    pub async fn kept_checkpoints(&self) -> Result<BTreeSet<String>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT checkpoint_uuid FROM model_versions UNION \
                           SELECT warm_start_checkpoint FROM trials WHERE warm_start_checkpoint IS NOT NULL";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], |row| row.get(0))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Experiments that are over and whose checkpoints have yet to be looked through.
    pub async fn uncollected_experiments(&self) -> Result<Vec<ExperimentId>> {
        self.executor
            .read(|connection| {
                let sql = "SELECT id FROM experiments WHERE collecting AND ended_at IS NOT NULL ORDER BY id";
                let mut statement = connection.prepare_cached(sql)?;
                let found = statement.query_map([], |row| row.get(0).map(ExperimentId))?;
                Ok(found.collect::<sql::Result<_>>()?)
            })
            .await
    }

    /// Notes that an experiment's checkpoints have been looked through.
    pub async fn collected(&self, id: ExperimentId) -> Result<()> {
        self.executor
            .write(move |connection| {
                connection.execute("UPDATE experiments SET collecting = FALSE WHERE id = ?", [id.0])?;
                Ok(())
            })
            .await
    }

    /// Where a trial's next run begins: its newest completed checkpoint with its steps, or the one it was to start warm
    /// from, whose steps do not count.
    pub async fn resume_point(&self, trial: TrialId) -> Result<(Option<String>, i64)> {
        self.executor
            .read(move |connection| {
                if let Some((uuid, steps)) = newest_checkpoint(connection, trial)? {
                    return Ok((Some(uuid), steps));
                }
                let sql = "SELECT warm_start_checkpoint FROM trials WHERE id = ?";
                Ok((connection.query_row(sql, [trial.0], |row| row.get(0))?, 0))
            })
            .await
    }
}

fn live_experiment(connection: &Connection, id: ExperimentId, now: Timestamp) -> Result<LiveExperiment> {
    let experiment = experiment_by_id(connection, id, now)?;
    let state: State = connection
        .prepare_cached("SELECT state FROM experiments WHERE id = ?")?
        .query_row([id.0], |row| word(row, "state"))?;
    let stored = snapshots::get(connection, id)?;
    let searcher = &experiment.config["searcher"];
    // Where both are named, the trial counts.
    let warm_start = match (searcher["source_trial_id"].as_i64(), searcher["source_checkpoint_uuid"].as_str()) {
        (Some(trial), _) => newest_checkpoint(connection, TrialId(trial))?.map(|(uuid, _)| uuid),
        (None, Some(uuid)) => Some(uuid.to_owned()),
        (None, None) => None,
    };
    let agent_user_group = connection
        .prepare_cached(
            "SELECT users.agent_user_group AS of_account, workspaces.agent_user_group AS of_workspace \
             FROM experiments JOIN users ON users.id = experiments.user_id \
             JOIN projects ON projects.id = experiments.project_id \
             JOIN workspaces ON workspaces.id = projects.workspace_id WHERE experiments.id = ?",
        )?
        .query_row([id.0], |row| {
            Ok(unix_user_of(optional_json(row, "of_account")?, optional_json(row, "of_workspace")?))
        })?;
    let sql = "SELECT * FROM trials WHERE experiment_id = ? AND request_id IS NOT NULL ORDER BY id";
    let mut statement = connection.prepare_cached(sql)?;
    let trials = statement.query_map([id.0], |row| {
        Ok(LiveTrial {
            id: TrialId(row.get("id")?),
            request: row.get("request_id")?,
            task_id: row.get("task_id")?,
            state: word(row, "state")?,
            hparams: json(row, "hparams")?,
            seed: row.get("seed")?,
            run: row.get("run_id")?,
            warm_start_checkpoint: row.get("warm_start_checkpoint")?,
        })
    })?;
    let trials = trials.collect::<sql::Result<_>>()?;
    Ok(LiveExperiment { experiment, state, stored, warm_start, agent_user_group, trials })
}

fn decide(connection: &Connection, decision: Decision, now: Timestamp) -> Result<Vec<TrialId>> {
    for experiment in &decision.experiments {
        update_state(connection, experiment, now)?;
    }
    let mut made = Vec::with_capacity(decision.new_trials.len());
    for trial in &decision.new_trials {
        made.push(make_trial(connection, trial, now)?);
    }
    for trial in &decision.revised {
        revise(connection, trial, now)?;
    }
    for id in &decision.collect {
        connection.prepare_cached("UPDATE experiments SET collecting = TRUE WHERE id = ?")?.execute([id.0])?;
    }
    for trial in &decision.trials {
        update_trial_state(connection, trial, now)?;
    }
    for row in &decision.allocations {
        allocations::put(connection, row)?;
    }
    for session in &decision.sessions {
        // It ends with its allocation; until then it must not expire.
        connection
            .prepare_cached(
                "INSERT INTO sessions (token_hash, user_id, created_at, expires_at, allocation_id) \
                 VALUES (?, ?, ?, ?, ?) ON CONFLICT (token_hash) DO NOTHING",
            )?
            .execute(params![session.token_hash, session.user.0, now.0, i64::MAX, session.allocation])?;
    }
    for agent in &decision.agents {
        agents::put(connection, agent)?;
    }
    for (task, agent, reason) in &decision.excluded {
        connection
            .prepare_cached(
                "INSERT INTO excluded_agents (task_id, agent, reason) VALUES (?, ?, ?) \
                 ON CONFLICT (task_id, agent) DO NOTHING",
            )?
            .execute([task, agent, reason])?;
    }
    for (task, after_run) in &decision.after_runs {
        connection.prepare_cached("UPDATE commands SET after_run = ? WHERE task_id = ?")?.execute([after_run, task])?;
    }
    for task in &decision.ended_tasks {
        connection
            .prepare_cached("UPDATE tasks SET ended_at = ? WHERE id = ? AND ended_at IS NULL")?
            .execute(params![now.0, task])?;
        // A command is not started again: nobody asks for its code any more.
        // Generic tasks are forked with their files, also when they are over.
        let sql = "DELETE FROM task_contexts WHERE task_id = ? AND task_id NOT IN \
                   (SELECT task_id FROM commands WHERE kind = 'TASK_TYPE_GENERIC')";
        connection.prepare_cached(sql)?.execute([task])?;
    }
    crate::logs::append(connection, decision.lines)?;
    Ok(made)
}

fn update_state(connection: &Connection, decision: &ExperimentDecision, now: Timestamp) -> Result<()> {
    let ended = decision.state.is_terminal();
    let before = crate::experiments::stored_state(connection, decision.id)?;
    connection
        .prepare_cached(
            "UPDATE experiments SET state = ?1, progress = COALESCE(?2, progress), \
             ended_at = CASE WHEN ?3 THEN COALESCE(ended_at, ?4) END WHERE id = ?5",
        )?
        .execute(params![decision.state.as_str(), decision.progress, ended, now.0, decision.id.0])?;
    crate::webhooks::state_changed(connection, decision.id, before, decision.state, now)?;
    snapshots::put(connection, decision.id, &decision.snapshot)
}

fn make_trial(connection: &Connection, new: &NewManagedTrial, now: Timestamp) -> Result<TrialId> {
    let known: Option<i64> = connection
        .prepare_cached("SELECT id FROM trials WHERE experiment_id = ? AND request_id = ?")?
        .query_row(params![new.experiment.0, new.request], |row| row.get(0))
        .optional()?;
    if let Some(id) = known {
        return Ok(TrialId(id));
    }
    let task = format!("{}.{}", new.experiment, new.request);
    let id: i64 = connection
        .prepare_cached(
            "INSERT INTO trials (experiment_id, task_id, state, hparams, run_id, restarts, runner_state, \
             total_batches, started_at, last_activity_at, request_id, seed, warm_start_checkpoint) \
             VALUES (?, ?, ?, ?, 0, 0, '', 0, ?, ?, ?, ?, ?) RETURNING id",
        )?
        .query_row(
            params![
                new.experiment.0,
                task,
                new.state.as_str(),
                text_of(&new.hparams)?,
                now.0,
                now.0,
                new.request,
                new.seed,
                new.warm_start_checkpoint
            ],
            |row| row.get(0),
        )?;
    connection
        .prepare_cached("INSERT INTO tasks (id, kind, trial_id, started_at) VALUES (?, 'TASK_TYPE_TRIAL', ?, ?)")?
        .execute(params![task, id, now.0])?;
    Ok(TrialId(id))
}

fn revise(connection: &Connection, revised: &RevisedTrial, now: Timestamp) -> Result<()> {
    let id: i64 = connection
        .prepare_cached("SELECT id FROM trials WHERE experiment_id = ? AND request_id = ?")?
        .query_row(params![revised.experiment.0, revised.request], |row| row.get(0))
        .optional()?
        .ok_or_else(|| Error::not_found("trial", &revised.request))?;
    connection.execute(
        "UPDATE trials SET task_id = ?, hparams = ?, seed = ? WHERE id = ?",
        params![revised.task, text_of(&revised.hparams)?, revised.seed, id],
    )?;
    connection.execute(
        "INSERT INTO tasks (id, kind, trial_id, started_at) VALUES (?, 'TASK_TYPE_TRIAL', ?, ?) \
         ON CONFLICT (id) DO NOTHING",
        params![revised.task, id, now.0],
    )?;
    Ok(())
}

fn update_trial_state(connection: &Connection, decision: &TrialDecision, now: Timestamp) -> Result<()> {
    let id = decision.id;
    let run: i64 = connection
        .prepare_cached("SELECT run_id FROM trials WHERE id = ?")?
        .query_row([id.0], |row| row.get(0))
        .optional()?
        .ok_or_else(|| Error::not_found("trial", id))?;
    if decision.run > run {
        // From now on everything there is belongs to an earlier run, and gives way where this run reports.
        let earlier = if run > 0 { read::highest_step(connection, id)? } else { None };
        connection
            .prepare_cached("UPDATE trials SET run_id = ?, earlier_run_step = ? WHERE id = ?")?
            .execute(params![decision.run, earlier, id.0])?;
    }
    let ended = decision.state.is_terminal();
    connection
        .prepare_cached(
            "UPDATE trials SET state = ?1, restarts = ?2, last_activity_at = ?3, \
             log_policy_matched = COALESCE(?4, log_policy_matched), \
             ended_at = CASE WHEN ?5 THEN COALESCE(ended_at, ?3) END WHERE id = ?6",
        )?
        .execute(params![
            decision.state.as_str(),
            decision.restarts,
            now.0,
            decision.log_policy_matched,
            ended,
            id.0
        ])?;
    Ok(())
}
