//! Single tasks: commands, TensorBoards, notebooks and shells. All are made, listed and ended in the same way.

use instep_api::commands::{
    Command, CommandResponse, CommandsResponse, IdleNotebookRequest, LaunchCommandResponse, LaunchNotebookResponse,
    LaunchRequest, LaunchShellResponse, LaunchTensorboardResponse, NotebookResponse, NotebooksResponse,
    PriorityRequest, ShellResponse, ShellsResponse, TensorboardResponse, TensorboardsResponse,
};
use instep_api::config::{ConfigError, Configuration, TaskConfig, TaskSources, merge};
use instep_api::error::Code;
use instep_api::experiments::ModelFile;
use instep_api::identifiers::{ExperimentId, TrialId, UserId, WorkspaceId};
use instep_api::pages::{Order, Pagination};
use instep_api::states::AllocationState;
use instep_database::{CommandFilter, CommandRow, NewCommand, ShownTrial, Subject};
use instep_policy::permissions;
use serde_json::{Value, json};

use super::blocking::blocking;
use super::call::Call;
use super::experiments::template;
use super::failure::Failure;
use super::fitting::Wish;
use super::masks::unmasked;
use super::ownership::Place;
use super::queue::{Change, apply};
use super::reply::{Json, Nothing};
use super::{config_policies, contexts, fitting, pools, secrets};
use crate::clock::now;
use crate::cluster::{DEFAULT_POOL, Details, Folder, JobOf, Kind};
use crate::random;
use crate::ssh_keys;
use crate::storage::{self, Unreachable};

/// Trials that one TensorBoard shows: what Determined shows at most.
const MOST_TRIALS: usize = 100;

/// What can count as use of a notebook.
const IDLE_TYPES: [&str; 3] = ["kernels_or_terminals", "kernel_connections", "activity"];

/// A task that is to be made.
pub(super) struct Launch {
    pub kind: Kind,
    pub place: Place,
    /// By its name.
    pub template: Option<String>,
    pub config: Value,
    pub files: Vec<ModelFile>,
    /// Its files as another task has them, in place of those.
    pub context: Option<Vec<u8>>,
    /// What belongs to its kind.
    pub details: Value,
}

/// A task that has been made.
pub(super) struct Launched {
    pub task: Command,
    config: Configuration,
    pub warnings: Vec<String>,
}

async fn launch(call: &Call, kind: Kind) -> Result<Launched, Failure> {
    let launch = asked(call, kind, call.json()?).await?;
    launch_task(call, launch).await
}

/// The task that a request wants, where the caller may make it.
async fn asked(call: &Call, kind: Kind, request: LaunchRequest) -> Result<Launch, Failure> {
    let place = Place::workspace(request.workspace_id);
    call.may_make(permissions::Kind::Task, &place)?;
    let mut config = request.config.filter(|config| !config.is_null()).unwrap_or_else(|| json!({}));
    let details = match kind {
        Kind::Command | Kind::Generic => Details::default(),
        Kind::Shell => Details { keys: Some(ssh_keys::generate()), ..Details::default() },
        Kind::Notebook => Details { secret: Some(random::token()), ..Details::default() },
        Kind::Tensorboard => {
            let experiments = request.experiment_ids.unwrap_or_default();
            let (details, pull_secrets) = shown(call, experiments, request.trial_ids.unwrap_or_default()).await?;
            inherit(&mut config, pull_secrets);
            details
        }
    };
    Ok(Launch {
        kind,
        place,
        template: request.template_name,
        config,
        files: request.files.unwrap_or_default(),
        context: None,
        details: json!(details),
    })
}

/// The configuration that a task would have.
async fn configured(call: &Call, launch: &Launch) -> Result<TaskConfig, Failure> {
    let Launch { kind, place, template: named, config, .. } = launch;
    let template = template(call, named.clone()).await?;
    let sources = TaskSources { template, defaults: Some(call.application.defaults.clone()), ..kind.sources() };
    let config = unmasked(config.clone(), [&sources.template, &sources.defaults].into_iter().flatten())?;
    let policies = config_policies::of(call, config_policies::NTSC, place.workspace).await?;
    let config = policies.laid_over(&config).unwrap_or(config);
    let config = TaskConfig::from_value(config, &sources).map_err(|mistakes| wrong(&mistakes))?;
    policies.check_slots(i64::from(config.slots))?;
    policies.check_priority(config.resources.priority.map(i64::from))?;
    check_idle_type(*kind, &config)?;
    pools::check(call, &config.resources.resource_pool, place.workspace).await?;
    secrets::check(call, &config.environment, place.workspace).await?;
    Ok(config)
}

