//! The schedule of each collective.

use std::ops::Range;

use super::{Buffer, Collective, Primitive, Schedule, Span, Step, Thresholds};
use crate::partition::{Cut, segment};

/// Rounds of a reduction whose values are under way while the results of an earlier one come back.
const AHEAD: usize = 2;
/// Rounds that have room for the values of all members at the same time.
const SLOTS: usize = AHEAD + 1;
/// Contributions start apart on cache lines.
const LINE_BYTES: usize = 64;
/// The shortest message that a lack of scratch memory leads to.
const SHORTEST: usize = 4 << 10;

/// No earlier step has to be done first.
const NOTHING_BEFORE: Range<usize> = 0..0;

/// What this member does for a task that all of them have.
pub(crate) fn schedule(collective: &Collective, world: usize, rank: usize, sizes: &Thresholds) -> Schedule {
    let mut builder = Builder { world, rank, sizes: *sizes, schedule: Schedule::default() };
    match *collective {
        Collective::AllReduce { count, element } if count * element <= sizes.small => {
            builder.reduce_at_once(count * element, None)
        }
        Collective::AllReduce { count, element } => builder.reduce_by_segments(count, element, None),
        Collective::Reduce { count, element, root } if count * element <= sizes.small => {
            builder.reduce_at_once(count * element, Some(root));
        }
        Collective::Reduce { count, element, root } => builder.reduce_by_segments(count, element, Some(root)),
        Collective::ReduceScatter { count, element } => builder.reduce_scatter(count, element),
        Collective::Broadcast { bytes, root } if bytes <= sizes.direct || world <= 2 => {
            builder.direct(|from, to| if from == root && to != root { bytes } else { 0 });
        }
        Collective::Broadcast { bytes, root } => builder.chain(bytes, root),
        Collective::AllGather { bytes } => {
            builder.direct(|_, _| bytes);
            builder.keep_own(bytes);
        }
        Collective::Gather { bytes, root } => {
            builder.direct(|_, to| if to == root { bytes } else { 0 });
            if rank == root {
                builder.keep_own(bytes);
            }
        }
        Collective::Scatter { bytes, root } => {
            builder.direct(|from, _| if from == root { bytes } else { 0 });
            if rank == root {
                builder.keep_own(bytes);
            }
        }
        Collective::AllToAll { ref sends, ref expects, with_all } => {
            let bytes = |from: usize, to: usize| if from == rank { sends[to] } else { expects[from] };
            builder.messages(bytes, usize::from(with_all));
            builder.keep_own(sends[rank].min(expects[rank]));
        }
        Collective::Barrier => builder.direct(|_, _| 0),
    }
    builder.schedule
}

struct Builder {
    world: usize,
    rank: usize,
    sizes: Thresholds,
    schedule: Schedule,
}

impl Builder {
    fn add(&mut self, primitive: Primitive, after: Range<usize>) -> usize {
        self.schedule.steps.push(Step { primitive, after });
        self.schedule.steps.len() - 1
    }

    fn next(&self) -> usize {
        self.schedule.steps.len()
    }

