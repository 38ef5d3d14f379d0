//! Who gets which slots, who makes room, and why the others wait.
//!
//! [`schedule`] looks at the machines and the queue and answers with what starts where, what is asked to stop, and for
//! everything else a [`Reason`] that reads as a sentence. It does no I/O, reads no clock and remembers nothing: the same
//! question has the same answer, so a pass can be repeated whenever something has changed.
//!
//! - Pools do not know of each other; each has its own rule: [`Rule::Priority`] or [`Rule::FairShare`].
//! - All slots of a request are given at once or not at all: on one machine if it has room, else on several that are
//!   idle, equally many on each.
//! - Requests without slots have a queue of their own and only wait for machines.
//! - [`move_job`] changes the order.
//!
//! Invariants, cited by the tests:
//!
//! - S1: a slot is given only if nobody has it, it is enabled, and its machine takes work and serves the request's
//!   user: a machine that serves whoever comes first serves one user, also within a pass.
//! - S2: what is asked to stop can be asked, is less important (or later in the queue) than who needs it, and makes room.
//! - S3: every waiting request is started or has a reason.

mod board;
mod fair_share;
mod fit;
mod model;
mod order;
mod possible;
mod priority;
mod reason;
mod view;

pub use model::{
    Agent, Cluster, Fitting, Grant, Holder, Job, Pool, Preempt, Queue, Request, Rule, Schedule, Settings, Slot, Start,
    Waiting,
};
pub use order::{Moved, Side, jobs_in_order, move_job};
pub use reason::{Ahead, Reason};

use view::{Candidate, Decision, View};

/// One pass over the whole cluster.
pub fn schedule(cluster: &Cluster, queue: &Queue) -> Schedule {
    let mut schedule = Schedule::default();
    for (name, pool) in &cluster.pools {
        let mut view = View::new(name, &pool.settings, &pool.agents, queue);
        let zero_slot_tasks = without_slots(&mut view);
        let (decisions, preempt) = match pool.settings.rule {
            Rule::Priority { preemption } => priority::pass(&mut view, preemption),
            Rule::FairShare => fair_share::pass(&mut view),
        };
        schedule.preempt.extend(preempt);
        write_down(&view, zero_slot_tasks, &mut schedule);
        write_down(&view, decisions, &mut schedule);
    }
    for request in &queue.waiting {
        if let Some(job) = queue.jobs.get(&request.job).filter(|job| !cluster.pools.contains_key(&job.pool)) {
            let reason = reason::no_such_pool(cluster, job);
            schedule.waiting.push(Waiting { request: request.id.clone(), reason });
        }
    }
    schedule
}

/// Starts requests without slots wherever there is a machine for them.
fn without_slots<'a>(view: &mut View<'a>) -> Vec<(Candidate<'a>, Decision<'a>)> {
    let zero_slot_tasks: Vec<Candidate<'a>> =
        view.waiting.iter().copied().filter(|candidate| candidate.request.slots == 0).collect();
    let mut decide = |candidate: Candidate<'a>| {
        let decision = match view.find(candidate.request) {
            Some(fit) => Decision::Start(Start {
                request: candidate.request.id.clone(),
                placement: view.promise(candidate.request, &fit),
                backfilled: false,
            }),
            None => Decision::NoRoom,
        };
        (candidate, decision)
    };
    zero_slot_tasks.into_iter().map(&mut decide).collect()
}

fn write_down<'a>(view: &View<'a>, decisions: Vec<(Candidate<'a>, Decision<'a>)>, schedule: &mut Schedule) {
    let mut explainer = reason::Explainer::new(view);
    for (candidate, decision) in decisions {
        if let Decision::Start(start) = decision {
            schedule.start.push(start);
            continue;
        }
        let reason = explainer.explain(candidate, &decision);
        schedule.waiting.push(Waiting { request: candidate.request.id.clone(), reason });
    }
}