fn check_idle_type(kind: Kind, config: &TaskConfig) -> Result<(), Failure> {
    let wanted = config.others.get("notebook_idle_type").filter(|wanted| !wanted.is_null());
    match wanted {
        Some(wanted) if kind == Kind::Notebook && !IDLE_TYPES.iter().any(|known| *wanted == json!(known)) => {
            let known = IDLE_TYPES.join(", ");
            Err(Failure::invalid(format!("notebook_idle_type: must be one of {known}, not {wanted}")))
        }
        _ => Ok(()),
    }
}

/// Makes a task where the caller may.
pub(super) async fn launch_task(call: &Call, launch: Launch) -> Result<Launched, Failure> {
    let workspace = call.application.database.workspace(launch.place.workspace).await?;
    if workspace.archived {
        let what = format!("workspace '{}' is archived: nothing starts there", workspace.name);
        return Err(Failure::not_found(format!("{what}\nhint: unarchive it, or choose another")));
    }
    let config = configured(call, &launch).await?;
    let Launch { kind, place, files, context, details, .. } = launch;
    let database = &call.application.database;
    let context = match context {
        Some(context) => context,
        None => {
            let packed = blocking(move || crate::model_definition::pack(&files)).await?;
            packed.map_err(Failure::invalid)?
        }
    };
    contexts::check(call, context.len()).await?;
    let task = random::uuid();
    let pool = Some(config.resources.resource_pool.clone()).filter(|pool| !pool.is_empty());
    let pool = pool.unwrap_or_else(|| DEFAULT_POOL.to_owned());
    let slots_per_node = config.slurm.slots_per_node;
    let (slots, environment) = (config.slots, &config.environment);
    let wish = Wish { pool: &pool, slots, one_machine: true, slots_per_node, environment };
    let warnings = fitting::check(call, wish).await?;
    let description = config.description.clone().filter(|text| !text.is_empty());
    let new = NewCommand {
        kind: kind.task_type().to_owned(),
        description: description.unwrap_or_else(|| format!("{} ({})", kind.noun(), &task[..8])),
        config: config.to_json(),
        job: random::uuid(),
        owner: call.user()?.id,
        workspace: place.workspace,
        pool,
        priority: config.resources.priority,
        slots: config.slots,
        details,
        context,
        task,
    };
    let row = database.create_command(new, now()).await?;
    let task = row.task.clone();
    call.noted.subject(Subject::Task(task.clone()));
    call.application.cluster.start_command(row).await?;
    let row = database.command(task).await?;
    let config = row.config.clone().into();
    Ok(Launched { task: shape(call, row).await?, config, warnings })
}

fn wrong(mistakes: &[ConfigError]) -> Failure {
    let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    Failure::invalid(format!("invalid task configuration: {}", mistakes.join("; ")))
}

/// Adds what an experiment's image is pulled with, unless the configuration names an image of its own.
fn inherit(config: &mut Value, pull_secrets: Value) {
    let own_image = config.pointer("/environment/image").is_some_and(|image| !image.is_null());
    let Value::Array(pull_secrets) = pull_secrets else { return };
    if own_image {
        return;
    }
    let own = config.pointer("/environment/pod_spec/spec/imagePullSecrets").and_then(Value::as_array).cloned();
    let all: Vec<Value> = own.unwrap_or_default().into_iter().chain(pull_secrets).collect();
    let inherited = json!({"environment": {"pod_spec": {"spec": {"imagePullSecrets": all}}}});
    *config = merge(inherited, config.take());
}

/// Finds the files of trials, where Determined's client puts them, and what the newest experiment's image is pulled with.
async fn shown(call: &Call, experiments: Vec<ExperimentId>, trials: Vec<TrialId>) -> Result<(Details, Value), Failure> {
    if experiments.is_empty() && trials.is_empty() {
        return Err(Failure::invalid("a TensorBoard needs experiments or trials to show"));
    }
    for id in &experiments {
        call.may_read(Subject::Experiment(*id)).await?;
    }
    for id in &trials {
        call.may_read(Subject::Trial(*id)).await?;
    }
    let database = &call.application.database;
    let found = database.shown_trials(experiments.clone(), trials.clone(), MOST_TRIALS).await?;
    if found.is_empty() {
        let hint = "hint: an experiment that waits for slots has none before it starts";
        return Err(Failure::new(Code::FailedPrecondition, format!("there are no trials to show yet\n{hint}")));
    }
    let pull_secrets = found.last().map(|trial| trial.pull_secrets.clone()).unwrap_or_default();
    let cluster = database.cluster_id();
    let folders = found.iter().map(|trial| folder(trial, cluster)).collect::<Result<Vec<_>, _>>()?;
    let details = Details {
        experiments: experiments.iter().map(|id| id.0).collect(),
        trials: trials.iter().map(|id| id.0).collect(),
        folders,
        ..Details::default()
    };
    Ok((details, pull_secrets))
}

