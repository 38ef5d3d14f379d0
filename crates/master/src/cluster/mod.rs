//! Runs experiments and commands: one task owns everything that lives and decides everything, with the pure policies.
//!
//! A request becomes a message to that task ([`Cluster`] is the handle). The task takes all messages that wait, feeds
//! them to the state machines, stores what follows in one transaction, and only then acts: orders to agents, answers,
//! lines for logs. So whatever was acted on is in the database, and a master that was killed resumes from there. Orders
//! name what they are about and may be repeated, so it simply does.
//!
//! - `actor`: the loop: messages in, one transaction, actions out. `outbox`: what waits for that transaction.
//! - `state`: the parts below, and what happens between them.
//! - `experiments`: experiments and what their state machines want; `journal`: what is stored of them with every event;
//!   `log_policies`: patterns in their output. `commands`: commands, TensorBoards, notebooks and shells, `serving`: where tasks serve.
//! - `allocations`: the attempts to run something, each an `allocation`, with their `ports`. `rendezvous`: what the
//!   running tasks ask.
//! - `engines`: allocations that a scheduler such as Slurm runs, and the agents that it starts for them.
//! - `goodput`: what became of the time of trials.
//! - `agents`: the machines that lend slots. `reports`: what they report.
//! - `scheduler`: which allocation gets which slots. `launch`: starts them there, with an `environment`; `permit`: those
//!   that still may.
//! - `views`: what people see of all this. `changes`: what they change about agents and jobs.
//! - `restore`: what is found in the database at the start. `collection`: checkpoints that are not kept.

mod actor;
mod agents;
mod allocation;
mod allocations;
mod changes;
mod collection;
mod commands;
mod engines;
mod environment;
mod experiments;
mod goodput;
mod journal;
mod launch;
mod log_policies;
mod outbox;
mod permit;
mod ports;
mod rendezvous;
mod reports;
mod restore;
mod scheduler;
mod serving;
mod state;
#[cfg(test)]
mod tests;
mod views;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use instep_api::agents::Agent as ShownAgent;
use instep_api::config::Resources;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::link::{Hello, Order, Report, Welcome};
use instep_api::logs::LogLine;
use instep_api::tasks::RendezvousInfo;
use instep_database::{CommandRow, Database, LiveExperiment};
use instep_policy::lifecycle::Event;
use instep_policy::lifecycle::command::CommandEvent;
use instep_policy::schedule;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use crate::engines::Container;
use crate::engines::options::EngineOptions;
use crate::notices::Notices;
use actor::Actor;
use agents::Agents;
pub(crate) use agents::{Availability, Room, can_name_an_agent, fault_of};
use allocation::Gathered;
pub(crate) use allocation::{Brought, Signal};
pub(crate) use changes::{JobChange, JobOf};
pub(crate) use collection::given_up_by;
pub(crate) use commands::{Details, Folder, Kind};
use engines::Engines;
use goodput::GoodputTotals;
pub(crate) use goodput::of_trial;
#[cfg(test)]
pub(crate) use log_policies::LOOKED_AT;
pub(crate) use log_policies::{Allowance, MOST_POLICIES, beginning, compiled};
use outbox::Outbox;
use scheduler::Scheduler;
pub(crate) use scheduler::{Passes, SchedulerStats};
pub(crate) use serving::{Absent, Serving, Target};
pub(crate) use state::ClusterState;

/// The pool of what names none.
pub(crate) const DEFAULT_POOL: &str = "default";
/// Between two pings of an agent, at most.
const LONGEST_PING_SECONDS: u32 = 5;
/// What an agent that is cut off needs to end its work: five seconds that tasks are left to end in order, and as many in
/// case the machine is busy.
const ENDING: Duration = Duration::from_secs(10);
/// Messages that may wait before callers do.
const QUEUE: usize = 1024;

/// Something that is done inside the task.
type Message = Box<dyn FnOnce(&mut ClusterState, &mut Outbox) + Send>;
/// Where the answer to a message goes, once what it changed is stored.
type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// Why something was not done, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no such thing.
    Missing(String),
    /// The thing is not in a state in which this can be done.
    Precondition(String),
    /// The request makes no sense.
    Invalid(String),
    /// The master is ending.
    Closed,
}

