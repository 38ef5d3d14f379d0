//! The operations as exchanges.
//!
//! | operation | exchanges of a step |
//! |---|---|
//! | all_reduce, small | the whole input to all; everybody reduces all of it |
//! | all_reduce, reduce | segment p of the input to rank p, which reduces it; the results to all, or to the root |
//! | reduce_scatter | part p to rank p, which reduces it |
//! | broadcast, all_gather, gather, scatter, all_to_all | straight to where it belongs |
//! | barrier | nothing, to all |
//!
//! Whoever reduces has the values of all ranks side by side and folds them in the order of ranks, as in shared memory.

use super::exchange::{Out, Progress, Room};
use super::{Engine, Watch};
use crate::dtype::{DataType, Reduction};
use crate::kernel;
use crate::operation::{Operation, Source, Target, hold_apart};
use crate::plan::{Cut, segment};

/// Up to so many bytes everybody reduces everything, in one exchange.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes of a step of a reduction, and of the memory it needs beside the buffers.
const STEP_BYTES: usize = 4 << 20;
/// The longest message where nothing is reduced.
const MESSAGE_BYTES: usize = 1 << 20;

// SAFETY (of every block below): ranges come from cuts of the sizes that `Operation::check` compared, whose memory the caller
// of `Engine::run` vouches for; scratch holds what is asked of it. An exchange is over when it returns, so what is sent in
// one may be written in the next.

/// Copies unless both are the same memory.
fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes > 0 && !std::ptr::eq(from, to) {
        // SAFETY: see the top of this file; operations that allow input and output to overlap otherwise hold them apart.
        unsafe { std::ptr::copy(from, to, bytes) };
    }
}

impl Engine {
    pub(super) fn perform(&mut self, operation: &Operation, watch: &Watch) -> Progress {
        let rank = self.rank;
        match operation {
            Operation::AllReduce { input, output, dtype, reduction } => {
                let reducing = Reducing { input: *input, output: Some(*output), dtype: *dtype, reduction: *reduction };
                self.reduce(&reducing, None, watch)
            }
            Operation::Reduce { input, output, dtype, reduction, root } => {
                let output = (root.0 == rank).then_some(*output);
                let reducing = Reducing { input: *input, output, dtype: *dtype, reduction: *reduction };
                self.reduce(&reducing, Some(root.0), watch)
            }
            Operation::ReduceScatter { inputs, output, dtype, reduction } => {
                self.reduce_scatter(inputs, *output, (*dtype, *reduction), watch)
            }
            Operation::Broadcast { buffer, root, .. } => {
                let source = (root.0 == rank).then(|| Source::new(buffer.pointer, buffer.bytes));
                let target = (root.0 != rank).then_some(*buffer);
                self.move_parts(buffer.bytes, |_| source, |peer| target.filter(|_| peer == root.0), watch)
            }
            Operation::AllGather { input, outputs, .. } => {
                self.move_parts(input.bytes, |_| Some(*input), |peer| Some(outputs[peer]), watch)?;
                copy(input.pointer, outputs[rank].pointer, input.bytes);
                Ok(())
            }
            Operation::Gather { input, outputs, root, .. } => {
                let is_root = root.0 == rank;
                let to_root = |peer: usize| (peer == root.0).then_some(*input);
                self.move_parts(input.bytes, to_root, |peer| is_root.then(|| outputs[peer]), watch)?;
                if is_root {
                    copy(input.pointer, outputs[rank].pointer, input.bytes);
                }
                Ok(())
            }
            Operation::Scatter { inputs, output, root, .. } => {
                let is_root = root.0 == rank;
                let from_root = |peer: usize| (peer == root.0).then_some(*output);
                self.move_parts(output.bytes, |peer| is_root.then(|| inputs[peer]), from_root, watch)?;
                if is_root {
                    self.touched = true;
                    copy(inputs[rank].pointer, output.pointer, output.bytes);
                }
                Ok(())
            }
            Operation::AllToAll { inputs, outputs, .. } => self.all_to_all(inputs, outputs, watch),
            // SAFETY: nothing is moved.
            Operation::Barrier => unsafe { self.exchange(0, |_| Some(Out::NOTHING), |_| Some(Room::NOTHING), watch) },
        }
    }

