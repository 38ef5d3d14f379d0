//! A master in miniature: does what effects and schedules say, on simulated machines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use instep_api::link::{Exit, Serves};
use instep_api::wire::Timestamp;
use instep_policy::lifecycle::gang::{Gang, Step};
use instep_policy::lifecycle::{Effect, End, Event, Experiment, Run, Terms};
use instep_policy::schedule::{Agent, Cluster, Grant, Holder, Job, Pool, Queue, Request, Settings, Slot, schedule};
use instep_testkit::Random;

use crate::lifecycle::double::Double;
use crate::simulation::machines::{GIVEN_UP, Machines, SECOND, WINDOW};

const MAX_RESTARTS: u32 = 2;

/// Something that happens at a certain time.
#[derive(Debug, Clone)]
pub enum Happening {
    Started {
        allocation: String,
        rank: usize,
    },
    Ready {
        allocation: String,
    },
    Acknowledged {
        allocation: String,
    },
    Exited {
        allocation: String,
        rank: usize,
        exit: Exit,
    },
    /// The agent's own patience is over: it ends its work.
    WindowOver {
        agent: String,
        since: i64,
    },
    /// The master's patience is over: the work is lost.
    GivenUp {
        agent: String,
        since: i64,
    },
    Returns {
        agent: String,
    },
    Enabled {
        agent: String,
    },
    AllAgentsWork,
    Tick,
}

/// What the master knows of an allocation that has slots.
struct Allocation {
    experiment: i32,
    run: Run,
    placement: Vec<Grant>,
    gang: Gang,
}

#[derive(Default)]
struct Link {
    /// Since when it is cut off.
    cut: Option<i64>,
    disabled: bool,
    /// Reports that wait for the connection.
    backlog: Vec<Happening>,
}

pub struct Master {
    pub seed: u64,
    pub now: i64,
    pub calm: bool,
    pub experiments: BTreeMap<i32, Experiment<Double>>,
    /// How many slots the trials of an experiment need.
    sizes: BTreeMap<i32, usize>,
    agenda: BTreeMap<(i64, u64), Happening>,
    sequence: u64,
    cluster: Cluster,
    queue: Queue,
    allocations: BTreeMap<String, Allocation>,
    links: BTreeMap<String, Link>,
    machines: Machines,
    failures: BTreeMap<(i32, String), u32>,
    trials: i32,
}

impl Master {
    pub fn new(seed: u64, settings: Settings, random: &mut Random) -> Master {
        let agents: Vec<Agent> = (0..2 + random.below(4))
            .map(|index| Agent {
                id: format!("agent-{index}"),
                takes_work: true,
                serves: Serves::Everybody,
                slots: (0..*random.pick(&[2, 4, 4])).map(|id| Slot { id, enabled: true }).collect(),
            })
            .collect();
        let links = agents.iter().map(|agent| (agent.id.clone(), Link::default())).collect();
        let cluster = Cluster { pools: BTreeMap::from([("default".to_owned(), Pool { settings, agents })]) };
        let mut master = Master {
            seed,
            now: 0,
            calm: false,
            experiments: BTreeMap::new(),
            sizes: BTreeMap::new(),
            agenda: BTreeMap::new(),
            sequence: 0,
            cluster,
            queue: Queue::default(),
            allocations: BTreeMap::new(),
            links,
            machines: Machines::default(),
            failures: BTreeMap::new(),
            trials: 0,
        };
        master.happen(SECOND, Happening::Tick);
        master
    }

    pub fn happen(&mut self, delay: i64, happening: Happening) {
        self.sequence += 1;
        self.agenda.insert((self.now + delay, self.sequence), happening);
    }

    /// Lets time pass, and everything happen that happens meanwhile.
    pub fn run_for(&mut self, duration: i64, random: &mut Random) {
        let end = self.now + duration;
        self.pass(random);
        while let Some(next) = self.agenda.first_entry().filter(|next| next.key().0 <= end) {
            let ((time, _), happening) = next.remove_entry();
            self.now = time;
            let quiet = matches!(happening, Happening::Tick | Happening::Ready { .. } | Happening::Acknowledged { .. });
            self.take(happening, random);
            if !quiet {
                self.pass(random);
            }
        }
        self.now = end;
        self.pass(random);
    }

