//! The plans themselves.

use std::ops::Range;

use super::{Action, Place, Plan, Sizes, Span, Step, Task};
use crate::plan::{Cut, segment};

/// Rounds of a reduction whose values are under way while the results of an earlier one come back.
const AHEAD: usize = 2;
/// Rounds that have room for the values of all members at the same time.
const SLOTS: usize = AHEAD + 1;
/// Lanes start apart on cache lines.
const LINE_BYTES: usize = 64;
/// The shortest message that a lack of scratch memory leads to.
const SHORTEST: usize = 4 << 10;

const NEVER: Range<usize> = 0..0;

/// What this member does for a task that all of them have.
pub(crate) fn plan(task: &Task, world: usize, rank: usize, sizes: &Sizes) -> Plan {
    let mut writer = Writer { world, rank, sizes: *sizes, plan: Plan::default() };
    match *task {
        Task::AllReduce { count, element } if count * element <= sizes.small => {
            writer.reduce_at_once(count * element, None)
        }
        Task::AllReduce { count, element } => writer.reduce_by_segments(count, element, None),
        Task::Reduce { count, element, root } if count * element <= sizes.small => {
            writer.reduce_at_once(count * element, Some(root));
        }
        Task::Reduce { count, element, root } => writer.reduce_by_segments(count, element, Some(root)),
        Task::ReduceScatter { count, element } => writer.reduce_scatter(count, element),
        Task::Broadcast { bytes, root } if bytes <= sizes.direct || world <= 2 => {
            writer.straight(|from, to| if from == root && to != root { bytes } else { 0 });
        }
        Task::Broadcast { bytes, root } => writer.chain(bytes, root),
        Task::AllGather { bytes } => {
            writer.straight(|_, _| bytes);
            writer.keep_own(bytes);
        }
        Task::Gather { bytes, root } => {
            writer.straight(|_, to| if to == root { bytes } else { 0 });
            if rank == root {
                writer.keep_own(bytes);
            }
        }
        Task::Scatter { bytes, root } => {
            writer.straight(|from, _| if from == root { bytes } else { 0 });
            if rank == root {
                writer.keep_own(bytes);
            }
        }
        Task::AllToAll { ref sends, ref expects } => {
            writer.straight(|from, to| if from == rank { sends[to] } else { expects[from] });
            writer.keep_own(sends[rank].min(expects[rank]));
        }
        Task::Barrier => writer.straight(|_, _| 0),
    }
    writer.plan
}

struct Writer {
    world: usize,
    rank: usize,
    sizes: Sizes,
    plan: Plan,
}

impl Writer {
    fn add(&mut self, action: Action, after: Range<usize>) -> usize {
        self.plan.steps.push(Step { action, after });
        self.plan.steps.len() - 1
    }

    fn next(&self) -> usize {
        self.plan.steps.len()
    }

