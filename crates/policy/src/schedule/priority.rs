//! The more important first.
//!
//! Priorities are looked at one after the other. What does not fit blocks everything less important, except, where
//! running work can be asked to make room, what can itself be asked later: it fills the gap meanwhile. Where it can,
//! less important work is asked to stop for what does not fit.

use super::board::Board;
use super::fit;
use super::model::{Preempt, Request, Start};
use super::view::{Candidate, Decision, Failures, View, promise};

/// What the pass has found out so far.
struct Pass<'v, 'a> {
    view: &'v mut View<'a>,
    preemption: bool,
    /// The first that has no room: later ones are behind it.
    blocked_by: Option<Candidate<'a>>,
    preempt: Vec<Preempt>,
    no_fit: Failures<'a>,
    no_fit_after_stops: Failures<'a>,
    no_fit_after_preemption: Failures<'a>,
    /// Running allocations from the first that makes room to the last.
    victims: Vec<usize>,
    /// Which running allocations are stopping.
    stopping: Vec<bool>,
    /// The board as it will be without those; the same is promised on both.
    later: Board,
}

/// Decides about every waiting request that needs slots, in order.
pub(super) fn pass<'a>(view: &mut View<'a>, preemption: bool) -> (Vec<(Candidate<'a>, Decision<'a>)>, Vec<Preempt>) {
    let slotted: Vec<Candidate<'a>> =
        view.waiting.iter().copied().filter(|candidate| candidate.request.slots > 0).collect();
    let mut pass = Pass {
        preemption,
        blocked_by: None,
        preempt: Vec::new(),
        no_fit: Failures::default(),
        no_fit_after_stops: Failures::default(),
        no_fit_after_preemption: Failures::default(),
        victims: victims(view),
        stopping: view.running.iter().map(|held| held.holder.stopping).collect(),
        later: without_stopping(view),
        view,
    };
    let mut decisions = Vec::with_capacity(slotted.len());
    for equals in slotted.chunk_by(|one, other| one.job.priority == other.job.priority) {
        pass.one_priority(equals, &mut decisions);
    }
    (decisions, pass.preempt)
}

/// The running allocations that can be asked to stop: the least important first, of those the newest.
fn victims(view: &View<'_>) -> Vec<usize> {
    let running = &view.running;
    let mut victims: Vec<usize> = (0..running.len())
        .filter(|index| {
            let holder = running[*index].holder;
            holder.preemptible && !holder.stopping && view.board.held(*index) > 0
        })
        .collect();
    victims.sort_by(|one, other| running[*other].queue_position.cmp(&running[*one].queue_position));
    victims
}

impl<'a> Pass<'_, 'a> {
    fn one_priority(&mut self, equals: &[Candidate<'a>], decisions: &mut Vec<(Candidate<'a>, Decision<'a>)>) {
        let backfilling = self.blocked_by;
        let mut unfit = Vec::new();
        for candidate in equals.iter().copied() {
            let decision = match backfilling {
                Some(first) if !(self.preemption && candidate.request.preemptible) => Decision::Behind(first),
                _ => self.try_to_fit(candidate.request, backfilling.is_some()),
            };
            if matches!(decision, Decision::NoRoom) {
                unfit.push(decisions.len());
            }
            // What no machine may take at all must not keep others off machines that are not for it.
            if matches!(decision, Decision::NoRoom | Decision::MakingRoom(_))
                && self.view.board.serves(&candidate.request.user)
            {
                self.blocked_by.get_or_insert(candidate);
            }
            decisions.push((candidate, decision));
        }
        if self.preemption {
            for index in unfit {
                let (candidate, decision) = &mut decisions[index];
                if let Some(leaving) = self.make_room(*candidate) {
                    *decision = Decision::MakingRoom(leaving);
                }
            }
        }
    }

    fn try_to_fit(&mut self, request: &'a Request, backfilled: bool) -> Decision<'a> {
        let view = &mut *self.view;
        if let Some(fit) = self.no_fit.unless_known(request, || view.find(request)) {
            let placement = view.promise(request, &fit);
            self.later.adopt(&view.board, machines(&fit));
            if !self.preempt.is_empty() {
                return Decision::NextPass;
            }
            return Decision::Start(Start { request: request.id.clone(), placement, backfilled });
        }
        self.after_stops(request).map_or(Decision::NoRoom, Decision::MakingRoom)
    }

    /// Whether there will be room when everything that is stopping has: then the slots are kept for this request, and
    /// the answer is who has them.
    fn after_stops(&mut self, request: &'a Request) -> Option<Vec<usize>> {
        let (view, later) = (&mut *self.view, &mut self.later);
        let fit = self.no_fit_after_stops.unless_known(request, || fit::find(later, request, view.settings))?;
        promise(later, request, &fit, Some(&view.board));
        Some(view.board.adopt(later, machines(&fit)))
    }

    /// Asks less important work to stop, if that makes room.
    fn make_room(&mut self, candidate: Candidate<'a>) -> Option<Vec<usize>> {
        if let Some(leaving) = self.after_stops(candidate.request) {
            return Some(leaving);
        }
        let (view, later, victims) = (&mut *self.view, &mut self.later, &self.victims);
        // Of the same priority, only those later in the queue make room; the list has them last.
        let end = victims.partition_point(|victim| view.running[*victim].queue_position > candidate.queue_position);
        let (mut roomy, fit) = self
            .no_fit_after_preemption
            .unless_known(candidate.request, || remove_until_fit(view, later, &victims[..end], candidate.request))?;
        promise(&mut roomy, candidate.request, &fit, Some(&view.board));
        let leaving = view.board.adopt(&roomy, machines(&fit));
        let (name, priority) = (&candidate.job.name, candidate.job.priority);
        for victim in leaving.iter().copied() {
            if !std::mem::replace(&mut self.stopping[victim], true) {
                let reason = format!("{name} (priority {priority}) needs its slots");
                self.preempt.push(Preempt { allocation: view.running[victim].holder.id.clone(), reason });
                later.remove(victim);
            }
        }
        later.adopt(&roomy, machines(&fit));
        self.victims.retain(|victim| !self.stopping[*victim]);
        self.no_fit_after_stops.forget();
        Some(leaving)
    }
}

fn machines(fit: &fit::Fit) -> impl Iterator<Item = usize> + '_ {
    fit.iter().map(|(machine, _)| *machine)
}

/// The board as it will be when everything that is stopping has.
fn without_stopping(view: &View<'_>) -> Board {
    let mut later = view.board.clone();
    for index in (0..view.running.len()).filter(|index| view.running[*index].holder.stopping) {
        later.remove(index);
    }
    later
}

/// Takes victims off a copy of the board, one after the other, until the request fits.
fn remove_until_fit(view: &View<'_>, later: &Board, victims: &[usize], request: &Request) -> Option<(Board, fit::Fit)> {
    let mut later = later.clone();
    let within_reach: usize = victims.iter().map(|victim| later.held(*victim)).sum();
    if later.free(&request.user).0 + within_reach < request.slots {
        return None;
    }
    // A job does not make room for itself.
    let others = victims.iter().copied().filter(|victim| view.running[*victim].holder.job != request.job);
    for victim in others {
        later.remove(victim);
        // Only a machine that the victim leaves can have become roomy or idle.
        let worth_a_look = later.machines_of(victim).any(|index| {
            let machine = &later.machines[index];
            machine.takes_work && (machine.free >= request.slots || machine.free == machine.usable)
        });
        if worth_a_look && let Some(fit) = fit::find(&later, request, view.settings) {
            return Some((later, fit));
        }
    }
    None
}