fn folder(shown: &ShownTrial, cluster: &str) -> Result<Folder, Failure> {
    let (experiment, trial) = (shown.experiment, shown.trial);
    let storage = storage::folder_of(&shown.storage).map_err(|error| {
        let what = match error {
            Unreachable::Missing => {
                format!("experiment {experiment} has no checkpoint storage, and so no files to show")
            }
            other => format!("the files of experiment {experiment} cannot be shown: {other}"),
        };
        Failure::new(Code::FailedPrecondition, what)
    })?;
    let path = storage.join(format!("{cluster}/tensorboard/experiment/{experiment}/trial/{trial}"));
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let name = format!("experiment-{experiment}-trial-{trial}");
    Ok(Folder { name, path: text(&path), storage: text(&storage) })
}

/// A task as it is shown.
async fn shape(call: &Call, row: CommandRow) -> Result<Command, Failure> {
    let task = row.task.clone();
    let (container, reason) =
        call.application.cluster.read(move |state| (state.shown_container(&task), state.reason_of(&task))).await?;
    let ended = row.ended_at.is_some();
    let stored = row.allocation.as_ref().map(|allocation| allocation.reason.clone()).unwrap_or_default();
    let state = row.allocation.as_ref().map_or(AllocationState::Queued, |allocation| allocation.state);
    let shown: Details = serde_json::from_value(row.details).unwrap_or_default();
    let kind = Kind::of(&row.kind);
    let linked = row.agent_user_group.unwrap_or_default();
    let named = |field: &str| linked[field].as_str().unwrap_or_default().to_owned();
    // Determined's names for it here are not those that users have it under.
    let agent_user_group = json!({
        "user": named("agentUser"), "uid": linked["agentUid"], "group": named("agentGroup"), "gid": linked["agentGid"]
    });
    let service_address = kind.is_some_and(Kind::has_pages).then(|| format!("/proxy/{}/", row.task));
    Ok(Command {
        id: row.task,
        description: row.description,
        state: if ended { AllocationState::Terminated } else { state },
        start_time: row.started_at,
        container,
        display_name: row.display_name,
        user_id: row.owner,
        username: row.username,
        resource_pool: row.pool,
        exit_status: if ended { stored.clone() } else { String::new() },
        job_id: row.job,
        workspace_id: row.workspace,
        reason: reason.unwrap_or(stored),
        experiment_ids: shown.experiments.into_iter().map(ExperimentId).collect(),
        trial_ids: shown.trials.into_iter().map(TrialId).collect(),
        service_address,
        agent_user_group: (kind == Some(Kind::Shell)).then_some(agent_user_group),
        private_key: None,
        public_key: shown.keys.map(|keys| keys.public),
    })
}

/// A shell with the key that opens it, for its owner and administrators.
async fn opened(call: &Call, row: CommandRow) -> Result<Command, Failure> {
    let user = call.user()?;
    // The token of a task stands for what that task does, and not for all that its user has.
    let own_task = call.task.as_ref().is_none_or(|task| task.task == row.task);
    if row.owner != user.id && !user.admin || !own_task {
        return Err(not_yours(&row.task, &row.username));
    }
    Ok(Command { private_key: private_key(&row), ..shape(call, row).await? })
}

fn private_key(row: &CommandRow) -> Option<String> {
    let details: Details = serde_json::from_value(row.details.clone()).unwrap_or_default();
    details.keys.map(|keys| keys.private)
}

/// Why somebody may not open a shell.
pub(super) fn not_yours(task: &str, owner: &str) -> Failure {
    let what = format!("shell {task} runs programs as user {owner}: only they and administrators may open it");
    Failure::forbidden(format!("{what}\nhint: start your own with `instep shell start`"))
}