    /// The others, starting after this one so that not all send to the same.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |distance| (rank + distance) % world)
    }

    /// The result of this member's own values, where nothing travels.
    fn keep_own(&mut self, bytes: usize) {
        let from = Span { buffer: Buffer::Input(self.rank), start: 0, bytes };
        self.add(Primitive::Copy { from, into: Span { buffer: Buffer::Output(self.rank), ..from } }, NOTHING_BEFORE);
    }

    /// So many bytes from each member to each other, out of its input for that one into the output for this one.
    fn direct(&mut self, bytes: impl Fn(usize, usize) -> usize) {
        self.messages(bytes, 1);
    }

    /// As [`Builder::direct`], in at least so many messages: one or none where there are no bytes.
    fn messages(&mut self, bytes: impl Fn(usize, usize) -> usize, least: usize) {
        let (rank, message) = (self.rank, self.sizes.message);
        let cut = |from: usize, to: usize| {
            let bytes = bytes(from, to);
            let cut = Cut::new(bytes, 1, message);
            (cut, if bytes == 0 { least } else { cut.steps() })
        };
        let pair = |peer: usize| [cut(rank, peer), cut(peer, rank)];
        let rounds = self.peers().flat_map(pair).map(|(_, steps)| steps).max().unwrap_or(0);
        for round in 0..rounds {
            for peer in self.peers() {
                let span = |buffer: Buffer, cut: Cut| {
                    let range = cut.range(round);
                    Span { buffer, start: range.start, bytes: range.len() }
                };
                let [(out, out_steps), (into, into_steps)] = pair(peer);
                if round < out_steps {
                    self.add(Primitive::Send { to: peer, span: span(Buffer::Input(peer), out) }, NOTHING_BEFORE);
                }
                if round < into_steps {
                    self.add(Primitive::Receive { from: peer, span: span(Buffer::Output(peer), into) }, NOTHING_BEFORE);
                }
            }
        }
    }

    /// Empty messages between all, so that everybody hears from everybody.
    fn exchange_empty(&mut self) {
        self.direct(|_, _| 0);
    }

    /// From the root to the next member, and so on, piece by piece.
    fn chain(&mut self, bytes: usize, root: usize) {
        self.exchange_empty();
        let relative = (self.rank + self.world - root) % self.world;
        let (before, next) = ((self.rank + self.world - 1) % self.world, (self.rank + 1) % self.world);
        let cut = Cut::new(bytes, 1, self.sizes.message);
        for round in 0..cut.steps() {
            let range = cut.range(round);
            let span = Span { buffer: Buffer::Output(root), start: range.start, bytes: range.len() };
            let mut after = NOTHING_BEFORE;
            if relative > 0 {
                let step = self.add(Primitive::Receive { from: before, span }, NOTHING_BEFORE);
                after = step..step + 1;
            }
            if relative + 1 < self.world {
                self.add(Primitive::Send { to: next, span }, after);
            }
        }
    }

    /// Everybody's whole input to everybody who reduces.
    fn reduce_at_once(&mut self, bytes: usize, root: Option<usize>) {
        let wanted = |rank: usize| root.is_none_or(|root| root == rank);
        let stride = bytes.next_multiple_of(LINE_BYTES);
        let first = self.next();
        for peer in self.peers() {
            let bytes = if wanted(peer) { bytes } else { 0 };
            self.add(
                Primitive::Send { to: peer, span: Span { buffer: Buffer::Input(0), start: 0, bytes } },
                NOTHING_BEFORE,
            );
        }
        for peer in self.peers() {
            let (start, bytes) = if wanted(self.rank) { (peer * stride, bytes) } else { (0, 0) };
            let span = Span { buffer: Buffer::Scratch, start, bytes };
            self.add(Primitive::Receive { from: peer, span }, NOTHING_BEFORE);
        }
        if wanted(self.rank) {
            let own = Span { buffer: Buffer::Input(0), start: 0, bytes };
            let into = Span { buffer: Buffer::Output(0), ..own };
            // Also after the sends: what they read may be what is written.
            let after = first..self.next();
            self.add(Primitive::Fold { base: 0, stride, own, into }, after);
            self.schedule.scratch = stride * self.world;
        }
    }

    /// The longest message of a reduction that has so many contributions in scratch memory.
    fn message_of_reduction(&self) -> usize {
        let share = self.sizes.scratch / (SLOTS * self.world);
        share.clamp(SHORTEST.min(self.sizes.message), self.sizes.message)
    }

    /// Receives the values of all others for a round into its slot, and reduces them there.
    fn take_and_fold(&mut self, round: usize, stride: usize, own: Span, into: Span, folds: &mut Vec<usize>) {
        let slot = round % SLOTS * stride * self.world;
        let free = round.checked_sub(SLOTS).map_or(NOTHING_BEFORE, |earlier| folds[earlier]..folds[earlier] + 1);
        let first = self.next();
        for peer in self.peers() {
            let span = Span { buffer: Buffer::Scratch, start: slot + peer * stride, bytes: own.bytes };
            if round == 0 || own.bytes > 0 {
                self.add(Primitive::Receive { from: peer, span }, free.clone());
            }
        }
        // A result that lies in the slot must be out before the next one is written over it.
        let start = if into.buffer == Buffer::Scratch && !free.is_empty() { free.start } else { first };
        let after = start..self.next();
        folds.push(self.add(Primitive::Fold { base: slot, stride, own, into }, after));
    }

    /// Every member reduces its segment of a round; while its result travels, the values of later rounds do.
    fn reduce_by_segments(&mut self, count: usize, element: usize, root: Option<usize>) {
        let (rank, world) = (self.rank, self.world);
        let stride =
            (self.message_of_reduction() / element).max(1).next_multiple_of(LINE_BYTES / element.min(LINE_BYTES));
        let cut = Cut::new(count, element, stride * element * world);
        let stride = stride * element;
        let piece = |round: usize, peer: usize, buffer: Buffer| {
            let range = cut.range(round);
            let part = segment(range.len(), element, world, peer);
            Span { buffer, start: (range.start + part.start) * element, bytes: part.len() * element }
        };
        let wanted = |peer: usize| root.is_none_or(|root| root == peer);
        let mut folds = Vec::with_capacity(cut.steps());
        for round in 0..cut.steps() + AHEAD {
            if round < cut.steps() {
                for peer in self.peers() {
                    let span = piece(round, peer, Buffer::Input(0));
                    if round == 0 || span.bytes > 0 {
                        self.add(Primitive::Send { to: peer, span }, NOTHING_BEFORE);
                    }
                }
                let own = piece(round, rank, Buffer::Input(0));
                let own_slot = round % SLOTS * stride * world + rank * stride;
                let into = if wanted(rank) {
                    Span { buffer: Buffer::Output(0), ..own }
                } else {
                    Span { buffer: Buffer::Scratch, start: own_slot, bytes: own.bytes }
                };
                self.take_and_fold(round, stride, own, into, &mut folds);
            }
            let Some(round) = round.checked_sub(AHEAD) else { continue };
            self.results(folds[round], piece(round, rank, Buffer::Input(0)).bytes, &wanted);
            for peer in self.peers().filter(|_| wanted(rank)) {
                let span = piece(round, peer, Buffer::Output(0));
                if span.bytes > 0 {
                    self.add(Primitive::Receive { from: peer, span }, NOTHING_BEFORE);
                }
            }
        }
        self.schedule.scratch = SLOTS * stride * world;
    }

    /// The result of a round to all who want it.
    fn results(&mut self, fold: usize, bytes: usize, wanted: &impl Fn(usize) -> bool) {
        let Primitive::Fold { into, .. } = self.schedule.steps[fold].primitive else { return };
        for peer in self.peers().filter(|peer| bytes > 0 && wanted(*peer)) {
            self.add(Primitive::Send { to: peer, span: into }, fold..fold + 1);
        }
    }

    fn reduce_scatter(&mut self, count: usize, element: usize) {
        let cut = Cut::new(count, element, self.message_of_reduction());
        let stride = (cut.range(0).len() * element).next_multiple_of(LINE_BYTES);
        let mut folds = Vec::with_capacity(cut.steps());
        for round in 0..cut.steps() {
            let range = cut.range(round);
            let part = |buffer: Buffer| Span { buffer, start: range.start * element, bytes: range.len() * element };
            for peer in self.peers() {
                self.add(Primitive::Send { to: peer, span: part(Buffer::Input(peer)) }, NOTHING_BEFORE);
            }
            let own = part(Buffer::Input(self.rank));
            self.take_and_fold(round, stride, own, part(Buffer::Output(0)), &mut folds);
        }
        self.schedule.scratch = SLOTS * stride * self.world;
    }
}