    pub fn is_at_rest(&self) -> bool {
        let over = self.experiments.values().all(|experiment| experiment.state().is_terminal());
        if over {
            assert!(self.allocations.is_empty() && self.queue.waiting.is_empty(), "SEED={}", self.seed);
            assert!(self.machines.is_idle(), "SEED={}: {:?}", self.seed, self.machines);
        }
        over
    }

    pub fn describe(&self) -> String {
        let alive = self.experiments.values().filter(|experiment| !experiment.state().is_terminal());
        let experiments: Vec<String> = alive.map(|experiment| format!("{experiment:?}")).collect();
        let waiting = schedule(&self.cluster, &self.queue).waiting;
        let reasons: Vec<String> =
            waiting.iter().map(|waiting| format!("{}: {}", waiting.request, waiting.reason)).collect();
        format!("{}\n{}\nallocations {:?}", experiments.join("\n"), reasons.join("\n"), self.allocations.keys())
    }

    /// A new experiment.
    pub fn submit(&mut self, random: &mut Random) {
        let id = self.experiments.len() as i32 + 1;
        let terms = Terms { max_restarts: MAX_RESTARTS, preemption_timeout: Duration::from_secs(60), single: false };
        let job = Job {
            name: format!("experiment {id}"),
            pool: "default".to_owned(),
            priority: *random.pick(&[10, 42, 42, 70]),
            weight: *random.pick(&[1.0, 2.0]),
            max_slots: if random.once_in(5) { Some(4) } else { None },
            position: self.now,
            submitted: Timestamp(self.now),
        };
        self.queue.jobs.insert(id.to_string(), job);
        self.sizes.insert(id, *random.pick(&[0, 1, 1, 2, 2, 4, 8]).min(&self.largest()));
        let search = Double::of(1 + random.below(3));
        self.experiments.insert(id, Experiment::new(id, terms, search, random.once_in(5)));
        self.tell(id, Event::Started, random);
    }

    /// The largest number of slots that is sure to fit on this cluster when it is well.
    fn largest(&self) -> usize {
        self.cluster.pools["default"].agents.iter().map(|agent| agent.slots.len()).max().unwrap_or(0)
    }

    pub fn change_priority(&mut self, random: &mut Random) {
        let job = format!("{}", 1 + random.below(self.experiments.len() + 1));
        if let Some(job) = self.queue.jobs.get_mut(&job) {
            job.priority = 1 + random.below(99) as u32;
        }
    }

    /// An agent loses its connection, for a short time or a long one.
    pub fn cut_off(&mut self, random: &mut Random) {
        let agent = random.pick(&self.links.keys().cloned().collect::<Vec<_>>()).clone();
        let link = self.links.get_mut(&agent).expect("it is known");
        if link.cut.is_some() {
            return;
        }
        let since = self.now;
        link.cut = Some(since);
        self.happen(WINDOW, Happening::WindowOver { agent: agent.clone(), since });
        self.happen(GIVEN_UP, Happening::GivenUp { agent: agent.clone(), since });
        let away = *random.pick(&[5, 10, 24, 30, 50, 100]) * SECOND;
        self.happen(away, Happening::Returns { agent });
        self.update_agents();
    }

    /// Somebody disables an agent, for a while; its work goes elsewhere.
    pub fn disable(&mut self, random: &mut Random) {
        let agent = random.pick(&self.links.keys().cloned().collect::<Vec<_>>()).clone();
        self.links.get_mut(&agent).expect("it is known").disabled = true;
        self.update_agents();
        let on_it = |allocation: &&Allocation| allocation.placement.iter().any(|grant| grant.agent == agent);
        let evicted: Vec<(i32, Run)> =
            self.allocations.values().filter(on_it).map(|it| (it.experiment, it.run.clone())).collect();
        for (experiment, run) in evicted {
            self.tell(experiment, Event::Evicted { run, why: format!("{agent} was disabled") }, random);
        }
        self.happen(60 * SECOND, Happening::Enabled { agent });
    }

    fn update_agents(&mut self) {
        for agent in &mut self.cluster.pools.get_mut("default").expect("there is one").agents {
            let link = &self.links[&agent.id];
            agent.takes_work = link.cut.is_none() && !link.disabled;
        }
    }