    /// The others, starting after this one so that not all send to the same.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |distance| (rank + distance) % world)
    }

    /// The result of this member's own values, where nothing travels.
    fn keep_own(&mut self, bytes: usize) {
        let from = Span { place: Place::Input(self.rank), start: 0, bytes };
        self.add(Action::Copy { from, into: Span { place: Place::Output(self.rank), ..from } }, NEVER);
    }

    /// So many bytes from each member to each other, out of its input for that one into the output for this one.
    fn straight(&mut self, bytes: impl Fn(usize, usize) -> usize) {
        let (rank, message) = (self.rank, self.sizes.message);
        let pair = |peer: usize| [(rank, peer), (peer, rank)].map(|(from, to)| Cut::new(bytes(from, to), 1, message));
        let rounds = self.peers().flat_map(pair).map(|cut| cut.steps()).max().unwrap_or(0);
        for round in 0..rounds {
            for peer in self.peers() {
                let span = |place: Place, cut: Cut| {
                    let range = cut.range(round);
                    Span { place, start: range.start, bytes: range.len() }
                };
                let [out, into] = pair(peer);
                if round < out.steps() {
                    self.add(Action::Send { to: peer, span: span(Place::Input(peer), out) }, NEVER);
                }
                if round < into.steps() {
                    self.add(Action::Receive { from: peer, span: span(Place::Output(peer), into) }, NEVER);
                }
            }
        }
    }

    /// Empty messages between all, so that everybody hears from everybody.
    fn greet(&mut self) {
        self.straight(|_, _| 0);
    }

    /// From the root to the next member, and so on, piece by piece.
    fn chain(&mut self, bytes: usize, root: usize) {
        self.greet();
        let place = (self.rank + self.world - root) % self.world;
        let (before, next) = ((self.rank + self.world - 1) % self.world, (self.rank + 1) % self.world);
        let cut = Cut::new(bytes, 1, self.sizes.message);
        for round in 0..cut.steps() {
            let range = cut.range(round);
            let span = Span { place: Place::Output(root), start: range.start, bytes: range.len() };
            let mut after = NEVER;
            if place > 0 {
                let step = self.add(Action::Receive { from: before, span }, NEVER);
                after = step..step + 1;
            }
            if place + 1 < self.world {
                self.add(Action::Send { to: next, span }, after);
            }
        }
    }

    /// Everybody's whole input to everybody who reduces.
    fn reduce_at_once(&mut self, bytes: usize, root: Option<usize>) {
        let wanted = |rank: usize| root.is_none_or(|root| root == rank);
        let lane = bytes.next_multiple_of(LINE_BYTES);
        let first = self.next();
        for peer in self.peers() {
            let bytes = if wanted(peer) { bytes } else { 0 };
            self.add(Action::Send { to: peer, span: Span { place: Place::Input(0), start: 0, bytes } }, NEVER);
        }
        for peer in self.peers() {
            let (start, bytes) = if wanted(self.rank) { (peer * lane, bytes) } else { (0, 0) };
            let span = Span { place: Place::Scratch, start, bytes };
            self.add(Action::Receive { from: peer, span }, NEVER);
        }
        if wanted(self.rank) {
            let own = Span { place: Place::Input(0), start: 0, bytes };
            let into = Span { place: Place::Output(0), ..own };
            // Also after the sends: what they read may be what is written.
            let after = first..self.next();
            self.add(Action::Fold { lanes: 0, lane, own, into }, after);
            self.plan.scratch = lane * self.world;
        }
    }

    /// The longest message of a reduction that has so many lanes in scratch memory.
    fn message_of_reduction(&self) -> usize {
        let share = self.sizes.scratch / (SLOTS * self.world);
        share.clamp(SHORTEST.min(self.sizes.message), self.sizes.message)
    }

    /// Receives the values of all others for a round into its slot, and reduces them there.
    fn take_and_fold(&mut self, round: usize, lane: usize, own: Span, into: Span, folds: &mut Vec<usize>) {
        let slot = round % SLOTS * lane * self.world;
        let free = round.checked_sub(SLOTS).map_or(NEVER, |earlier| folds[earlier]..folds[earlier] + 1);
        let first = self.next();
        for peer in self.peers() {
            let span = Span { place: Place::Scratch, start: slot + peer * lane, bytes: own.bytes };
            if round == 0 || own.bytes > 0 {
                self.add(Action::Receive { from: peer, span }, free.clone());
            }
        }
        // A result that lies in the slot must be out before the next one is written over it.
        let start = if into.place == Place::Scratch && !free.is_empty() { free.start } else { first };
        let after = start..self.next();
        folds.push(self.add(Action::Fold { lanes: slot, lane, own, into }, after));
    }

    /// Every member reduces its segment of a round; while its result travels, the values of later rounds do.
    fn reduce_by_segments(&mut self, count: usize, element: usize, root: Option<usize>) {
        let (rank, world) = (self.rank, self.world);
        let lane =
            (self.message_of_reduction() / element).max(1).next_multiple_of(LINE_BYTES / element.min(LINE_BYTES));
        let cut = Cut::new(count, element, lane * element * world);
        let lane = lane * element;
        let piece = |round: usize, peer: usize, place: Place| {
            let range = cut.range(round);
            let part = segment(range.len(), element, world, peer);
            Span { place, start: (range.start + part.start) * element, bytes: part.len() * element }
        };
        let wanted = |peer: usize| root.is_none_or(|root| root == peer);
        let mut folds = Vec::with_capacity(cut.steps());
        for round in 0..cut.steps() + AHEAD {
            if round < cut.steps() {
                for peer in self.peers() {
                    let span = piece(round, peer, Place::Input(0));
                    if round == 0 || span.bytes > 0 {
                        self.add(Action::Send { to: peer, span }, NEVER);
                    }
                }
                let own = piece(round, rank, Place::Input(0));
                let own_slot = round % SLOTS * lane * world + rank * lane;
                let into = if wanted(rank) {
                    Span { place: Place::Output(0), ..own }
                } else {
                    Span { place: Place::Scratch, start: own_slot, bytes: own.bytes }
                };
                self.take_and_fold(round, lane, own, into, &mut folds);
            }
            let Some(round) = round.checked_sub(AHEAD) else { continue };
            self.results(folds[round], piece(round, rank, Place::Input(0)).bytes, &wanted);
            for peer in self.peers().filter(|_| wanted(rank)) {
                let span = piece(round, peer, Place::Output(0));
                if span.bytes > 0 {
                    self.add(Action::Receive { from: peer, span }, NEVER);
                }
            }
        }
        self.plan.scratch = SLOTS * lane * world;
    }

    /// The result of a round to all who want it.
    fn results(&mut self, fold: usize, bytes: usize, wanted: &impl Fn(usize) -> bool) {
        let Action::Fold { into, .. } = self.plan.steps[fold].action else { return };
        for peer in self.peers().filter(|peer| bytes > 0 && wanted(*peer)) {
            self.add(Action::Send { to: peer, span: into }, fold..fold + 1);
        }
    }

    fn reduce_scatter(&mut self, count: usize, element: usize) {
        let cut = Cut::new(count, element, self.message_of_reduction());
        let lane = (cut.range(0).len() * element).next_multiple_of(LINE_BYTES);
        let mut folds = Vec::with_capacity(cut.steps());
        for round in 0..cut.steps() {
            let range = cut.range(round);
            let part = |place: Place| Span { place, start: range.start * element, bytes: range.len() * element };
            for peer in self.peers() {
                self.add(Action::Send { to: peer, span: part(Place::Input(peer)) }, NEVER);
            }
            let own = part(Place::Input(self.rank));
            self.take_and_fold(round, lane, own, part(Place::Output(0)), &mut folds);
        }
        self.plan.scratch = SLOTS * lane * self.world;
    }
}