/// How the cluster is run.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How long an agent without a connection lets its work run.
    pub reconnect_window: Duration,
    /// How much longer its work is given to nobody else: an agent needs a while to notice that it is cut off, and to end
    /// what it runs.
    pub margin: Duration,
    /// How slots are given away, in every pool.
    pub scheduling: schedule::Settings,
    /// The priority of what does not say.
    pub default_priority: u32,
    /// Whether roles decide who may run what where.
    pub roles: bool,
    /// Schedulers of the site that run allocations of some pools.
    pub engines: EngineOptions,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        ClusterOptions::with_window(Duration::from_secs(25))
    }
}

impl ClusterOptions {
    /// The usual ones, with another window.
    pub fn with_window(reconnect_window: Duration) -> ClusterOptions {
        let mut options = ClusterOptions {
            reconnect_window,
            margin: ENDING,
            scheduling: schedule::Settings::default(),
            default_priority: 42,
            roles: false,
            engines: EngineOptions::default(),
        };
        options.margin += options.silence();
        options
    }

    /// How often agents send a ping. Several have to fit into the window: tasks count it from the last answer.
    pub(crate) fn ping_seconds(&self) -> u32 {
        let sixth = u32::try_from(self.reconnect_window.as_secs() / 6).unwrap_or(u32::MAX);
        sixth.clamp(1, LONGEST_PING_SECONDS)
    }

    /// Silence after which a connection to an agent is dead.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_secs(3 * u64::from(self.ping_seconds()))
    }
}

/// The handle of the task that runs everything. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    messages: mpsc::Sender<Message>,
    stats: Arc<SchedulerStats>,
    goodput: Arc<GoodputTotals>,
    silence: Duration,
}

impl Cluster {
    /// Loads what there is and starts the task; it ends when the last handle is gone, or the database closes.
    pub(crate) async fn start(
        database: Database,
        notices: Arc<Notices>,
        master_id: String,
        options: ClusterOptions,
    ) -> instep_database::Result<Cluster> {
        let (messages, received) = mpsc::channel(QUEUE);
        let stats = Arc::new(SchedulerStats::default());
        let welcome = Welcome {
            master_id,
            cluster_id: database.cluster_id().to_owned(),
            window_seconds: u32::try_from(options.reconnect_window.as_secs()).unwrap_or(u32::MAX),
            ping_seconds: options.ping_seconds(),
        };
        let agents = Agents::new(welcome, options.reconnect_window + options.margin);
        let scheduler = Scheduler::new(options.scheduling.clone(), options.default_priority, Arc::clone(&stats));
        let silence = options.silence();
        let engines = Engines::start(&options.engines, database.cluster_id(), &messages);
        let state = ClusterState::new(options, agents, scheduler, engines);
        let cluster = Cluster { messages, stats, goodput: state.allocations.goodput(), silence };
        let mut actor = Actor::new(database, notices, state);
        actor.restore().await?;
        tokio::spawn(actor.run(received));
        Ok(cluster)
    }

