//! Runs experiments: one task owns everything that lives and decides everything, with the pure policies.
//!
//! A request becomes a command to that task ([`Cluster`] is the way to it). The task takes all commands that wait, feeds
//! them to the state machines, stores what follows in one transaction, and only then acts: orders to agents, answers,
//! lines for logs. So whatever was acted on is in the database, and a master that was killed goes on from there. Orders
//! name what they are about and may be repeated, so it simply does.
//!
//! - `actor`: the task: commands in, one transaction, acts out.
//! - `experiments`: experiments and what their state machines want. `singles`: the same for tasks that stand alone.
//! - `agents`: who lends slots, what they report, when they are given up.
//! - `allocation`: one attempt to run a task. `tasks`: what the running ones ask. `placing`: who gets which slots.
//! - `views`: what people see of all this. `changes`: what they change about agents and jobs.
//! - `journal`: what is stored of experiments with every event.
//! - `environment`, `ports`: what a task is given. `policies`: lines of output that mean something.
//! - `restore`: what is found in the database at the start. `collection`: checkpoints that are not kept.

mod actor;
mod agents;
mod allocation;
mod changes;
mod collection;
mod environment;
mod experiments;
mod journal;
mod placing;
mod policies;
mod ports;
mod restore;
mod singles;
mod tasks;
#[cfg(test)]
mod tests;
mod views;

use std::sync::Arc;
use std::time::Duration;

use instep_api::agents::Agent as ShownAgent;
use instep_api::identifiers::{ExperimentId, TrialId};
use instep_api::link::{Hello, Order, Report, Service};
use instep_api::logs::LogLine;
use instep_api::tasks::RendezvousInfo;
use instep_database::{Database, LiveExperiment, SingleRow};
use instep_policy::lifecycle::Event;
use instep_policy::schedule;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use crate::notices::Notices;
pub(crate) use actor::Actor;
pub(crate) use allocation::Signal;
pub(crate) use changes::{Availability, JobChange, JobOf};
pub(crate) use collection::given_up_by;
pub(crate) use experiments::DEFAULT_POOL;
pub(crate) use placing::{Measures, Passes};
pub(crate) use policies::check_policies;
pub(crate) use singles::{Folder, Kind, Shown};

/// Between two pings of an agent, at most.
const LONGEST_PING_SECONDS: u32 = 5;
/// What an agent that is cut off needs to end its work: five seconds that tasks are left to end in order, and as many in
/// case the machine is busy.
const ENDING: Duration = Duration::from_secs(10);
/// Commands that may wait before callers do.
const QUEUE: usize = 1024;

/// Something that is done inside the task.
type Command = Box<dyn FnOnce(&mut Actor) + Send>;
/// Where the answer to a command goes, once what it changed is stored.
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