    /// Moves buffers of one size to and from where they belong; `source` and `target` say what goes to and comes from whom.
    fn move_parts(
        &mut self,
        bytes: usize,
        source: impl Fn(usize) -> Option<Source>,
        target: impl Fn(usize) -> Option<Target>,
        watch: &Watch,
    ) -> Progress {
        let cut = Cut::new(bytes, 1, MESSAGE_BYTES);
        for step in 0..cut.steps() {
            let range = cut.range(step);
            // In the first exchange everybody hears from everybody.
            let nothing = (step == 0).then_some(Out::NOTHING);
            let no_room = (step == 0).then_some(Room::NOTHING);
            let out = |peer: usize| {
                source(peer).map(|part| Out::new(part.pointer.wrapping_add(range.start), range.len())).or(nothing)
            };
            let into = |peer: usize| {
                target(peer).map(|part| Room::output(part.pointer.wrapping_add(range.start), range.len())).or(no_room)
            };
            // SAFETY: see the top of this file.
            unsafe { self.exchange(step as u64, out, into, watch) }?;
        }
        Ok(())
    }

    fn all_to_all(&mut self, inputs: &[Source], outputs: &[Target], watch: &Watch) -> Progress {
        // What overlaps is sent from a copy: it may be written over before it is all out.
        let held = hold_apart(inputs, outputs);
        let inputs = held.as_ref().map_or(inputs, |(_, sources)| sources);
        let parts = |bytes: usize| Cut::new(bytes, 1, MESSAGE_BYTES);
        let own = inputs.iter().map(|input| input.bytes).chain(outputs.iter().map(|output| output.bytes));
        let steps = own.map(|bytes| parts(bytes).steps()).max().unwrap_or(1);
        for step in 0..steps {
            let out = |peer: usize| {
                let Source { pointer, bytes } = inputs[peer];
                let range = parts(bytes).range(step);
                let out = Out { pointer: pointer.wrapping_add(range.start), length: range.len(), total: bytes };
                (step < parts(bytes).steps()).then_some(out)
            };
            let into = |peer: usize| {
                let Target { pointer, bytes } = outputs[peer];
                let range = parts(bytes).range(step);
                let pointer = pointer.wrapping_add(range.start);
                let room = Room { pointer, length: range.len(), total: bytes, output: true };
                (step < parts(bytes).steps()).then_some(room)
            };
            // SAFETY: see the top of this file.
            unsafe { self.exchange(step as u64, out, into, watch) }?;
        }
        self.touched = true;
        copy(inputs[self.rank].pointer, outputs[self.rank].pointer, outputs[self.rank].bytes);
        Ok(())
    }

    /// Room for `lane` bytes of every rank; they start apart on cache lines.
    fn lanes(&mut self, lane: usize) -> Lanes {
        let lane = lane.next_multiple_of(64);
        let needed = lane * self.world();
        if self.scratch.len() < needed {
            self.scratch.resize(needed, 0);
        }
        Lanes { start: self.scratch.as_mut_ptr(), lane }
    }

    /// Reduces `count` elements of all ranks, which lie in their lanes, and this rank's at `own`, into `to`.
    fn fold(
        &self,
        lanes: &Lanes,
        own: *const u8,
        to: *mut u8,
        count: usize,
        (dtype, reduction): (DataType, Reduction),
    ) {
        let place = |rank: usize| if rank == self.rank { own } else { lanes.of(rank).cast_const() };
        let inputs: Vec<*const u8> = (0..self.world()).map(place).collect();
        // SAFETY: see the top of this file.
        unsafe { kernel::reduce(dtype, reduction, &inputs, &[to], count) };
    }

    /// all_reduce, or reduce to a root.
    fn reduce(&mut self, reducing: &Reducing, root: Option<usize>, watch: &Watch) -> Progress {
        if reducing.input.bytes <= SMALL_BYTES {
            self.reduce_at_once(reducing, root, watch)
        } else {
            self.reduce_by_segments(reducing, root, watch)
        }
    }

