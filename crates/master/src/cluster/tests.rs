//! The whole life of experiments, with a real database and agents that are played by the tests.

mod permits;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use instep_api::config::Sources;
use instep_api::experiments::PatchExperimentRequest;
use instep_api::identifiers::{ExperimentId, TrialId, UserId};
use instep_api::link::{Device, DeviceKind, Exit, Hello, Order, Report, Serves, Share, ShareState, Start, VERSION};
use instep_api::pages::{Order as ListOrder, Slice};
use instep_api::states::State;
use instep_api::trials::Trial;
use instep_database::{Database, NewExperiment, NewManagedExperiment, Opening};
use instep_policy::lifecycle::Event;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::{Cluster, ClusterOptions, JobChange, JobOf, Refusal, Signal, TaskReport, TrialReport};
use crate::clock::now;
use crate::notices::Notices;
use crate::passwords::token_hash;

/// Longer than anything takes that happens at all.
const SOON: Duration = Duration::from_secs(30);
const SINGLE: &str = "{name: t, entrypoint: run, max_restarts: 1, searcher: {name: single, metric: loss}, \
                      checkpoint_storage: {type: directory, container_path: /tmp/nowhere}, ";

/// A master on a database; started again, it finds what the one before left.
struct Master {
    runtime: Option<Runtime>,
    database: Option<Database>,
    cluster: Option<Cluster>,
    path: PathBuf,
    options: ClusterOptions,
    _folder: tempfile::TempDir,
}

impl Master {
    fn new(options: ClusterOptions) -> Master {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let mut master = Master { runtime: None, database: None, cluster: None, path, options, _folder: folder };
        master.restart();
        master
    }

