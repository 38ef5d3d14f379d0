//! Times scheduling passes over a large cluster: `cargo run --release -p instep-policy --example schedule [PASSES]`.
//!
//! Prints one JSON object for each situation, for bench/schedule.py: what the cluster looks like, what the pass decided,
//! and the time of every pass in microseconds, the reasons' sentences included: by the clock, and on the processor, which
//! a busy machine disturbs less.

#![allow(clippy::print_stdout, reason = "the result goes to standard output")]
#![allow(clippy::disallowed_methods, reason = "measuring takes a clock; the scheduler itself reads none")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use instep_api::link::Serves;
use instep_api::wire::Timestamp;
use instep_policy::schedule::{
    Agent, Cluster, Grant, Holder, Job, Pool, Queue, Request, Rule, Settings, Slot, schedule,
};
use instep_testkit::Random;
use serde_json::json;

const AGENTS: usize = 200;
const SLOTS: u32 = 8;
const WAITING: usize = 5_000;
const JOBS: usize = 100;

fn main() {
    let passes: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(30);
    let situations = [
        ("idle cluster, by priority", Rule::Priority { preemption: false }, false),
        ("full cluster, by priority", Rule::Priority { preemption: false }, true),
        ("idle cluster, by priority with preemption", Rule::Priority { preemption: true }, false),
        ("full cluster, by priority with preemption", Rule::Priority { preemption: true }, true),
        ("idle cluster, fair shares", Rule::FairShare, false),
        ("full cluster, fair shares", Rule::FairShare, true),
    ];
    for (name, rule, full) in situations {
        let (cluster, queue) = (cluster(rule), queue(full));
        let (mut microseconds, mut processor) = (Vec::new(), Vec::new());
        let mut outcome = (0, 0, 0);
        for _ in 0..passes {
            let (begin, before) = (Instant::now(), on_processor());
            let pass = schedule(&cluster, &queue);
            let letters: usize = pass.waiting.iter().map(|waiting| waiting.reason.to_string().len()).sum();
            microseconds.push(begin.elapsed().as_micros());
            processor.push((on_processor() - before) / 1000);
            assert!(letters > 0 || pass.waiting.is_empty());
            outcome = (pass.start.len(), pass.preempt.len(), pass.waiting.len());
        }
        let (started, preempted, waiting) = outcome;
        let line = json!({
            "situation": name, "agents": AGENTS, "slots": SLOTS, "requests": WAITING, "jobs": JOBS,
            "started": started, "preempted": preempted, "waiting": waiting,
            "microseconds": microseconds, "processor_microseconds": processor,
        });
        println!("{line}");
    }
}

/// Nanoseconds that this thread has spent on a processor; 0 where the kernel does not say.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn agent_name(index: usize) -> String {
    format!("agent-{index:03}")
}

fn cluster(rule: Rule) -> Cluster {
    let agents = (0..AGENTS)
        .map(|index| Agent {
            id: agent_name(index),
            takes_work: true,
            serves: Serves::Everybody,
            slots: (0..SLOTS).map(|id| Slot { id, enabled: true }).collect(),
        })
        .collect();
    let pool = Pool { settings: Settings { rule, ..Settings::default() }, agents };
    Cluster { pools: BTreeMap::from([("default".to_owned(), pool)]) }
}

/// Jobs of many priorities whose trials need 1 to 64 slots; where the cluster is full, by the less important half.
fn queue(full: bool) -> Queue {
    let mut random = Random::new(7);
    let mut queue = Queue::default();
    for index in 0..JOBS {
        let job = Job {
            name: format!("experiment {index}"),
            pool: "default".to_owned(),
            priority: 1 + random.below(98) as u32,
            weight: 1.0 + random.below(4) as f64,
            max_slots: None,
            position: index as i64,
            submitted: Timestamp(index as i64),
        };
        queue.jobs.insert(format!("job {index}"), job);
    }
    for index in 0..WAITING {
        queue.waiting.push(Request {
            id: format!("waiting {index}"),
            job: format!("job {}", random.below(JOBS)),
            user: format!("user {}", index % 20),
            slots: *random.pick(&[1, 1, 2, 3, 4, 8, 8, 16, 24, 64]),
            single_node: random.once_in(50),
            preemptible: true,
            excluded: if random.once_in(20) {
                BTreeSet::from([agent_name(random.below(AGENTS))])
            } else {
                BTreeSet::new()
            },
            asked: Timestamp(index as i64),
        });
    }
    for agent in (0..AGENTS).filter(|_| full) {
        let mut next = 0;
        while next < SLOTS {
            let end = (next + *random.pick(&[1, 1, 2, 4, 8])).min(SLOTS);
            queue.running.push(Holder {
                id: format!("running {agent} {next}"),
                job: format!("job {}", random.below(JOBS)),
                placement: vec![Grant { agent: agent_name(agent), slots: (next..end).collect() }],
                preemptible: true,
                stopping: false,
                asked: Timestamp(0),
            });
            next = end;
        }
    }
    queue
}