async fn listed(call: &Call, kind: Kind) -> Result<(Vec<Command>, Pagination), Failure> {
    let query = &call.query;
    let filter = CommandFilter {
        kind: kind.task_type().to_owned(),
        users: query.texts("users"),
        user_ids: query.values("userIds")?,
        workspace: query.value::<WorkspaceId>("workspaceId")?.filter(|id| id.0 != 0),
    };
    if let Some(workspace) = filter.workspace {
        call.must_see(Subject::Workspace(workspace)).await?;
    }
    let sight = call.sight(permissions::Kind::Task);
    let mut rows = call.application.database.commands(filter).await?;
    // One that shows what the caller may not see is not shown either.
    let seen: Vec<bool> = rows
        .iter()
        .map(|row| sight.covers(row.workspace) && call.sees_experiments_of(&row.shown.iter().copied().collect()))
        .collect();
    let mut seen = seen.into_iter();
    rows.retain(|_| seen.next() == Some(true));
    if query.order()? == Some(Order::Descending) {
        rows.reverse();
    }
    let (range, pagination) = query.slice(None)?.of(rows.len());
    let mut tasks = Vec::with_capacity(range.len());
    for row in rows.drain(range) {
        tasks.push(shape(call, row).await?);
    }
    Ok((tasks, pagination))
}