    fn reduce_at_once(&mut self, reducing: &Reducing, root: Option<usize>, watch: &Watch) -> Progress {
        let &Reducing { input, output, dtype, reduction } = reducing;
        let lanes = self.lanes(input.bytes);
        let out = |peer: usize| {
            let wanted = root.is_none_or(|root| root == peer);
            Some(if wanted { Out::new(input.pointer, input.bytes) } else { Out::NOTHING })
        };
        let into = |peer: usize| {
            Some(if output.is_some() { Room::scratch(lanes.of(peer), input.bytes) } else { Room::NOTHING })
        };
        // SAFETY: see the top of this file.
        unsafe { self.exchange(0, out, into, watch) }?;
        if let Some(output) = output {
            self.touched = true;
            self.fold(&lanes, input.pointer, output.pointer, input.bytes / dtype.size(), (dtype, reduction));
        }
        Ok(())
    }

    fn reduce_by_segments(&mut self, reducing: &Reducing, root: Option<usize>, watch: &Watch) -> Progress {
        let &Reducing { input, output, dtype, reduction } = reducing;
        let (rank, world, size) = (self.rank, self.world(), dtype.size());
        let cut = Cut::new(input.bytes / size, size, STEP_BYTES);
        for step in 0..cut.steps() {
            let range = cut.range(step);
            // Where the segment of a rank starts, and its length, in bytes.
            let piece = |peer: usize| {
                let part = segment(range.len(), size, world, peer);
                ((range.start + part.start) * size, part.len() * size)
            };
            let (start, length) = piece(rank);
            let lanes = self.lanes(length);
            let first = step == 0;
            let out = |peer: usize| {
                let (start, length) = piece(peer);
                (first || length > 0).then(|| Out::new(input.pointer.wrapping_add(start), length))
            };
            let into = |peer: usize| (first || length > 0).then(|| Room::scratch(lanes.of(peer), length));
            // SAFETY: see the top of this file.
            unsafe { self.exchange(2 * step as u64, out, into, watch) }?;
            let result = output.map_or(lanes.of(rank), |output| output.pointer.wrapping_add(start));
            self.touched |= output.is_some();
            self.fold(&lanes, input.pointer.wrapping_add(start), result, length / size, (dtype, reduction));
            let out = |peer: usize| {
                let wanted = length > 0 && root.is_none_or(|root| root == peer);
                wanted.then(|| Out::new(result, length))
            };
            let into = |peer: usize| {
                let (start, length) = piece(peer);
                output.filter(|_| length > 0).map(|output| Room::output(output.pointer.wrapping_add(start), length))
            };
            // SAFETY: see the top of this file.
            unsafe { self.exchange(2 * step as u64 + 1, out, into, watch) }?;
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        inputs: &[Source],
        output: Target,
        (dtype, reduction): (DataType, Reduction),
        watch: &Watch,
    ) -> Progress {
        let (rank, size) = (self.rank, dtype.size());
        let cut = Cut::new(output.bytes / size, size, STEP_BYTES / self.world());
        for step in 0..cut.steps() {
            let range = cut.range(step);
            let (start, length) = (range.start * size, range.len() * size);
            let lanes = self.lanes(length);
            let out = |peer: usize| Some(Out::new(inputs[peer].pointer.wrapping_add(start), length));
            let into = |peer: usize| Some(Room::scratch(lanes.of(peer), length));
            // SAFETY: see the top of this file.
            unsafe { self.exchange(step as u64, out, into, watch) }?;
            self.touched = true;
            let own = inputs[rank].pointer.wrapping_add(start);
            self.fold(&lanes, own, output.pointer.wrapping_add(start), range.len(), (dtype, reduction));
        }
        Ok(())
    }
}

/// all_reduce and reduce.
struct Reducing {
    input: Source,
    /// None where the result is not wanted.
    output: Option<Target>,
    dtype: DataType,
    reduction: Reduction,
}

/// One rank's values beside the other's.
struct Lanes {
    start: *mut u8,
    lane: usize,
}

impl Lanes {
    fn of(&self, rank: usize) -> *mut u8 {
        self.start.wrapping_add(rank * self.lane)
    }
}