/// The way to the task that runs everything. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    commands: mpsc::Sender<Command>,
    measures: Arc<Measures>,
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
        let (commands, received) = mpsc::channel(QUEUE);
        let measures = Arc::new(Measures::default());
        let cluster = Cluster { commands, measures: Arc::clone(&measures), silence: options.silence() };
        let mut actor = Actor::new(database, notices, master_id, options, measures);
        actor.restore().await?;
        tokio::spawn(actor.run(received));
        Ok(cluster)
    }

    async fn ask<T, F>(&self, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&mut Actor, Reply<T>) + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let command: Command = Box::new(move |actor| work(actor, reply));
        self.commands.send(command).await.map_err(|_| Refusal::Closed)?;
        answer.await.unwrap_or(Err(Refusal::Closed))
    }

    /// Looks at what lives, without changing it.
    pub(crate) async fn look<T, F>(&self, look: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Actor) -> T + Send + 'static,
    {
        self.ask(move |actor, reply| {
            // Nobody listens any more when the request was given up.
            let _ = reply.send(Ok(look(actor)));
        })
        .await
    }

    /// Silence after which a connection to an agent is dead.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// How long passes of the scheduler take.
    pub(crate) fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Sets an experiment in motion that is in the database; gives what its author should know.
    pub(crate) async fn begin(&self, experiment: LiveExperiment) -> Result<Vec<String>, Refusal> {
        self.ask(move |actor, reply| actor.begin(experiment, reply)).await
    }

    /// Somebody wants something of an experiment. `false` if it is not among those that live.
    pub(crate) async fn control(&self, id: ExperimentId, event: Event) -> Result<bool, Refusal> {
        self.ask(move |actor, reply| actor.control(id, event, reply)).await
    }

    /// Something happened to a trial. `false` if it is not among those that the master runs now.
    pub(crate) async fn tell(&self, trial: TrialId, news: TrialNews) -> Result<bool, Refusal> {
        self.ask(move |actor, reply| actor.tell(trial, news, reply)).await
    }

    /// Lines of output have been stored: some may mean something.
    pub(crate) async fn lines_arrived(&self, lines: Vec<LogLine>) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.lines_arrived(&lines, reply)).await
    }

    /// The state of an experiment's job: how many are before it, and whether it has slots.
    pub(crate) async fn job_summary(&self, id: ExperimentId) -> Result<Option<Value>, Refusal> {
        self.ask(move |actor, reply| actor.job_summary(id, reply)).await
    }

    /// Lets an agent take work, or not; gives what it is like now.
    pub(crate) async fn set_agent(&self, name: String, availability: Availability) -> Result<ShownAgent, Refusal> {
        self.ask(move |actor, reply| actor.set_agent(&name, availability, reply)).await
    }

    /// The same for one of its slots.
    pub(crate) async fn set_slot(
        &self,
        name: String,
        slot: u32,
        availability: Availability,
    ) -> Result<ShownAgent, Refusal> {
        self.ask(move |actor, reply| actor.set_slot(&name, slot, availability, reply)).await
    }

    /// Changes a job as the database says already. `false` if it is not among those that live.
    pub(crate) async fn change_job(&self, job: JobOf, change: JobChange) -> Result<bool, Refusal> {
        self.ask(move |actor, reply| actor.change_job(&job, change, reply)).await
    }

    /// Queues a task that stands alone and is in the database.
    pub(crate) async fn begin_single(&self, row: SingleRow) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.begin_single(&row, reply)).await
    }

    /// Ends a task that stands alone. `false` if it is not among those that live.
    pub(crate) async fn kill_single(&self, task: String, why: String) -> Result<bool, Refusal> {
        self.ask(move |actor, reply| actor.kill_single(&task, why, reply)).await
    }

    /// Where a task serves, for somebody who is about to use it.
    pub(crate) async fn use_service(&self, task: String) -> Result<Option<Service>, Refusal> {
        self.ask(move |actor, reply| actor.use_service(&task, reply)).await
    }

    /// Goes on with an experiment that has ended.
    pub(crate) async fn carry_on(&self, experiment: LiveExperiment) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.carry_on(&experiment, reply)).await
    }

    /// Looks an experiment's checkpoints through again, because it is to keep others than before.
    pub(crate) async fn collect(&self, id: ExperimentId) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.collect_again(id, reply)).await
    }

    /// How many slots a pool has now; `None` if there is no such pool.
    pub(crate) async fn slots_of(&self, pool: String) -> Result<Option<usize>, Refusal> {
        self.ask(move |actor, reply| {
            let _ = reply.send(Ok(actor.slots_of(&pool)));
        })
        .await
    }

    /// An agent says hello; orders for it go to `orders`. Gives the number of the connection.
    pub(crate) async fn hello(&self, hello: Hello, orders: mpsc::Sender<Order>) -> Result<u64, Refusal> {
        self.ask(move |actor, reply| actor.hello(hello, orders, reply)).await
    }

    /// An agent reports.
    pub(crate) async fn report(&self, agent: String, connection: u64, report: Report) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.report(&agent, connection, report, reply)).await
    }

    /// An agent's connection has ended.
    pub(crate) async fn disconnected(&self, agent: String, connection: u64) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.disconnected(&agent, connection, reply)).await
    }

    /// A share wants to know where the others are: answered when all have asked.
    pub(crate) async fn rendezvous(&self, allocation: String, resources: String) -> Result<RendezvousInfo, Refusal> {
        self.ask(move |actor, reply| actor.rendezvous(&allocation, &resources, reply)).await
    }

    /// To be woken when an allocation is told something; `None` if it does not live.
    pub(crate) async fn signal(&self, allocation: String) -> Result<Option<watch::Receiver<Signal>>, Refusal> {
        self.ask(move |actor, reply| actor.signal(&allocation, reply)).await
    }

    /// A task says something about itself.
    pub(crate) async fn said(&self, allocation: String, word: Word) -> Result<(), Refusal> {
        self.ask(move |actor, reply| actor.said(&allocation, word, reply)).await
    }

    /// Shares exchange something: answered when so many have brought theirs.
    pub(crate) async fn gather(
        &self,
        allocation: String,
        caller: String,
        peers: usize,
        data: Value,
    ) -> Result<Vec<Value>, Refusal> {
        self.ask(move |actor, reply| actor.gather(&allocation, caller, peers, data, reply)).await
    }
}

/// What a trial reports that decides something.
#[derive(Debug, Clone)]
pub(crate) enum TrialNews {
    /// Validation metrics, at a step.
    Validated(Map<String, Value>, i64),
    /// How far it is.
    Progressed(f64),
    /// Its hyperparameters make no sense.
    InvalidHyperparameters,
    /// Somebody wants it to end.
    Kill,
}

/// What a task says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// It can hear signals.
    Ready,
    /// It waits for something.
    Waiting,
    /// It stops although it is not done.
    Acknowledged,
    /// Whoever runs it wants it to stop.
    Pending,
    /// This share of it serves others, and nobody waits for its end.
    Daemon(String),
    /// Nothing that changes anything.
    Noted,
}
