//! Single tasks that live: commands, TensorBoards. What happens to them, and what follows.

use std::time::Duration;

use instep_api::config::{Entrypoint as Configured, TaskConfig, TaskSources};
use instep_api::identifiers::WorkspaceId;
use instep_api::link::{Entrypoint, Service};
use instep_api::states::AllocationState;
use instep_api::wire::Timestamp;
use instep_database::SingleRow;
use instep_policy::lifecycle::single::{Single, SingleEffect, SingleEvent};
use serde::{Deserialize, Serialize};

use super::actor::Actor;
use super::allocation::{Allocation, Purpose};
use super::experiments::{DEFAULT_POOL, Owner};
use super::{Refusal, Reply};
use crate::clock::now;

/// Before SIGKILL, for a task that is ended.
const GRACE_SECONDS: u32 = 5;
/// How long a service is kept that nobody uses, unless its configuration says otherwise.
const IDLE_LIMIT: Duration = Duration::from_secs(300);
/// The name of the port that a service listens on.
pub(super) const SERVICE_PORT: &str = "TENSORBOARD_PORT";

/// What a single task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Command,
    Tensorboard,
}

impl Kind {
    pub(crate) fn of(task_type: &str) -> Option<Kind> {
        [Kind::Command, Kind::Tensorboard].into_iter().find(|kind| kind.task_type() == task_type)
    }

    /// As Determined names kinds of tasks.
    pub(crate) fn task_type(self) -> &'static str {
        match self {
            Kind::Command => "TASK_TYPE_COMMAND",
            Kind::Tensorboard => "TASK_TYPE_TENSORBOARD",
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
        }
    }

    /// What its configuration is laid over.
    pub(crate) fn sources(self) -> TaskSources {
        let command = self == Kind::Command;
        TaskSources { needs_entrypoint: command, slots: u32::from(command), ..TaskSources::default() }
    }
}

/// What a TensorBoard shows, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shown {
    #[serde(default)]
    pub experiments: Vec<i64>,
    #[serde(default)]
    pub trials: Vec<i64>,
    #[serde(default)]
    pub folders: Vec<Folder>,
}

/// Where the files of a trial are, and under which name they are shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Folder {
    pub name: String,
    pub path: String,
    /// What must be there for tasks to write it: the folder of the storage.
    pub storage: String,
}

/// A single task that has not ended.
pub(crate) struct LiveSingle {
    pub machine: Single,
    pub kind: Kind,
    pub config: TaskConfig,
    pub owner: Owner,
    pub job: String,
    pub name: String,
    pub workspace: WorkspaceId,
    pub submitted: Timestamp,
    /// Its place among jobs of the same priority.
    pub position: i64,
    pub shown: Shown,
}

impl LiveSingle {
    /// From the database.
    pub(super) fn of(row: &SingleRow) -> Result<LiveSingle, String> {
        let kind = Kind::of(&row.kind).ok_or_else(|| format!("tasks of kind {} are not known", row.kind))?;
        let config = TaskConfig::from_value(row.config.clone(), &kind.sources()).map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            all.join("; ")
        })?;
        let idle_limit = match kind {
            Kind::Command => None,
            Kind::Tensorboard => Some(config.idle_timeout.unwrap_or(IDLE_LIMIT)).filter(|limit| !limit.is_zero()),
        };
        let name = format!("{} {}", kind.noun(), row.task.get(..8).unwrap_or(&row.task));
        let machine = Single::new(name.clone(), idle_limit, now());
        let machine = match &row.allocation {
            Some(allocation) => machine.restored(allocation.state, allocation.ready, &allocation.reason, now()),
            None => machine,
        };
        Ok(LiveSingle {
            machine,
            kind,
            config,
            owner: Owner::new(row.owner, row.username.clone(), row.agent_user_group.as_ref()),
            job: row.job.clone(),
            name,
            workspace: row.workspace,
            submitted: row.started_at,
            position: row.started_at.0,
            shown: serde_json::from_value(row.details.clone()).unwrap_or_default(),
        })
    }

    /// Whose slots it takes.
    pub(crate) fn pool(&self) -> &str {
        match self.config.resources.resource_pool.as_str() {
            "" => DEFAULT_POOL,
            pool => pool,
        }
    }

    /// What it serves, where it does.
    pub(super) fn service(&self, task: &str, address: &str, port: Option<u16>) -> Option<Service> {
        let port = port.filter(|_| self.kind == Kind::Tensorboard)?;
        Some(Service { address: address.to_owned(), port, path: format!("/proxy/{task}/") })
    }

    /// What runs.
    pub(super) fn entrypoint(&self, service: Option<&Service>) -> Entrypoint {
        match (&self.config.entrypoint, service) {
            (_, Some(service)) => Entrypoint::Shell(tensorboard(&self.shown.folders, service, &self.config)),
            // One word alone is a line for the shell, as people type it between quotes.
            (Some(Configured::Words(words)), None) if words.len() > 1 => Entrypoint::Arguments(words.clone()),
            (Some(Configured::Words(words)), None) => Entrypoint::Shell(words.concat()),
            (Some(Configured::Line(line)), None) => Entrypoint::Shell(line.clone()),
            (None, None) => Entrypoint::Shell(String::new()),
        }
    }

    /// Folders of the machine that it must see.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.shown.folders.iter().map(|folder| folder.storage.clone()).collect();
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