/// The task of the address, if it is of this kind.
async fn found(call: &Call, kind: Kind) -> Result<CommandRow, Failure> {
    let id = call.part("id").to_owned();
    let missing = || Failure::not_found(format!("{} '{id}' not found", kind.noun().to_lowercase()));
    match call.application.database.command(id.clone()).await {
        Ok(row) if row.kind == kind.task_type() => Ok(row),
        Ok(_) | Err(instep_database::Error::NotFound { .. }) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

async fn ended(call: &Call, kind: Kind) -> Result<Command, Failure> {
    let task = found(call, kind).await?.task;
    let why = format!("user {} wants it to end", call.user()?.username);
    // One that has ended needs no killing.
    call.application.cluster.kill_command(task, why).await?;
    shape(call, found(call, kind).await?).await
}

async fn prioritized(call: &Call, kind: Kind) -> Result<Command, Failure> {
    let request: PriorityRequest = call.json()?;
    let row = found(call, kind).await?;
    let priority = request.priority.ok_or_else(|| Failure::invalid("priority is missing"))?;
    if row.ended_at.is_some() {
        let what = format!("{} {} has ended: its priority cannot be changed", kind.noun().to_lowercase(), row.task);
        return Err(Failure::new(Code::FailedPrecondition, what));
    }
    let change = Change { priority: Some(priority), ..Change::default() };
    apply(call, &JobOf::Command(row.task), change).await?;
    shape(call, found(call, kind).await?).await
}

pub(crate) async fn launch_command(call: Call) -> Result<Json<LaunchCommandResponse>, Failure> {
    let Launched { task, config, warnings } = launch(&call, Kind::Command).await?;
    Ok(Json(LaunchCommandResponse { command: task, config, warnings }))
}

pub(crate) async fn launch_tensorboard(call: Call) -> Result<Json<LaunchTensorboardResponse>, Failure> {
    let Launched { task, config, warnings } = launch(&call, Kind::Tensorboard).await?;
    Ok(Json(LaunchTensorboardResponse { tensorboard: task, config, warnings }))
}

pub(crate) async fn list_commands(call: Call) -> Result<Json<CommandsResponse>, Failure> {
    let (commands, pagination) = listed(&call, Kind::Command).await?;
    Ok(Json(CommandsResponse { commands, pagination }))
}

pub(crate) async fn list_tensorboards(call: Call) -> Result<Json<TensorboardsResponse>, Failure> {
    let (tensorboards, pagination) = listed(&call, Kind::Tensorboard).await?;
    Ok(Json(TensorboardsResponse { tensorboards, pagination }))
}

pub(crate) async fn command(call: Call) -> Result<Json<CommandResponse>, Failure> {
    let row = found(&call, Kind::Command).await?;
    let config = row.config.clone().into();
    Ok(Json(CommandResponse { command: shape(&call, row).await?, config }))
}

pub(crate) async fn tensorboard(call: Call) -> Result<Json<TensorboardResponse>, Failure> {
    let row = found(&call, Kind::Tensorboard).await?;
    let config = row.config.clone().into();
    Ok(Json(TensorboardResponse { tensorboard: shape(&call, row).await?, config }))
}

pub(crate) async fn kill_command(call: Call) -> Result<Json<CommandResponse>, Failure> {
    Ok(Json(CommandResponse { command: ended(&call, Kind::Command).await?, config: Configuration::default() }))
}

pub(crate) async fn kill_tensorboard(call: Call) -> Result<Json<TensorboardResponse>, Failure> {
    Ok(Json(TensorboardResponse {
        tensorboard: ended(&call, Kind::Tensorboard).await?,
        config: Configuration::default(),
    }))
}

pub(crate) async fn set_command_priority(call: Call) -> Result<Json<CommandResponse>, Failure> {
    Ok(Json(CommandResponse { command: prioritized(&call, Kind::Command).await?, config: Configuration::default() }))
}

pub(crate) async fn set_tensorboard_priority(call: Call) -> Result<Json<TensorboardResponse>, Failure> {
    let tensorboard = prioritized(&call, Kind::Tensorboard).await?;
    Ok(Json(TensorboardResponse { tensorboard, config: Configuration::default() }))
}

pub(crate) async fn launch_notebook(call: Call) -> Result<Json<LaunchNotebookResponse>, Failure> {
    let request: LaunchRequest = call.json()?;
    let preview = request.preview == Some(true);
    let launch = asked(&call, Kind::Notebook, request).await?;
    if preview {
        let config = configured(&call, &launch).await?.to_json().into();
        return Ok(Json(LaunchNotebookResponse { notebook: not_made(), config, warnings: Vec::new() }));
    }
    let Launched { task, config, warnings } = launch_task(&call, launch).await?;
    Ok(Json(LaunchNotebookResponse { notebook: task, config, warnings }))
}

/// What stands in place of a task that was only looked at.
fn not_made() -> Command {
    Command {
        id: String::new(),
        description: String::new(),
        state: AllocationState::Queued,
        start_time: now(),
        container: None,
        display_name: String::new(),
        user_id: UserId(0),
        username: String::new(),
        resource_pool: String::new(),
        exit_status: String::new(),
        job_id: String::new(),
        workspace_id: WorkspaceId(0),
        reason: String::new(),
        experiment_ids: Vec::new(),
        trial_ids: Vec::new(),
        service_address: None,
        agent_user_group: None,
        private_key: None,
        public_key: None,
    }
}

pub(crate) async fn list_notebooks(call: Call) -> Result<Json<NotebooksResponse>, Failure> {
    let (notebooks, pagination) = listed(&call, Kind::Notebook).await?;
    Ok(Json(NotebooksResponse { notebooks, pagination }))
}

pub(crate) async fn notebook(call: Call) -> Result<Json<NotebookResponse>, Failure> {
    let row = found(&call, Kind::Notebook).await?;
    let config = row.config.clone().into();
    Ok(Json(NotebookResponse { notebook: shape(&call, row).await?, config }))
}

pub(crate) async fn kill_notebook(call: Call) -> Result<Json<NotebookResponse>, Failure> {
    Ok(Json(NotebookResponse { notebook: ended(&call, Kind::Notebook).await?, config: Configuration::default() }))
}

pub(crate) async fn set_notebook_priority(call: Call) -> Result<Json<NotebookResponse>, Failure> {
    let notebook = prioritized(&call, Kind::Notebook).await?;
    Ok(Json(NotebookResponse { notebook, config: Configuration::default() }))
}

pub(crate) async fn launch_shell(call: Call) -> Result<Json<LaunchShellResponse>, Failure> {
    let Launched { task, config, warnings } = launch(&call, Kind::Shell).await?;
    // Whoever has made one is its owner, or a task that speaks for them.
    let row = call.application.database.command(task.id.clone()).await?;
    let shell = Command { private_key: private_key(&row), ..task };
    Ok(Json(LaunchShellResponse { shell, config, warnings }))
}

pub(crate) async fn list_shells(call: Call) -> Result<Json<ShellsResponse>, Failure> {
    let (shells, pagination) = listed(&call, Kind::Shell).await?;
    Ok(Json(ShellsResponse { shells, pagination }))
}

pub(crate) async fn shell(call: Call) -> Result<Json<ShellResponse>, Failure> {
    let row = found(&call, Kind::Shell).await?;
    let config = row.config.clone().into();
    Ok(Json(ShellResponse { shell: opened(&call, row).await?, config }))
}

pub(crate) async fn kill_shell(call: Call) -> Result<Json<ShellResponse>, Failure> {
    Ok(Json(ShellResponse { shell: ended(&call, Kind::Shell).await?, config: Configuration::default() }))
}

pub(crate) async fn set_shell_priority(call: Call) -> Result<Json<ShellResponse>, Failure> {
    let shell = prioritized(&call, Kind::Shell).await?;
    Ok(Json(ShellResponse { shell, config: Configuration::default() }))
}

/// The notebook says whether somebody works in it: as long as nobody does, its time runs out.
pub(crate) async fn report_idle(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: IdleNotebookRequest = call.json()?;
    let task = found(&call, Kind::Notebook).await?.task;
    if request.idle == Some(false) {
        call.application.cluster.notebook_used(task).await?;
    }
    Ok(Json(Nothing {}))
}
