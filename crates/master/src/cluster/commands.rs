//! Commands, TensorBoards, notebooks, shells and generic tasks that live: what happens to them, and what their state machines want
//! done.

use std::collections::BTreeMap;
use std::time::Duration;

use instep_api::config::{Entrypoint as Configured, TaskConfig, TaskSources};
use instep_api::identifiers::WorkspaceId;
use instep_api::link::{Entrypoint, Protocol, Service, SshKeys};
use instep_api::wire::Timestamp;
use instep_database::CommandRow;
use instep_policy::lifecycle::command::{AfterRun, Command, CommandEffect, CommandEvent, StoredRun};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::allocation::{Allocation, Purpose};
use super::allocations::Allocations;
use super::experiments::Owner;
use super::outbox::Outbox;
use super::{Refusal, pool_of};
use crate::clock::now;

/// Before SIGKILL, for a task that is ended.
const GRACE_SECONDS: u32 = 5;
/// How long a TensorBoard is kept that nobody uses, unless its configuration says otherwise.
const IDLE_LIMIT: Duration = Duration::from_secs(300);

/// What a task beside experiments is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Command,
    Tensorboard,
    /// JupyterLab.
    Notebook,
    /// An SSH server.
    Shell,
    /// Any program, in a tree of tasks.
    Generic,
}

impl Kind {
    pub(crate) fn of(task_type: &str) -> Option<Kind> {
        let mut all = [Kind::Command, Kind::Tensorboard, Kind::Notebook, Kind::Shell, Kind::Generic].into_iter();
        all.find(|kind| kind.task_type() == task_type)
    }

    /// As Determined names kinds of tasks.
    pub(crate) fn task_type(self) -> &'static str {
        match self {
            Kind::Command => "TASK_TYPE_COMMAND",
            Kind::Tensorboard => "TASK_TYPE_TENSORBOARD",
            Kind::Notebook => "TASK_TYPE_NOTEBOOK",
            Kind::Shell => "TASK_TYPE_SHELL",
            Kind::Generic => "TASK_TYPE_GENERIC",
        }
    }

    /// The same without what all names begin with.
    pub(crate) fn word(self) -> &'static str {
        self.task_type().trim_start_matches("TASK_TYPE_")
    }

    /// For people.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Kind::Command => "Command",
            Kind::Tensorboard => "TensorBoard",
            Kind::Notebook => "JupyterLab",
            Kind::Shell => "Shell",
            Kind::Generic => "Generic Task",
        }
    }

    /// What its configuration is laid over.
    pub(crate) fn sources(self) -> TaskSources {
        // A command without one runs nothing, and has ended well: Determined's client may make such.
        let needs_entrypoint = self == Kind::Generic;
        let slots = u32::from(matches!(self, Kind::Command | Kind::Notebook | Kind::Shell));
        TaskSources { needs_entrypoint, slots, ..TaskSources::default() }
    }

    /// Whether it serves pages.
    pub(crate) fn has_pages(self) -> bool {
        self.protocol() == Some(Protocol::Http)
    }

    /// How one speaks with what it serves, if it serves something.
    pub(crate) fn protocol(self) -> Option<Protocol> {
        match self {
            Kind::Tensorboard | Kind::Notebook => Some(Protocol::Http),
            Kind::Shell => Some(Protocol::Tcp),
            Kind::Command | Kind::Generic => None,
        }
    }

    /// Whether it runs whatever is typed into it, as its owner: nobody else opens it, but administrators.
    pub(crate) fn runs_what_is_typed(self) -> bool {
        matches!(self, Kind::Notebook | Kind::Shell)
    }

    /// Whether it says itself that it is used; of the others everybody who connects is a use.
    pub(crate) fn reports_use(self) -> bool {
        self == Kind::Notebook
    }
}

/// What belongs to the kind of a task, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    /// What a TensorBoard shows.
    pub experiments: Vec<i64>,
    pub trials: Vec<i64>,
    pub folders: Vec<Folder>,
    /// What a notebook asks of whoever connects to it: the master alone knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What opens a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<SshKeys>,
}

/// Where the files of a trial are, and under which name they are shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Folder {
    pub name: String,
    pub path: String,
    /// What must be there for tasks to write it: the folder of the storage.
    pub storage: String,
}

/// A task beside experiments that has not ended.
pub(crate) struct LiveCommand {
    pub machine: Command,
    pub kind: Kind,
    pub config: TaskConfig,
    pub owner: Owner,
    pub job: String,
    pub name: String,
    pub workspace: WorkspaceId,
    pub submitted: Timestamp,
    /// Its place among jobs of the same priority.
    pub position: i64,
    pub details: Details,
}