/// One word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Actor {
    /// Queues a new task that is in the database.
    pub(super) fn begin_single(&mut self, row: &SingleRow, reply: Reply<()>) {
        match LiveSingle::of(row) {
            Ok(live) => {
                self.queue_single(row.task.clone(), live);
                self.answer(reply, Ok(()));
            }
            Err(why) => self.answer(reply, Err(Refusal::Invalid(why))),
        }
    }

    pub(super) fn queue_single(&mut self, task: String, live: LiveSingle) {
        let name = format!("{task}.1");
        let mut allocation = Allocation::queued(name.clone(), task.clone(), Purpose::Single);
        allocation.pool = live.pool().to_owned();
        allocation.slots = live.config.slots;
        allocation.queued_at = now();
        self.singles.insert(task, live);
        self.allocations.insert(name.clone(), allocation);
        self.changed.allocations.insert(name);
        self.pace.wanted();
    }

    /// Somebody wants a task to end. `false` if it does not live.
    pub(super) fn kill_single(&mut self, task: &str, why: String, reply: Reply<bool>) {
        let lives = self.singles.contains_key(task);
        self.single_event(task, SingleEvent::Kill { why });
        self.answer(reply, Ok(lives));
    }

    /// Where a task serves, for somebody who is about to use it; `None` if it does not.
    pub(super) fn use_service(&mut self, task: &str, reply: Reply<Option<Service>>) {
        self.single_event(task, SingleEvent::Used);
        let found = self.service_of(task);
        // It changes nothing that is stored.
        let _ = reply.send(Ok(found));
    }

    fn service_of(&self, task: &str) -> Option<Service> {
        let live = self.singles.get(task)?;
        let allocation = self.allocations.get(&format!("{task}.1"))?;
        let placed = allocation.placed.as_ref().filter(|_| allocation.state == AllocationState::Running)?;
        live.service(task, &placed.shares.first()?.address, placed.ports.get(SERVICE_PORT).copied())
    }

    /// Feeds an event to a task, and does what follows.
    pub(super) fn single_event(&mut self, task: &str, event: SingleEvent) {
        let Some(live) = self.singles.get_mut(task) else { return };
        let effects = live.machine.on(event, now());
        let name = format!("{task}.1");
        for effect in effects {
            match effect {
                SingleEffect::Withdraw { why } => self.withdraw(&name, why),
                SingleEffect::Kill { why } => self.stop_shares(&name, GRACE_SECONDS, &why),
                SingleEffect::Note { level, text } => self.note(task, Some(&name), level, &text),
                SingleEffect::Over => {
                    self.decision.ended_tasks.push(task.to_owned());
                    self.singles.remove(task);
                    self.pace.wanted();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tensorboard_shows_folders_side_by_side() {
        let folder = Folder { name: "a b".to_owned(), path: "/c/it's".to_owned(), storage: "/c".to_owned() };
        let service = Service { address: "::1".to_owned(), port: 2600, path: "/proxy/t/".to_owned() };
        let config = json!({"tensorboard_args": ["--samples_per_plugin=images=1"]});
        let config = TaskConfig::from_value(config, &Kind::Tensorboard.sources()).unwrap();
        let line = tensorboard(&[folder], &service, &config);
        assert!(line.starts_with(r"mkdir -p shown && ln -s '/c/it'\''s' shown/'a b' && exec python3 -m "), "{line}");
        assert!(line.contains("'--host=::1' '--port=2600' '--path_prefix=/proxy/t'"), "{line}");
        assert!(line.ends_with("'--samples_per_plugin=images=1'"), "{line}");
    }
}