    /// Does something inside the task, which answers when it likes.
    async fn ask<T, F>(&self, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&mut ClusterState, &mut Outbox, Reply<T>) + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let message: Message = Box::new(move |state, outbox| work(state, outbox, reply));
        self.messages.send(message).await.map_err(|_| Refusal::Closed)?;
        answer.await.unwrap_or(Err(Refusal::Closed))
    }

    /// Does something inside the task; the answer comes once what it changed is stored.
    async fn change<T, F>(&self, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&mut ClusterState, &mut Outbox) -> Result<T, Refusal> + Send + 'static,
    {
        self.ask(move |state, outbox, reply| {
            let answer = work(state, outbox);
            outbox.reply(reply, answer);
        })
        .await
    }

    /// Looks at what lives, without changing it. The answer waits for nothing to be stored.
    pub(crate) async fn read<T, F>(&self, read: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&ClusterState) -> T + Send + 'static,
    {
        self.ask(move |state, _, reply| {
            // Nobody listens any more when the request was given up.
            let _ = reply.send(Ok(read(state)));
        })
        .await
    }

    /// Silence after which a connection to an agent is dead.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// How long passes of the scheduler take.
    pub(crate) fn scheduler_stats(&self) -> &SchedulerStats {
        &self.stats
    }

    /// What became of the time of all trials since the master started.
    pub(crate) fn goodput(&self) -> &GoodputTotals {
        &self.goodput
    }

    /// Starts an experiment that is in the database; gives what its author should know.
    pub(crate) async fn start_experiment(&self, experiment: LiveExperiment) -> Result<Vec<String>, Refusal> {
        self.change(move |state, outbox| state.experiments.start(&experiment, &mut state.allocations, outbox)).await
    }

    /// Continues an experiment that has ended.
    pub(crate) async fn continue_experiment(&self, experiment: LiveExperiment) -> Result<(), Refusal> {
        self.change(move |state, outbox| state.experiments.continue_ended(&experiment, &mut state.allocations, outbox))
            .await
    }

    /// Somebody wants something of an experiment. `false` if it is not among those that live.
    pub(crate) async fn control(&self, id: ExperimentId, event: Event) -> Result<bool, Refusal> {
        self.change(move |state, outbox| state.experiments.control(id, event, &mut state.allocations, outbox)).await
    }

    /// Something happened to a trial. `false` if it is not among those that the master runs now.
    pub(crate) async fn trial_reported(&self, trial: TrialId, report: TrialReport) -> Result<bool, Refusal> {
        self.change(move |state, outbox| {
            Ok(state.experiments.trial_reported(trial, report, &mut state.allocations, outbox))
        })
        .await
    }

    /// Lines of output have been stored: some may match a log policy.
    pub(crate) async fn lines_arrived(&self, lines: Vec<LogLine>) -> Result<(), Refusal> {
        let names: BTreeSet<String> = lines.iter().filter_map(|line| line.allocation_id.clone()).collect();
        let wanted = self.read(move |state| state.experiments.wanted_patterns(&state.allocations, &names)).await?;
        let found = log_policies::look(&lines, wanted).await;
        if found.is_empty() {
            return Ok(());
        }
        self.change(move |state, outbox| {
            state.experiments.apply_log_policies(found, &mut state.allocations, outbox);
            Ok(())
        })
        .await
    }

    /// Deletes the checkpoints that an experiment does not keep, now that it is to keep others than before.
    pub(crate) async fn collect(&self, id: ExperimentId) -> Result<(), Refusal> {
        self.change(move |state, outbox| {
            state.experiments.collect_again(id, outbox);
            Ok(())
        })
        .await
    }

    /// The state of an experiment's job: how many are before it, and whether it has slots.
    pub(crate) async fn job_summary(&self, id: ExperimentId) -> Result<Option<Value>, Refusal> {
        self.change(move |state, _| Ok(state.job_summary(id))).await
    }

    /// Lets an agent, or one of its slots, take work or not; gives what it is like now.
    pub(crate) async fn set_availability(
        &self,
        agent: String,
        slot: Option<u32>,
        availability: Availability,
    ) -> Result<ShownAgent, Refusal> {
        self.change(move |state, outbox| state.set_availability(&agent, slot, availability, outbox)).await
    }

    /// Changes a job as the database says already. `false` if it is not among those that live.
    pub(crate) async fn change_job(&self, job: JobOf, change: JobChange) -> Result<bool, Refusal> {
        self.change(move |state, outbox| Ok(state.change_job(&job, change, outbox))).await
    }

    /// Queues a task beside experiments that is in the database.
    pub(crate) async fn start_command(&self, row: CommandRow) -> Result<(), Refusal> {
        self.change(move |state, outbox| state.commands.start(&row, &mut state.allocations, outbox)).await
    }

    /// Ends a task beside experiments. `false` if it is not among those that live.
    pub(crate) async fn kill_command(&self, task: String, why: String) -> Result<bool, Refusal> {
        self.change(move |state, outbox| Ok(state.commands.kill(&task, why, &mut state.allocations, outbox))).await
    }

    /// Stops a generic task for the given reason, or lets it go on. `false` if it does not live, or ends.
    pub(crate) async fn pause_command(&self, task: String, pause: Option<String>) -> Result<bool, Refusal> {
        self.change(move |state, outbox| Ok(state.commands.pause(&task, pause, &mut state.allocations, outbox))).await
    }

    /// Where a task serves, for somebody who is about to use it.
    pub(crate) async fn use_service(&self, target: Target) -> Result<Option<Serving>, Refusal> {
        self.ask(move |state, outbox, reply| {
            // An open page of a notebook alone is no use of it.
            if state.commands.get(&target.task).is_some_and(|live| !live.kind.reports_use()) {
                state.commands.on(&target.task, CommandEvent::Used, &mut state.allocations, outbox);
            }
            // It changes nothing that is stored.
            let _ = reply.send(Ok(state.serving(&target)));
        })
        .await
    }

    /// Somebody works in a notebook.
    pub(crate) async fn notebook_used(&self, task: String) -> Result<(), Refusal> {
        self.ask(move |state, outbox, reply| {
            state.commands.on(&task, CommandEvent::Used, &mut state.allocations, outbox);
            // It changes nothing that is stored.
            let _ = reply.send(Ok(()));
        })
        .await
    }

    /// What a pool has for tasks; `None` if there is no such pool.
    pub(crate) async fn room_in(&self, pool: String) -> Result<Option<Room>, Refusal> {
        self.read(move |state| state.room_in(&pool)).await
    }

    /// Why a pool does not take what a configuration says of containers.
    pub(crate) async fn container_objection(
        &self,
        pool: String,
        container: Container,
    ) -> Result<Option<String>, Refusal> {
        self.read(move |state| state.engines.container_objection(&pool, &container)).await
    }

    /// An agent says hello; orders for it go to `orders`. Gives the number of the connection.
    pub(crate) async fn hello(&self, hello: Hello, orders: mpsc::Sender<Order>, is_here: bool) -> Result<u64, Refusal> {
        self.change(move |state, outbox| state.hello(hello, orders, is_here, outbox)).await
    }

    /// An agent reports.
    pub(crate) async fn report(&self, agent: String, connection: u64, report: Report) -> Result<(), Refusal> {
        self.change(move |state, outbox| {
            state.report(&agent, connection, report, outbox);
            Ok(())
        })
        .await
    }

    /// An agent's connection has ended.
    pub(crate) async fn disconnected(&self, agent: String, connection: u64) -> Result<(), Refusal> {
        self.change(move |state, outbox| {
            state.disconnected(&agent, connection, outbox);
            Ok(())
        })
        .await
    }

    /// A share wants to know where the others are: answered when all have asked.
    pub(crate) async fn rendezvous(&self, allocation: String, resources: String) -> Result<RendezvousInfo, Refusal> {
        self.ask(move |state, outbox, reply| state.rendezvous(&allocation, &resources, reply, outbox)).await
    }

    /// To be woken when an allocation is signalled; `None` if it does not live.
    pub(crate) async fn signal(&self, allocation: String) -> Result<Option<watch::Receiver<Signal>>, Refusal> {
        self.read(move |state| state.allocations.signals(&allocation)).await
    }

    /// How many requests wait for an allocation to be signalled.
    #[cfg(test)]
    pub(crate) async fn waiting_for_signal(&self, allocation: String) -> usize {
        let count = move |state: &ClusterState| {
            state.allocations.get(&allocation).map_or(0, |found| found.waiters.signal.receiver_count())
        };
        self.read(count).await.unwrap_or_default()
    }

    /// A task reports about itself.
    pub(crate) async fn task_reported(&self, allocation: String, report: TaskReport) -> Result<(), Refusal> {
        self.change(move |state, outbox| state.task_reported(&allocation, report, outbox)).await
    }

    /// Shares exchange something: answered when so many have brought theirs.
    pub(crate) async fn gather(
        &self,
        allocation: String,
        caller: String,
        peers: usize,
        brought: Brought,
    ) -> Result<Gathered, Refusal> {
        self.ask(move |state, outbox, reply| {
            state.allocations.gather(&allocation, caller, (peers, brought), reply, outbox);
        })
        .await
    }
}

/// The pool that a configuration names, or the default one.
fn pool_of(resources: &Resources) -> &str {
    match resources.resource_pool.as_str() {
        "" => DEFAULT_POOL,
        pool => pool,
    }
}

/// What a trial reports that decides something.
#[derive(Debug, Clone)]
pub(crate) enum TrialReport {
    /// Validation metrics, at a step.
    Validated(Map<String, Value>, i64),
    /// How far it is.
    Progressed(f64),
    /// Its hyperparameters make no sense.
    InvalidHyperparameters,
    /// Somebody wants it to end.
    Kill,
}

/// What a task reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaskReport {
    /// It waits for signals.
    Ready,
    /// It waits for something.
    Waiting,
    /// It stops although it is not done.
    Acknowledged,
    /// Its launcher wants it preempted.
    Pending,
    /// This share of it serves others, and nobody waits for its end.
    Daemon(String),
    /// Nothing that changes anything.
    Noted,
}
