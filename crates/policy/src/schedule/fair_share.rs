//! Every job has its share: slots are offered round by round, by weight, up to what a job can use.
//!
//! A job that holds more than its offer is asked to give some back, a job that holds less starts what fits.

use std::collections::BTreeMap;

use super::model::{Job, Preempt, Start};
use super::possible::Possible;
use super::view::{Candidate, Decision, Failures, View};

/// One job's tasks in the pool, and what it is offered.
struct Share<'a> {
    job: &'a Job,
    /// Indices of running allocations that are not stopping, the oldest first.
    running: Vec<usize>,
    held: usize,
    /// What it holds and cannot be asked for.
    fixed: usize,
    demand: usize,
    smallest_waiting: Option<usize>,
    offered: usize,
    disabled: bool,
}

/// Decides about every waiting request that needs slots, in order.
pub(super) fn pass<'a>(view: &mut View<'a>) -> (Vec<(Candidate<'a>, Decision<'a>)>, Vec<Preempt>) {
    let mut possible = Possible::default();
    let mut shares = shares(view, &mut possible);
    offer(&mut shares, view.board.capacity());
    let preempt = take_back(view, &mut shares);
    (start(view, &mut shares, &mut possible), preempt)
}

/// The jobs of the pool, by identifier.
fn shares<'a>(view: &View<'a>, possible: &mut Possible<'a>) -> BTreeMap<&'a str, Share<'a>> {
    let mut shares: BTreeMap<&'a str, Share<'a>> = BTreeMap::new();
    let mut running: Vec<usize> =
        (0..view.running.len()).filter(|index| !view.running[*index].holder.stopping).collect();
    running.sort_by(|one, other| view.running[*one].queue_position.cmp(&view.running[*other].queue_position));
    for index in running {
        let held = view.running[index];
        let slots = view.board.held(index);
        let share = shares.entry(&held.holder.job).or_insert_with(|| Share::of(held.job));
        share.running.push(index);
        share.held += slots;
        share.demand += slots;
        share.fixed += if held.holder.preemptible { 0 } else { slots };
    }
    for candidate in view.waiting.iter().filter(|candidate| candidate.request.slots > 0) {
        let share = shares.entry(&candidate.request.job).or_insert_with(|| Share::of(candidate.job));
        // What could never run would only keep others from running.
        if possible.ever(&view.board, candidate.request, view.settings) {
            let slots = candidate.request.slots;
            share.demand += slots;
            share.smallest_waiting = Some(share.smallest_waiting.map_or(slots, |smallest| smallest.min(slots)));
        }
    }
    for share in shares.values_mut() {
        share.demand = share.demand.min(share.job.max_slots.unwrap_or(usize::MAX)).max(share.fixed);
    }
    shares
}

impl<'a> Share<'a> {
    fn of(job: &'a Job) -> Share<'a> {
        Share {
            job,
            running: Vec::new(),
            held: 0,
            fixed: 0,
            demand: 0,
            smallest_waiting: None,
            offered: 0,
            disabled: false,
        }
    }

    fn wants_more(&self) -> bool {
        !self.disabled && self.offered < self.demand
    }

    /// Whether its offer helps nobody: nothing of it runs, and nothing of it fits into the offer.
    fn is_useless(&self) -> bool {
        !self.disabled && self.held == 0 && self.smallest_waiting.is_some_and(|smallest| smallest > self.offered)
    }
}

/// Deals the slots out.
fn offer(shares: &mut BTreeMap<&str, Share<'_>>, capacity: usize) {
    let mut order: Vec<&mut Share<'_>> = shares.values_mut().collect();
    // The smallest demand first; of equals, the oldest job.
    order.sort_by_key(|share| (share.demand, share.job.submitted, share.job.position));
    let mut capacity = capacity;
    for share in &mut order {
        share.offered = share.fixed;
        capacity = capacity.saturating_sub(share.fixed);
    }
    loop {
        let at_start = capacity;
        let total: f64 = order.iter().filter(|share| share.wants_more()).map(|share| weight(share.job)).sum();
        for share in order.iter_mut().filter(|share| share.wants_more()) {
            let part = (at_start as f64 * weight(share.job) / total).floor().max(1.0) as usize;
            let given = part.min(capacity).min(share.demand - share.offered);
            share.offered += given;
            capacity -= given;
        }
        // The newest of the jobs whose offer is of no use stand back, and their offers are dealt out again.
        while capacity == 0 {
            let useless = order.iter_mut().filter(|share| share.is_useless());
            let Some(newest) = useless.max_by_key(|share| share.job.submitted) else { return };
            newest.disabled = true;
            capacity = std::mem::take(&mut newest.offered);
        }
        if !order.iter().any(|share| share.wants_more()) {
            return;
        }
    }
}

/// A weight that can be divided by.
fn weight(job: &Job) -> f64 {
    if job.weight.is_finite() && job.weight > 0.0 { job.weight } else { f64::MIN_POSITIVE }
}

/// Asks the newest tasks of jobs that hold more than their offer to stop.
fn take_back(view: &View<'_>, shares: &mut BTreeMap<&str, Share<'_>>) -> Vec<Preempt> {
    let mut preempt = Vec::new();
    for share in shares.values_mut() {
        for index in share.running.iter().rev().copied() {
            if share.held <= share.offered {
                break;
            }
            let holder = view.running[index].holder;
            if holder.preemptible {
                let reason =
                    format!("its job's fair share is {} slots now, and it holds {}", share.offered, share.held);
                preempt.push(Preempt { allocation: holder.id.clone(), reason });
                share.held -= view.board.held(index);
            }
        }
    }
    preempt
}

/// Starts what fits into the offers and onto the machines.
fn start<'a>(
    view: &mut View<'a>,
    shares: &mut BTreeMap<&'a str, Share<'a>>,
    possible: &mut Possible<'a>,
) -> Vec<(Candidate<'a>, Decision<'a>)> {
    let slotted: Vec<Candidate<'a>> =
        view.waiting.iter().copied().filter(|candidate| candidate.request.slots > 0).collect();
    let mut no_fit = Failures::default();
    let mut decisions = Vec::with_capacity(slotted.len());
    for candidate in slotted {
        let request = candidate.request;
        let Some(share) = shares.get_mut(request.job.as_str()) else { continue };
        let decision = if share.held + request.slots > share.offered {
            if possible.ever(&view.board, request, view.settings) {
                Decision::ShareSpent { offered: share.offered, held: share.held }
            } else {
                Decision::NoRoom
            }
        } else if let Some(fit) = no_fit.unless_known(request, || view.find(request)) {
            share.held += request.slots;
            Decision::Start(Start {
                request: request.id.clone(),
                placement: view.promise(request, &fit),
                backfilled: false,
            })
        } else {
            Decision::NoRoom
        };
        decisions.push((candidate, decision));
    }
    decisions
}