    /// Ends as a killed one does, whatever it is doing, and starts again.
    fn restart(&mut self) {
        self.cluster = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SOON);
        }
        self.database = None;
        let opening = Opening { holder: "test".into(), cluster_id: "cluster".into(), now: now() };
        let database = Database::open(&self.path, &opening).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let started = Cluster::start(database.clone(), Arc::new(Notices::default()), "m".into(), self.options.clone());
        self.cluster = Some(runtime.block_on(started).unwrap());
        self.database = Some(database);
        self.runtime = Some(runtime);
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let limited = async { tokio::time::timeout(SOON, work).await.expect("it happens soon") };
        self.runtime.as_ref().unwrap().block_on(limited)
    }

    fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().unwrap()
    }

    fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    fn submit(&self, config: &str) -> ExperimentId {
        self.submit_as(UserId(1), config)
    }

    fn submit_as(&self, owner: UserId, config: &str) -> ExperimentId {
        let sources = Sources { managed: true, seed: 1, ..Sources::default() };
        let config = crate::config::read(config, &sources).unwrap();
        let experiment = NewExperiment {
            external_id: None,
            name: "test".into(),
            description: String::new(),
            labels: vec![],
            config: config.to_json(),
            original_config: String::new(),
            job_id: crate::random::uuid(),
            project_id: None,
            project_names: None,
            owner,
            searcher_name: config.searcher.name().into(),
            searcher_metric: config.searcher.metric.clone(),
            smaller_is_better: true,
        };
        let new = NewManagedExperiment {
            experiment,
            state: State::Active,
            pool: "default".into(),
            forked_from: None,
            model_definition: vec![],
        };
        self.wait(async {
            let id = self.database().create_managed_experiment(new, now()).await.unwrap().id;
            let live = self.database().live_experiment(id, now()).await.unwrap();
            self.cluster().start_experiment(live).await.unwrap();
            id
        })
    }

    fn state(&self, id: ExperimentId) -> State {
        self.wait(self.database().experiment(id, now())).unwrap().state
    }

    fn trials(&self, id: ExperimentId) -> Vec<Trial> {
        let all = Slice { offset: 0, limit: -1, default_limit: None };
        self.wait(self.database().trials(id, vec![], ListOrder::Ascending, all, now())).unwrap().0
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let began = std::time::Instant::now();
        while !holds() {
            assert!(began.elapsed() < SOON, "{what} does not happen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn agent(&self, name: &str, slots: u32, shares: Vec<ShareState>) -> Agent {
        let (sender, orders) = mpsc::channel(1000);
        let connection = self.wait(self.cluster().hello(hello(name, slots, shares), sender, false)).unwrap();
        let mut agent = Agent { name: name.into(), connection, orders };
        assert!(matches!(agent.next(self), Order::Welcome(_)));
        agent
    }
}

fn hello(name: &str, slots: u32, shares: Vec<ShareState>) -> Hello {
    let device = |id| Device { id, kind: DeviceKind::Cpu, brand: "test".into(), uuid: String::new() };
    Hello {
        protocol: VERSION,
        version: env!("CARGO_PKG_VERSION").into(),
        agent: name.into(),
        pool: String::new(),
        addresses: vec![format!("{name}.example")],
        devices: (0..slots).map(device).collect(),
        shares,
        serves: Serves::Everybody,
        bound: None,
        identity: String::new(),
    }
}

/// An agent, as the master sees it.
struct Agent {
    name: String,
    connection: u64,
    orders: mpsc::Receiver<Order>,
}

impl Agent {
    fn next(&mut self, master: &Master) -> Order {
        master.wait(self.orders.recv()).expect("the connection is open")
    }

    fn start(&mut self, master: &Master) -> Start {
        match self.next(master) {
            Order::Start(start) => *start,
            other => panic!("not a start: {other:?}"),
        }
    }

    fn report(&self, master: &Master, report: Report) {
        master.wait(master.cluster().report(self.name.clone(), self.connection, report)).unwrap();
    }

    fn started(&self, master: &Master, share: &Share) {
        self.report(master, Report::Started { share: share.clone() });
    }

    /// Says how a share ended, and hears that it may forget it.
    fn exited(&mut self, master: &Master, share: &Share, exit: Exit) {
        self.report(master, Report::Exited { share: share.clone(), exit: exit.into() });
        loop {
            match self.next(master) {
                Order::Forget { share: forgotten } if forgotten == *share => return,
                Order::Stop { .. } => {}
                other => panic!("not forgotten: {other:?}"),
            }
        }
    }

    /// Runs a share until its script can hear signals.
    fn run_alone(&mut self, master: &Master) -> Start {
        let start = self.start(master);
        self.started(master, &start.share);
        let Share { allocation, resources } = start.share.clone();
        let info = master.wait(master.cluster().rendezvous(allocation, resources)).unwrap();
        assert_eq!((info.rank, info.slots), (0, vec![start.devices.len() as i64]));
        start
    }
}

fn running(start: &Start) -> ShareState {
    ShareState { share: start.share.clone(), devices: start.devices.clone(), exit: None }
}

fn signal(master: &Master, allocation: &str) -> Option<Signal> {
    let receiver = master.wait(master.cluster().signal(allocation.to_owned())).unwrap()?;
    Some(*receiver.borrow())
}

#[test]
fn a_trial_waits_runs_and_completes() {
    let master = Master::new(ClusterOptions::default());
    let id = master.submit(&format!("{SINGLE} resources: {{slots_per_trial: 2}}}}"));
    master.until("queueing", || master.state(id) == State::Queued && master.trials(id).len() == 1);
    let mut agent = master.agent("one", 2, vec![]);
    let start = agent.start(&master);
    assert_eq!((start.devices.as_slice(), start.rendezvous, start.context), ([0, 1].as_slice(), true, true));
    assert_eq!(start.environment["DET_TRIAL_RUN_ID"], "1");
    assert_eq!(master.state(id), State::Starting);
    let hash = token_hash(&start.token);
    let token_works = || master.wait(master.database().session(hash.clone(), now())).unwrap().is_some();
    assert!(token_works());
    agent.started(&master, &start.share);
    assert_eq!(master.state(id), State::Running);
    let Share { allocation, resources } = start.share.clone();
    let rendezvous = || master.wait(master.cluster().rendezvous(allocation.clone(), resources.clone()));
    assert_eq!(rendezvous().unwrap().addresses, ["one.example"]);
    assert_eq!(rendezvous().unwrap().addresses, ["one.example"], "an answer that was lost is given again");
    assert_eq!(signal(&master, &allocation), Some(Signal::Continue));
    agent.exited(&master, &start.share, Exit::code(0));
    assert_eq!(master.state(id), State::Completed);
    assert!(!token_works());
    assert_eq!(signal(&master, &allocation), None);
    let trial = &master.trials(id)[0];
    assert_eq!((trial.state, trial.restarts), (State::Completed, 0));
    assert!(master.wait(master.database().task_end(trial.task_id.clone())).unwrap().is_some());
}

#[test]
fn a_job_has_the_experiment_s_new_name_also_after_a_restart() {
    let mut master = Master::new(ClusterOptions::default());
    let id = master.submit(&format!("{SINGLE}}}"));
    let names = |master: &Master| -> Vec<String> {
        let jobs = master.wait(master.cluster().read(|state| state.shown_jobs(None))).unwrap();
        jobs.into_iter().map(|job| job.name).collect()
    };
    let renamed = || Some("larger".to_owned());
    let change = JobChange { name: renamed(), ..JobChange::default() };
    assert!(master.wait(master.cluster().change_job(JobOf::Experiment(id), change)).unwrap());
    assert_eq!(names(&master), ["larger"]);
    let request = PatchExperimentRequest { name: renamed(), ..PatchExperimentRequest::default() };
    master.wait(master.database().change_experiment(id, request, now())).unwrap();
    master.restart();
    assert_eq!(names(&master), ["larger"]);
}

#[test]
fn shares_on_two_machines_meet_and_fail_together_and_the_next_run_counts() {
    let master = Master::new(ClusterOptions::default());
    let (mut one, mut two) = (master.agent("one", 2, vec![]), master.agent("two", 2, vec![]));
    let id = master.submit(&format!("{SINGLE} resources: {{slots_per_trial: 4}}}}"));
    let (first, second) = (one.start(&master), two.start(&master));
    assert_eq!(first.share.allocation, second.share.allocation);
    assert_eq!(first.environment["C10D_PORT"], second.environment["C10D_PORT"]);
    one.started(&master, &first.share);
    assert_eq!(master.state(id), State::Starting);
    let cluster = master.cluster().clone();
    let asked = first.share.clone();
    let early = master
        .runtime
        .as_ref()
        .unwrap()
        .spawn(async move { cluster.rendezvous(asked.allocation, asked.resources).await });
    two.started(&master, &second.share);
    assert!(!early.is_finished());
    let late = second.share.clone();
    let second_info = master.wait(master.cluster().rendezvous(late.allocation, late.resources)).unwrap();
    let first_info = master.wait(early).unwrap().unwrap();
    assert_eq!(first_info.addresses, second_info.addresses);
    assert_eq!((first_info.slots.as_slice(), first_info.rank + second_info.rank), ([2, 2].as_slice(), 1));
    // One fails: the other is ended, and both start again.
    one.exited(&master, &first.share, Exit::code(3));
    assert!(matches!(two.next(&master), Order::Stop { share, .. } if share == second.share));
    two.exited(&master, &second.share, Exit::Killed);
    let (first, second) = (one.start(&master), two.start(&master));
    assert!(first.share.allocation.ends_with(".2"), "{}", first.share.allocation);
    assert_eq!(master.trials(id)[0].restarts, 1);
    two.exited(&master, &second.share, Exit::code(1));
    one.exited(&master, &first.share, Exit::Killed);
    master.until("the end", || master.state(id) == State::Error);
    assert_eq!(master.trials(id)[0].restarts, 1);
}

#[test]
fn a_paused_trial_acknowledges_and_goes_on_in_another_run() {
    let master = Master::new(ClusterOptions::default());
    let mut agent = master.agent("one", 1, vec![]);
    let id = master.submit(&format!("{SINGLE}}}"));
    let start = agent.run_alone(&master);
    assert!(master.wait(master.cluster().control(id, Event::Pause)).unwrap());
    assert_eq!(master.state(id), State::Paused);
    let allocation = start.share.allocation.clone();
    assert_eq!(signal(&master, &allocation), Some(Signal::Preempt));
    master.wait(master.cluster().task_reported(allocation, TaskReport::Acknowledged)).unwrap();
    agent.exited(&master, &start.share, Exit::code(0));
    assert_eq!((master.state(id), master.trials(id)[0].state), (State::Paused, State::Paused));
    assert!(master.wait(master.cluster().control(id, Event::Activate)).unwrap());
    let start = agent.run_alone(&master);
    assert_eq!(start.environment["DET_TRIAL_RUN_ID"], "2");
    assert!(master.wait(master.cluster().control(id, Event::Kill)).unwrap());
    assert!(matches!(agent.next(&master), Order::Stop { grace_seconds: 0, .. }));
    agent.exited(&master, &start.share, Exit::Killed);
    assert_eq!((master.state(id), master.trials(id)[0].state), (State::Canceled, State::Canceled));
    assert!(!master.wait(master.cluster().control(id, Event::Kill)).unwrap());
}

#[test]
fn a_master_that_was_killed_finds_its_work_again() {
    let mut master = Master::new(ClusterOptions::default());
    let mut agent = master.agent("one", 2, vec![]);
    let (kept, lost) = (master.submit(&format!("{SINGLE}}}")), master.submit(&format!("{SINGLE}}}")));
    let first = agent.run_alone(&master);
    let second = agent.run_alone(&master);
    let waiting = master.submit(&format!("{SINGLE}}}"));
    master.until("a trial", || master.trials(waiting).len() == 1);
    master.restart();
    assert_eq!(master.state(waiting), State::Queued);
    assert_eq!(signal(&master, &first.share.allocation), Some(Signal::Continue));
    let stranger = Share { allocation: "9.x.1".into(), resources: "r".into() };
    let unknown = ShareState { share: stranger.clone(), devices: vec![], exit: None };
    let gone = ShareState { exit: Some(Exit::code(0).into()), ..running(&first) };
    // The second is not there any more: it is lost, and that does not count.
    let mut agent = master.agent("one", 2, vec![gone, unknown]);
    let mut orders = vec![];
    while orders.len() < 5 {
        orders.push(agent.next(&master));
    }
    let about =
        |share: &Share| orders.iter().any(|order| matches!(order, Order::Forget { share: one } if one == share));
    assert!(about(&first.share) && about(&second.share), "{orders:?}");
    assert!(orders.iter().any(|order| matches!(order, Order::Stop { share, .. } if *share == stranger)), "{orders:?}");
    let starts = orders.iter().filter(|order| matches!(order, Order::Start(_))).count();
    assert_eq!(starts, 2, "{orders:?}");
    assert_eq!(master.state(kept), State::Completed);
    let trial = &master.trials(lost)[0];
    assert_eq!((trial.restarts, master.state(lost)), (0, State::Starting));
    // What is still there keeps its run.
    let start = orders
        .iter()
        .find_map(|order| match order {
            Order::Start(start) if start.share.allocation.ends_with(".1") => Some((**start).clone()),
            _ => None,
        })
        .unwrap();
    agent.started(&master, &start.share);
    master.restart();
    let other = orders
        .iter()
        .find_map(|order| match order {
            Order::Start(other) if other.share != start.share => Some((**other).clone()),
            _ => None,
        })
        .unwrap();
    let mut agent = master.agent("one", 2, vec![running(&start), running(&other)]);
    assert_eq!(master.state(waiting), State::Running);
    agent.exited(&master, &start.share, Exit::code(0));
    agent.exited(&master, &start.share, Exit::code(1));
    assert_eq!(master.state(waiting), State::Completed);
}

#[test]
fn a_silent_agent_is_given_up_and_may_not_go_on_afterwards() {
    let options = ClusterOptions {
        reconnect_window: Duration::from_secs(2),
        margin: Duration::ZERO,
        ..ClusterOptions::default()
    };
    let master = Master::new(options);
    let mut agent = master.agent("one", 1, vec![]);
    let id = master.submit(&format!("{SINGLE}}}"));
    let start = agent.run_alone(&master);
    // Cut off for a moment: nothing happens.
    master.wait(master.cluster().disconnected("one".into(), agent.connection)).unwrap();
    let agent = master.agent("one", 1, vec![running(&start)]);
    assert_eq!(master.state(id), State::Running);
    // Cut off for good: another machine takes the work, and it does not count.
    master.wait(master.cluster().disconnected("one".into(), agent.connection)).unwrap();
    let mut other = master.agent("two", 1, vec![]);
    let again = other.run_alone(&master);
    assert!(again.share.allocation.ends_with(".2"));
    assert_eq!(master.trials(id)[0].restarts, 0);
    let mut agent = master.agent("one", 1, vec![running(&start)]);
    assert!(matches!(agent.next(&master), Order::Stop { share, .. } if share == start.share));
    agent.exited(&master, &start.share, Exit::Killed);
    other.exited(&master, &again.share, Exit::code(0));
    assert_eq!(master.state(id), State::Completed);
}

#[test]
fn a_search_stops_trials_that_are_worse() {
    let mut master = Master::new(ClusterOptions::default());
    let mut agent = master.agent("one", 1, vec![]);
    let id = master.submit(
        "{name: t, entrypoint: run, searcher: {name: async_halving, num_rungs: 2, max_trials: 2, max_time: 4, \
         time_metric: steps, metric: loss, divisor: 2, max_concurrent_trials: 1}, \
         checkpoint_storage: {type: directory, container_path: /tmp/nowhere}}",
    );
    let start = agent.run_alone(&master);
    let trials = master.trials(id);
    let validated = |master: &Master, trial: TrialId, loss: f64, steps: i64| {
        let metrics = json!({"loss": loss, "steps": steps}).as_object().unwrap().clone();
        assert!(master.wait(master.cluster().trial_reported(trial, TrialReport::Validated(metrics, steps))).unwrap());
    };
    validated(&master, trials[0].id, 1.0, 2);
    assert_eq!(signal(&master, &start.share.allocation), Some(Signal::Continue));
    validated(&master, trials[0].id, 0.5, 4);
    assert_eq!(signal(&master, &start.share.allocation), Some(Signal::Preempt));
    // What a search decided survives its master.
    master.restart();
    assert_eq!(signal(&master, &start.share.allocation), Some(Signal::Preempt));
    let mut agent = master.agent("one", 1, vec![running(&start)]);
    agent.exited(&master, &start.share, Exit::code(0));
    let start = agent.run_alone(&master);
    let trials = master.trials(id);
    assert_eq!((trials.len(), trials[0].state), (2, State::Completed));
    validated(&master, trials[1].id, 9.0, 2);
    assert_eq!(signal(&master, &start.share.allocation), Some(Signal::Preempt));
    agent.exited(&master, &start.share, Exit::code(0));
    master.until("the end", || master.state(id) == State::Completed);
}

#[test]
fn agents_that_do_not_fit_are_refused() {
    let master = Master::new(ClusterOptions::default());
    let _agent = master.agent("one", 1, vec![]);
    let refused = |hello: Hello| {
        let (sender, _orders) = mpsc::channel(10);
        match master.wait(master.cluster().hello(hello, sender, false)) {
            Err(Refusal::Precondition(why)) => why,
            other => panic!("not refused: {other:?}"),
        }
    };
    let other = Hello { addresses: vec!["elsewhere".into()], ..hello("one", 1, vec![]) };
    assert!(refused(other).contains("connected already"));
    // Another agent of the same machine looks alike; this one over another connection does not only look so.
    let folder = |identity: &str| Hello { identity: identity.into(), ..hello("three", 1, vec![]) };
    for identity in ["a", "a", ""] {
        let (sender, _orders) = mpsc::channel(10);
        master.wait(master.cluster().hello(folder(identity), sender, false)).unwrap();
    }
    let (sender, _orders) = mpsc::channel(10);
    master.wait(master.cluster().hello(folder("a"), sender, false)).unwrap();
    assert!(refused(folder("b")).contains("`instep up` has started one"));
    assert!(refused(Hello { protocol: VERSION + 1, ..hello("two", 1, vec![]) }).contains("version"));
    assert!(refused(hello("no name", 1, vec![])).contains("name of an agent"));
}

#[test]
fn who_has_met_the_others_is_not_waited_for_after_a_restart() {
    let mut master = Master::new(ClusterOptions::default());
    let (mut one, mut two) = (master.agent("one", 2, vec![]), master.agent("two", 2, vec![]));
    let _ = master.submit(&format!("{SINGLE} resources: {{slots_per_trial: 4}}}}"));
    let (first, second) = (one.start(&master), two.start(&master));
    one.started(&master, &first.share);
    two.started(&master, &second.share);
    let rendezvous = |master: &Master, share: &Share| {
        let (cluster, share) = (master.cluster().clone(), share.clone());
        let runtime = master.runtime.as_ref().unwrap();
        runtime.spawn(async move { cluster.rendezvous(share.allocation, share.resources).await })
    };
    let (early, late) = (rendezvous(&master, &first.share), rendezvous(&master, &second.share));
    assert!(master.wait(early).unwrap().is_ok() && master.wait(late).unwrap().is_ok());
    master.restart();
    // The answer to one of them was lost with the master.
    let again = rendezvous(&master, &second.share);
    assert!(master.wait(again).unwrap().is_ok());
}

#[test]
fn several_pings_fit_into_every_window() {
    for seconds in [3, 6, 25, 86_400] {
        let options = ClusterOptions::with_window(Duration::from_secs(seconds));
        assert!(options.silence() <= options.reconnect_window, "{seconds}");
        assert!(options.margin > options.silence(), "{seconds}");
    }
}

/// A large cluster and a long queue; run with `--nocapture` to see how long a pass takes.
#[test]
#[ignore = "takes a while; run with --ignored"]
fn a_long_queue_on_many_machines() {
    let master = Master::new(ClusterOptions::default());
    let id = master.submit(
        "{name: t, entrypoint: run, searcher: {name: random, max_trials: 5000, max_concurrent_trials: 0, metric: m}, \
         resources: {slots_per_trial: 8}, checkpoint_storage: {type: directory, container_path: /tmp/nowhere}}",
    );
    let agents: Vec<Agent> = (0..200).map(|number| master.agent(&format!("agent-{number}"), 8, vec![])).collect();
    master.until("200 starts", || master.cluster().scheduler_stats().passes().waiting == 4800);
    let passes = master.cluster().scheduler_stats().passes();
    println!(
        "{} agents, {} waiting: last {:?}, longest {:?}",
        agents.len(),
        passes.waiting,
        passes.last,
        passes.longest
    );
    assert_eq!(master.state(id), State::Starting);
}