impl LiveCommand {
    /// From the database.
    pub(super) fn of(row: &CommandRow) -> Result<LiveCommand, String> {
        let kind = Kind::of(&row.kind).ok_or_else(|| format!("tasks of kind {} are not known", row.kind))?;
        let config = TaskConfig::from_value(row.config.clone(), &kind.sources()).map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            all.join("; ")
        })?;
        let idle_limit = match kind {
            Kind::Command | Kind::Generic => None,
            Kind::Tensorboard => Some(config.idle_timeout.unwrap_or(IDLE_LIMIT)),
            Kind::Notebook | Kind::Shell => config.idle_timeout,
        };
        let idle_limit = idle_limit.filter(|limit| !limit.is_zero());
        let name = format!("{} {}", kind.noun(), row.task.get(..8).unwrap_or(&row.task));
        let machine = Command::new(name.clone(), idle_limit, now());
        let machine = match &row.allocation {
            Some(allocation) => {
                let run = u32::try_from(allocation.run).map_err(|error| error.to_string())?;
                let (state, ready, reason) = (allocation.state, allocation.ready, allocation.reason.as_str());
                machine.restored(StoredRun { run, state, ready, reason }, after_run(&row.after_run)?, now())
            }
            None => machine,
        };
        Ok(LiveCommand {
            machine,
            kind,
            config,
            owner: Owner::new(row.owner, row.username.clone(), row.agent_user_group.as_ref()),
            job: row.job.clone(),
            name,
            workspace: row.workspace,
            submitted: row.started_at,
            position: row.started_at.0,
            details: serde_json::from_value(row.details.clone()).unwrap_or_default(),
        })
    }

    /// The name of its run; while it rests there is none of that name.
    pub(super) fn allocation_name(&self, task: &str) -> String {
        format!("{task}.{}", self.machine.run())
    }

    /// The pool whose slots it takes.
    pub(crate) fn pool(&self) -> &str {
        pool_of(&self.config.resources)
    }

    /// What it serves, where it does.
    pub(super) fn service(&self, task: &str, address: &str, port: Option<u16>) -> Option<Service> {
        let (port, protocol) = (port?, self.kind.protocol()?);
        Some(Service { address: address.to_owned(), port, path: format!("/proxy/{task}/"), protocol })
    }

    /// What runs.
    pub(super) fn entrypoint(&self, service: Option<&Service>) -> Entrypoint {
        match (&self.config.entrypoint, service) {
            (_, Some(service)) if self.kind == Kind::Notebook => Entrypoint::Shell(notebook(service)),
            (_, Some(_)) if self.kind == Kind::Shell => Entrypoint::Own { instep: vec!["sshd".to_owned()] },
            (_, Some(service)) => Entrypoint::Shell(tensorboard(&self.details.folders, service, &self.config)),
            // One word alone is a line for the shell, as people type it between quotes.
            (Some(Configured::Words(words)), None) if words.len() > 1 => Entrypoint::Arguments(words.clone()),
            (Some(Configured::Words(words)), None) => Entrypoint::Shell(words.concat()),
            (Some(Configured::Line(line)), None) => Entrypoint::Shell(line.clone()),
            (None, None) => Entrypoint::Shell(String::new()),
        }
    }

    /// What it learns beside what all tasks do.
    pub(super) fn variables(&self, service: Option<&Service>) -> BTreeMap<String, String> {
        let Some(service) = service else { return BTreeMap::new() };
        match self.kind {
            Kind::Notebook => self.variables_of_notebook(service),
            Kind::Shell => self.variables_of_shell(service),
            Kind::Command | Kind::Tensorboard | Kind::Generic => BTreeMap::new(),
        }
    }

    /// Where the server of a shell listens, which key opens it, and whom it tells of as its owner.
    fn variables_of_shell(&self, service: &Service) -> BTreeMap<String, String> {
        let key = self.details.keys.as_ref().map(|keys| keys.public.trim_end().to_owned());
        let all = [
            ("INSTEP_SHELL_ADDRESS", service.address.clone()),
            ("INSTEP_SHELL_PORT", service.port.to_string()),
            ("INSTEP_SHELL_KEY", key.unwrap_or_default()),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn variables_of_notebook(&self, service: &Service) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([("NOTEBOOK_PORT".to_owned(), service.port.to_string())]);
        all.extend(self.details.secret.clone().map(|secret| ("JUPYTER_TOKEN".to_owned(), secret)));
        if let Some(limit) = self.config.idle_timeout.filter(|limit| !limit.is_zero()) {
            let kind = self.config.others.get("notebook_idle_type").and_then(|kind| kind.as_str());
            all.insert("NOTEBOOK_IDLE_TYPE".to_owned(), kind.unwrap_or("kernels_or_terminals").to_owned());
            all.insert("NOTEBOOK_IDLE_SECONDS".to_owned(), limit.as_secs().to_string());
        }
        all
    }

    /// Folders of the machine that it must see.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.details.folders.iter().map(|folder| folder.storage.clone()).collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

/// A line that lays the trials' folders side by side and starts TensorBoard over them. A folder that is not there yet
/// appears as soon as its trial writes the first file.
fn tensorboard(folders: &[Folder], service: &Service, config: &TaskConfig) -> String {
    let mut line = "mkdir -p shown".to_owned();
    for folder in folders {
        line.push_str(&format!(" && ln -s {} shown/{}", quoted(&folder.path), quoted(&folder.name)));
    }
    let prefix = service.path.trim_end_matches('/');
    let words = [
        "--logdir=shown".to_owned(),
        format!("--host={}", service.address),
        format!("--port={}", service.port),
        format!("--path_prefix={prefix}"),
        // The other way to read files shows only some of what they hold.
        "--load_fast=false".to_owned(),
        "--reload_interval=5".to_owned(),
    ];
    line.push_str(" && exec python3 -m tensorboard.main");
    for word in words.iter().chain(&config.tensorboard_args) {
        line.push(' ');
        line.push_str(&quoted(word));
    }
    line
}

/// A line that starts JupyterLab, or says what is missing. The secret that it asks for is in its environment.
fn notebook(service: &Service) -> String {
    let missing = "JupyterLab is not installed for this task's Python: pip install jupyterlab";
    let words = [
        format!("--ServerApp.ip={}", service.address),
        format!("--ServerApp.port={}", service.port),
        "--ServerApp.port_retries=0".to_owned(),
        format!("--ServerApp.base_url={}", service.path),
        "--ServerApp.allow_remote_access=True".to_owned(),
        "--ServerApp.allow_root=True".to_owned(),
        "--ServerApp.open_browser=False".to_owned(),
        // Over TCP every user of the machine could read what kernels print.
        "--KernelManager.transport=ipc".to_owned(),
    ];
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let check = format!("python3 -c 'import jupyterlab' || {{ echo {} >&2; exit 1; }}", quoted(missing));
    // The paths of sockets are short.
    let folder = "folder=$(mktemp -d); [ ${#folder} -le 50 ] || folder=$(mktemp -d /tmp/jupyter.XXXXXX)";
    let words = words.join(" ");
    format!("{check}; {folder}; JUPYTER_RUNTIME_DIR=$folder exec python3 -m jupyterlab {words}")
}

/// One word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The tasks beside experiments that have not ended, by name.
#[derive(Default)]
pub(crate) struct Commands {
    live: BTreeMap<String, LiveCommand>,
}

/// As it is stored.
fn after_run(stored: &str) -> Result<AfterRun, String> {
    serde_json::from_value(Value::from(stored)).map_err(|error| error.to_string())
}

impl Commands {
    pub(super) fn get(&self, task: &str) -> Option<&LiveCommand> {
        self.live.get(task)
    }

    pub(super) fn get_mut(&mut self, task: &str) -> Option<&mut LiveCommand> {
        self.live.get_mut(task)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &LiveCommand)> {
        self.live.iter()
    }

    /// Takes in one that the database knows, which has its allocation already.
    pub(super) fn insert(&mut self, task: String, live: LiveCommand) {
        self.live.insert(task, live);
    }

    /// Queues a new task that is in the database.
    pub(super) fn start(
        &mut self,
        row: &CommandRow,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        let live = LiveCommand::of(row).map_err(Refusal::Invalid)?;
        self.queue(row.task.clone(), live, allocations, outbox);
        Ok(())
    }

    /// Takes in one that has no allocation yet.
    pub(super) fn queue(
        &mut self,
        task: String,
        live: LiveCommand,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) {
        queue_run(&task, &live, allocations, outbox);
        self.live.insert(task, live);
    }

    /// Somebody wants a task to end. `false` if it does not live.
    pub(super) fn kill(&mut self, task: &str, why: String, allocations: &mut Allocations, outbox: &mut Outbox) -> bool {
        let lives = self.live.contains_key(task);
        self.on(task, CommandEvent::Kill { why }, allocations, outbox);
        lives
    }

    /// Somebody wants a task to stop for a while, or to go on. `false` if it does not live, or ends.
    pub(super) fn pause(
        &mut self,
        task: &str,
        pause: Option<String>,
        allocations: &mut Allocations,
        outbox: &mut Outbox,
    ) -> bool {
        let wanted = pause.is_some();
        let event = pause.map_or(CommandEvent::Resume, |why| CommandEvent::Pause { why });
        self.on(task, event, allocations, outbox);
        self.live.get(task).is_some_and(|live| live.machine.is_paused() == wanted)
    }

    /// Feeds an event to a task, and does what follows.
    pub(super) fn on(&mut self, task: &str, event: CommandEvent, allocations: &mut Allocations, outbox: &mut Outbox) {
        let Some(live) = self.live.get_mut(task) else { return };
        let name = live.allocation_name(task);
        for effect in live.machine.on(event, now()) {
            match effect {
                CommandEffect::Withdraw { why } => allocations.withdraw(&name, why, outbox),
                CommandEffect::Kill { why } => allocations.stop(&name, GRACE_SECONDS, &why, outbox),
                CommandEffect::Note { level, text } => outbox.log(task, Some(&name), level, &text),
                CommandEffect::Keep(after_run) => {
                    // A unit variant is written as its name.
                    let word = serde_json::to_value(after_run).unwrap_or_default();
                    let word = word.as_str().unwrap_or_default().to_owned();
                    outbox.decision.after_runs.push((task.to_owned(), word));
                }
                CommandEffect::Queue { .. } => queue_run(task, live, allocations, outbox),
                CommandEffect::Over => {
                    outbox.decision.ended_tasks.push(task.to_owned());
                    self.live.remove(task);
                    outbox.request_pass();
                    return;
                }
            }
        }
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = Timestamp> {
        self.live.values().filter_map(|live| live.machine.deadline())
    }

    /// Those whose deadline has come.
    pub(super) fn due(&self, moment: Timestamp) -> Vec<String> {
        let is_due = |live: &LiveCommand| live.machine.deadline().is_some_and(|deadline| deadline <= moment);
        self.live.iter().filter(|(_, live)| is_due(live)).map(|(task, _)| task.clone()).collect()
    }
}

/// Lets the run of a command wait for slots.
fn queue_run(task: &str, live: &LiveCommand, allocations: &mut Allocations, outbox: &mut Outbox) {
    let purpose = Purpose::Command { run: live.machine.run() };
    let mut allocation = Allocation::queued(live.allocation_name(task), task.to_owned(), purpose);
    allocation.pool = live.pool().to_owned();
    allocation.slots = live.config.slots;
    allocation.queued_at = now();
    allocations.queue(allocation, outbox);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_notebook_says_what_is_missing_and_tells_no_secret() {
        let service =
            Service { address: "::1".to_owned(), port: 2600, path: "/proxy/t/".to_owned(), protocol: Protocol::Http };
        let line = notebook(&service);
        assert!(line.starts_with("python3 -c 'import jupyterlab' || { echo 'JupyterLab is not installed"), "{line}");
        assert!(line.contains("exec python3 -m jupyterlab '--ServerApp.ip=::1' '--ServerApp.port=2600'"), "{line}");
        assert!(!line.contains("token"), "{line}");
    }

    #[test]
    fn a_tensorboard_shows_folders_side_by_side() {
        let folder = Folder { name: "a b".to_owned(), path: "/c/it's".to_owned(), storage: "/c".to_owned() };
        let service =
            Service { address: "::1".to_owned(), port: 2600, path: "/proxy/t/".to_owned(), protocol: Protocol::Http };
        let config = json!({"tensorboard_args": ["--samples_per_plugin=images=1"]});
        let config = TaskConfig::from_value(config, &Kind::Tensorboard.sources()).unwrap();
        let line = tensorboard(&[folder], &service, &config);
        assert!(line.starts_with(r"mkdir -p shown && ln -s '/c/it'\''s' shown/'a b' && exec python3 -m "), "{line}");
        assert!(line.contains("'--host=::1' '--port=2600' '--path_prefix=/proxy/t'"), "{line}");
        assert!(line.ends_with("'--samples_per_plugin=images=1'"), "{line}");
    }
}