    /// The master is killed and started: what it knows is what it stored.
    pub fn restart(&mut self) {
        let mut waiting = BTreeSet::new();
        let mut stopping = BTreeSet::new();
        for experiment in self.experiments.values_mut() {
            let stored = serde_json::to_string(experiment).expect("stored");
            *experiment = serde_json::from_str(&stored).expect("read back");
            for effect in experiment.repeat() {
                match effect {
                    Effect::Ask { allocation, .. } => drop(waiting.replace(allocation)),
                    Effect::Preempt { run, .. } | Effect::Kill { run, .. } => drop(stopping.replace(run)),
                    other => panic!("SEED={}: {other:?} had been done", self.seed),
                }
            }
        }
        let queued: BTreeSet<String> = self.queue.waiting.iter().map(|request| request.id.clone()).collect();
        assert_eq!(waiting, queued, "SEED={}: what waited still waits, as the same run", self.seed);
        for holder in self.queue.running.iter().filter(|holder| holder.stopping) {
            assert!(stopping.contains(&self.allocations[&holder.id].run), "SEED={}: {}", self.seed, holder.id);
        }
    }

    /// Tells an experiment, and does what follows.
    pub fn tell(&mut self, experiment: i32, event: Event, random: &mut Random) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(of) = self.experiments.get_mut(&experiment) else { return };
            for effect in of.on(event, Timestamp(self.now)) {
                self.apply(experiment, effect, &mut events, random);
            }
        }
    }

    fn apply(&mut self, experiment: i32, effect: Effect, events: &mut VecDeque<Event>, random: &mut Random) {
        match effect {
            Effect::MakeTrial { request, .. } => {
                self.trials += 1;
                events.push_back(Event::TrialMade { request, trial: self.trials });
            }
            Effect::Ask { allocation, excluded, .. } => self.queue.waiting.push(Request {
                id: allocation,
                job: experiment.to_string(),
                user: String::new(),
                slots: self.sizes[&experiment],
                single_node: false,
                preemptible: true,
                excluded,
                asked: Timestamp(self.now),
            }),
            Effect::Withdraw { run, .. } => {
                let name = format!("{experiment}.{}.{}", run.request, run.number);
                self.queue.waiting.retain(|request| request.id != name);
            }
            Effect::Preempt { run, .. } => {
                self.ask_to_stop(&format!("{experiment}.{}.{}", run.request, run.number), random)
            }
            Effect::Kill { run, .. } => self.kill(&format!("{experiment}.{}.{}", run.request, run.number), random),
            _ => {}
        }
    }

    fn mark_stopping(&mut self, allocation: &str) {
        let holders = self.queue.running.iter_mut().filter(|holder| holder.id == allocation);
        holders.for_each(|holder| holder.stopping = true);
    }

    /// Most scripts do as they are asked, some do not care, some were done anyway.
    fn ask_to_stop(&mut self, allocation: &str, random: &mut Random) {
        self.mark_stopping(allocation);
        if random.once_in(5) {
            return;
        }
        let delay = 1 + random.below(20) as i64 * SECOND;
        if !random.once_in(6) {
            self.happen(delay, Happening::Acknowledged { allocation: allocation.to_owned() });
        }
        let code = i32::from(random.once_in(12));
        self.all_exit(allocation, delay + SECOND, &Exit::code(code));
    }

    fn all_exit(&mut self, allocation: &str, delay: i64, exit: &Exit) {
        let Some(known) = self.allocations.get(allocation) else { return };
        let alive: Vec<usize> = known.gang.alive().collect();
        for rank in alive {
            self.happen(delay, Happening::Exited { allocation: allocation.to_owned(), rank, exit: exit.clone() });
        }
    }

    fn kill(&mut self, allocation: &str, random: &mut Random) {
        self.mark_stopping(allocation);
        if let Some(known) = self.allocations.get_mut(allocation) {
            known.gang.ending();
        }
        // Orders get lost now and then; they are repeated.
        if self.calm || !random.once_in(8) {
            let delay = random.below(5) as i64 * SECOND;
            self.end_connected(allocation, delay);
        }
    }

    /// Ends the shares whose machines hear the order.
    fn end_connected(&mut self, allocation: &str, delay: i64) {
        let Some(known) = self.allocations.get(allocation) else { return };
        let alive: Vec<usize> = known.gang.alive().collect();
        let hears = |rank: &usize| self.links[&known.placement[*rank].agent].cut.is_none();
        for rank in alive.into_iter().filter(hears).collect::<Vec<_>>() {
            let exit = Exit::Killed;
            self.happen(delay, Happening::Exited { allocation: allocation.to_owned(), rank, exit });
        }
    }

    /// A scheduling pass: starts what it starts, asks whom it asks.
    fn pass(&mut self, random: &mut Random) {
        if self.queue.waiting.is_empty() {
            return;
        }
        let decided = schedule(&self.cluster, &self.queue);
        for start in decided.start {
            let index = self.queue.waiting.iter().position(|request| request.id == start.request).expect("it waits");
            let request = self.queue.waiting.swap_remove(index);
            self.assign(request, start.placement, random);
        }
        for preempt in decided.preempt {
            let known = &self.allocations[&preempt.allocation];
            let (experiment, run) = (known.experiment, known.run.clone());
            self.tell(experiment, Event::Displaced { run, why: preempt.reason }, random);
        }
    }

    fn assign(&mut self, request: Request, placement: Vec<Grant>, random: &mut Random) {
        let experiment: i32 = request.job.parse().expect("jobs are numbers here");
        let mut parts = request.id.split('.').skip(1);
        let (trial, number) = (parts.next().expect("a trial"), parts.next().expect("a run"));
        let run = Run { request: trial.to_owned(), number: number.parse().expect("a number") };
        for (rank, grant) in placement.iter().enumerate() {
            self.machines.begin(self.seed, &request.id, rank, &grant.agent, &grant.slots);
            let delay = 1 + random.below(5) as i64 * SECOND;
            let allocation = request.id.clone();
            let happening = if !self.calm && random.once_in(25) {
                Happening::Exited { allocation, rank, exit: Exit::Failed { why: "no disk".to_owned() } }
            } else {
                Happening::Started { allocation, rank }
            };
            self.happen(delay, happening);
        }
        self.queue.running.push(Holder {
            id: request.id.clone(),
            job: request.job,
            placement: placement.clone(),
            preemptible: request.preemptible,
            stopping: false,
            asked: request.asked,
        });
        let gang = Gang::new(placement.len());
        self.allocations.insert(request.id, Allocation { experiment, run: run.clone(), placement, gang });
        self.tell(experiment, Event::Assigned { run }, random);
    }

    /// Something of an allocation happened on a machine.
    fn take(&mut self, happening: Happening, random: &mut Random) {
        match happening {
            Happening::Started { ref allocation, rank } => {
                let Some(allocation) = self.heard(allocation.clone(), rank, &happening) else { return };
                let known = self.allocations.get_mut(&allocation).expect("it was heard");
                if known.gang.started(rank) == Some(Step::AllStarted) {
                    let (experiment, run) = (known.experiment, known.run.clone());
                    self.tell(experiment, Event::Running { run }, random);
                    self.live(allocation, random);
                }
            }
            Happening::Ready { allocation } => self.about(&allocation, |run| Event::Ready { run }, random),
            Happening::Acknowledged { allocation } => {
                self.about(&allocation, |run| Event::Acknowledged { run }, random)
            }
            Happening::Exited { ref allocation, rank, ref exit } => {
                self.machines.end(allocation, rank);
                let exit = exit.clone();
                let Some(allocation) = self.heard(allocation.clone(), rank, &happening) else { return };
                self.exited(&allocation, rank, exit, random);
            }
            Happening::WindowOver { agent, since } if self.links[&agent].cut == Some(since) => {
                for (allocation, rank) in self.machines.on(&agent) {
                    self.machines.end(&allocation, rank);
                }
            }
            Happening::GivenUp { agent, since } if self.links[&agent].cut == Some(since) => {
                self.give_up(&agent, random)
            }
            Happening::WindowOver { .. } | Happening::GivenUp { .. } => {}
            Happening::Returns { agent } => self.returns(&agent, random),
            Happening::Enabled { agent } => {
                self.links.get_mut(&agent).expect("it is known").disabled = false;
                self.update_agents();
            }
            Happening::AllAgentsWork => {
                for agent in self.links.keys().cloned().collect::<Vec<_>>() {
                    self.links.get_mut(&agent).expect("it is known").disabled = false;
                }
                self.update_agents();
            }
            Happening::Tick => {
                let now = Timestamp(self.now);
                let due = |of: &Experiment<Double>| of.deadline().is_some_and(|deadline| deadline <= now);
                let due: Vec<i32> = self.experiments.iter().filter(|(_, of)| due(of)).map(|(id, _)| *id).collect();
                for experiment in due {
                    self.tell(experiment, Event::Tick, random);
                }
                self.happen(SECOND, Happening::Tick);
            }
        }
    }

    /// The allocation, if the master hears of it now; else its agent keeps the report.
    fn heard(&mut self, allocation: String, rank: usize, report: &Happening) -> Option<String> {
        let known = self.allocations.get(&allocation)?;
        let link = self.links.get_mut(&known.placement[rank].agent).expect("it is known");
        if link.cut.is_some() {
            link.backlog.push(report.clone());
            return None;
        }
        Some(allocation)
    }

    fn about(&mut self, allocation: &str, event: impl FnOnce(Run) -> Event, random: &mut Random) {
        if let Some(known) = self.allocations.get(allocation) {
            let (experiment, run) = (known.experiment, known.run.clone());
            self.tell(experiment, event(run), random);
        }
    }

    /// The script runs, and comes to some end.
    fn live(&mut self, allocation: String, random: &mut Random) {
        self.happen(random.below(10) as i64 * SECOND, Happening::Ready { allocation: allocation.clone() });
        let delay = (10 + random.below(150) as i64) * SECOND;
        let code = i32::from(random.once_in(4));
        self.all_exit(&allocation, delay, &Exit::code(code));
    }

    fn exited(&mut self, allocation: &str, rank: usize, exit: Exit, random: &mut Random) {
        let Some(known) = self.allocations.get_mut(allocation) else { return };
        for step in known.gang.exited(rank, exit) {
            match step {
                Step::AllStarted => {}
                Step::EndOthers { .. } => self.end_connected(allocation, SECOND),
                Step::Over(end) => return self.over(allocation, end, random),
            }
        }
    }

    fn over(&mut self, allocation: &str, end: End, random: &mut Random) {
        let known = self.allocations.remove(allocation).expect("it was known");
        self.queue.running.retain(|holder| holder.id != allocation);
        if matches!(end, End::Exited { code } if code != 0) {
            let count = self.failures.entry((known.experiment, known.run.request.clone())).or_default();
            *count += 1;
            assert!(*count <= MAX_RESTARTS + 1, "SEED={}: {allocation} failed too often", self.seed);
        }
        self.tell(known.experiment, Event::Ended { run: known.run, end }, random);
    }

    /// The master's patience with an agent is over.
    fn give_up(&mut self, agent: &str, random: &mut Random) {
        let mut lost = Vec::new();
        for (name, known) in &self.allocations {
            let on_it = known.gang.alive().filter(|rank| known.placement[*rank].agent == agent);
            lost.extend(on_it.map(|rank| (name.clone(), rank)));
        }
        for (allocation, rank) in lost {
            self.exited(&allocation, rank, Exit::Lost { why: format!("{agent} is away") }, random);
        }
    }

    /// An agent is back and says what it has to say; what it no longer has is lost, and what it should have ended is ended.
    fn returns(&mut self, agent: &str, random: &mut Random) {
        let link = self.links.get_mut(agent).expect("it is known");
        link.cut = None;
        let backlog = std::mem::take(&mut link.backlog);
        self.update_agents();
        backlog.into_iter().for_each(|report| self.take(report, random));
        let running: BTreeSet<(String, usize)> = self.machines.on(agent).into_iter().collect();
        let (mut lost, mut overdue) = (Vec::new(), Vec::new());
        for (name, known) in &self.allocations {
            let on_it = known.gang.alive().filter(|rank| known.placement[*rank].agent == agent);
            for share in on_it.map(|rank| (name.clone(), rank)) {
                let list = if running.contains(&share) { &mut overdue } else { &mut lost };
                list.push(share);
            }
        }
        for (allocation, rank) in lost {
            self.exited(&allocation, rank, Exit::Lost { why: "the agent has not got it any more".to_owned() }, random);
        }
        for (allocation, rank) in overdue {
            if self.allocations.get(&allocation).is_some_and(|known| known.gang.is_ending()) {
                self.happen(SECOND, Happening::Exited { allocation, rank, exit: Exit::Killed });
            }
        }
    }
}
