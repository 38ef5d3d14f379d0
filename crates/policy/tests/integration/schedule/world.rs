//! Short ways to say what a cluster looks like and what waits.

use std::collections::BTreeSet;

use instep_api::link::Serves;
use instep_api::wire::Timestamp;
use instep_policy::schedule::{
    Agent, Cluster, Grant, Holder, Job, Pool, Queue, Request, Rule, Schedule, Settings, Slot, schedule,
};

pub struct World {
    pub cluster: Cluster,
    pub queue: Queue,
    clock: i64,
}

impl World {
    /// Agents a1, a2, … with so many slots each, in one pool by priority.
    pub fn of(sizes: &[u32], preemption: bool) -> World {
        let agents = sizes.iter().enumerate().map(|(index, size)| agent(&format!("a{}", index + 1), *size)).collect();
        let settings = Settings { rule: Rule::Priority { preemption }, ..Settings::default() };
        let mut cluster = Cluster::default();
        cluster.pools.insert("default".to_owned(), Pool { settings, agents });
        World { cluster, queue: Queue::default(), clock: 0 }
    }

    pub fn fair(sizes: &[u32]) -> World {
        let mut world = World::of(sizes, false);
        world.pool().settings.rule = Rule::FairShare;
        world
    }

    pub fn pool(&mut self) -> &mut Pool {
        self.cluster.pools.get_mut("default").expect("there is one")
    }

    /// A job that comes after all before it.
    pub fn job(&mut self, name: &str, priority: u32) -> &mut Job {
        self.clock += 1;
        let job = Job {
            name: name.to_owned(),
            pool: "default".to_owned(),
            priority,
            weight: 1.0,
            max_slots: None,
            position: self.clock,
            submitted: Timestamp(self.clock),
        };
        self.queue.jobs.entry(name.to_owned()).or_insert(job)
    }

    /// A request of a job that is there.
    pub fn asks(&mut self, job: &str, id: &str, slots: usize) -> &mut Request {
        self.clock += 1;
        self.queue.waiting.push(Request {
            id: id.to_owned(),
            job: job.to_owned(),
            user: "alice".to_owned(),
            slots,
            single_node: false,
            preemptible: true,
            excluded: BTreeSet::new(),
            asked: Timestamp(self.clock),
        });
        self.queue.waiting.last_mut().expect("it was pushed")
    }

    /// A new job with one request; both have the same name.
    pub fn waits(&mut self, name: &str, priority: u32, slots: usize) -> &mut Request {
        self.job(name, priority);
        self.asks(name, name, slots)
    }

    /// An allocation of a job that is there, on the first slots of an agent.
    pub fn holds(&mut self, job: &str, id: &str, agent: &str, slots: std::ops::Range<u32>) -> &mut Holder {
        self.clock += 1;
        self.queue.running.push(Holder {
            id: id.to_owned(),
            job: job.to_owned(),
            placement: vec![Grant { agent: agent.to_owned(), slots: slots.collect() }],
            preemptible: true,
            stopping: false,
            asked: Timestamp(self.clock),
        });
        self.queue.running.last_mut().expect("it was pushed")
    }

    /// A new job with one running allocation; both have the same name.
    pub fn runs(&mut self, name: &str, priority: u32, agent: &str, slots: std::ops::Range<u32>) -> &mut Holder {
        self.job(name, priority);
        self.holds(name, name, agent, slots)
    }

    pub fn pass(&self) -> Schedule {
        schedule(&self.cluster, &self.queue)
    }

    /// Who starts.
    pub fn starts(&self) -> Vec<String> {
        self.pass().start.into_iter().map(|start| start.request).collect()
    }

    /// Where the only one that starts does: agents with their slots.
    pub fn placement(&self) -> Vec<(String, Vec<u32>)> {
        let start = self.pass().start;
        assert_eq!(start.len(), 1, "{start:?}");
        start[0].placement.iter().map(|grant| (grant.agent.clone(), grant.slots.clone())).collect()
    }

    /// Why this one waits.
    pub fn reason(&self, request: &str) -> String {
        let waiting = self.pass().waiting;
        let found = waiting.iter().find(|waiting| waiting.request == request);
        found.unwrap_or_else(|| panic!("{request} does not wait")).reason.to_string()
    }
}

pub fn agent(id: &str, slots: u32) -> Agent {
    let slots = (0..slots).map(|id| Slot { id, enabled: true }).collect();
    Agent { id: id.to_owned(), takes_work: true, serves: Serves::Everybody, slots }
}

pub fn preempted(schedule: &Schedule) -> Vec<&str> {
    schedule.preempt.iter().map(|preempt| preempt.allocation.as_str()).collect()
}

pub fn started(schedule: &Schedule) -> Vec<&str> {
    schedule.start.iter().map(|start| start.request.as_str()).collect()
}
